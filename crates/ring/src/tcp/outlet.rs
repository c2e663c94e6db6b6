//! The sending end of a link, for whichever side of the rank has something to send.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::TcpStream;
use tokio::time::Instant;
use wire::WireError;
use wire::frame::{self, Frame};

use super::connect::Departure;
use crate::link::live::{Live, Phase};
use crate::session::record::Sealer;

/// Frames are gathered up to so many bytes before they are written.
const GATHER_BYTES: usize = 64 << 10;
/// Most payload bytes that the compute side seals and writes by itself: for more, the time that it
/// takes is worth another thread's wake-up.
const DIRECT_BYTES: usize = 64 << 10;

/// The socket of the rank after, and what is on its way there. Neither side waits in it.
pub(crate) struct Outlet(Mutex<Sending>);

struct Sending {
    /// Until the link is closed.
    stream: Option<Arc<TcpStream>>,
    sealer: Sealer,
    /// The frame whose parts are being sealed; urgent ones go between them.
    frame: Option<frame::Writer>,
    /// Sealed bytes, those before `at` written.
    out: Vec<u8>,
    at: usize,
    /// When bytes went out last, and when there last were none to write.
    sent: Instant,
    progress: Instant,
    /// What the compute side met; for the I/O side to tell.
    failed: Option<io::Error>,
}

/// How far writing came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrote {
    /// Nothing is left; the last bytes went out at that time.
    All(Instant),
    /// The socket is full; it took something last at that time.
    Blocked(Instant),
}

impl Outlet {
    pub(super) fn new(departure: Departure) -> Self {
        let Departure { stream, sealer } = departure;
        let now = Instant::now();
        Self(Mutex::new(Sending {
            stream: Some(Arc::new(stream)),
            sealer,
            frame: None,
            out: Vec::new(),
            at: 0,
            sent: now,
            progress: now,
            failed: None,
        }))
    }

    /// The compute side's: has what is queued go out, at once where it is little and nothing is
    /// before it, else by the I/O side. Never waits, and leaves every fault to the I/O side.
    pub(crate) fn flush(&self, live: &Live) {
        let Some(bytes) = live.queue.waiting() else { return };
        if bytes > DIRECT_BYTES || !self.write_now(live) {
            live.queue.ready.notify_one();
        }
    }

    /// Whether all is written. Where the I/O side is writing it looks once more, when asked.
    fn write_now(&self, live: &Live) -> bool {
        let Ok(mut sending) = self.0.try_lock() else { return false };
        if !sending.is_idle() || sending.failed.is_some() {
            return false;
        }
        match sending.write(live) {
            Ok(wrote) => matches!(wrote, Wrote::All(_)),
            Err(error) => {
                sending.failed = Some(error);
                false
            }
        }
    }

    /// The I/O side's: writes what is queued as far as the socket takes it.
    pub(super) fn write(&self, live: &Live) -> io::Result<Wrote> {
        let mut sending = self.lock();
        match sending.failed.take() {
            Some(error) => Err(error),
            None => sending.write(live),
        }
    }

    /// Puts a beat behind what is on its way.
    pub(super) fn beat(&self, live: &Live) -> Result<(), WireError> {
        let beat = frame::Writer::new(Frame::beat(&live.own_beat()))?;
        self.lock().seal(beat);
        Ok(())
    }

    /// When bytes went out last.
    pub(super) fn sent(&self) -> Instant {
        self.lock().sent
    }

    /// The connection, for whoever waits for it.
    pub(super) fn stream(&self) -> Option<Arc<TcpStream>> {
        self.lock().stream.clone()
    }

    /// Lets the connection go.
    pub(super) fn close(&self) {
        self.lock().stream = None;
    }

    fn lock(&self) -> MutexGuard<'_, Sending> {
        // After a panic on either side the epoch ends.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sending {
    /// Whether nothing is on its way.
    fn is_idle(&self) -> bool {
        self.at == self.out.len() && self.frame.is_none()
    }

    fn write(&mut self, live: &Live) -> io::Result<Wrote> {
        let Some(stream) = self.stream.clone() else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        loop {
            if self.at == self.out.len() {
                self.out.clear();
                self.at = 0;
                self.fill(live);
                self.progress = Instant::now();
            }
            if self.out.is_empty() {
                return Ok(Wrote::All(self.sent));
            }
            match stream.try_write(&self.out[self.at..]) {
                Ok(bytes) => {
                    self.at += bytes;
                    live.wrote(bytes);
                    self.sent = Instant::now();
                    self.progress = self.sent;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Wrote::Blocked(self.progress));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Seals what is next, part by part, urgent frames between the parts. When the epoch is over
    /// those alone still go out.
    fn fill(&mut self, live: &Live) {
        while self.out.len() < GATHER_BYTES {
            if let Some(urgent) = live.queue.pop_urgent() {
                self.seal(urgent);
            } else if live.is(Phase::Ended) {
                self.frame = None;
                return;
            } else if let Some(frame) = &mut self.frame {
                match frame.next_part() {
                    Some(part) => self.sealer.seal(&part.header, part.payload, &mut self.out),
                    None => {
                        let sent = self.frame.take().map(frame::Writer::into_frame);
                        sent.into_iter().for_each(|sent| live.spare.give(sent.values));
                    }
                }
            } else {
                self.frame = live.queue.pop();
                if self.frame.is_none() {
                    return;
                }
            }
        }
    }

    fn seal(&mut self, mut frame: frame::Writer) {
        while let Some(part) = frame.next_part() {
            self.sealer.seal(&part.header, part.payload, &mut self.out);
        }
    }
}

impl std::fmt::Debug for Outlet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Outlet")
    }
}
