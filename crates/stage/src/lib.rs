//! One layer range on one backend: weights, paged KV, streams' tables and the layer program.

use arith::base::{Generation, StreamId};
use wire::plan::Plan;

/// What every rank agrees on before KV is allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shapes {
    /// Most prompt rows of one stream in a round.
    pub chunk_rows_max: u32,
    /// Most rows of a round.
    pub round_rows_max: u32,
    /// Most streams at once.
    pub streams_max: u32,
    /// Most positions of a stream.
    pub context_max: u32,
    /// KV pages of 64 positions, shared by all streams.
    pub pages: u32,
}

/// What a stage computes a round from.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Rank 0: a token id a row.
    Tokens(&'a [u32]),
    /// Other ranks: `rows * hidden` values from the boundary.
    Rows(&'a [f32]),
}

/// A stream's entry in a rank's table; equal on every rank after every round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotState {
    /// The stream.
    pub id: StreamId,
    /// Changes of state so far.
    pub generation: Generation,
    /// Position before the last window.
    pub first: u32,
    /// Rows of the last window, not yet settled.
    pub rows: u32,
    /// KV pages held.
    pub pages: u32,
}

/// What ends a round on this stage.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StageError {
    /// The plan's generation is not the stage's: a settle, a resume or rows were missed.
    #[error("OtherGeneration: stream {id}: expected {expected}, found {found}")]
    OtherGeneration {
        /// The stream.
        id: StreamId,
        /// This stage's.
        expected: Generation,
        /// The plan's.
        found: Generation,
    },
    /// A position that does not follow from the stream's state.
    #[error("OtherPosition: stream {id}: expected {expected}, found {found}")]
    OtherPosition {
        /// The stream.
        id: StreamId,
        /// This stage's.
        expected: u32,
        /// The plan's.
        found: u32,
    },
    /// More rows accepted than the last window had.
    #[error("BadAccepted: stream {id}: at most {most}, found {found}")]
    BadAccepted {
        /// The stream.
        id: StreamId,
        /// Rows of the window.
        most: u32,
        /// The plan's.
        found: u32,
    },
    /// A stream that this stage does not hold, or holds already.
    #[error("OtherStream: stream {id} is {state}")]
    OtherStream {
        /// The stream.
        id: StreamId,
        /// `not open` or `open already`.
        state: &'static str,
    },
    /// No free KV page.
    #[error("TooFewPages: stream {id} needs {need} pages, {free} are free")]
    TooFewPages {
        /// The stream.
        id: StreamId,
        /// Pages needed.
        need: u32,
        /// Pages free.
        free: u32,
    },
    /// The round does not fit the agreed shapes.
    #[error("OtherShape: {what}: at most {most}, found {found}")]
    OtherShape {
        /// Which.
        what: &'static str,
        /// Agreed.
        most: u64,
        /// The plan's.
        found: u64,
    },
    /// A keep's key that this stage does not hold.
    #[error("NoSuchKeep: {key:#x}")]
    NoSuchKeep {
        /// The key.
        key: u64,
    },
    /// The device.
    #[error(transparent)]
    Backend(#[from] backend::BackendError),
}

/// A stage as the ring drives it, whatever its backend and family.
pub trait Engine: Send {
    /// Width of a boundary row.
    fn hidden(&self) -> usize;
    /// Logits a row; 0 where this rank has no head.
    fn vocab(&self) -> usize;
    /// Allocates KV and buffers for the agreed shapes and runs every kernel once.
    fn prepare(&mut self, shapes: &Shapes) -> Result<(), StageError>;
    /// Settles, then computes the plan's rows; `out` becomes `rows * hidden` values.
    fn step(&mut self, plan: &Plan, input: Input<'_>, out: &mut Vec<f32>)
    -> Result<(), StageError>;
    /// Rank 0: final norm and head of rows that came back; `out` becomes `rows * vocab` logits.
    fn logits(&mut self, rows: &[f32], out: &mut Vec<f32>) -> Result<(), StageError>;
    /// The stream's rows in later plans are computed as zeros, until its cancel or close entry.
    fn skip(&mut self, id: StreamId);
    /// Forgets every stream (a new epoch); weights stay.
    fn reset(&mut self);
    /// The table, by ascending id.
    fn table(&self) -> Vec<SlotState>;
}
