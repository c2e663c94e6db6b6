//! The ranks of a ring between boot and break, without I/O: what happens goes in, what to do comes
//! out.
//!
//! [`Lead`] is rank 0, [`Follow`] every other rank. Each is a state that [`Lead::step`] or
//! [`Follow::step`] moves: the time and one [`Event`] in, [`Action`]s in order out, or the error
//! that ends the epoch. They own no socket, thread, clock or device, so the threads of a rank and a
//! simulator drive the same code.
//!
//! A rank has three sides. The receiving one hands each frame over as it comes, also while a round
//! is at work; rounds wait in order, at most the agreed depth of them, and a cancel among them is
//! heard at once. The device does one thing at a time: after a [`Action::Stage`] or
//! [`Action::Head`] no other comes before its [`Event::Computed`]. What is to be sent is handed to
//! the sending side, which works on its own.

use std::time::Duration;

use arith::base::{Round, StreamId};
use sched::{Event as Heard, RequestId};
use wire::frame::Frame;
use wire::plan::Plan;

use crate::error::RingError;

mod follow;
mod lead;
mod timing;

pub use follow::Follow;
pub use lead::{Lead, Ring};

/// Time since some start; only differences count.
pub type Now = Duration;

/// What happens to a rank.
#[derive(Debug)]
pub enum Event {
    /// A plan, rows or a cancel of the rank before.
    Frame(Frame),
    /// The device is done with the last [`Action::Stage`] or [`Action::Head`].
    Computed {
        /// All rows of the round, or the logits.
        values: Vec<f32>,
        /// As [`stage::Engine::held`] after a stage's work.
        held: Vec<bool>,
    },
    /// Requests or cancels were made: rank 0 looks for something to do.
    Look,
}

/// What a stage computes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Rows {
    /// Rank 0: a token id a row.
    Tokens(Vec<u32>),
    /// Others: values.
    Values(Vec<f32>),
}

/// What a rank does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Hands a frame to the link to the rank after.
    Send(Frame),
    /// Tells the device that a stream's rows need no computing any more.
    Skip(StreamId),
    /// Gives the device a round.
    Stage {
        /// Its number.
        round: Round,
        /// Its plan.
        plan: Plan,
        /// Its rows.
        rows: Rows,
    },
    /// Rank 0: gives the device rows that came back, for their logits.
    Head {
        /// The round that they are of.
        round: Round,
        /// Values.
        rows: Vec<f32>,
    },
    /// Rank 0: what a request's owner hears.
    Tell(RequestId, Heard),
}

/// What a step gives.
pub type Stepped = Result<Vec<Action>, RingError>;
