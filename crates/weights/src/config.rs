//! What a checkpoint says of its model: the shapes that a layer program needs.

use arith::attention::Heads;
use arith::gdn::Gdn;
use arith::rope::Pairing;

/// The most of each count: shapes that a machine could hold, and products that stay countable.
pub(crate) mod limits {
    pub const LAYERS_MAX: u32 = 1_024;
    pub const WIDTH_MAX: u32 = 1 << 18;
    pub const HEADS_MAX: u32 = 1_024;
    pub const HEAD_DIM_MAX: u32 = 1_024;
    pub const CONTEXT_MAX: u32 = 1 << 28;
    pub const VOCAB_MAX: u32 = 4 << 20;
    pub const THETA_MAX: f64 = 1e12;
    /// Taps of a recurrent layer's convolution.
    pub const TAPS_MAX: u32 = 16;
}

/// A model's config, by family.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Config {
    /// Llama, SmolLM2, Mistral-style.
    Llama(Llama),
    /// Qwen3.5 and its like: Gated DeltaNet with gated attention every few layers.
    Qwen35(Qwen35),
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

/// The qwen3_5 family: Gated DeltaNet or gated attention, and a gated MLP, in every layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Qwen35 {
    /// What each layer of the trunk mixes rows with.
    pub mixers: Vec<Mixer>,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Attention heads.
    pub heads: Heads,
    /// Shape of the recurrent layers.
    pub gdn: Gdn,
    /// RMSNorm epsilon.
    pub eps: f32,
    /// RoPE base.
    pub theta: f64,
    /// Rotated dims a head, R; pairs are halves of them.
    pub rope_dims: usize,
    /// Longest context that the model was made for.
    pub context_max: u32,
    /// Whether the head is the embedding table.
    pub tied: bool,
    /// Whether a draft head (MTP) follows the trunk, as the layer after its last.
    pub mtp: bool,
}

/// What a layer mixes rows with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// Gated attention, over cached keys and values.
    Attention,
    /// Gated DeltaNet, with a recurrent state.
    Recurrent,
}

impl Config {
    /// The family's name in files and in the fingerprint.
    pub fn family(&self) -> &'static str {
        match self {
            Self::Llama(_) => "llama",
            Self::Qwen35(_) => "qwen3_5",
        }
    }
    /// Layers of the trunk.
    pub fn layers(&self) -> u32 {
        match self {
            Self::Llama(c) => c.layers,
            Self::Qwen35(c) => u32::try_from(c.mixers.len()).unwrap_or(u32::MAX),
        }
    }
    /// Width of a boundary row.
    pub fn hidden(&self) -> usize {
        match self {
            Self::Llama(c) => c.hidden,
            Self::Qwen35(c) => c.hidden,
        }
    }
    /// Tokens of the vocabulary.
    pub fn vocab(&self) -> usize {
        match self {
            Self::Llama(c) => c.vocab,
            Self::Qwen35(c) => c.vocab,
        }
    }
    /// Longest context that the model was made for.
    pub fn context_max(&self) -> u32 {
        match self {
            Self::Llama(c) => c.context_max,
            Self::Qwen35(c) => c.context_max,
        }
    }
    /// Attention heads.
    pub fn heads(&self) -> Heads {
        match self {
            Self::Llama(c) => c.heads,
            Self::Qwen35(c) => c.heads,
        }
    }
    /// Width of the MLP.
    pub fn intermediate(&self) -> usize {
        match self {
            Self::Llama(c) => c.intermediate,
            Self::Qwen35(c) => c.intermediate,
        }
    }
    /// Rotated dims of a head.
    pub fn rope_dims(&self) -> usize {
        match self {
            Self::Llama(c) => c.rope_dims,
            Self::Qwen35(c) => c.rope_dims,
        }
    }
    /// Whether the head is the embedding table.
    pub fn tied(&self) -> bool {
        match self {
            Self::Llama(c) => c.tied,
            Self::Qwen35(c) => c.tied,
        }
    }
    /// Whether a draft head follows the trunk.
    pub fn mtp(&self) -> bool {
        match self {
            Self::Llama(_) => false,
            Self::Qwen35(c) => c.mtp,
        }
    }
    /// Shape of the recurrent layers, where the family has them.
    pub fn gdn(&self) -> Option<&Gdn> {
        match self {
            Self::Llama(_) => None,
            Self::Qwen35(c) => Some(&c.gdn),
        }
    }
    /// Layers of the trunk that are recurrent; the others are of attention.
    pub fn recurrent_layers(&self) -> u32 {
        match self {
            Self::Llama(_) => 0,
            Self::Qwen35(c) => c.mixers.iter().filter(|m| **m == Mixer::Recurrent).count() as u32,
        }
    }
    /// Keys and values that a token leaves in all layers of the trunk.
    pub fn kv_values(&self) -> usize {
        let heads = self.heads();
        (self.layers() - self.recurrent_layers()) as usize * 2 * heads.kv * heads.dim
    }
    /// Values of a stream's recurrent state in all layers of the trunk: S and the convolution's
    /// tail.
    pub fn state_values(&self) -> usize {
        let layer = self.gdn().map_or(0, |gdn| gdn.state_values() + gdn.tail_values());
        self.recurrent_layers() as usize * layer
    }
    /// Every value of the config by name: what ranks must share, one by one, so that a difference
    /// is seen where it is.
    pub fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = vec![("family", self.family().to_owned())];
        fields.extend(match self {
            Self::Llama(c) => c.fields(),
            Self::Qwen35(c) => c.fields(),
        });
        fields
    }
}

// Taken apart, so that a new value can't be left out.
impl Llama {
    fn fields(&self) -> Vec<(&'static str, String)> {
        let Self {
            layers,
            hidden,
            intermediate,
            vocab,
            heads,
            eps,
            theta,
            rope_dims,
            pairing,
            context_max,
            tied,
        } = self;
        vec![
            ("layers", layers.to_string()),
            ("hidden", hidden.to_string()),
            ("intermediate", intermediate.to_string()),
            ("vocab", vocab.to_string()),
            ("heads", format!("{heads:?}")),
            ("eps", format!("{eps:?}")),
            ("theta", format!("{theta:?}")),
            ("rope_dims", rope_dims.to_string()),
            ("pairing", format!("{pairing:?}")),
            ("context_max", context_max.to_string()),
            ("tied", tied.to_string()),
        ]
    }
}

impl Qwen35 {
    fn fields(&self) -> Vec<(&'static str, String)> {
        let Self {
            mixers,
            hidden,
            intermediate,
            vocab,
            heads,
            gdn,
            eps,
            theta,
            rope_dims,
            context_max,
            tied,
            mtp,
        } = self;
        vec![
            ("layers", mixers.iter().map(|mixer| mixer.letter()).collect()),
            ("hidden", hidden.to_string()),
            ("intermediate", intermediate.to_string()),
            ("vocab", vocab.to_string()),
            ("heads", format!("{heads:?}")),
            ("gdn", format!("{gdn:?}")),
            ("eps", format!("{eps:?}")),
            ("theta", format!("{theta:?}")),
            ("rope_dims", rope_dims.to_string()),
            ("context_max", context_max.to_string()),
            ("tied", tied.to_string()),
            ("mtp", mtp.to_string()),
        ]
    }
}

impl Mixer {
    fn letter(self) -> char {
        match self {
            Self::Attention => 'a',
            Self::Recurrent => 'r',
        }
    }
}
