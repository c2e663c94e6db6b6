//! Responses that later ones may continue: the newest, within a count and a size.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

/// A response and the conversation that it ends.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub response: Value,
    pub messages: Vec<Value>,
}

/// What is kept.
#[derive(Debug)]
pub(crate) struct Store {
    inner: Mutex<Inner>,
    count_max: usize,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Inner {
    kept: BTreeMap<String, (Kept, usize)>,
    /// Oldest first.
    order: VecDeque<String>,
    bytes: usize,
}

impl Inner {
    fn remove(&mut self, id: &str) -> bool {
        let Some((_, bytes)) = self.kept.remove(id) else {
            return false;
        };
        self.bytes -= bytes;
        self.order.retain(|other| other != id);
        true
    }
}

impl Store {
    pub fn new(count_max: usize, bytes_max: usize) -> Self {
        Self { inner: Mutex::default(), count_max, bytes_max }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a response; the oldest make room, and one that is too large alone is not kept.
    pub fn put(&self, owner: &str, id: &str, kept: Kept) {
        let id = name(owner, id);
        let length = |value: &Value| value.to_string().len();
        let bytes = length(&kept.response) + kept.messages.iter().map(length).sum::<usize>();
        if bytes > self.bytes_max {
            return;
        }
        let mut inner = self.inner();
        inner.remove(&id);
        while inner.order.len() >= self.count_max || inner.bytes + bytes > self.bytes_max {
            let Some(oldest) = inner.order.front().cloned() else { break };
            inner.remove(&oldest);
        }
        inner.bytes += bytes;
        inner.order.push_back(id.clone());
        inner.kept.insert(id, (kept, bytes));
    }

    /// One of its owner's.
    pub fn get(&self, owner: &str, id: &str) -> Option<Kept> {
        self.inner().kept.get(&name(owner, id)).map(|(kept, _)| kept.clone())
    }

    /// Forgets one; whether it was there.
    pub fn remove(&self, owner: &str, id: &str) -> bool {
        self.inner().remove(&name(owner, id))
    }
}

/// Nobody sees what another's key made.
fn name(owner: &str, id: &str) -> String {
    format!("{owner}\n{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_make_room_by_count_and_by_size() {
        let kept = |n: usize| Kept { response: "x".repeat(n).into(), messages: Vec::new() };
        let store = Store::new(2, 100);
        for id in ["a", "b", "c"] {
            store.put("me", id, kept(10));
        }
        assert!(store.get("me", "a").is_none() && store.get("me", "b").is_some());
        store.put("me", "d", kept(85));
        assert!(
            store.get("me", "b").is_none()
                && store.get("me", "c").is_some()
                && store.get("me", "d").is_some()
        );
        store.put("me", "e", kept(200));
        assert!(store.get("me", "e").is_none());
        assert!(store.get("you", "d").is_none() && !store.remove("you", "d"));
        assert!(store.remove("me", "d") && !store.remove("me", "d"));
    }
}
