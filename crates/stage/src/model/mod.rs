//! Families: a config becomes a layer program over the backend trait.
//!
//! [`open`] alone knows which families there are. A family's file says which tensors make which
//! blocks of a `trunk`, and nothing else: `attention`, `recurrent`, `mlp` and `ends` hold the ops.
//! A program knows no streams and no plans: it gets a residual, the rows' places and a
//! layer's index.

use std::ops::Range;
use std::sync::Arc;

use arith::attention::KvDtype;
use arith::format::Format;
use backend::{Backend, BackendError, Offer, Over, RowMap, Walk};
use weights::{Checkpoint, Config};

use crate::{Exchange, ExchangeError, StageError};
pub use choice::{Choice, Traffic, Way, choices};
use division::Division;
pub use mtp::Past;
use shape::Shape;
pub use share::{Share, Split};
use trunk::Trunk;

mod attention;
mod berths;
mod choice;
mod division;
mod ends;
mod group;
mod keeps;
mod lane;
mod llama;
mod loader;
mod merge;
mod mlp;
mod mtp;
mod qwen3_5;
mod recurrent;
mod shape;
mod share;
mod trunk;

/// What a program holds of its model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Layers, half-open.
    pub range: Range<u32>,
    /// Whether it holds the embeddings, the final norm and the head.
    pub ends: bool,
    /// How keys and values are stored.
    pub kv: KvDtype,
    /// Which share of every layer.
    pub share: Share,
    /// A defect to load with.
    pub fault: Option<crate::Fault>,
}

/// Buffer sizes of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Most rows between [`Program::begin`] and its last layer.
    pub rows_max: usize,
    /// Most rows of the second half of a pair; 0 for none.
    pub twin_rows: usize,
    /// Most rows of one [`Program::head`].
    pub head_rows_max: usize,
    /// KV pages a layer.
    pub pages: usize,
    /// Slots; each has two recurrent states a layer, `2 * slot` and the next.
    pub slots: usize,
    /// Most bytes of kept recurrent states.
    pub keep_bytes_max: u64,
}

/// Bytes of a prepared part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Its tensors, as the file stores them.
    pub weights_bytes: u64,
    /// Keys and values of all pages and attention layers.
    pub kv_bytes: u64,
    /// Recurrent states of all slots and recurrent layers, and the rows to replay. Kept states come
    /// on top as they are saved, within a budget of their own.
    pub state_bytes: u64,
    /// Row buffers.
    pub buffers_bytes: u64,
    /// Row buffers of the second half of a pair: none where prompts go alone.
    pub twin_bytes: u64,
}

impl Need {
    /// All of it.
    pub fn total_bytes(&self) -> u64 {
        let Self { weights_bytes, kv_bytes, state_bytes, buffers_bytes, twin_bytes } = self;
        weights_bytes + kv_bytes + state_bytes + buffers_bytes + twin_bytes
    }
}

/// The rows that the next layers run.
#[derive(Clone, Debug, Default)]
pub struct Piece {
    /// Where every row stands.
    pub map: RowMap,
    /// The rows of each stream, and where its recurrent state is.
    pub walks: Vec<Walk>,
    /// Rows that may run once more.
    pub records: Vec<Record>,
}

impl Piece {
    /// Its rows before `at`, and those from there on, which go on where the first ones end.
    fn split(&self, at: usize) -> [Self; 2] {
        assert!(self.records.is_empty(), "recorded rows are not split");
        let [first, second] = [0..at, at..self.map.rows.len()].map(|rows| {
            let walks = self.walks.iter().filter_map(|walk| {
                let own = walk.rows.start.max(rows.start)..walk.rows.end.min(rows.end);
                let from = match own.start == walk.rows.start {
                    true => walk.from,
                    false => Some(walk.to),
                };
                let moved =
                    own.start.saturating_sub(rows.start)..own.end.saturating_sub(rows.start);
                (!own.is_empty()).then_some(Walk { rows: moved, from, to: walk.to })
            });
            let walks = walks.collect();
            let tables = self.map.tables.clone();
            let map = RowMap { rows: self.map.rows[rows.clone()].to_vec(), tables };
            Self { map, walks, records: Vec::new() }
        });
        [first, second]
    }
}

