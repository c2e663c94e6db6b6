//! Seeded checkpoints of any size: files that tests and self-checks make for themselves.

mod llama;
mod qwen3_5;

use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

use arith::format::Format;
use arith::sample::mix;

use crate::gguf::write::Writer;
use crate::quantise::quantise;
use crate::{WeightsError, file};

pub use llama::Llama;
pub use qwen3_5::Qwen35;

/// Tokens of the byte-level vocabulary: 256 bytes, `<|im_start|>` and `<|im_end|>`.
pub const VOCAB_MIN: usize = 258;

/// Values of a tensor that are made at once.
const VALUES_AT_ONCE: usize = 1 << 18;

/// The chat template: `<|im_start|>role\ncontent<|im_end|>\n` a message.
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' \
    + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Writes a llama checkpoint with a byte-level tokenizer to `path`, in one step.
///
/// # Errors
/// [`WeightsError::Io`].
///
/// # Panics
/// Where a width is no multiple of its format's unit or the vocabulary is too small.
pub fn llama(path: &Path, spec: &Llama) -> Result<(), WeightsError> {
    write(path, &llama_writer(spec))
}

/// The same as a writer, for files that something is added to.
pub fn llama_writer(spec: &Llama) -> Writer {
    spec.writer()
}

/// Writes a qwen3_5 checkpoint, as [`llama()`] does.
///
/// # Errors
/// [`WeightsError::Io`].
///
/// # Panics
/// Where a width is no multiple of its format's unit or the vocabulary is too small.
pub fn qwen3_5(path: &Path, spec: &Qwen35) -> Result<(), WeightsError> {
    write(path, &qwen3_5_writer(spec))
}

/// The same as a writer, for files that something is added to.
pub fn qwen3_5_writer(spec: &Qwen35) -> Writer {
    spec.writer()
}

fn write(path: &Path, writer: &Writer) -> Result<(), WeightsError> {
    file::replace(path, |out| writer.write_to(out))
        .map_err(|source| WeightsError::Io { path: path.to_path_buf(), source })
}

/// The format of a matrix in what llama.cpp calls `Q4_K_M`: Q6_K for the head (the embedding table
/// where `tied`) and, in the first and last eighth of the layers and every third one between, for
/// `attn_v` and `ffn_down`; Q5_K for `attn_qkv`; Q4_K else.
fn q4_k_m(name: &str, layers: u32, tied: bool) -> Format {
    let finer = |layer: u32| {
        let eighth = layers / 8;
        layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
    };
    let mut parts = name.split('.');
    let (first, layer, what) = (parts.next(), parts.next(), parts.next());
    match (first, layer.and_then(|layer| layer.parse().ok()), what) {
        (Some("output"), ..) => Format::Q6K,
        (Some("token_embd"), ..) if tied => Format::Q6K,
        (_, Some(layer), Some("attn_v" | "ffn_down")) if finer(layer) => Format::Q6K,
        (.., Some("attn_qkv")) => Format::Q5K,
        _ => Format::Q4K,
    }
}

/// Tensors in the order of a file, each with noise of its own.
struct Tensors {
    seed: u64,
    all: Vec<Tensor>,
}

impl Tensors {
    fn new(seed: u64) -> Self {
        Self { seed, all: Vec::new() }
    }

    /// Adds one of values `middle + size * noise`.
    fn add(&mut self, name: String, format: Format, shape: [usize; 2], middle: f32, size: f32) {
        let first = self.all.last().map_or(0, |t| t.first + t.values());
        let ([rows, cols], seed) = (shape, self.seed);
        self.all.push(Tensor { name, format, rows, cols, middle, size, seed, first });
    }

    /// Adds a table of tokens.
    fn end(&mut self, name: &str, format: Format, vocab: usize, hidden: usize) {
        self.add(name.into(), format, [vocab, hidden], 0.0, 1.0);
    }

    /// Adds a linear: uniform values of this size keep a row's variance through `cols` values.
    fn linear(&mut self, name: String, format: Format, rows: usize, cols: usize) {
        self.add(name, format, [rows, cols], 0.0, (3.0 / cols as f32).sqrt());
    }

    /// Adds a norm's weights.
    fn norm(&mut self, name: String, values: usize) {
        self.add(name, Format::F32, [1, values], 1.0, 0.2);
    }

    /// The same, its matrices stored as [`q4_k_m`] says where `mixed`.
    fn mixed(mut self, mixed: bool, layers: u32) -> Self {
        let tied = !self.all.iter().any(|t| t.name == "output.weight");
        for tensor in self.all.iter_mut().filter(|t| mixed && t.format != Format::F32) {
            tensor.format = q4_k_m(&tensor.name, layers, tied);
        }
        self
    }

    /// Bytes of the tensors that `of` says.
    fn bytes(&self, of: impl Fn(&str) -> bool) -> u64 {
        self.all.iter().filter(|t| of(&t.name)).map(Tensor::bytes).sum()
    }

    /// Announces them all.
    fn write(self, out: &mut Writer) {
        for tensor in self.all {
            let (name, format, bytes) = (tensor.name.clone(), tensor.format, tensor.bytes());
            let dims = [tensor.cols as u64, tensor.rows as u64];
            // A vector has one dim.
            let dims = if tensor.rows == 1 { &dims[..1] } else { &dims[..] };
            out.tensor_from(&name, format, dims, bytes, move |out| tensor.write(out));
        }
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

    /// Writes it some rows at a time, and so in little memory; a large one's are made by all cores.
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let rows = (VALUES_AT_ONCE / self.cols.max(1)).max(1);
        for first in (0..self.rows).step_by(rows * cores) {
            let parts = (first..self.rows.min(first + rows * cores)).step_by(rows);
            let mut parts = parts.map(|first| first..self.rows.min(first + rows));
            if self.rows <= rows {
                parts.try_for_each(|part| out.write_all(&self.made(part)))?;
                continue;
            }
            std::thread::scope(|scope| {
                let jobs: Vec<_> = parts.map(|part| scope.spawn(|| self.made(part))).collect();
                let mut made = jobs.into_iter().map(|job| job.join());
                made.try_for_each(|rows| out.write_all(&rows.expect("rows of noise are made")))
            })?;
        }
        Ok(())
    }

    /// Some of its rows.
    fn made(&self, rows: Range<usize>) -> Vec<u8> {
        let mut noise = Noise::at(self.seed, self.first + (rows.start * self.cols) as u64);
        let mut values = vec![0.0; self.cols];
        let row = |_| {
            values.fill_with(|| self.middle + self.size * noise.next());
            quantise(self.format, &values)
        };
        rows.flat_map(row).collect()
    }
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

/// Adds a byte-level tokenizer that splits as `pre` says.
fn tokenizer(out: &mut Writer, pre: &str, vocab: usize) {
    assert!(vocab >= VOCAB_MIN, "{vocab} tokens, at least {VOCAB_MIN} needed");
    let mut tokens: Vec<String> = (0..=255).map(|byte| byte_char(byte).to_string()).collect();
    tokens.extend(["<|im_start|>".to_owned(), "<|im_end|>".to_owned()]);
    let mut types = vec![1; 256];
    types.extend([3, 3]);
    for id in VOCAB_MIN..vocab {
        tokens.push(format!("[PAD{id}]"));
        types.push(5);
    }
    out.string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", pre)
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
