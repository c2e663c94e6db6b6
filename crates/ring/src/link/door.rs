//! Where the compute side waits: at its socket, and for whoever else has something for it.

use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use super::Inbound;
use super::bell::{Bell, Heard};
use super::rhythm::Rhythm;
use crate::tcp::inlet::{Inlet, Took};

/// A look and a yield that take so long were not alone on their core.
const CROWDED: Duration = Duration::from_micros(100);

/// What the compute side waits at.
#[derive(Debug)]
pub(crate) struct Door {
    inlet: Arc<Inlet>,
    /// Rung by everybody else who has something for this rank.
    bell: Arc<Bell>,
    rhythm: Cell<Rhythm>,
}

impl Door {
    pub(crate) fn new(inlet: Arc<Inlet>, bell: Arc<Bell>) -> Self {
        Self { inlet, bell, rhythm: Cell::default() }
    }

    /// The next of `items`, once there is one; the socket is this side's to read until then.
    pub(crate) fn wait(
        &self,
        items: &Receiver<Inbound>,
        deadline: Option<Instant>,
    ) -> Result<Inbound, RecvTimeoutError> {
        let since = Instant::now();
        self.inlet.lend(true);
        let waited = self.wait_lent(items, since, deadline);
        self.inlet.lend(false);
        if waited.is_ok() {
            let mut rhythm = self.rhythm.get();
            rhythm.came(since.elapsed());
            self.rhythm.set(rhythm);
        }
        waited
    }

    fn wait_lent(
        &self,
        items: &Receiver<Inbound>,
        since: Instant,
        deadline: Option<Instant>,
    ) -> Result<Inbound, RecvTimeoutError> {
        let due = self.rhythm.get().due();
        if let Some(due) = due {
            let from = since + due.start;
            let until = since + due.end;
            match self.sleep(items, Some(deadline.map_or(from, |at| at.min(from)))) {
                Err(RecvTimeoutError::Timeout) => {}
                ended => return ended,
            }
            let mut now = Instant::now();
            while now < until {
                if let Some(item) = self.look(items).1 {
                    return item;
                }
                // Whoever is waited for may want this core. If it is wanted much, a thread that
                // sleeps gets it back sooner than one that yields.
                std::thread::yield_now();
                let before = std::mem::replace(&mut now, Instant::now());
                if now - before > CROWDED {
                    self.rhythm.set(Rhythm::default());
                    break;
                }
            }
        }
        self.sleep(items, deadline)
    }

    /// Sleeps until something is there, or `deadline`.
    fn sleep(
        &self,
        items: &Receiver<Inbound>,
        deadline: Option<Instant>,
    ) -> Result<Inbound, RecvTimeoutError> {
        loop {
            let (is_open, found) = self.look(items);
            if let Some(item) = found {
                return item;
            }
            self.bell.listen();
            if let Some(item) = there(items) {
                self.bell.rest();
                return item;
            }
            let socket = is_open.then(|| self.inlet.as_raw_fd());
            let heard = self.bell.wait(socket, deadline);
            self.bell.rest();
            if heard == Heard::Nothing {
                return there(items).unwrap_or(Err(RecvTimeoutError::Timeout));
            }
        }
    }

    /// Reads what is there: whether the link is open, and the first item, if there is any.
    fn look(&self, items: &Receiver<Inbound>) -> (bool, Option<Result<Inbound, RecvTimeoutError>>) {
        loop {
            let took = self.inlet.take();
            if took.is_err() {
                // The I/O side says so, after what came before.
                self.inlet.end();
            }
            match there(items) {
                // Beats, or half a frame.
                None if took == Ok(Took::Bytes) => {}
                found => return (took.is_ok(), found),
            }
        }
    }
}

/// What is there already.
fn there(items: &Receiver<Inbound>) -> Option<Result<Inbound, RecvTimeoutError>> {
    match items.try_recv() {
        Ok(item) => Some(Ok(item)),
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Disconnected) => Some(Err(RecvTimeoutError::Disconnected)),
    }
}
