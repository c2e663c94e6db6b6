//! Requests between two epochs, on threads: a [`Patience`] that fails them when their time is up,
//! wherever the boot is then.
//!
//! All of a reply is in its tokens, so an epoch that is gone takes nothing along: in the next one
//! each reply is computed again from its prompt and what was drawn, as one prompt, and goes on with
//! the same bytes.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sched::{Carried, Event, Failure, RequestId};

use crate::head::Published;
use crate::step::Patience;

/// Who hears of which request.
pub(crate) type Owners = HashMap<RequestId, tokio::sync::mpsc::Sender<Event>>;

/// What waits, and whoever waits for its time to be up.
#[derive(Debug)]
struct Shared {
    held: Mutex<Held>,
    changed: Condvar,
    start: Instant,
}

#[derive(Debug)]
struct Held {
    patience: Patience,
    owners: Owners,
}

/// Holds requests while the ring is down.
#[derive(Debug)]
pub(crate) struct Carry {
    shared: Arc<Shared>,
    published: Published,
}

impl Carry {
    /// Holds for `patience` after a break.
    pub(crate) fn new(patience: Duration, published: Published) -> Self {
        let held = Held { patience: Patience::new(patience), owners: Owners::new() };
        let (held, changed) = (Mutex::new(held), Condvar::new());
        Self { shared: Arc::new(Shared { held, changed, start: Instant::now() }), published }
    }

    /// Takes over what an epoch left ([`Patience::hold`]), and new requests from now on.
    pub(crate) fn hold(
        &mut self,
        replies: Carried,
        owners: Owners,
        reason: &str,
        progressed: bool,
    ) {
        let now = self.shared.start.elapsed();
        let until = {
            let mut held = self.shared.lock();
            held.patience.hold(now, replies, reason, progressed);
            held.owners = owners;
            held.patience.deadline()
        };
        if until.is_some_and(|until| until <= now) {
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

    /// Another reason why the ring is down.
    pub(crate) fn because(&self, reason: &str) {
        self.shared.lock().patience.because(reason);
    }

    /// Takes a request back.
    pub(crate) fn cancel(&self, id: RequestId) {
        let mut held = self.shared.lock();
        held.patience.cancel(id);
        held.owners.remove(&id);
    }

    /// What still waits, for a ring that serves again; [`Carry::over`] once it says so.
    pub(crate) fn take(&self) -> Option<(Carried, Owners)> {
        let mut held = self.shared.lock();
        let replies = held.patience.take();
        self.shared.changed.notify_all();
        replies.map(|replies| (replies, std::mem::take(&mut held.owners)))
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
        self.shared.lock().expire();
    }
}

impl Drop for Carry {
    fn drop(&mut self) {
        self.fail(&Failure::Ring("rank 0 has stopped".into()));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Held> {
        // What is held is whole at any time.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn expire(&mut self) {
        tell(&std::mem::take(&mut self.owners), self.patience.expire());
    }
}

/// Fails what is held once its time is up, wherever the boot is then.
fn watch(shared: &Shared, published: &Published) {
    let mut held = shared.lock();
    while let Some(until) = held.patience.deadline() {
        let left = until.saturating_sub(shared.start.elapsed());
        if left.is_zero() {
            published.hold(false);
            held.expire();
            return;
        }
        let waited = shared.changed.wait_timeout(held, left);
        held = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn tell(owners: &Owners, events: Vec<(RequestId, Event)>) {
    for (id, event) in events {
        if let Some(owner) = owners.get(&id) {
            let _ = owner.try_send(event);
        }
    }
}
