//! What a checkpoint says of its model: the shapes that a layer program needs.

use arith::attention::Heads;
use arith::rope::Pairing;

/// A model's config, by family.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Config {
    /// Llama, SmolLM2, Mistral-style.
    Llama(Llama),
}

/// The llama family: every layer full attention and a gated MLP.
#[derive(Clone, Debug, PartialEq)]
pub struct Llama {
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Attention heads.
    pub heads: Heads,
    /// RMSNorm epsilon.
    pub eps: f32,
    /// RoPE base.
    pub theta: f64,
    /// Rotated dims a head, R.
    pub rope_dims: usize,
    /// Which dims rotate together in these weights.
    pub pairing: Pairing,
    /// Longest context that the model was made for.
    pub context_max: u32,
    /// Whether the head is the embedding table.
    pub tied: bool,
}

impl Config {
    /// The family's name in files and in the fingerprint.
    pub fn family(&self) -> &'static str {
        match self {
            Self::Llama(_) => "llama",
        }
    }
    /// Layers of the trunk.
    pub fn layers(&self) -> u32 {
        match self {
            Self::Llama(c) => c.layers,
        }
    }
    /// Width of a boundary row.
    pub fn hidden(&self) -> usize {
        match self {
            Self::Llama(c) => c.hidden,
        }
    }
    /// Tokens of the vocabulary.
    pub fn vocab(&self) -> usize {
        match self {
            Self::Llama(c) => c.vocab,
        }
    }
    /// Longest context that the model was made for.
    pub fn context_max(&self) -> u32 {
        match self {
            Self::Llama(c) => c.context_max,
        }
    }
}
