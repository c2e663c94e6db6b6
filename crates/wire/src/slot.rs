//! What a rank holds of a stream, comparable between ranks.

use arith::base::{Generation, StreamId};

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
