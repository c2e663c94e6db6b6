//! The plan of one round: what every stage does to which stream. `docs/wire.md`, "Plan".

use arith::base::{Generation, StreamId};

/// The parent of a tree window's first row, in [`Entry::parents`].
pub const ROOT: u16 = 0xFFFF;

/// What happens to a stream in this round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// First rows of a new stream.
    Open = 1,
    /// Settles the last window, then computes `rows` rows (none: settles only).
    Continue = 2,
    /// The stream is over; its pages are freed.
    Close = 3,
    /// The same, because somebody gave up.
    Cancel = 4,
    /// First rows of a stream that starts from a kept state.
    Resume = 5,
}

/// Which of the stream's rows the last stage sends back to rank 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Want {
    /// None.
    #[default]
    None = 0,
    /// The last one.
    Last = 1,
    /// All.
    All = 2,
}

/// A hint to kernels; never bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Decode windows only.
    #[default]
    Window = 0,
    /// Some entry carries prompt rows.
    Prompt = 1,
}

/// One stream of a round; 28 bytes on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The stream; ids ascend in a plan.
    pub id: StreamId,
    /// What to do.
    pub op: Op,
    /// Which rows return.
    pub want: Want,
    /// Position of the first row.
    pub first: u32,
    /// Rows computed.
    pub rows: u32,
    /// Rows of the last window that stay; the stage rolls back to them before the forward.
    pub accepted: u32,
    /// For resume: the position of the kept state; else 0.
    pub resume: u32,
    /// The stream's generation before this entry.
    pub generation: Generation,
    /// Parents of a tree window (flag 1), one a row; `None` for a chain.
    pub parents: Option<Vec<u16>>,
    /// Token ids (flag 2), for families whose later layers read them.
    pub tokens: Option<Vec<u32>>,
}

/// An operation on the prompt cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepOp {
    /// Keep the stream's state at `position` under `key`.
    Save = 1,
    /// Forget `key`.
    Drop = 2,
    /// Load `key` into the stream.
    Restore = 3,
}

/// One keep; 24 bytes on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Key of the kept state.
    pub key: u64,
    /// The stream it is saved from or restored to.
    pub stream: StreamId,
    /// Position of the state.
    pub position: u32,
    /// What to do.
    pub op: KeepOp,
    /// Rank 0 writes true; a stage that could not do it writes false.
    pub held: bool,
}

/// What one round does, the same for every stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Hint.
    pub mode: Mode,
    /// Streams, by ascending id.
    pub entries: Vec<Entry>,
    /// Row offsets at which a stage may run the round in pieces.
    pub cuts: Vec<u32>,
    /// Prompt-cache operations.
    pub keeps: Vec<Keep>,
}

impl Plan {
    /// Rows of the whole round.
    pub fn rows(&self) -> usize {
        self.entries.iter().map(|e| e.rows as usize).sum()
    }

    /// Row indices, in plan order, that the last stage sends back.
    pub fn wanted(&self) -> Vec<usize> {
        let (mut at, mut wanted) = (0, Vec::new());
        for e in &self.entries {
            let end = at + e.rows as usize;
            match e.want {
                Want::None => {}
                Want::Last if e.rows > 0 => wanted.push(end - 1),
                Want::Last => {}
                Want::All => wanted.extend(at..end),
            }
            at = end;
        }
        wanted
    }
}
