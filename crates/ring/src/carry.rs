//! Requests between two epochs: they wait for the next one, for so long, and then fail.
//!
//! All of a reply is in its tokens, so an epoch that is gone takes nothing along: in the next one
//! each reply is computed again from its prompt and what was drawn, as one prompt, and goes on with
//! the same bytes.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sched::{Carried, Event, Failure, RequestId};

use crate::head::Published;
use crate::rounds::Owners;

/// What waits, and whoever waits for its time to be up.
#[derive(Debug, Default)]
struct Shared {
    held: Mutex<Option<Held>>,
    changed: Condvar,
}

#[derive(Debug)]
struct Held {
    replies: Carried,
    owners: Owners,
    until: Instant,
    /// Why the epoch ended.
    reason: String,
}

/// Holds requests while the ring is down.
#[derive(Debug)]
pub(crate) struct Carry {
    shared: Arc<Shared>,
    patience: Duration,
    published: Published,
    /// When the patience with the last break ends, until something came of it.
    until: Option<Instant>,
}

impl Carry {
    /// Holds for `patience` after a break; not at all for 0.
    pub(crate) fn new(patience: Duration, published: Published) -> Self {
        Self { shared: Arc::default(), patience, published, until: None }
    }

    /// Takes over what an epoch left, and new requests from now on. A ring that broke again before
    /// it gave a token (`progressed`) gets no more time than the first break did.
    pub(crate) fn hold(
        &mut self,
        replies: Carried,
        owners: Owners,
        reason: &str,
        progressed: bool,
    ) {
        let fresh = Instant::now() + self.patience;
        let until = self.until.filter(|_| !progressed).unwrap_or(fresh);
        self.until = Some(until);
        *self.lock() = Some(Held { replies, owners, until, reason: reason.into() });
        if until <= Instant::now() {
            self.expire();
            return;
        }
        self.published.hold(true);
        let (shared, published) = (self.shared.clone(), self.published.clone());
        let watch = move || watch(&shared, &published);
        let thread = std::thread::Builder::new().name("baton-patience".into()).spawn(watch);
        if thread.is_err() {
            self.expire();
        }
    }

    /// Whether anything is to wait at all.
    pub(crate) fn is_on(&self) -> bool {
        !self.patience.is_zero()
    }

    /// Another reason why the ring is down.
    pub(crate) fn because(&self, reason: &str) {
        if let Some(held) = &mut *self.lock() {
            held.reason = reason.into();
        }
    }

    /// Takes a request back.
    pub(crate) fn cancel(&self, id: RequestId) {
        if let Some(held) = &mut *self.lock() {
            held.replies.cancel(id);
            held.owners.remove(&id);
        }
    }

    /// What still waits, for a ring that serves again; [`Carry::over`] once it says so.
    pub(crate) fn take(&self) -> Option<(Carried, Owners)> {
        let held = self.lock().take();
        self.shared.changed.notify_all();
        held.map(|held| (held.replies, held.owners))
    }

    /// New requests wait no more.
    pub(crate) fn over(&self) {
        self.published.hold(false);
    }

    /// Ends the wait for nothing: all fail.
    pub(crate) fn fail(&self, failure: &Failure) {
        self.over();
        if let Some((replies, owners)) = self.take() {
            tell(&owners, replies.fail(failure));
        }
    }

    fn expire(&self) {
        self.over();
        expired(self.lock().take());
    }

    fn lock(&self) -> MutexGuard<'_, Option<Held>> {
        locked(&self.shared)
    }
}

impl Drop for Carry {
    fn drop(&mut self) {
        self.fail(&Failure::Ring("rank 0 has stopped".into()));
    }
}

fn locked(shared: &Shared) -> MutexGuard<'_, Option<Held>> {
    // What is held is whole at any time.
    shared.held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fails what is held once its time is up, wherever the boot is then.
fn watch(shared: &Shared, published: &Published) {
    let mut held = locked(shared);
    while let Some(until) = held.as_ref().map(|held| held.until) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            published.hold(false);
            expired(held.take());
            return;
        }
        let waited = shared.changed.wait_timeout(held, left);
        held = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn expired(held: Option<Held>) {
    if let Some(held) = held {
        tell(&held.owners, held.replies.fail(&Failure::Ring(held.reason)));
    }
}

fn tell(owners: &Owners, events: Vec<(RequestId, Event)>) {
    for (id, event) in events {
        if let Some(owner) = owners.get(&id) {
            let _ = owner.try_send(event);
        }
    }
}
