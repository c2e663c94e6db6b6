//! Made qwen3_5 checkpoints, as GGUF has them: value heads tiled, norms around one.

use arith::attention::Heads;
use arith::format::Format;
use arith::gdn::{Gdn, HeadOrder};

use super::{Tensors, tokenizer};
use crate::gguf::write::Writer;

/// Shapes and formats of a qwen3_5 checkpoint; weights follow from the seed.
#[derive(Clone, Debug)]
pub struct Qwen35 {
    /// Layers of the trunk.
    pub layers: u32,
    /// Layer `i` is one of attention where `i + 1` is a multiple of it.
    pub interval: u32,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// Tokens, at least [`super::VOCAB_MIN`]; those above are unused ones, `[PADn]`.
    pub vocab: usize,
    /// Attention heads.
    pub heads: Heads,
    /// Shape of the recurrent layers; tiled.
    pub gdn: Gdn,
    /// RMSNorm epsilon.
    pub eps: f32,
    /// RoPE base.
    pub theta: f32,
    /// Rotated dims a head.
    pub rope_dims: usize,
    /// Longest context.
    pub context_max: u32,
    /// Whether the head is the embedding table.
    pub tied: bool,
    /// Whether a draft head follows the trunk.
    pub mtp: bool,
    /// Storage of the layers' matrices.
    pub format: Format,
    /// Storage of the embedding table and of the head.
    pub ends_format: Format,
    /// Whether both formats give way to the mix that llama.cpp calls `Q4_K_M`.
    pub q4_k_m: bool,
    /// Seed of the weights.
    pub seed: u64,
}

impl Default for Qwen35 {
    /// Four layers of width 64, the last one of attention, with grouped heads of both kinds, Q4_1
    /// with Q8_0 ends, no draft head. A head of its own: over the embedding table, noise would
    /// repeat its last token for ever.
    fn default() -> Self {
        Self {
            layers: 4,
            interval: 4,
            hidden: 64,
            intermediate: 160,
            vocab: 264,
            heads: Heads { query: 4, kv: 2, dim: 32 },
            gdn: Gdn {
                keys: 2,
                values: 4,
                key_dim: 16,
                value_dim: 24,
                taps: 4,
                order: HeadOrder::Tiled,
            },
            eps: 1e-6,
            theta: 10_000.0,
            rope_dims: 8,
            context_max: 262_144,
            tied: false,
            mtp: false,
            format: Format::Q4_1,
            ends_format: Format::Q8_0,
            q4_k_m: false,
            seed: 1,
        }
    }
}

impl Qwen35 {
    /// A checkpoint of at least `bytes` whose matrices and head are stored in `format`: shapes by
    /// size (from 256 MiB on those of the 0.8B model, but for the vocabulary and twice the value
    /// heads), all widths multiples of 256, and as many fours of layers as it takes.
    pub fn of_bytes(bytes: u64, format: Format) -> Self {
        let spec = Self { vocab: 8_192, format, ends_format: format, ..Self::default() };
        let spec = if bytes < 256 << 20 {
            Self {
                hidden: 512,
                intermediate: 1_536,
                heads: Heads { query: 8, kv: 2, dim: 64 },
                gdn: Gdn { keys: 4, values: 8, key_dim: 64, value_dim: 64, ..spec.gdn },
                rope_dims: 16,
                ..spec
            }
        } else {
            Self {
                hidden: 1_024,
                intermediate: 3_584,
                heads: Heads { query: 8, kv: 2, dim: 256 },
                gdn: Gdn { keys: 8, values: 16, key_dim: 128, value_dim: 128, ..spec.gdn },
                rope_dims: 64,
                ..spec
            }
        };
        let all = spec.tensors();
        let left = bytes.saturating_sub(all.bytes(|name| !name.starts_with("blk.")));
        let fours = left.div_ceil(all.bytes(|name| name.starts_with("blk."))).max(1);
        Self { layers: spec.layers * fours as u32, ..spec }
    }

    /// Shapes of which halves, quarters and eighths of a group align: heads of 256 values, 16 value
    /// heads and an MLP of 4,352, 17 slices, so that its eighths are unequal.
    pub fn shard_tiny() -> Self {
        Self {
            layers: 3,
            interval: 2,
            hidden: 256,
            intermediate: 4_352,
            heads: Heads { query: 8, kv: 2, dim: 256 },
            gdn: Gdn {
                keys: 8,
                values: 16,
                key_dim: 128,
                value_dim: 128,
                taps: 4,
                order: HeadOrder::Tiled,
            },
            rope_dims: 64,
            mtp: true,
            format: Format::Q8_0,
            ..Self::default()
        }
    }

    /// The shapes of the 27B model, in Q4_K.
    pub fn shape_27b() -> Self {
        Self {
            layers: 64,
            hidden: 5_120,
            intermediate: 17_408,
            vocab: 248_320,
            heads: Heads { query: 24, kv: 4, dim: 256 },
            gdn: Gdn {
                keys: 16,
                values: 48,
                key_dim: 128,
                value_dim: 128,
                taps: 4,
                order: HeadOrder::Tiled,
            },
            rope_dims: 64,
            format: Format::Q4K,
            ends_format: Format::Q4K,
            ..Self::default()
        }
    }

