//! A rank's two neighbours in one epoch, the same over sockets and in memory.
//!
//! Frames from the rank before arrive in [`Neighbours::inbound`]; [`Outbound`] sends to the rank
//! after. Beats, silence, and the passing on of stops and cancels happen behind these ends.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arith::base::{Epoch, Rank, Round};
use stage::{Over, StageError};
use wire::beat::Beat;
use wire::frame::{Frame, Kind};
use wire::stop::Stop;
use wire::tally::Tally;

pub(crate) mod bell;
pub(crate) mod door;
mod error;
pub(crate) mod live;
pub(crate) mod queue;
pub mod relay;
pub(crate) mod rhythm;
pub mod spare;

pub use error::LinkError;

use crate::error::RingError;
use crate::inbox::{Inbox, Post};
use crate::memory;
use crate::tcp::outlet::Outlet;
use live::Live;

/// Most frames that wait for the compute side; a full inbox makes the link's reader wait.
pub const INBOUND_FRAMES_MAX: usize = 1024;

/// What reaches the compute side.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Inbound {
    /// A whole frame of the rank before: control, plan, rows, stop or cancel.
    Frame(Frame),
    /// The epoch is over; nothing follows.
    Broken(LinkError),
    /// A [`Waker`] was used.
    Poke,
}

/// Both links of one epoch. Dropping it closes them.
#[derive(Debug)]
pub struct Neighbours {
    /// The ring's life that the links belong to.
    pub epoch: Epoch,
    /// From the rank before.
    pub inbound: Inbox,
    /// To the rank after.
    pub outbound: Outbound,
    /// Wakes whoever waits on `inbound`.
    pub waker: Waker,
}

impl Neighbours {
    /// What this rank's beats say from now on: the round at work (0 when idle), rounds done.
    pub fn set_progress(&self, round: Round, done: u64) {
        if let Port::Tcp(live, _) = &self.outbound.0.port {
            live.set_progress(round, done);
        }
    }

    /// Counts time in which this rank's device computed, for its tallies.
    pub fn computed(&self, time: Duration) {
        if let Port::Tcp(live, _) = &self.outbound.0.port {
            live.computed(time);
        }
    }

    /// The newest tally of each rank that sent one, by rank; at rank 0 alone.
    pub fn tallies(&self) -> Vec<Tally> {
        match &self.outbound.0.port {
            Port::Tcp(live, _) => live.tallies(),
            Port::Memory(_) => Vec::new(),
        }
    }

    /// The buffer for one rows frame of the rank before, in bytes; 0 until this is called.
    pub fn set_rows_bytes_max(&self, rows_bytes_max: usize) {
        match &self.outbound.0.port {
            Port::Tcp(live, _) => live.set_rows_bytes_max(rows_bytes_max),
            Port::Memory(end) => end.set_rows_bytes_max(rows_bytes_max),
        }
    }

    /// Room for rows, of what was given back.
    pub(crate) fn room(&self) -> Vec<f32> {
        match &self.outbound.0.port {
            Port::Tcp(live, _) => live.spare.take(),
            Port::Memory(_) => Vec::new(),
        }
    }

    /// Gives rows back that are needed no more.
    pub(crate) fn give_back(&self, rows: Vec<f32>) {
        if let Port::Tcp(live, _) = &self.outbound.0.port {
            live.spare.give(rows);
        }
    }

    /// The last beat of the rank before, where its link carries beats.
    pub fn last_beat(&self) -> Option<Beat> {
        match &self.outbound.0.port {
            Port::Tcp(live, _) => live.last_beat(),
            Port::Memory(_) => None,
        }
    }

    /// Why the epoch is over, once it is.
    pub fn broken(&self) -> Option<LinkError> {
        self.outbound.0.port.failure()
    }

    /// Asks, from any thread, whether the epoch is over; keeps no link open.
    pub fn over(&self) -> Over {
        let handle = Arc::downgrade(&self.outbound.0);
        Arc::new(move || handle.upgrade().is_none_or(|handle| handle.port.failure().is_some()))
    }

