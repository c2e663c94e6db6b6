//! A thread's share of a job: a run of indices, which others take the later half of.

use std::ops::Range;

use super::sync::{AtomicPtr, AtomicU64, Ordering};

/// A thread's share of a job, and the job: one cache line brings both.
///
/// The fields of a job are written while the seat is empty, before `run` is, and read only after an
/// index was claimed from `run`: whoever claims one has those of the job at work, however long it
/// slept before, and the job waits for it.
#[derive(Default)]
pub(super) struct Seat {
    /// The run's first index in the upper half, its end in the lower; see [`indices`].
    pub(super) run: AtomicU64,
    /// `Call` of the job.
    pub(super) call: AtomicPtr<()>,
    /// Its closure.
    pub(super) context: AtomicPtr<()>,
}

/// The indices of a [`Seat::run`].
fn indices(run: u64) -> Range<u64> {
    run >> 32..run & u64::from(u32::MAX)
}

impl Seat {
    /// Takes what `split` leaves of the run: the run that stays and the indices that are taken.
    /// `None` where the run is empty.
    fn take(&self, split: impl Fn(Range<u64>) -> (Range<u64>, Range<u64>)) -> Option<Range<u64>> {
        let mut run = self.run.load(Ordering::Relaxed);
        loop {
            let all = indices(run);
            if all.is_empty() {
                return None;
            }
            let (stays, taken) = split(all);
            let stays = stays.start << 32 | stays.end;
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            match self.run.compare_exchange_weak(run, stays, order.0, order.1) {
                Ok(_) => return Some(taken),
                Err(found) => run = found,
            }
        }
    }

    /// Claims the first index.
    pub(super) fn claim(&self) -> Option<usize> {
        let first = self.take(|all| (all.start + 1..all.end, all.start..all.start + 1))?;
        Some(first.start as usize)
    }

    /// Claims the last index.
    pub(super) fn claim_last(&self) -> Option<usize> {
        let last = self.take(|all| (all.start..all.end - 1, all.end - 1..all.end))?;
        Some(last.start as usize)
    }

    /// Moves the later half of the run to `to`, an empty seat that is the thread's own; whether
    /// there was any.
    pub(super) fn move_half(&self, to: &Self) -> bool {
        let half = |all: Range<u64>| {
            let middle = (all.start + all.end) / 2;
            (all.start..middle, middle..all.end)
        };
        let Some(taken) = self.take(half) else { return false };
        // The job waits for what was taken, so these are its fields still.
        to.call.store(self.call.load(Ordering::Relaxed), Ordering::Relaxed);
        to.context.store(self.context.load(Ordering::Relaxed), Ordering::Relaxed);
        to.run.store(taken.start << 32 | taken.end, Ordering::Release);
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        indices(self.run.load(Ordering::Acquire)).is_empty()
    }
}
