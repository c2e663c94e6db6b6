//! The receiving end of a rank's links, as boot and rounds read it: one frame after another, with
//! a broken link, a stop and a deadline as errors.

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use arith::base::Rank;
use wire::frame::{Frame, Kind};
use wire::stop::Stop;

use crate::error::RingError;
use crate::link::{Inbound, LinkError};

/// What the compute side wakes up for.
#[derive(Debug)]
pub enum Wake {
    /// A frame that is no stop.
    Frame(Frame),
    /// Somebody else has something for this rank (commands, a shutdown).
    Poke,
    /// The deadline passed.
    Late,
}

/// Waits for the next thing to do, at most until `deadline` (for ever without one).
///
/// # Errors
/// A broken link or a stop frame.
pub fn wait(inbound: &Receiver<Inbound>, deadline: Option<Instant>) -> Result<Wake, RingError> {
    let next = match deadline {
        None => inbound.recv().map_err(|_| RecvTimeoutError::Disconnected),
        Some(at) => inbound.recv_timeout(at.saturating_duration_since(Instant::now())),
    };
    match next {
        Ok(item) => woken(item),
        Err(RecvTimeoutError::Timeout) => Ok(Wake::Late),
        Err(RecvTimeoutError::Disconnected) => Err(LinkError::Closed.into()),
    }
}

/// What is there already.
///
/// # Errors
/// As [`wait`]'s.
pub fn poll(inbound: &Receiver<Inbound>) -> Result<Option<Wake>, RingError> {
    match inbound.try_recv() {
        Ok(item) => woken(item).map(Some),
        Err(TryRecvError::Empty) => Ok(None),
        Err(TryRecvError::Disconnected) => Err(LinkError::Closed.into()),
    }
}

fn woken(item: Inbound) -> Result<Wake, RingError> {
    match item {
        Inbound::Frame(frame) if frame.kind == Kind::Stop => Err(stopped(&frame)),
        Inbound::Frame(frame) => Ok(Wake::Frame(frame)),
        Inbound::Poke => Ok(Wake::Poke),
        Inbound::Broken(error) => Err(error.into()),
    }
}

/// The cause of a link's end: a stop that waits unread knows more of it than a send that failed.
pub fn first_cause(inbound: &Receiver<Inbound>, error: RingError) -> RingError {
    if !matches!(error, RingError::Link(_)) {
        return error;
    }
    let is_stop = |item: &Inbound| matches!(item, Inbound::Frame(f) if f.kind == Kind::Stop);
    match inbound.try_iter().find(is_stop) {
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

/// The next control frame's payload at boot; pokes and cancels are passed over.
///
/// # Errors
/// A broken link, a stop, another kind of frame, or `BootTimeout` that names `owing`.
pub fn control(
    inbound: &Receiver<Inbound>,
    owing: Rank,
    what: &'static str,
    timeout: Duration,
) -> Result<Vec<u8>, RingError> {
    let deadline = Instant::now() + timeout;
    loop {
        match wait(inbound, Some(deadline))? {
            Wake::Frame(frame) if frame.kind == Kind::Control => return Ok(frame.payload),
            Wake::Frame(frame) if frame.kind == Kind::Cancel => {}
            Wake::Frame(frame) => {
                return Err(RingError::OutOfTurn {
                    expected: format!("{what} of rank {owing}"),
                    found: format!("{:?}", frame.kind),
                });
            }
            Wake::Poke => {}
            Wake::Late => {
                return Err(RingError::BootTimeout { rank: owing, what, waited: timeout });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn an_unread_stop_is_the_cause_of_a_send_that_failed() {
        let (inbox, inbound) = channel();
        let closed = |rank| LinkError::LinkClosed { rank: Rank(rank), reason: "gone".into() };
        let failed = || RingError::Link(closed(2));
        assert!(first_cause(&inbound, failed()).to_string().contains("rank 2"));
        let stop = Stop { origin: Rank(2), reason: closed(1).to_string() };
        for item in [Inbound::Poke, Inbound::Frame(Frame::stop(&stop)), Inbound::Broken(closed(2))]
        {
            inbox.send(item).expect("the receiver is here");
        }
        assert!(first_cause(&inbound, failed()).to_string().contains("rank 1"));
    }
}