    /// Why the stage fails: where it waited for a neighbour's device, that of the link.
    pub(crate) fn failed(&self, rank: Rank, error: StageError) -> RingError {
        match self.broken() {
            Some(broken) if matches!(error, StageError::BerthLost { .. }) => broken.into(),
            _ => RingError::Stage { rank, error },
        }
    }

    /// Tells every rank why this one stops, then closes both links.
    pub fn stop(&self, origin: Rank, reason: &str) {
        let stop = Stop { origin, reason: reason.into() };
        // A link that is gone already has told its neighbour by that.
        let _ = self.outbound.send(Frame::stop(&stop));
        self.outbound.close();
    }
}

/// The sending end of the link to the rank after.
#[derive(Clone, Debug)]
pub struct Outbound(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    port: Port,
}

#[derive(Debug)]
pub(crate) enum Port {
    Tcp(Arc<Live>, Arc<Outlet>),
    Memory(memory::End),
}

impl Outbound {
    pub(crate) fn new(port: Port) -> Self {
        Self(Arc::new(Handle { port }))
    }

    /// Hands a frame over for sending; stops and cancels overtake what waits. Blocks while the
    /// queue is full.
    ///
    /// # Errors
    /// The frame's own faults; `QueueFull` when nothing moved until the deadline; else why the
    /// epoch is over.
    pub fn send(&self, frame: Frame) -> Result<(), LinkError> {
        self.queue(frame)?;
        self.flush();
        Ok(())
    }

    /// As [`Outbound::send`], but the frame may wait for the next [`Outbound::flush`].
    ///
    /// # Errors
    /// As [`Outbound::send`]'s.
    pub fn queue(&self, frame: Frame) -> Result<(), LinkError> {
        debug_assert!(frame.kind != Kind::Beat, "beats are the link's own");
        match &self.0.port {
            Port::Tcp(live, _) => live.queue(frame),
            Port::Memory(end) => end.send(frame),
        }
    }

    /// Has what is queued go out: from here where the socket takes it at once and it is little,
    /// else from the I/O thread. Never waits.
    pub fn flush(&self) {
        if let Port::Tcp(live, outlet) = &self.0.port {
            outlet.flush(live);
        }
    }

    /// Closes both links of the epoch once what was sent is written. The inbound end hears
    /// [`LinkError::Closed`].
    pub fn close(&self) {
        self.0.port.close();
    }
}

impl Port {
    fn failure(&self) -> Option<LinkError> {
        match self {
            Self::Tcp(live, _) => live.failure(),
            Self::Memory(end) => end.failure(),
        }
    }

    fn close(&self) {
        match self {
            Self::Tcp(live, _) => live.close(),
            Self::Memory(end) => end.close(),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.port.close();
    }
}

/// Wakes the compute side out of its wait for frames.
#[derive(Clone)]
pub struct Waker(Post);

impl Waker {
    pub(crate) fn new(inbox: Post) -> Self {
        Self(inbox)
    }

    /// Puts a poke into the inbox. A full one needs none: its owner has much to wake for.
    pub fn wake(&self) {
        let _ = self.0.post(Inbound::Poke);
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_device_that_waits_hears_that_the_epoch_is_over_and_keeps_no_link() {
        let mut ends = memory::ring(2, Epoch(7));
        let overs = [ends[0].over(), ends[1].over()];
        let over = || [(overs[0])(), (overs[1])()];
        let lost = || StageError::BerthLost { berth: 0, reason: String::new() };
        assert_eq!(over(), [false; 2]);
        assert!(matches!(ends[0].failed(Rank(0), lost()), RingError::Stage { .. }));
        drop(ends.pop());
        assert_eq!(over(), [true; 2]);
        // The rank that is gone is the cause, of what it kept waiting alone.
        let error = ends[0].failed(Rank(0), lost());
        assert!(matches!(error, RingError::Link(LinkError::LinkClosed { rank: Rank(1), .. })));
        let other = StageError::EmptyShape { what: "luck" };
        assert!(matches!(ends[0].failed(Rank(0), other), RingError::Stage { .. }));
    }
}