/// Rows of a window that may settle in part: a recurrent layer keeps what it made of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Rows of the piece.
    pub rows: Range<usize>,
    /// The first one's place among the kept rows, `slot * WINDOW_ROWS_MAX` and on.
    pub at: usize,
}

/// Kept rows that run once more, to the state after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replay {
    /// The first kept row.
    pub at: usize,
    /// How many.
    pub rows: usize,
    /// The state before them; `None` for a stream's start.
    pub from: Option<usize>,
    /// Where the state after them goes.
    pub to: usize,
}

/// The layers of a range on a device. Between layers a row is the residual, `hidden` values.
pub trait Program: Send {
    /// Allocates caches and buffers; what an earlier call allocated is freed first.
    fn allocate(&mut self, sizes: Sizes) -> Result<(), BackendError>;
    /// Sets the residual from token ids. Needs the ends.
    fn embed(&mut self, ids: &[u32]);
    /// Sets the residual from `rows * hidden` values.
    fn load(&mut self, rows: &[f32]);
    /// Reads rows of the residual back, from `first` on.
    fn store(&self, first: usize, rows: &mut [f32]);
    /// Has `count` berths of `rows` rows for the rank before, and says by what it finds them; who
    /// waits for that one asks `over` whether to go on.
    ///
    /// # Errors
    /// Why there are none, in words.
    fn berths(&mut self, count: usize, rows: usize, over: Over) -> Result<Offer, String>;
    /// Finds the berths of the rank after, each of `rows` rows; how many.
    ///
    /// # Errors
    /// Why they are not found, or no such ones, in words.
    fn reach(&mut self, offer: &Offer, rows: usize, over: Over) -> Result<u32, String>;
    /// Forgets the berths of the rank after, and ends what is on its way to this rank's own.
    fn leave(&mut self);
    /// Waits for the `rows` rows of a round in a berth of this rank.
    ///
    /// # Errors
    /// Why they do not come.
    fn come(&mut self, berth: u32, rows: usize) -> Result<(), StageError>;
    /// Sets `rows` rows of the residual from `at` on from rows of a berth from `first` on.
    fn fetch(&mut self, berth: u32, first: usize, rows: usize, at: usize);
    /// Puts `rows` rows of the residual from `first` on to a berth of the rank after, from `at` on.
    ///
    /// # Errors
    /// Why the berth is not free.
    fn put(&self, first: usize, rows: usize, berth: u32, at: usize) -> Result<(), StageError>;
    /// Has the `rows` rows of a round, which were put to a berth of the rank after, go there.
    ///
    /// # Errors
    /// Why they do not.
    fn send(&self, berth: u32, rows: usize) -> Result<(), StageError>;
    /// Whether rows that were read back are to be believed: nothing of them came from a member that
    /// was lost on the way.
    fn settled(&mut self) -> Result<(), ExchangeError>;
    /// Takes the rows that the next layers run.
    fn begin(&mut self, piece: Piece);
    /// Runs one layer, by its absolute index, over the rows of `begin`.
    fn layer(&mut self, layer: u32) -> Result<(), ExchangeError>;
    /// Runs all layers over the rows of `begin` in two halves, whose exchanges with other members
    /// go under each other's compute. Needs a twin; no row of `begin` is recorded.
    fn layers_paired(&mut self) -> Result<(), ExchangeError>;
    /// Final norm and head of `rows`, of which `best` logits are needed of each, 0 for all: what
    /// stands for them ([`arith::candidates::pack`]) comes behind `logits`, on the first member
    /// alone. Needs the ends.
    fn head(
        &mut self,
        rows: &[f32],
        best: &[u32],
        logits: &mut Vec<f32>,
    ) -> Result<(), ExchangeError>;
    /// Loads the draft head, where the model has one and this part the ends; whether it has. Its
    /// matrices are put into `format` where one is given. Comes before `allocate`.
    fn add_draft_head(
        &mut self,
        checkpoint: &Checkpoint,
        format: Option<Format>,
    ) -> Result<bool, StageError>;
    /// Whether other members have shares of the same layers.
    fn is_shared(&self) -> bool;
    /// As [`Backend::chunk_cost_rows`].
    fn chunk_cost_rows(&self) -> u32;
    /// Whether a draft head is loaded.
    fn drafts(&self) -> bool;
    /// The draft head's output of rows before which `past` lies, at most `rows_max`; `ids` are the
    /// tokens after them. It keeps their keys. Exchanges nothing, as `draft_head`.
    fn draft(&mut self, past: Past<'_>, ids: &[u32], map: &RowMap) -> Vec<f32>;
    /// Logits of rows of [`Program::draft`], at most `head_rows_max`.
    fn draft_head(&mut self, rows: &[f32], logits: &mut [f32]);
    /// Takes recurrent states to the position after kept rows, in every layer.
    fn replay(&mut self, replays: &[Replay]);
    /// Copies a page of every cache.
    fn copy_page(&mut self, from: u32, to: u32);
    /// Keeps the recurrent state at `place` under `key`; `false` where a member has no room.
    fn save(&mut self, key: u64, place: usize) -> Result<bool, ExchangeError>;
    /// Copies a kept state to `place`.
    fn restore(&mut self, key: u64, place: usize);
    /// Frees a kept state, if it is held.
    fn forget(&mut self, key: u64);
    /// Frees all kept states.
    fn forget_all(&mut self);
    /// S and tail of a layer's recurrent state at `place`; `None` where the layer has none.
    fn state(&self, layer: u32, place: usize) -> Option<(Vec<f32>, Vec<f32>)>;
}

/// Loads a part of a checkpoint onto a device, of a group's member its share.
pub fn open<B: Backend>(
    backend: Arc<B>,
    checkpoint: &Checkpoint,
    part: &Part,
    exchange: Box<dyn Exchange>,
) -> Result<Box<dyn Program>, StageError> {
    let shape = shape(checkpoint.config())?;
    let block = match checkpoint.config() {
        Config::Qwen35(_) => qwen3_5::block,
        _ => llama::block,
    };
    Ok(Box::new(Trunk::open(backend, checkpoint, shape, part, exchange, block)?))
}

/// Bytes that a part takes once it is prepared for `sizes`; an estimate, since a backend may pack
/// matrices by a few percent wider than the file does.
pub fn need(checkpoint: &Checkpoint, part: &Part, sizes: Sizes) -> Result<Need, StageError> {
    let division = Division::new(shape(checkpoint.config())?, part.share);
    let weights = checkpoint.part(part.range.clone(), part.ends).map(|tensor| {
        let (own, all) = division.share_of(&tensor.name);
        (tensor.bytes as u128 * own as u128 / all as u128) as u64
    });
    Ok(Need {
        weights_bytes: weights.sum(),
        kv_bytes: division.own.kv_bytes(part, sizes),
        state_bytes: division.own.state_bytes(part, sizes),
        buffers_bytes: division.buffers_bytes(part, sizes),
        twin_bytes: division.twin_bytes(part, sizes),
    })
}

/// Bytes that a draft head adds to the part with the ends; 0 where the model has none.
pub fn draft_need(checkpoint: &Checkpoint, part: &Part, sizes: Sizes) -> Result<u64, StageError> {
    let division = Division::new(shape(checkpoint.config())?, part.share);
    if !checkpoint.config().mtp() {
        return Ok(0);
    }
    let layers = checkpoint.config().layers();
    let mut bytes = checkpoint.bytes_of(layers..layers + 1, false);
    bytes += division.whole.draft_bytes(part, sizes);
    if division.vocab.is_divided() {
        // The head and the rows of a block besides, whole.
        let head = checkpoint.info("output.weight").map_or(0, |head| head.bytes);
        let shape = &division.whole;
        let row = 3 * shape.intermediate + 3 * shape.query_width() + 2 * shape.kv_width();
        let rows = sizes.rows_max * row + sizes.head_rows_max * shape.vocab;
        bytes += (head + 4 * rows) as u64;
    }
    Ok(bytes)
}

fn shape(config: &Config) -> Result<Shape, StageError> {
    match config {
        Config::Llama(config) => Ok(llama::shape(config)),
        Config::Qwen35(config) => Ok(qwen3_5::shape(config)),
        other => Err(StageError::OtherFamily { family: other.family() }),
    }
}
