//! How the projections of a model meet the other members, as a plan shows it.

use std::fmt;

use weights::Config;
use weights::config::Mixer;

use super::division::Division;
use super::{Part, shape};
use crate::StageError;

/// How the projection that ends a block is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// Every member computes all of it.
    Whole,
    /// Whole groups of K each, whose nodes are gathered and added in the tree's order.
    Nodes,
    /// Some outputs each, over the whole K: input and outputs are gathered.
    Outputs,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Whole => "whole",
            Self::Nodes => "nodes",
            Self::Outputs => "outputs",
        })
    }
}

/// What a member's exchanges come to, in f32 values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Gathers, whatever the rows.
    pub exchanges: usize,
    /// Values that it gives, those to each other member counted, a row.
    pub sent: usize,
    /// Values that it takes, a row.
    pub taken: usize,
}

impl std::ops::Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            exchanges: self.exchanges + other.exchanges,
            sent: self.sent + other.sent,
            taken: self.taken + other.taken,
        }
    }
}

/// How one kind of projection is divided, and what that costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// GGUF's name of its matrices, without the layer.
    pub projection: &'static str,
    /// How many the part has.
    pub layers: usize,
    /// Its way.
    pub way: Way,
    /// What one of them costs this member.
    pub traffic: Traffic,
}

/// `ffn_down: nodes, 64 layers, 1 exchanges, 20480 bytes a row sent, 20480 taken`.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { projection, layers, way, traffic: Traffic { exchanges, sent, taken } } = *self;
        let (sent, taken) = (4 * sent, 4 * taken);
        write!(
            f,
            "{projection}: {way}, {layers} layers, {exchanges} exchanges, {sent} bytes a row sent, \
             {taken} taken"
        )
    }
}

/// How a part of a model meets the other members: the projections that end a block, and the head.
///
/// # Errors
/// [`StageError::OtherFamily`].
pub fn choices(config: &Config, part: &Part) -> Result<Vec<Choice>, StageError> {
    let division = Division::new(shape(config)?, part.share);
    let [attention, recurrent] =
        [Mixer::Attention, Mixer::Recurrent].map(|mixer| division.whole.count(part, mixer));
    let head = if division.vocab.is_divided() { Way::Outputs } else { Way::Whole };
    let [o, out, down, output] = division.traffic();
    let all = [
        ("attn_output", attention, division.o.way, o),
        ("ssm_out", recurrent, division.out.way, out),
        ("ffn_down", attention + recurrent, division.down.way, down),
        ("output", usize::from(part.ends), head, output),
    ];
    let all = all.into_iter().filter(|(_, layers, ..)| *layers > 0);
    Ok(all
        .map(|(projection, layers, way, traffic)| Choice { projection, layers, way, traffic })
        .collect())
}