    /// Bytes of all its tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors().bytes(|_| true)
    }

    fn tensors(&self) -> Tensors {
        let hidden = self.hidden;
        let mut all = Tensors::new(self.seed);
        all.end("token_embd.weight", self.ends_format, self.vocab, hidden);
        if !self.tied {
            all.end("output.weight", self.ends_format, self.vocab, hidden);
        }
        for layer in 0..self.layers {
            self.block(&mut all, layer, (layer + 1).is_multiple_of(self.interval));
        }
        if self.mtp {
            let name = |name: &str| format!("blk.{}.nextn.{name}.weight", self.layers);
            all.linear(name("eh_proj"), self.format, hidden, 2 * hidden);
            for norm in ["enorm", "hnorm", "shared_head_norm"] {
                all.norm(name(norm), hidden);
            }
            self.block(&mut all, self.layers, true);
        }
        all.norm("output_norm.weight".into(), hidden);
        all.mixed(self.q4_k_m, self.layers)
    }

    fn block(&self, all: &mut Tensors, layer: u32, attention: bool) {
        let (hidden, heads, gdn) = (self.hidden, self.heads, &self.gdn);
        let name = |name: &str| format!("blk.{layer}.{name}");
        all.norm(name("attn_norm.weight"), hidden);
        all.norm(name("post_attention_norm.weight"), hidden);
        let mut linear = |what, rows, cols| all.linear(name(what), self.format, rows, cols);
        linear("ffn_gate.weight", self.intermediate, hidden);
        linear("ffn_up.weight", self.intermediate, hidden);
        linear("ffn_down.weight", hidden, self.intermediate);
        if attention {
            linear("attn_q.weight", 2 * heads.query * heads.dim, hidden);
            linear("attn_k.weight", heads.kv * heads.dim, hidden);
            linear("attn_v.weight", heads.kv * heads.dim, hidden);
            linear("attn_output.weight", hidden, heads.query * heads.dim);
            all.norm(name("attn_q_norm.weight"), heads.dim);
            return all.norm(name("attn_k_norm.weight"), heads.dim);
        }
        linear("attn_qkv.weight", gdn.channels(), hidden);
        linear("attn_gate.weight", gdn.value_width(), hidden);
        linear("ssm_beta.weight", gdn.values, hidden);
        linear("ssm_alpha.weight", gdn.values, hidden);
        linear("ssm_out.weight", hidden, gdn.value_width());
        all.linear(name("ssm_conv1d.weight"), Format::F32, gdn.channels(), gdn.taps);
        // A state that keeps 0.3 to 0.99 of itself a token: heads with short and long memories.
        all.add(name("ssm_a"), Format::F32, [1, gdn.values], -0.5, 0.45);
        all.add(name("ssm_dt.bias"), Format::F32, [1, gdn.values], -1.0, 1.0);
        all.norm(name("ssm_norm.weight"), gdn.value_dim);
    }

    pub(super) fn writer(&self) -> Writer {
        assert!(self.gdn.order == HeadOrder::Tiled, "GGUF has tiled value heads");
        let (heads, gdn, drafts) = (self.heads, &self.gdn, u32::from(self.mtp));
        let mut out = Writer::new();
        out.string("general.architecture", "qwen35")
            .string("general.name", "synthetic")
            .u32("qwen35.block_count", self.layers + drafts)
            .u32("qwen35.context_length", self.context_max)
            .u32("qwen35.embedding_length", self.hidden as u32)
            .u32("qwen35.feed_forward_length", self.intermediate as u32)
            .u32("qwen35.attention.head_count", heads.query as u32)
            .u32("qwen35.attention.head_count_kv", heads.kv as u32)
            .u32("qwen35.attention.key_length", heads.dim as u32)
            .u32("qwen35.attention.value_length", heads.dim as u32)
            .u32("qwen35.rope.dimension_count", self.rope_dims as u32)
            .i32s("qwen35.rope.dimension_sections", &sections(self.rope_dims))
            .f32("qwen35.rope.freq_base", self.theta)
            .f32("qwen35.attention.layer_norm_rms_epsilon", self.eps)
            .u32("qwen35.full_attention_interval", self.interval)
            .u32("qwen35.ssm.conv_kernel", gdn.taps as u32)
            .u32("qwen35.ssm.state_size", gdn.key_dim as u32)
            .u32("qwen35.ssm.group_count", gdn.keys as u32)
            .u32("qwen35.ssm.time_step_rank", gdn.values as u32)
            .u32("qwen35.ssm.inner_size", gdn.value_width() as u32);
        if self.mtp {
            out.u32("qwen35.nextn_predict_layers", drafts);
        }
        tokenizer(&mut out, "qwen35", self.vocab);
        self.tensors().write(&mut out);
        out
    }
}

/// Rotated pairs that turn with each axis of an image; text moves along all of them alike.
fn sections(rope_dims: usize) -> [i32; 4] {
    let pairs = rope_dims as i32 / 2;
    [(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0]
}
