//! The qwen3_5 family: Gated DeltaNet or gated attention, and a gated MLP, in every layer.

use arith::rope::Pairing;
use backend::Backend;
use weights::config::{Mixer, Qwen35};

use super::attention::Attention;
use super::division::Division;
use super::loader::Loader;
use super::mlp::Mlp;
use super::recurrent::Recurrent;
use super::shape::Shape;
use super::trunk::{self, Block};
use crate::StageError;

/// What a qwen3_5 needs.
pub(super) fn shape(config: &Qwen35) -> Shape {
    Shape {
        mixers: config.mixers.clone(),
        hidden: config.hidden,
        intermediate: config.intermediate,
        vocab: config.vocab,
        heads: config.heads,
        gated: true,
        gdn: Some(config.gdn),
        eps: config.eps,
        theta: config.theta,
        rope_dims: config.rope_dims,
        pairing: Pairing::Halves,
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
        mixer: match division.whole.mixers[layer as usize] {
            Mixer::Attention => trunk::Mixer::Attention(Attention::load(loader, division, layer)?),
            Mixer::Recurrent => trunk::Mixer::Recurrent(Recurrent::load(loader, division, layer)?),
        },
        mlp: Mlp::load(loader, division, layer, "post_attention_norm")?,
    })
}

/// Loads the draft head's block.
pub(super) fn attention_block<B: Backend>(
    loader: &mut Loader<'_, B>,
    division: &Division,
    layer: u32,
) -> Result<Block<B>, StageError> {
    Ok(Block {
        mixer: trunk::Mixer::Attention(Attention::load(loader, division, layer)?),
        mlp: Mlp::load(loader, division, layer, "post_attention_norm")?,
    })
}
