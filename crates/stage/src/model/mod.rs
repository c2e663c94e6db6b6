//! Families: a config becomes a layer program over the backend trait, one file a family.
//!
//! [`open`] alone knows which families there are. A program knows no streams and no plans: it
//! gets a residual, the rows' places and a layer's index.

use std::ops::Range;
use std::sync::Arc;

use arith::attention::KvDtype;
use backend::{Backend, BackendError, RowMap};
use weights::{Checkpoint, Config};

use crate::StageError;

mod llama;

/// What a program holds of its model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Layers, half-open.
    pub range: Range<u32>,
    /// Whether it holds the embeddings, the final norm and the head.
    pub ends: bool,
    /// How keys and values are stored.
    pub kv: KvDtype,
}

/// Buffer sizes of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Most rows between [`Program::begin`] and its last layer.
    pub rows_max: usize,
    /// Most rows of one [`Program::head`].
    pub head_rows_max: usize,
    /// KV pages a layer.
    pub pages: usize,
}

/// Bytes of a prepared part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Its tensors, as the file stores them.
    pub weights_bytes: u64,
    /// Keys and values of all pages and layers.
    pub kv_bytes: u64,
    /// Row buffers.
    pub buffers_bytes: u64,
}

impl Need {
    /// All of it.
    pub fn total_bytes(&self) -> u64 {
        self.weights_bytes + self.kv_bytes + self.buffers_bytes
    }
}

/// The layers of a range on a device. Between layers a row is the residual, `hidden` values.
pub trait Program: Send {
    /// Allocates caches and buffers; what an earlier call allocated is freed first.
    fn allocate(&mut self, sizes: Sizes) -> Result<(), BackendError>;
    /// Sets the residual from token ids. Needs the ends.
    fn embed(&mut self, ids: &[u32]);
    /// Sets the residual from `rows * hidden` values.
    fn load(&mut self, rows: &[f32]);
    /// Reads the first rows of the residual back.
    fn store(&self, rows: &mut [f32]);
    /// Takes the places of the rows that the next layers run.
    fn begin(&mut self, map: RowMap);
    /// Runs one layer, by its absolute index, over the rows of `begin`.
    fn layer(&mut self, layer: u32);
    /// Final norm and head of `rows`: `rows * vocab` logits. Needs the ends.
    fn head(&mut self, rows: &[f32], logits: &mut [f32]);
}

/// Loads a part of a checkpoint onto a device.
pub fn open<B: Backend>(
    backend: Arc<B>,
    checkpoint: &Checkpoint,
    part: &Part,
) -> Result<Box<dyn Program>, StageError> {
    match checkpoint.config() {
        Config::Llama(config) => {
            Ok(Box::new(llama::Llama::open(backend, checkpoint, config.clone(), part)?))
        }
        other => Err(StageError::OtherFamily { family: other.family() }),
    }
}

/// Bytes that a part takes once it is prepared for `sizes`; an estimate, since a backend may pack
/// matrices by a few percent wider than the file does.
pub fn need(checkpoint: &Checkpoint, part: &Part, sizes: Sizes) -> Result<Need, StageError> {
    let (kv_bytes, buffers_bytes) = match checkpoint.config() {
        Config::Llama(config) => {
            (llama::kv_bytes(config, part, sizes), llama::buffers_bytes(config, part, sizes))
        }
        other => {
            return Err(StageError::OtherFamily { family: other.family() });
        }
    };
    let weights_bytes = checkpoint.bytes_of(part.range.clone(), part.ends);
    Ok(Need { weights_bytes, kv_bytes, buffers_bytes })
}
