//! Seeded checkpoints of any size: files that tests and self-checks make for themselves.

use std::io::{self, Write};
use std::path::Path;

use arith::attention::Heads;
use arith::format::Format;
use arith::sample::mix;

use crate::gguf::write::Writer;
use crate::quantise::quantise;
use crate::{WeightsError, file};

/// Tokens of the byte-level vocabulary: 256 bytes, `<|im_start|>` and `<|im_end|>`.
pub const VOCAB_MIN: usize = 258;

/// The chat template: `<|im_start|>role\ncontent<|im_end|>\n` a message.
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' \
    + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Shapes and formats of a llama checkpoint; weights follow from the seed.
#[derive(Clone, Debug)]
pub struct Llama {
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// Tokens, at least [`VOCAB_MIN`]; those above are unused ones, `[PADn]`.
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
        let bytes_of = |layers: bool| {
            let those = all.iter().filter(|t| t.name.starts_with("blk.") == layers);
            those.map(Tensor::bytes).sum::<u64>()
        };
        let left = bytes.saturating_sub(bytes_of(false));
        let layers = left.div_ceil(bytes_of(true)).max(1);
        Self { layers: layers as u32, ..spec }
    }

    /// Bytes of all its tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors().iter().map(Tensor::bytes).sum()
    }

    /// The tensors in the order of the file.
    fn tensors(&self) -> Vec<Tensor> {
        let (hidden, heads) = (self.hidden, self.heads);
        let mut all = Vec::new();
        let mut add = |name: String, format, rows, cols, middle, size| {
            let first = all.last().map_or(0, |t: &Tensor| t.first + t.values());
            let seed = self.seed;
            all.push(Tensor { name, format, rows, cols, middle, size, seed, first });
        };
        let mut end = |name: &str| add(name.into(), self.ends_format, self.vocab, hidden, 0.0, 1.0);
        end("token_embd.weight");
        if !self.tied {
            end("output.weight");
        }
        for layer in 0..self.layers {
            // Uniform values of this size keep a row's variance through a linear of `cols` values.
            let mut linear = |name: &str, rows: usize, cols: usize| {
                let name = format!("blk.{layer}.{name}.weight");
                add(name, self.format, rows, cols, 0.0, (3.0 / cols as f32).sqrt());
            };
            linear("attn_q", heads.query * heads.dim, hidden);
            linear("attn_k", heads.kv * heads.dim, hidden);
            linear("attn_v", heads.kv * heads.dim, hidden);
            linear("attn_output", hidden, heads.query * heads.dim);
            linear("ffn_gate", self.intermediate, hidden);
            linear("ffn_up", self.intermediate, hidden);
            linear("ffn_down", hidden, self.intermediate);
        }
        let mut norm = |name: String| add(name, Format::F32, 1, hidden, 1.0, 0.2);
        for layer in 0..self.layers {
            norm(format!("blk.{layer}.attn_norm.weight"));
            norm(format!("blk.{layer}.ffn_norm.weight"));
        }
        norm("output_norm.weight".into());
        all
    }
}

/// A tensor of values `middle + size * noise`.
struct Tensor {
    name: String,
    format: Format,
    rows: usize,
    cols: usize,
    middle: f32,
    size: f32,
    seed: u64,
    /// Values before it in the file.
    first: u64,
}

impl Tensor {
    fn values(&self) -> u64 {
        self.rows as u64 * self.cols as u64
    }

    fn bytes(&self) -> u64 {
        self.values() / self.format.unit_values() as u64 * self.format.unit_bytes() as u64
    }

    /// Writes it row by row, and so in little memory.
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut noise = Noise::at(self.seed, self.first);
        let mut values = vec![0.0; self.cols];
        for _ in 0..self.rows {
            values.fill_with(|| self.middle + self.size * noise.next());
            out.write_all(&quantise(self.format, &values))?;
        }
        Ok(())
    }
}

/// Writes a checkpoint with a byte-level tokenizer to `path`, in one step.
///
/// # Errors
/// [`WeightsError::Io`].
///
/// # Panics
/// Where a width is no multiple of its format's block or the vocabulary is too small.
pub fn llama(path: &Path, spec: &Llama) -> Result<(), WeightsError> {
    let writer = llama_writer(spec);
    file::replace(path, |out| writer.write_to(out))
        .map_err(|source| WeightsError::Io { path: path.to_path_buf(), source })
}

/// The same as a writer, for files that something is added to.
pub fn llama_writer(spec: &Llama) -> Writer {
    assert!(spec.vocab >= VOCAB_MIN, "{} tokens, at least {VOCAB_MIN} needed", spec.vocab);
    let mut out = Writer::new();
    let heads = spec.heads;
    out.string("general.architecture", "llama")
        .string("general.name", "synthetic")
        .u32("llama.block_count", spec.layers)
        .u32("llama.context_length", spec.context_max)
        .u32("llama.embedding_length", spec.hidden as u32)
        .u32("llama.feed_forward_length", spec.intermediate as u32)
        .u32("llama.attention.head_count", heads.query as u32)
        .u32("llama.attention.head_count_kv", heads.kv as u32)
        .u32("llama.attention.key_length", heads.dim as u32)
        .u32("llama.attention.value_length", heads.dim as u32)
        .u32("llama.rope.dimension_count", heads.dim as u32)
        .f32("llama.rope.freq_base", spec.theta)
        .f32("llama.attention.layer_norm_rms_epsilon", spec.eps);
    tokenizer(&mut out, spec.vocab);
    for tensor in spec.tensors() {
        let (name, format, bytes) = (tensor.name.clone(), tensor.format, tensor.bytes());
        let dims = [tensor.cols as u64, tensor.rows as u64];
        // A vector has one dim.
        let dims = if tensor.rows == 1 { &dims[..1] } else { &dims[..] };
        out.tensor_from(&name, format, dims, bytes, move |out| tensor.write(out));
    }
    out
}

/// The character that stands for `byte` in a byte-level vocabulary: printable Latin-1 for itself,
/// the others from U+0100 on, in order.
pub fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn tokenizer(out: &mut Writer, vocab: usize) {
    let mut tokens: Vec<String> = (0..=255).map(|byte| byte_char(byte).to_string()).collect();
    tokens.extend(["<|im_start|>".to_owned(), "<|im_end|>".to_owned()]);
    let mut types = vec![1; 256];
    types.extend([3, 3]);
    for id in VOCAB_MIN..vocab {
        tokens.push(format!("[PAD{id}]"));
        types.push(5);
    }
    out.string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &types)
        .strings::<&str>("tokenizer.ggml.merges", &[])
        .u32("tokenizer.ggml.eos_token_id", 257)
        .string("tokenizer.chat_template", CHATML)
        .bool("tokenizer.ggml.add_bos_token", false);
}

/// Uniform values in -1..1 from a counter (splitmix64).
struct Noise(u64);

impl Noise {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

    /// The values of `seed` after the first `skipped`.
    fn at(seed: u64, skipped: u64) -> Self {
        Self(seed.wrapping_add(Self::STEP.wrapping_mul(skipped)))
    }

    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(Self::STEP);
        (mix(self.0) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}
