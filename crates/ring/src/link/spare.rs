//! Room of rows that were sent or computed from, for the next ones: the system clears every page of
//! new memory, which takes as long as to fill it.

use std::sync::{Mutex, PoisonError};

/// Buffers that are kept, at most: one is filled while another is emptied.
pub const SPARE_MAX: usize = 2;
/// Values of a buffer that is worth keeping, at least: a MiB.
pub const SPARE_VALUES_MIN: usize = 1 << 18;

/// Buffers without content.
#[derive(Debug, Default)]
pub(crate) struct Spare(Mutex<Vec<Vec<f32>>>);

impl Spare {
    /// One that was given, else an empty one.
    pub(crate) fn take(&self) -> Vec<f32> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Keeps a large one for later, where there is a place for it.
    pub(crate) fn give(&self, mut rows: Vec<f32>) {
        rows.clear();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if rows.capacity() >= SPARE_VALUES_MIN && kept.len() < SPARE_MAX {
            kept.push(rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_large_buffers_are_kept_and_no_small_ones() {
        let spare = Spare::default();
        spare.give(vec![1.0; SPARE_VALUES_MIN - 1]);
        assert_eq!(spare.take().capacity(), 0);
        (0..SPARE_MAX + 3).for_each(|_| spare.give(vec![1.0; SPARE_VALUES_MIN]));
        let kept: Vec<_> = (0..SPARE_MAX + 1).map(|_| spare.take()).collect();
        assert!(kept.iter().all(Vec::is_empty), "content stays nowhere");
        let large = kept.iter().filter(|rows| rows.capacity() >= SPARE_VALUES_MIN).count();
        assert_eq!(large, SPARE_MAX);
    }
}
