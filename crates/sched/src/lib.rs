//! The scheduler, without I/O: requests in, rounds out, results in, tokens out.
//!
//! [`Scheduler`] decides which stream computes which rows in which round, and mirrors the
//! stages' tables ([`SlotState`]). It owns no socket, thread or clock, so a run is a function of
//! its calls: [`Scheduler::submit`] and [`Scheduler::cancel`] at any time,
//! [`Scheduler::next_round`] until it has nothing to issue, [`Scheduler::complete`] for each
//! round that comes back, in order. A reply depends on its prompt, its sampling and the logits
//! alone, never on the other streams, the chunks, the depth or a preemption.
#![forbid(unsafe_code)]

use arith::base::{Round as RoundNumber, StreamId};
use wire::plan::Plan;

mod admit;
mod cache;
mod compose;
mod index;
mod ledger;
mod pace;
mod reply;
mod request;
pub mod sample;
mod scheduler;
mod stream;

pub use cache::Caching;
pub use pace::{Line, Pace};
pub use request::{Event, Failure, Finish, Refusal, Request};
pub use scheduler::{Carried, Scheduler};
pub use wire::slot::SlotState;

/// A request's name, unique for the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Bounds that the scheduler works within; from the agreed shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most streams at once.
    pub streams_max: u32,
    /// Most requests waiting.
    pub queue_max: u32,
    /// Most prompt rows of one stream in a round.
    pub chunk_rows_max: u32,
    /// Most rows of a round.
    pub round_rows_max: u32,
    /// Most positions of a stream (prompt and reply).
    pub context_max: u32,
    /// KV pages of the tightest stage.
    pub pages: u32,
    /// Rounds in flight.
    pub depth: u32,
}

/// One round, as plain data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Its number, ascending from 1.
    pub number: RoundNumber,
    /// What every stage does.
    pub plan: Plan,
    /// Token ids of the rows, in plan order, for the embeddings.
    pub tokens: Vec<u32>,
    /// Streams whose rows return, in plan order: stream, position of its first returned row, rows.
    pub wanted: Vec<(StreamId, u32, u32)>,
}
