//! Kept recurrent states of a part, each in memory of its own.

use std::collections::BTreeMap;

use arith::gdn::Gdn;
use backend::Backend;

/// Kept states by key, within a budget.
pub(super) struct Keeps<B: Backend> {
    /// A state a recurrent layer.
    kept: BTreeMap<u64, Vec<B::State>>,
    /// Bytes of one.
    bytes: u64,
    bytes_max: u64,
}

impl<B: Backend> Keeps<B> {
    pub(super) fn new(bytes: u64, bytes_max: u64) -> Self {
        Self { kept: BTreeMap::new(), bytes, bytes_max }
    }

    /// Copies a place of every layer's state; `false` where the budget or the device is full.
    pub(super) fn save<'a>(
        &mut self,
        backend: &B,
        key: u64,
        gdn: Option<Gdn>,
        states: impl Iterator<Item = &'a B::State>,
        place: usize,
    ) -> bool
    where
        B::State: 'a,
    {
        if (self.kept.len() as u64 + 1) * self.bytes > self.bytes_max {
            return false;
        }
        let mut kept = Vec::new();
        for state in states {
            let gdn = gdn.expect("a recurrent layer has a shape");
            let Ok(mut own) = backend.state(gdn, 1) else { return false };
            backend.copy_state(state, place, &mut own, 0);
            kept.push(own);
        }
        self.kept.insert(key, kept);
        true
    }

    /// Copies the state under `key` to a place of every layer's.
    pub(super) fn restore<'a>(
        &self,
        backend: &B,
        key: u64,
        states: impl Iterator<Item = &'a mut B::State>,
        place: usize,
    ) where
        B::State: 'a,
    {
        let kept = self.kept.get(&key).expect("a keep that is restored is held");
        for (own, state) in kept.iter().zip(states) {
            backend.copy_state(own, 0, state, place);
        }
    }

    pub(super) fn forget(&mut self, key: u64) {
        self.kept.remove(&key);
    }

    pub(super) fn clear(&mut self) {
        self.kept.clear();
    }
}
