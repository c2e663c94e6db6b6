//! Who runs what: models of a race, made once from a seed or from SmolLM2.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use arith::attention::Heads;
use arith::format::Format;
use arith::gdn::Gdn;
use weights::Checkpoint;
use weights::synthetic::{self, Llama, Qwen35};

/// Where a model comes from.
#[derive(Clone, Copy, Debug)]
enum Recipe {
    /// As it is published.
    SmolLm2,
    /// SmolLM2 with its layers in another format; its head stays Q8_0.
    Requantised(Format),
    /// Noise in the shapes of a 1.1B model, as many layers as make half a GiB; Q4_K_M where `None`.
    Llama(Option<Format>),
    /// Noise in the shapes of the 0.8B model; Q4_K_M where `None`.
    Qwen35(Option<Format>),
    /// Noise in many small layers before a small head, as large models have them: what can be cut.
    Deep,
    /// Two layers, to see that a race runs.
    Tiny,
}

/// Tokens of a prompt and those decoded after it.
pub type Case = (u32, u32);

/// A model and its runs.
#[derive(Debug)]
pub struct Model {
    /// What `--model` calls it.
    pub name: &'static str,
    recipe: Recipe,
    /// Runs against the other engine.
    pub cases: &'static [Case],
    /// Streams that decode at once, beside one alone; ours only.
    pub streams: &'static [u32],
}

const fn model(
    name: &'static str,
    recipe: Recipe,
    cases: &'static [Case],
    streams: &'static [u32],
) -> Model {
    Model { name, recipe, cases, streams }
}

/// Cases of a model with half a GiB of weights.
const LARGE: &[Case] = &[(128, 16)];
/// Cases of a model with 135 M of them.
const SMALL: &[Case] = &[(512, 64)];

/// The race.
pub const ALL: &[Model] = &[
    model("smollm2-q4_1", Recipe::SmolLm2, &[(512, 64), (2_048, 64)], &[8, 16]),
    model("smollm2-q4_0", Recipe::Requantised(Format::Q4_0), SMALL, &[]),
    model("smollm2-q8_0", Recipe::Requantised(Format::Q8_0), SMALL, &[]),
    model("llama-q4_0", Recipe::Llama(Some(Format::Q4_0)), LARGE, &[]),
    model("llama-q8_0", Recipe::Llama(Some(Format::Q8_0)), LARGE, &[]),
    model("llama-q4_k_m", Recipe::Llama(None), LARGE, &[8, 16]),
    model("llama-q6_k", Recipe::Llama(Some(Format::Q6K)), LARGE, &[]),
    model("qwen3_5-q4_k_m", Recipe::Qwen35(None), LARGE, &[8, 16]),
    model("qwen3_5-q8_0", Recipe::Qwen35(Some(Format::Q8_0)), LARGE, &[]),
];

/// What CI runs.
pub const SHORT: &[Model] = &[model("tiny-q4_0", Recipe::Tiny, &[(64, 16)], &[8])];

/// What only rings run.
const RING: &[Model] = &[model("deep-q4_0", Recipe::Deep, &[], &[])];

/// Tokens of a stream's prompt where many decode at once.
pub const STREAMS_PROMPT: u32 = 16;

/// Bytes that a llama-family model has at least.
const LLAMA_BYTES_MIN: u64 = 512 << 20;

/// The model of that name.
///
/// # Errors
/// There is none.
pub fn named(name: &str) -> Result<&'static Model> {
    let found = ALL.iter().chain(SHORT).chain(RING).find(|model| model.name == name);
    found.with_context(|| format!("there is no model {name}"))
}

impl Model {
    /// Most tokens that a run decodes.
    pub fn decode(&self) -> u32 {
        self.cases.iter().map(|case| case.1).max().unwrap_or(1)
    }

    /// Its file in `folder`, made unless it is there.
    ///
    /// # Errors
    /// A file that can't be made.
    pub fn path(&self, folder: &Path, smollm2: impl Fn() -> Result<PathBuf>) -> Result<PathBuf> {
        if matches!(self.recipe, Recipe::SmolLm2) {
            return smollm2();
        }
        let path = folder.join(format!("{}.gguf", self.name));
        if path.exists() {
            return Ok(path);
        }
        println!("making {}", path.display());
        std::fs::create_dir_all(folder)?;
        match self.recipe {
            Recipe::SmolLm2 => {}
            Recipe::Requantised(format) => requantise(&smollm2()?, format, &path)?,
            Recipe::Llama(format) => synthetic::llama(&path, &llama(format))?,
            Recipe::Qwen35(format) => synthetic::qwen3_5(&path, &qwen3_5(format))?,
            Recipe::Deep => synthetic::llama(&path, &deep())?,
            Recipe::Tiny => synthetic::llama(&path, &Llama { layers: 2, ..tiny() })?,
        }
        Ok(path)
    }
}

/// Stores the layers of `from` in `format`.
///
/// # Errors
/// A model that can't be read or is no GGUF file; a file that can't be written.
pub fn requantise(from: &Path, format: Format, to: &Path) -> Result<()> {
    let checkpoint = Checkpoint::open(from)?;
    ensure!(checkpoint.metadata().is_some(), "{}: not a GGUF file", from.display());
    Ok(weights::requantise(&checkpoint, format, to)?)
}

/// Writes the first layers of `from` as a model that has no more.
///
/// # Errors
/// As [`requantise`], and a model of fewer layers.
pub fn shorten(from: &Path, layers: u32, to: &Path) -> Result<()> {
    let checkpoint = Checkpoint::open(from)?;
    ensure!(checkpoint.metadata().is_some(), "{}: not a GGUF file", from.display());
    Ok(weights::shorten(&checkpoint, layers, to)?)
}

fn tiny() -> Llama {
    Llama { q4_k_m: false, ..Llama::of_bytes(0, Format::Q4_0) }
}

/// 24 layers of 11 M weights each; the head has 8 M.
fn deep() -> Llama {
    Llama {
        layers: 24,
        hidden: 1_024,
        intermediate: 2_816,
        vocab: 8_192,
        heads: Heads { query: 16, kv: 4, dim: 64 },
        q4_k_m: false,
        ..Llama::of_bytes(0, Format::Q4_0)
    }
}

/// Widths of a 1.1B model of the llama family; the fewest layers that make half a GiB.
fn llama(format: Option<Format>) -> Llama {
    let stored = format.unwrap_or(Format::Q4K);
    let mut spec = Llama {
        layers: 1,
        hidden: 2_048,
        intermediate: 5_632,
        vocab: 32_000,
        heads: Heads { query: 32, kv: 4, dim: 64 },
        tied: false,
        format: stored,
        ends_format: stored,
        q4_k_m: format.is_none(),
        ..Llama::default()
    };
    while spec.bytes() < LLAMA_BYTES_MIN {
        spec.layers += 1;
    }
    spec
}

/// Shapes of the 0.8B model, without its draft head.
fn qwen3_5(format: Option<Format>) -> Qwen35 {
    let stored = format.unwrap_or(Format::Q4K);
    Qwen35 {
        layers: 24,
        hidden: 1_024,
        intermediate: 3_584,
        vocab: 248_320,
        heads: Heads { query: 8, kv: 2, dim: 256 },
        gdn: Gdn { keys: 16, values: 16, key_dim: 128, value_dim: 128, ..Qwen35::default().gdn },
        theta: 10_000_000.0,
        rope_dims: 64,
        tied: true,
        format: stored,
        ends_format: stored,
        q4_k_m: format.is_none(),
        ..Qwen35::default()
    }
}
