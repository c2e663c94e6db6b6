//! What ops need besides their operands: on the card it stays until it changes, and two that come
//! in turn, as the halves of a piece do, lie there both.

use std::sync::Arc;

use backend::BackendError;

use crate::device::{Buffer, Device};

/// Bytes at first.
const BYTES_MIN: u128 = 4_096;

/// Two places, of which ops read one.
pub(crate) struct Twice<K> {
    what: &'static str,
    buffers: [Buffer; 2],
    turns: Turns<K>,
}

/// Which place holds what. What only changes comes to the first: launches that come again find it
/// at one address.
#[derive(Default)]
struct Turns<K> {
    held: [K; 2],
    at: usize,
    /// What the last one to come took the place of.
    displaced: K,
}

impl<K: Clone + Default + PartialEq> Turns<K> {
    /// Has ops read `key` from now on, which `write` puts to a place where it is not yet.
    fn take<E>(&mut self, key: &K, write: impl FnOnce(usize) -> Result<(), E>) -> Result<(), E> {
        if let Some(at) = self.held.iter().position(|held| held == key) {
            self.at = at;
            return Ok(());
        }
        self.at = usize::from(self.displaced == *key);
        // Nothing lies there until all of it does.
        let displaced = std::mem::take(&mut self.held[self.at]);
        write(self.at)?;
        self.held[self.at] = key.clone();
        self.displaced = displaced;
        Ok(())
    }
}

impl<K: Clone + Default + PartialEq> Twice<K> {
    pub(crate) fn new(device: &Arc<Device>, what: &'static str) -> Result<Self, BackendError> {
        let small = || Buffer::new(device, what, BYTES_MIN);
        Ok(Self { what, buffers: [small()?, small()?], turns: Turns::default() })
    }

    /// Has ops read `key`, of so many bytes, which `write` puts there where it is not yet.
    pub(crate) fn take(
        &mut self,
        key: &K,
        bytes: usize,
        write: impl FnOnce(&Buffer),
    ) -> Result<(), BackendError> {
        let Self { what, buffers, turns } = self;
        turns.take(key, |at| {
            let buffer = &mut buffers[at];
            if buffer.bytes() < bytes {
                let device = buffer.device().clone();
                *buffer = Buffer::new(&device, what, bytes.next_power_of_two() as u128)?;
            }
            write(buffer);
            Ok(())
        })
    }

    /// What ops read.
    pub(crate) fn key(&self) -> &K {
        &self.turns.held[self.turns.at]
    }

    /// Where they read it.
    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffers[self.turns.at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where each lies, and how often one was written.
    fn run(keys: impl IntoIterator<Item = u32>) -> (Vec<usize>, usize) {
        let (mut turns, mut writes) = (Turns::default(), 0);
        let take = |key| {
            let write = |_| {
                writes += 1;
                Ok::<_, ()>(())
            };
            assert_eq!(turns.take(&key, write), Ok(()));
            assert_eq!(turns.held[turns.at], key);
            turns.at
        };
        (keys.into_iter().map(take).collect(), writes)
    }

    #[test]
    fn what_takes_turns_is_written_once_and_what_only_changes_stays_at_its_address() {
        assert_eq!(run([1, 1, 2, 2, 3, 4, 5]), (vec![0; 7], 5));
        let halves = |piece: u32| [2 * piece, 2 * piece + 1].into_iter().cycle().take(128);
        let (places, writes) = run((1..4).flat_map(halves).chain(9..12));
        assert_eq!(writes, 3 * 3 + 3);
        assert_eq!(places[3 * 128..], [0; 3]);
    }

    #[test]
    fn what_found_no_room_is_written_when_it_comes_again() {
        let mut turns = Turns::default();
        assert_eq!(turns.take(&1, |_| Ok::<_, &str>(())), Ok(()));
        assert_eq!(turns.take(&2, |_| Err("no room")), Err("no room"));
        for key in [2, 1] {
            let mut writes = 0;
            let write = |_| {
                writes += 1;
                Ok::<_, &str>(())
            };
            assert_eq!((turns.take(&key, write), writes), (Ok(()), 1), "{key}");
        }
    }
}
