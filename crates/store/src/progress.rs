//! How far units have come, for whoever watches.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts that go up while units move. All are bytes.
#[derive(Debug, Default)]
pub struct Progress {
    all: AtomicU64,
    missing: AtomicU64,
    moved: AtomicU64,
    wrong: AtomicU64,
}

/// What [`Progress`] was at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Of all units that are wanted.
    pub all: u64,
    /// Of those that were not there at the start.
    pub missing: u64,
    /// That came or went over links, chunk by chunk.
    pub moved: u64,
    /// That came and were not what their address says.
    pub wrong: u64,
}

impl Progress {
    /// The counts as they are.
    pub fn seen(&self) -> Seen {
        let [all, missing, moved, wrong] = [&self.all, &self.missing, &self.moved, &self.wrong]
            .map(|count| count.load(Ordering::Relaxed));
        Seen { all, missing, moved, wrong }
    }

    pub(crate) fn set_total(&self, all: u64, missing: u64) {
        self.all.store(all, Ordering::Relaxed);
        self.missing.store(missing, Ordering::Relaxed);
    }

    pub(crate) fn add_moved(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_wrong(&self, bytes: u64) {
        self.wrong.fetch_add(bytes, Ordering::Relaxed);
    }
}
