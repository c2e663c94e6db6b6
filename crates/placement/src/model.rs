//! What a model weighs, layer by layer.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// What a layer mixes rows with; layers of a kind take the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Attention over cached keys and values.
    Attention,
    /// A recurrent state.
    Recurrent,
}

/// One layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Its mixer.
    pub kind: Kind,
    /// Its weights as a device holds them.
    pub weight_bytes: u64,
}

/// What a placement needs to know of a model. Widths are values, sizes bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// In order.
    pub layers: Vec<Layer>,
    /// Embeddings, final norm and head: rank 0's.
    pub ends_bytes: u64,
    /// A draft head on rank 0; 0 without one.
    pub drafter_bytes: u64,
    /// Width of a boundary row.
    pub hidden: u64,
    /// Width of attention's output.
    pub attention_width: u64,
    /// Width of the MLP.
    pub intermediate: u64,
    /// Keys and values of a token in one attention layer.
    pub kv_bytes: u64,
    /// State of a stream in one recurrent layer.
    pub state_bytes: u64,
    /// Buffers of ops, for each row of a round.
    pub row_bytes: u64,
    /// Rows that those buffers hold at most; longer rounds run in pieces.
    pub rows_max: u32,
    /// Buffers of a prompt's second half on a member of a group; 0 where prompts go alone.
    pub twin_bytes: u64,
}

impl Model {
    /// Layers of attention and recurrent layers among `layers`.
    pub fn count(&self, layers: Range<usize>) -> [u64; 2] {
        let attention = |layer: &&Layer| layer.kind == Kind::Attention;
        let all = layers.len() as u64;
        let first = self.layers[layers].iter().filter(attention).count() as u64;
        [first, all - first]
    }

    /// Weights of `layers`.
    pub fn weight_bytes(&self, layers: Range<usize>) -> u64 {
        self.layers[layers].iter().map(|layer| layer.weight_bytes).sum()
    }
}
