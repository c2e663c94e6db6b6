//! What a placement is for.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{Node, PlacementError};

/// What counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Objective {
    /// One stream's tokens a second.
    #[default]
    Decode,
    /// Time to the first token of a prompt.
    Prompt,
    /// All streams' tokens a second.
    Throughput,
}

/// What is asked of a placement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// What counts.
    pub objective: Objective,
    /// Tokens that each stream may hold.
    pub context: u32,
    /// Streams at once.
    pub streams: u32,
    /// Tokens of the prompt that [`Objective::Prompt`] is about.
    pub prompt: u32,
    /// Rows of a prompt's chunk, at most.
    pub chunk_rows: u32,
    /// The node that must hold rank 0, by index: where the endpoint is.
    pub head: Option<usize>,
    /// Nodes that must hold layers.
    pub pinned: Vec<usize>,
    /// Nodes that must hold none.
    pub excluded: Vec<usize>,
    /// Whether alike nodes may share a layer.
    pub groups: bool,
}

impl Default for Ask {
    fn default() -> Self {
        Self {
            objective: Objective::Decode,
            context: 8_192,
            streams: 4,
            prompt: 8_192,
            chunk_rows: 512,
            head: None,
            pinned: Vec::new(),
            excluded: Vec::new(),
            groups: false,
        }
    }
}

impl Ask {
    /// Whether node `index` may hold layers.
    pub(crate) fn allows(&self, index: usize) -> bool {
        !self.excluded.contains(&index)
    }
}

/// The index of the node of that name.
///
/// # Errors
/// `UnknownNode`.
pub fn named(nodes: &[Node], name: &str) -> Result<usize, PlacementError> {
    nodes.iter().position(|node| node.name == name).ok_or_else(|| PlacementError::UnknownNode {
        name: name.to_owned(),
        known: nodes.iter().map(|node| &*node.name).collect::<Vec<_>>().join(", "),
    })
}

/// Reads `a:0-9,b:10-35`: which node holds which layers, both ends included.
pub(crate) fn ranges(text: &str) -> Option<Vec<(&str, Range<usize>)>> {
    let one = |part| {
        let (name, range): (&str, &str) = str::rsplit_once(part, ':')?;
        let (first, last) = range.split_once('-')?;
        let last: usize = last.trim().parse().ok()?;
        Some((name.trim(), first.trim().parse().ok()?..last.checked_add(1)?))
    };
    text.split(',').map(one).collect()
}
