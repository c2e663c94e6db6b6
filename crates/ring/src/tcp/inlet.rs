//! The receiving end of a link, for whichever side of the rank has the time to read.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc::TrySendError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arith::base::Rank;
use tokio::sync::Notify;
use wire::frame::{self, Frame};
use wire::limit::HEADER_BYTES;

use super::switch::Switch;
use crate::link::live::Live;
use crate::link::relay::Relay;
use crate::link::{Inbound, LinkError};
use crate::session::SessionError;
use crate::session::record::{BODY_BYTES_MAX, Opener, first_record};

/// Bytes read ahead: a few whole records.
const BUFFER_BYTES: usize = 256 << 10;

/// What a look at the socket gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Took {
    /// Bytes; more may be there.
    Bytes,
    /// No bytes are there.
    Nothing,
    /// The compute side's inbox is full, which the rounds in flight never make it.
    Full,
}

/// The socket of the rank before, and what is read of it. Both sides of a rank may look; neither
/// ever waits in it.
pub(crate) struct Inlet {
    switch: Arc<Switch>,
    live: Arc<Live>,
    from: Rank,
    reading: Mutex<Reading>,
    /// The compute side found the link's end.
    pub(super) over: Notify,
}

struct Reading {
    opener: Opener,
    frames: frame::Reader,
    cut: Cut,
    buffer: Vec<u8>,
    /// Unread bytes of `buffer`.
    start: usize,
    end: usize,
    /// Read, and not handed over.
    held: VecDeque<Frame>,
    /// When the last byte came.
    heard: Instant,
    failed: Option<LinkError>,
}

impl Inlet {
    /// Begins behind the record whose body is `first`.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn new(
        socket: TcpStream,
        opener: Opener,
        live: Arc<Live>,
        first: &[u8],
    ) -> io::Result<Self> {
        let mut reading = Reading {
            opener,
            frames: frame::Reader::new(),
            cut: Cut::default(),
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            held: VecDeque::new(),
            heard: Instant::now(),
            failed: None,
        };
        let from = live.place.previous();
        let Reading { frames, cut, held, .. } = &mut reading;
        reading.failed = take_in(first, (frames, cut), &live, from, held).err();
        let switch = Arc::new(Switch::new(Arc::new(socket))?);
        Ok(Self { switch, live, from, reading: Mutex::new(reading), over: Notify::new() })
    }

    /// Reads what is there, at most a buffer of it, and hands over the frames that it completes.
    ///
    /// # Errors
    /// Why nothing more comes, the same from then on.
    pub(crate) fn take(&self) -> Result<Took, LinkError> {
        let mut reading = self.lock();
        if let Some(error) = &reading.failed {
            return Err(error.clone());
        }
        let took = reading.take(self.switch.socket(), &self.live, self.from);
        took.inspect_err(|error| reading.failed = Some(error.clone()))
    }

    /// The compute side waits at the socket by itself from now on, or no more.
    pub(crate) fn lend(&self, lent: bool) {
        self.switch.turn(!lent);
    }

    /// The I/O side ends the link, for the reason that [`Inlet::take`] gives.
    pub(crate) fn end(&self) {
        self.over.notify_one();
    }

    /// When the last byte came.
    pub(super) fn heard(&self) -> Instant {
        self.lock().heard
    }

    /// What the I/O side watches.
    pub(super) fn switch(&self) -> Arc<Switch> {
        self.switch.clone()
    }

    /// Closes the connection, whoever still looks at it.
    pub(super) fn close(&self) {
        let over = LinkError::Closed;
        self.lock().failed.get_or_insert(over);
        // It fails where the other end was faster.
        let _ = self.switch.socket().shutdown(Shutdown::Both);
    }

    fn lock(&self) -> MutexGuard<'_, Reading> {
        // After a panic on either side the epoch ends.
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsRawFd for Inlet {
    fn as_raw_fd(&self) -> RawFd {
        self.switch.socket().as_raw_fd()
    }
}

impl std::fmt::Debug for Inlet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inlet").field("from", &self.from).finish_non_exhaustive()
    }
}

impl Reading {
    fn take(&mut self, mut socket: &TcpStream, live: &Live, from: Rank) -> Result<Took, LinkError> {
        if !self.deliver(live)? {
            return Ok(Took::Full);
        }
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        match socket.read(&mut self.buffer[self.end..]) {
            Ok(0) => return Err(closed(from, "closed the link")),
            Ok(bytes) => {
                self.end += bytes;
                self.heard = Instant::now();
            }
            Err(error) if is_later(&error) => return Ok(Took::Nothing),
            Err(error) => return Err(closed(from, &error.to_string())),
        }
        while let Some(record) = first_record(&self.buffer[self.start..self.end]) {
            let at = self.start + 2..self.start + 2 + record.len();
            self.start = at.end;
            let body = self.opener.open(&mut self.buffer[at]);
            let body = body.map_err(|error| session(from, error))?;
            take_in(body, (&mut self.frames, &mut self.cut), live, from, &mut self.held)?;
        }
        Ok(if self.deliver(live)? { Took::Bytes } else { Took::Full })
    }

