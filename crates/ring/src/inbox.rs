//! The receiving end of a rank's links, as boot and rounds read it: one item after another, with a
//! broken link and a stop as errors.

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Instant;

use wire::frame::{Frame, Kind};
use wire::stop::Stop;

use crate::error::RingError;
use crate::link::{Inbound, LinkError};

/// What the compute side wakes up for.
#[derive(Debug)]
pub(crate) enum Wake {
    /// A frame that is no stop.
    Frame(Frame),
    /// Somebody else has something for this rank (commands, a shutdown).
    Poke,
}

/// Waits for the next thing to do, at most until `deadline` (for ever without one).
pub(crate) fn wait(inbound: &Receiver<Inbound>, deadline: Option<Instant>) -> Option<Inbound> {
    let next = match deadline {
        None => inbound.recv().map_err(|_| RecvTimeoutError::Disconnected),
        Some(at) => inbound.recv_timeout(at.saturating_duration_since(Instant::now())),
    };
    match next {
        Ok(item) => Some(item),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(Inbound::Broken(LinkError::Closed)),
    }
}

/// What is there already.
pub(crate) fn poll(inbound: &Receiver<Inbound>) -> Option<Inbound> {
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
