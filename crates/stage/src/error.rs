//! What a stage refuses, by name.

use arith::base::{Generation, StreamId};

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
    /// An open that does not start at nothing.
    #[error("BadOpen: stream {id}: {field}: expected 0, found {found}")]
    BadOpen {
        /// The stream.
        id: StreamId,
        /// `first`, `accepted` or `generation`.
        field: &'static str,
        /// The plan's.
        found: u32,
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
    /// A window of more than `wire::limit::WINDOW_ROWS_MAX` rows of which a part is accepted.
    #[error(
        "LongWindow: stream {id}: all or none of {rows} rows, or at most {most} rows, \
         found {found} accepted"
    )]
    LongWindow {
        /// The stream.
        id: StreamId,
        /// Rows of the window.
        rows: u32,
        /// Rows of a window that settles in part.
        most: u32,
        /// The plan's.
        found: u32,
    },
    /// A stream that this stage does not hold, or holds already.
    #[error("OtherStream: stream {id} is {state}")]
    OtherStream {
        /// The stream.
        id: StreamId,
        /// `not open`, `open already`, `out of order`, `not resumed` or `restored already`.
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
    /// A key that is held already, or that a plan saves twice.
    #[error("DuplicateKeep: {key:#x}")]
    DuplicateKeep {
        /// The key.
        key: u64,
    },
    /// More kept states than a rank's table holds.
    #[error("TooManyKeeps: at most {most}, found {found}")]
    TooManyKeeps {
        /// `wire::limit::KEEPS_MAX`.
        most: usize,
        /// With the plan's.
        found: usize,
    },
    /// A round before the shapes were agreed, or shapes that hold nothing.
    #[error("EmptyShape: {what}: expected at least 1, found 0")]
    EmptyShape {
        /// Which.
        what: &'static str,
    },
    /// Rows that are not in the berth in which they were said to lie.
    #[error("OtherBerth: berth {berth} does not hold the round's rows")]
    OtherBerth {
        /// Which.
        berth: u32,
    },
    /// Rows on their way between this rank's device and a neighbour's that do not arrive.
    #[error("BerthLost: berth {berth}: {reason}; the rows come again with the ring")]
    BerthLost {
        /// Which.
        berth: u32,
        /// What happened to it.
        reason: String,
    },
    /// A range that the model does not have.
    #[error("OtherRange: expected layers inside 0..{layers}, found {first}..{end}")]
    OtherRange {
        /// Layers of the model.
        layers: u32,
        /// First layer asked for.
        first: u32,
        /// One past the last.
        end: u32,
    },
    /// A family that has no layer program yet.
    #[error("OtherFamily: {family} has no layer program")]
    OtherFamily {
        /// Its name.
        family: &'static str,
    },
    /// A member of this stage's group that is gone, silent or out of step.
    #[error("ShardLost: member {member}: {reason}; the group comes back once it does")]
    ShardLost {
        /// Which one.
        member: usize,
        /// What happened to it.
        reason: String,
    },
    /// The checkpoint.
    #[error(transparent)]
    Weights(#[from] weights::WeightsError),
    /// The device.
    #[error(transparent)]
    Backend(#[from] backend::BackendError),
}

impl From<crate::ExchangeError> for StageError {
    fn from(crate::ExchangeError { member, reason }: crate::ExchangeError) -> Self {
        Self::ShardLost { member, reason }
    }
}
