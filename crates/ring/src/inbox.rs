//! The receiving end of a rank's links, as boot and rounds read it: one item after another, with a
//! broken link and a stop as errors.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError};
use std::time::{Duration, Instant};

use wire::frame::{Frame, Kind};
use wire::stop::Stop;

use crate::error::RingError;
use crate::link::bell::Bell;
use crate::link::door::Door;
use crate::link::{Inbound, LinkError};

/// What the compute side wakes up for.
#[derive(Debug)]
pub(crate) enum Wake {
    /// A frame that is no stop.
    Frame(Frame),
    /// Somebody else has something for this rank (commands, a shutdown).
    Poke,
}

/// The receiving end of a rank's links. Whoever waits in it reads the socket by itself, so that a
/// frame wakes the thread that it is for, and no other.
#[derive(Debug)]
pub struct Inbox {
    items: Receiver<Inbound>,
    /// Where there is a socket.
    door: Option<Door>,
}

/// Where things for an [`Inbox`] are posted.
#[derive(Clone, Debug)]
pub(crate) struct Post {
    items: SyncSender<Inbound>,
    bell: Option<Arc<Bell>>,
}

impl Post {
    pub(crate) fn new(items: SyncSender<Inbound>, bell: Option<Arc<Bell>>) -> Self {
        Self { items, bell }
    }

    /// Posts without waiting.
    pub(crate) fn post(&self, item: Inbound) -> Result<(), TrySendError<Inbound>> {
        self.items.try_send(item)?;
        self.ring();
        Ok(())
    }

    /// Posts once there is room; drops what nobody will read.
    pub(crate) fn wait_to_post(&self, item: Inbound) {
        let _ = self.items.send(item);
        self.ring();
    }

    fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }
}

impl Inbox {
    pub(crate) fn new(items: Receiver<Inbound>, door: Option<Door>) -> Self {
        Self { items, door }
    }

    /// What is there already.
    ///
    /// # Errors
    /// As a channel's.
    pub fn try_recv(&self) -> Result<Inbound, TryRecvError> {
        self.items.try_recv()
    }

    /// All that is there already.
    pub fn try_iter(&self) -> impl Iterator<Item = Inbound> {
        self.items.try_iter()
    }

    /// The next item.
    ///
    /// # Errors
    /// As a channel's.
    pub fn recv(&self) -> Result<Inbound, RecvTimeoutError> {
        self.recv_until(None)
    }

    /// The next item, unless none comes in time.
    ///
    /// # Errors
    /// As a channel's.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Inbound, RecvTimeoutError> {
        self.recv_until(Some(Instant::now() + timeout))
    }

    fn recv_until(&self, deadline: Option<Instant>) -> Result<Inbound, RecvTimeoutError> {
        match self.items.try_recv() {
            Ok(item) => return Ok(item),
            Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
            Err(TryRecvError::Empty) => {}
        }
        match (&self.door, deadline) {
            (Some(door), _) => door.wait(&self.items, deadline),
            (None, None) => self.items.recv().map_err(|_| RecvTimeoutError::Disconnected),
            (None, Some(at)) => {
                self.items.recv_timeout(at.saturating_duration_since(Instant::now()))
            }
        }
    }
}

/// Waits for the next thing to do, at most until `deadline` (for ever without one).
pub(crate) fn wait(inbound: &Inbox, deadline: Option<Instant>) -> Option<Inbound> {
    match inbound.recv_until(deadline) {
        Ok(item) => Some(item),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(Inbound::Broken(LinkError::Closed)),
    }
}

/// What is there already.
pub(crate) fn poll(inbound: &Inbox) -> Option<Inbound> {
    match inbound.try_recv() {
        Ok(item) => Some(item),
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Disconnected) => Some(Inbound::Broken(LinkError::Closed)),
    }
}

/// What an item means.
///
/// # Errors
/// A broken link or a stop frame.
pub(crate) fn woken(item: Inbound) -> Result<Wake, RingError> {
    match item {
        Inbound::Frame(frame) if frame.kind == Kind::Stop => Err(stopped(&frame)),
        Inbound::Frame(frame) => Ok(Wake::Frame(frame)),
        Inbound::Poke => Ok(Wake::Poke),
        Inbound::Broken(error) => Err(error.into()),
    }
}

/// The cause of a link's end: a stop that waits unread knows more of it than a send that failed.
pub fn first_cause(mut waiting: impl Iterator<Item = Inbound>, error: RingError) -> RingError {
    if !matches!(error, RingError::Link(_)) {
        return error;
    }
    let is_stop = |item: &Inbound| matches!(item, Inbound::Frame(f) if f.kind == Kind::Stop);
    match waiting.find(is_stop) {
        Some(Inbound::Frame(frame)) => stopped(&frame),
        _ => error,
    }
}

fn stopped(frame: &Frame) -> RingError {
    match Stop::decode(&frame.payload) {
        Ok(stop) => RingError::Stopped { origin: stop.origin, reason: stop.reason },
        Err(error) => RingError::Refused(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use arith::base::Rank;

    use super::*;

    #[test]
    fn an_unread_stop_is_the_cause_of_a_send_that_failed() {
        let (inbox, inbound) = channel();
        let closed = |rank| LinkError::LinkClosed { rank: Rank(rank), reason: "gone".into() };
        let failed = || RingError::Link(closed(2));
        assert!(first_cause(inbound.try_iter(), failed()).to_string().contains("rank 2"));
        let stop = Stop { origin: Rank(2), reason: closed(1).to_string() };
        for item in [Inbound::Poke, Inbound::Frame(Frame::stop(&stop)), Inbound::Broken(closed(2))]
        {
            inbox.send(item).expect("the receiver is here");
        }
        assert!(first_cause(inbound.try_iter(), failed()).to_string().contains("rank 1"));
    }
}
