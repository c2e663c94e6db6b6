//! The scheduler, without I/O: requests in, rounds out, results in, tokens out.
//!
//! [`Scheduler`] decides which stream computes which rows in which round, and mirrors the
//! stages' tables ([`SlotState`]). It owns no socket, thread or clock, so a run is a function of
//! its calls: [`Scheduler::submit`] and [`Scheduler::cancel`] at any time,
//! [`Scheduler::next_round`] until it has nothing to issue, [`Scheduler::complete`] for each
//! round that comes back, in order. A reply depends on its prompt, its sampling and the logits
//! alone, never on the other streams, the chunks, the depth or a preemption.
#![forbid(unsafe_code)]

use std::ops::Range;

use arith::base::{Round as RoundNumber, StreamId};
use wire::plan::Plan;

mod admit;
mod cache;
mod compose;
mod copy;
mod draft;
mod index;
mod ledger;
mod mtp;
mod pace;
mod price;
mod reach;
mod reply;
mod request;
pub mod sample;
mod scheduler;
mod stream;

pub use cache::Caching;
pub use draft::{DraftJob, Drafter, Drafters, Drafting, Drafts, Opening, Outlook, Proposal};
pub use pace::{Line, Pace};
pub use price::Prices;
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
    /// Streams whose rows return, in plan order.
    pub wanted: Vec<Wanted>,
}

impl Round {
    /// Which of the rows that return go through the head.
    pub fn heads(&self) -> Vec<Range<usize>> {
        let mut at = 0;
        let heads = self.wanted.iter().map(|wanted| {
            at += wanted.rows as usize;
            at - wanted.heads as usize..at
        });
        heads.collect()
    }

    /// How many of the best logits are needed of each row that goes through the head; 0 for all.
    pub fn best(&self) -> Vec<u32> {
        let each = |wanted: &Wanted| std::iter::repeat_n(wanted.best, wanted.heads as usize);
        self.wanted.iter().flat_map(each).collect()
    }
}

/// Rows of one stream that return to rank 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The stream.
    pub id: StreamId,
    /// Position of the first of them.
    pub first: u32,
    /// How many.
    pub rows: u32,
    /// The last so many go through the head; the others are for the draft head alone.
    pub heads: u32,
    /// How many of the best logits of each of those are needed, 0 for all of them: what comes back
    /// of a row is what [`arith::candidates::pack`] makes of it.
    pub best: u32,
}
