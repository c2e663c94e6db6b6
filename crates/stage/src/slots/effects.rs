//! What an applied plan asks of the compute side.

use std::ops::Range;

use arith::base::StreamId;
use backend::RowMap;

/// A stream's rows inside a round: its window, or one path of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The stream.
    pub id: StreamId,
    /// Position of its first row.
    pub first: u32,
    /// Its rows among those of the map.
    pub rows: Range<usize>,
    /// Place of its first row among the window's rows that may run once more; `None` where the
    /// window settles whole.
    pub kept_at: Option<u32>,
    /// Whether nobody waits for these rows: they travel as zeros.
    pub skipped: bool,
    /// Where the stream's recurrent state goes.
    pub track: Track,
}

/// Where a window finds the recurrent state and where it leaves it. A slot has two places in each
/// recurrent layer, and a window goes from one to the other: what it started from stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Track {
    /// The stream's slot.
    pub slot: u32,
    /// The place before the window; `None` where the stream starts, whose state is zero.
    pub from: Option<usize>,
    /// The place after it.
    pub to: usize,
}

/// A window whose outcome is now known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The stream.
    pub id: StreamId,
    /// Rows that the window had, at least one; of a tree those of its first path, whose state is
    /// at the end of the track.
    pub rows: u32,
    /// Rows that stay; state rolls back to the one after them.
    pub accepted: u32,
    /// Place of the first of them among the window's rows that may run once more.
    pub at: u32,
    /// Whether they are on another path than a tree's first.
    pub is_side: bool,
    /// Whether nobody waits for the stream: its rows may never have been computed.
    pub skipped: bool,
    /// Where the window's state went.
    pub track: Track,
}

impl Settled {
    /// Whether neither place has the state after the accepted rows: they run once more.
    pub fn replays(&self) -> bool {
        !self.skipped && self.accepted > 0 && (self.is_side || self.accepted < self.rows)
    }
}

/// A page that a resumed stream will write behind the kept keys, or another path of a tree behind
/// those before its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// The keep's page, or the stream's.
    pub from: u32,
    /// The stream's, or the path's.
    pub to: u32,
}

/// One operation on kept states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepEffect {
    /// Keep the state of a stream.
    Save {
        /// The key.
        key: u64,
        /// The stream.
        id: StreamId,
        /// Where its recurrent state is.
        place: usize,
        /// Whether its rows may never have been computed: there is nothing to keep.
        skipped: bool,
    },
    /// Forget a state.
    Drop {
        /// The key.
        key: u64,
    },
    /// Give a kept state to a new stream.
    Restore {
        /// The key.
        key: u64,
        /// The stream.
        id: StreamId,
        /// Where its recurrent state goes.
        place: usize,
    },
}

/// What an applied plan asks of the compute side, in this order: forget `closed`, roll back
/// `settled`, start `opened`, then `keeps`, `copies`, and run `map`.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// Streams that are over.
    pub closed: Vec<StreamId>,
    /// Windows to roll back.
    pub settled: Vec<Settled>,
    /// New streams, resumed ones too.
    pub opened: Vec<StreamId>,
    /// Kept states, one a keep of the plan.
    pub keeps: Vec<KeepEffect>,
    /// Pages to copy.
    pub copies: Vec<PageCopy>,
    /// Streams with rows, several times for a tree; `map.tables` has one table each, in this order.
    pub spans: Vec<Span>,
    /// Where every row stands.
    pub map: RowMap,
    /// Which row of the plan each row of the map is; a row that paths share is there for each.
    pub origins: Vec<usize>,
}