    /// Hands over what was read; whether that was all of it.
    fn deliver(&mut self, live: &Live) -> Result<bool, LinkError> {
        while let Some(frame) = self.held.pop_front() {
            match live.inbox.post(Inbound::Frame(frame)) {
                Ok(()) => {}
                Err(TrySendError::Full(Inbound::Frame(frame))) => {
                    self.held.push_front(frame);
                    return Ok(false);
                }
                Err(_) => return Err(LinkError::Closed),
            }
            // A compute side that was slow to read is no silence of the rank before.
            self.heard = Instant::now();
        }
        Ok(true)
    }
}

/// Does what the I/O side does with the frames that a record completes; those that are for the
/// compute side go behind `held`.
fn take_in(
    body: &[u8],
    (frames, cut): (&mut frame::Reader, &mut Cut),
    live: &Live,
    from: Rank,
    held: &mut VecDeque<Frame>,
) -> Result<(), LinkError> {
    cut.check(body).map_err(|error| session(from, error))?;
    frames.set_rows_bytes_max(live.rows_bytes_max());
    if !frames.has_room() {
        frames.set_room(live.spare.take());
    }
    let mut whole = Vec::new();
    frames.push(body, &mut whole).map_err(|error| LinkError::Wire(error.at(from)))?;
    for frame in whole {
        match live.place.relay(&frame)? {
            Relay::Beat(beat) => live.hear(beat),
            Relay::Tally { tally, onward: false } => live.keep(tally),
            Relay::Tally { onward: true, .. } => live.send(frame)?,
            Relay::Drop => {}
            Relay::Deliver { onward } => {
                if onward {
                    live.send(frame.clone())?;
                }
                held.push_back(frame);
            }
        }
    }
    Ok(())
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn session(rank: Rank, error: SessionError) -> LinkError {
    LinkError::Session { rank, error }
}

fn closed(rank: Rank, reason: &str) -> LinkError {
    LinkError::LinkClosed { rank, reason: reason.into() }
}

/// Holds the other end to its cut: a frame begins and ends with a record, and all its records but
/// the last are full.
#[derive(Default)]
struct Cut {
    /// Bytes of the frame under way that are still to come.
    left: u64,
}

impl Cut {
    fn check(&mut self, body: &[u8]) -> Result<(), SessionError> {
        let bytes = body.len() as u64;
        if self.left == 0 {
            // The header's last field; the frame reader checks the rest.
            let payload = body.get(HEADER_BYTES - 8..HEADER_BYTES).and_then(|b| b.try_into().ok());
            let payload = payload.map(u64::from_le_bytes);
            self.left = (HEADER_BYTES as u64).saturating_add(payload.unwrap_or(0));
        }
        let is_full = body.len() == BODY_BYTES_MAX;
        if bytes > self.left || (bytes < self.left && !is_full) {
            return Err(SessionError::BadCut { bytes: body.len(), left: self.left });
        }
        self.left -= bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(payload: u64) -> Vec<u8> {
        let mut head = vec![0; HEADER_BYTES];
        head[HEADER_BYTES - 8..].copy_from_slice(&payload.to_le_bytes());
        head
    }

    #[test]
    fn a_frame_begins_and_ends_with_a_record() {
        let mut cut = Cut::default();
        assert!(cut.check(&head(0)).is_ok());
        assert!(cut.check(&[head(4), vec![0; 4]].concat()).is_ok());
        let long = (BODY_BYTES_MAX + 5 - HEADER_BYTES) as u64;
        let first = [head(long), vec![0; BODY_BYTES_MAX - HEADER_BYTES]].concat();
        assert!(cut.check(&first).is_ok() && cut.check(&[0; 5]).is_ok());
        assert!(Cut::default().check(&[head(4), vec![0; 5]].concat()).is_err(), "two in a record");
        assert!(Cut::default().check(&[head(4), vec![0; 3]].concat()).is_err(), "a short record");
        assert!(Cut::default().check(&[0; 31]).is_err(), "half a header");
        assert!(Cut::default().check(&head(u64::MAX)).is_err(), "a header alone");
    }
}
