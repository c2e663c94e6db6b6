//! Made llama checkpoints.

use arith::attention::Heads;
use arith::format::Format;

use super::{Tensors, tokenizer};
use crate::gguf::write::Writer;

/// Shapes and formats of a llama checkpoint; weights follow from the seed.
#[derive(Clone, Debug)]
pub struct Llama {
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// Tokens, at least [`super::VOCAB_MIN`]; those above are unused ones, `[PADn]`.
    pub vocab: usize,
    /// Attention heads.
    pub heads: Heads,
    /// RMSNorm epsilon.
    pub eps: f32,
    /// RoPE base.
    pub theta: f32,
    /// Longest context.
    pub context_max: u32,
    /// Whether the head is the embedding table.
    pub tied: bool,
    /// Storage of the layers' matrices.
    pub format: Format,
    /// Storage of the embedding table and of the head.
    pub ends_format: Format,
    /// Whether both formats give way to the mix that llama.cpp calls `Q4_K_M`.
    pub q4_k_m: bool,
    /// Seed of the weights.
    pub seed: u64,
}

impl Default for Llama {
    /// Three layers of width 64 with grouped heads, Q4_1 with Q8_0 ends, tied.
    fn default() -> Self {
        Self {
            layers: 3,
            hidden: 64,
            intermediate: 160,
            vocab: 264,
            heads: Heads { query: 4, kv: 2, dim: 16 },
            eps: 1e-5,
            theta: 10_000.0,
            context_max: 4_096,
            tied: true,
            format: Format::Q4_1,
            ends_format: Format::Q8_0,
            q4_k_m: false,
            seed: 1,
        }
    }
}

impl Llama {
    /// A checkpoint of at least `bytes` whose matrices and head are stored in `format`: a width by
    /// size, all widths multiples of 256, and as many layers as it takes.
    pub fn of_bytes(bytes: u64, format: Format) -> Self {
        let hidden = if bytes < 256 << 20 { 512 } else { 1_024 };
        let spec = Self {
            layers: 1,
            hidden,
            intermediate: 3 * hidden,
            vocab: 8_192,
            heads: Heads { query: hidden / 64, kv: hidden / 256, dim: 64 },
            format,
            ends_format: format,
            ..Self::default()
        };
        let all = spec.tensors();
        let left = bytes.saturating_sub(all.bytes(|name| !name.starts_with("blk.")));
        let layers = left.div_ceil(all.bytes(|name| name.starts_with("blk."))).max(1);
        Self { layers: layers as u32, ..spec }
    }

    /// Shapes of which halves, quarters and eighths of a group align: heads of 256 values, and an
    /// MLP of 4,352, 17 slices, so that its eighths are unequal. The head is its own: with the
    /// embedding table as head each token is by far its own likeliest next one.
    pub fn shard_tiny() -> Self {
        Self {
            layers: 3,
            hidden: 256,
            intermediate: 4_352,
            heads: Heads { query: 8, kv: 2, dim: 256 },
            tied: false,
            q4_k_m: true,
            ..Self::default()
        }
    }

    /// Bytes of all its tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors().bytes(|_| true)
    }

    fn tensors(&self) -> Tensors {
        let (hidden, heads) = (self.hidden, self.heads);
        let mut all = Tensors::new(self.seed);
        all.end("token_embd.weight", self.ends_format, self.vocab, hidden);
        if !self.tied {
            all.end("output.weight", self.ends_format, self.vocab, hidden);
        }
        for layer in 0..self.layers {
            let mut linear = |name: &str, rows: usize, cols: usize| {
                all.linear(format!("blk.{layer}.{name}.weight"), self.format, rows, cols);
            };
            linear("attn_q", heads.query * heads.dim, hidden);
            linear("attn_k", heads.kv * heads.dim, hidden);
            linear("attn_v", heads.kv * heads.dim, hidden);
            linear("attn_output", hidden, heads.query * heads.dim);
            linear("ffn_gate", self.intermediate, hidden);
            linear("ffn_up", self.intermediate, hidden);
            linear("ffn_down", hidden, self.intermediate);
        }
        for layer in 0..self.layers {
            all.norm(format!("blk.{layer}.attn_norm.weight"), hidden);
            all.norm(format!("blk.{layer}.ffn_norm.weight"), hidden);
        }
        all.norm("output_norm.weight".into(), hidden);
        all.mixed(self.q4_k_m, self.layers)
    }

    pub(super) fn writer(&self) -> Writer {
        let mut out = Writer::new();
        let heads = self.heads;
        out.string("general.architecture", "llama")
            .string("general.name", "synthetic")
            .u32("llama.block_count", self.layers)
            .u32("llama.context_length", self.context_max)
            .u32("llama.embedding_length", self.hidden as u32)
            .u32("llama.feed_forward_length", self.intermediate as u32)
            .u32("llama.attention.head_count", heads.query as u32)
            .u32("llama.attention.head_count_kv", heads.kv as u32)
            .u32("llama.attention.key_length", heads.dim as u32)
            .u32("llama.attention.value_length", heads.dim as u32)
            .u32("llama.rope.dimension_count", heads.dim as u32)
            .f32("llama.rope.freq_base", self.theta)
            .f32("llama.attention.layer_norm_rms_epsilon", self.eps);
        tokenizer(&mut out, "gpt-2", self.vocab);
        self.tensors().write(&mut out);
        out
    }
}
