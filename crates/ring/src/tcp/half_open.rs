//! Connections that have not proved themselves yet, a few at a time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

/// Most connections in a handshake at once.
pub const HALF_OPEN_MAX: usize = 8;

/// The connections in a handshake, oldest first.
#[derive(Clone, Default)]
pub(super) struct HalfOpen(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    entries: Vec<Entry>,
    next: u64,
}

struct Entry {
    id: u64,
    /// Its first message was made with the secret; it may still be a replay.
    authentic: bool,
    task: Option<AbortHandle>,
}

/// A place in the table, freed when dropped.
pub(super) struct Place {
    table: HalfOpen,
    id: u64,
}

impl HalfOpen {
    /// Takes a place. A ninth connection takes that of the oldest which has not authenticated, or
    /// of the oldest when all have: replays must not shut a neighbour out.
    pub(super) fn enter(&self) -> Place {
        let mut table = self.lock();
        if table.entries.len() >= HALF_OPEN_MAX {
            let oldest = table.entries.iter().position(|e| !e.authentic).unwrap_or(0);
            if let Some(task) = table.entries.remove(oldest).task {
                task.abort();
            }
        }
        let id = table.next;
        table.next += 1;
        table.entries.push(Entry { id, authentic: false, task: None });
        Place { table: self.clone(), id }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Which place it is, for [`HalfOpen::attend`].
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Message 1 was made with the secret.
    pub(super) fn authenticate(&self) {
        let mut table = self.table.lock();
        if let Some(entry) = table.entries.iter_mut().find(|e| e.id == self.id) {
            entry.authentic = true;
        }
    }
}

impl HalfOpen {
    /// Names the task that an eviction ends.
    pub(super) fn attend(&self, id: u64, task: AbortHandle) {
        let mut table = self.lock();
        if let Some(entry) = table.entries.iter_mut().find(|e| e.id == id) {
            entry.task = Some(task);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.table.lock().entries.retain(|e| e.id != self.id);
    }
}
