//! Requests between two epochs: they wait for the next one, for so long, and then fail.

use std::time::Duration;

use sched::{Carried, Event, Failure, RequestId};

use super::Now;

/// Holds requests while the ring is down.
#[derive(Debug)]
pub struct Patience {
    patience: Duration,
    /// When the patience with the last break ends, until something came of it.
    until: Option<Now>,
    held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    replies: Carried,
    until: Now,
    /// Why the epoch ended.
    reason: String,
}

impl Patience {
    /// Holds for `patience` after a break.
    pub fn new(patience: Duration) -> Self {
        Self { patience, until: None, held: None }
    }

    /// Takes over what an epoch left. A ring that broke again before it gave a token
    /// (`progressed`) gets no more time than the first break did.
    pub fn hold(&mut self, now: Now, replies: Carried, reason: &str, progressed: bool) {
        let until = self.until.filter(|_| !progressed).unwrap_or(now + self.patience);
        self.until = Some(until);
        self.held = Some(Held { replies, until, reason: reason.into() });
    }

    /// Another reason why the ring is down.
    pub fn because(&mut self, reason: &str) {
        if let Some(held) = &mut self.held {
            held.reason = reason.into();
        }
    }

    /// Takes a request back.
    pub fn cancel(&mut self, id: RequestId) {
        if let Some(held) = &mut self.held {
            held.replies.cancel(id);
        }
    }

    /// When what is held has waited long enough.
    pub fn deadline(&self) -> Option<Now> {
        self.held.as_ref().map(|held| held.until)
    }

    /// What still waits, for a ring that serves again.
    pub fn take(&mut self) -> Option<Carried> {
        self.held.take().map(|held| held.replies)
    }

    /// Ends the wait for nothing.
    pub fn fail(&mut self, failure: &Failure) -> Vec<(RequestId, Event)> {
        self.take().map(|replies| replies.fail(failure)).unwrap_or_default()
    }

    /// The time is up: all fail, with the reason.
    pub fn expire(&mut self) -> Vec<(RequestId, Event)> {
        let failed = |held: Held| held.replies.fail(&Failure::Ring(held.reason));
        self.held.take().map(failed).unwrap_or_default()
    }
}
