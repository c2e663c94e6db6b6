//! The llama family: plain attention and a gated MLP in every layer.

use backend::Backend;
use weights::config::{Llama, Mixer};

use super::attention::Attention;
use super::division::Division;
use super::loader::Loader;
use super::mlp::Mlp;
use super::shape::Shape;
use super::trunk::{self, Block};
use crate::StageError;

/// What a llama needs.
pub(super) fn shape(config: &Llama) -> Shape {
    Shape {
        mixers: vec![Mixer::Attention; config.layers as usize],
        hidden: config.hidden,
        intermediate: config.intermediate,
        vocab: config.vocab,
        heads: config.heads,
        gated: false,
        gdn: None,
        eps: config.eps,
        theta: config.theta,
        rope_dims: config.rope_dims,
        pairing: config.pairing,
        tied: config.tied,
    }
}

/// Loads one layer.
pub(super) fn block<B: Backend>(
    loader: &mut Loader<'_, B>,
    division: &Division,
    layer: u32,
) -> Result<Block<B>, StageError> {
    Ok(Block {
        mixer: trunk::Mixer::Attention(Attention::load(loader, division, layer)?),
        mlp: Mlp::load(loader, division, layer, "ffn_norm")?,
    })
}
