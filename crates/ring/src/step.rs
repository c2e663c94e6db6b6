//! The ranks of a ring without I/O: what happens goes in, what to do comes out.
//!
//! [`Leading`] is the life of rank 0 and [`Following`] that of every other rank: epoch after epoch
//! of a boot ([`crate::boot::Boot`]), rank 0's canary, and rounds ([`Lead`], [`Follow`]). Whoever
//! drives one asks it what it wants ([`Want`]), does that and tells how it went, with the time;
//! each answer gives [`Action`]s, to be done in order, or the error that ends the epoch, which goes
//! back in as `broke`. Between two epochs requests wait in a [`Patience`]. None of them owns a
//! socket, a thread, a clock or a device, so the threads of a rank and a simulator drive the same
//! code.
//!
//! In an epoch a rank has three sides. The receiving one hands each frame over as it comes, also
//! while a round is at work; rounds wait in order, at most the agreed depth of them, and a cancel
//! among them is heard at once. The device does one thing at a time: after a [`Action::Stage`],
//! [`Action::Head`] or [`Action::Draft`] no other comes before its [`Event::Computed`] or
//! [`Event::Drafted`]. What is to be sent is handed to the sending side, which works on its own.

use std::time::Duration;

use arith::base::{Rank, Round, StreamId};
use sched::{DraftJob, Event as Heard, Failure, Refusal, Request, RequestId};
use stage::Input;
use wire::control::{Agree, Offer};
use wire::frame::Frame;
use wire::plan::Plan;

use crate::error::RingError;
use crate::head::RingState;

mod follow;
mod following;
mod lead;
mod leading;
mod patience;
mod timing;
mod turns;

pub use follow::Follow;
pub use following::Following;
pub use lead::{Lead, Ring};
pub use leading::{Facts, Leading};
pub use patience::Patience;

/// Time since some start; only differences count.
pub type Now = Duration;

/// What happens to a rank in an epoch.
#[derive(Debug)]
pub enum Event {
    /// A plan, rows or a cancel of the rank before.
    Frame(Frame),
    /// The device is done with the last [`Action::Stage`] or [`Action::Head`].
    Computed(Computed),
    /// The device is done with the last [`Action::Draft`]: the guesses of each job.
    Drafted(Vec<Vec<u32>>),
    /// Requests or cancels were made: rank 0 looks for something to do.
    Look,
}

/// What a device has computed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Computed {
    /// All rows of the round, or the logits; none where the rows lie in a berth.
    pub values: Vec<f32>,
    /// The berth of the rank after in which they lie.
    pub berth: Option<u32>,
    /// As [`stage::Engine::held`] after a stage's work.
    pub held: Vec<bool>,
}

/// What the server asks of rank 0.
#[derive(Debug)]
pub enum Asked {
    /// A new request; [`Action::Answer`] is the verdict.
    Submit(RequestId, Box<Request>),
    /// The owner went away; also of a request that was refused or has ended.
    Cancel(RequestId),
    /// Finish what runs, admit nothing, then stop the ring.
    Drain,
}

/// What a rank waits for. Each has its answer; a rank is asked again after that.
#[derive(Clone, Debug, PartialEq)]
pub enum Want {
    /// Links to the neighbours, on rank 0 of a new epoch: `joined`.
    Join,
    /// Rank 0: a command, where there is one: [`Leading::command`].
    Command,
    /// Rank 0, without links: a command until then: [`Leading::command`].
    Pause(Now),
    /// What the inbox holds, if anything: `inbox`.
    Inbox,
    /// What comes into the inbox until then: `inbox`.
    Sleep(Option<Now>),
    /// Room in the stage and the link for the agreed shapes: `prepared`.
    Prepare(Agree),
    /// A [`Action::Stage`] or [`Action::Head`] done: `computed`; a [`Action::Draft`]: `drafted`.
    Compute(Action),
    /// Rank 0: what waits in the [`Patience`]: [`Leading::resume`].
    Carried,
    /// Nothing more, ever.
    End,
}

/// What a stage computes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Rows {
    /// Rank 0: a token id a row.
    Tokens(Vec<u32>),
    /// Others: values.
    Values(Vec<f32>),
    /// Others: values in a berth of their device.
    Berth(u32),
}

impl Rows {
    /// As an engine takes them.
    pub fn input(&self) -> Input<'_> {
        match self {
            Self::Tokens(ids) => Input::Tokens(ids),
            Self::Values(values) => Input::Rows(values),
            Self::Berth(berth) => Input::Berth(*berth),
        }
    }
}

/// What a rank does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Hands a frame to the link to the rank after.
    Send(Frame),
    /// Gives back the room of rows that go nowhere.
    Free(Vec<f32>),
    /// Has the device find the berths of the rank after.
    Reach(Box<Offer>),
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
        /// How many of the best logits are needed of each; 0 for all of them.
        best: Vec<u32>,
    },
    /// Rank 0: gives the device rows that came back for its draft head.
    Draft {
        /// What each stream asks of it.
        jobs: Vec<DraftJob>,
        /// All rows of the round that came back.
        rows: Vec<f32>,
    },
    /// Rank 0: what a request's owner hears.
    Tell(RequestId, Heard),
    /// Rank 0: whether a request is taken in.
    Answer(RequestId, Result<(), Refusal>),
    /// Rank 0: a request's owner is gone, wherever the request is.
    Forget(RequestId),
    /// Rank 0: what the server sees of the ring.
    State(RingState),
    /// Rank 0: the canary's hash.
    Proven([u8; 32]),
    /// Rank 0: the epoch's requests ([`Leading::carried`]) go into the [`Patience`], and new ones
    /// wait.
    Hold {
        /// Why.
        reason: String,
        /// Whether the epoch gave a token.
        progressed: bool,
    },
    /// Rank 0: another reason why the ring is down.
    Because(String),
    /// Rank 0: new requests wait no more.
    Over,
    /// Rank 0: what waits in the [`Patience`] fails.
    Fail(Failure),
    /// Tells every rank why this one stops, then closes both links.
    Stop(Rank, String),
    /// Closes both links.
    Close,
    /// The stage forgets every stream.
    Reset,
}

/// What a step gives.
pub type Stepped = Result<Vec<Action>, RingError>;
