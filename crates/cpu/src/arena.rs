//! Packed weights one after another in runs of huge pages, in the order in which they are loaded,
//! which is about the order in which a step reads them.
//!
//! A matrix alone seldom fills whole huge pages, and small ones fill none: in a run they do.

use std::alloc::{self, Layout};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use backend::BackendError;

use crate::memory::{HUGE_BYTES, LINE_BYTES, advise, check, free_bytes, out_of_memory};

/// Bytes of a run, or as many as a larger buffer needs. Pages that are never touched take no
/// memory.
const RUN_BYTES: usize = 32 << 20;

/// How weights lie: bytes of a run, and how many of them stay empty on the average, half of a huge
/// page.
pub const fn runs() -> (u64, u64) {
    (RUN_BYTES as u64, HUGE_BYTES as u64 / 2)
}

/// Where buffers come from.
#[derive(Default)]
pub(crate) struct Arena {
    open: Mutex<Option<Open>>,
}

/// The run that buffers are cut from.
struct Open {
    run: Arc<Run>,
    used: usize,
}

/// Memory that lives as long as a buffer of it.
struct Run {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a run only owns its memory; buffers hand it out by the rules of `&` and `&mut`.
unsafe impl Send for Run {}
// SAFETY: as above.
unsafe impl Sync for Run {}

impl Run {
    fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes, HUGE_BYTES).ok()?;
        // SAFETY: the layout's size isn't zero.
        let start = NonNull::new(unsafe { alloc::alloc(layout) })?;
        advise(start.as_ptr(), bytes);
        Some(Self { start, layout })
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) }
    }
}

impl Arena {
    /// Cuts `bytes` bytes from the open run, or from another.
    fn take(&self, bytes: usize) -> Option<Buffer> {
        let bytes = bytes.max(1).checked_next_multiple_of(LINE_BYTES)?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Open { run, used }) = open.as_mut()
            && Arc::get_mut(run).is_some()
        {
            *used = 0;
        }
        let fits = |open: &Open| bytes <= open.run.layout.size() - open.used;
        if !open.as_ref().is_some_and(fits) {
            let whole = bytes.max(RUN_BYTES).checked_next_multiple_of(HUGE_BYTES)?;
            *open = Some(Open { run: Arc::new(Run::new(whole)?), used: 0 });
        }
        let Open { run, used } = open.as_mut()?;
        // SAFETY: the run has room for `bytes` after those that are used.
        let start = unsafe { run.start.add(*used) };
        *used += bytes;
        Some(Buffer { start, run: Arc::clone(run) })
    }
}

/// Bytes of packed weights, aligned to a cache line.
pub(crate) struct Buffer {
    start: NonNull<u8>,
    /// Holds them.
    #[allow(dead_code, reason = "kept for its life")]
    run: Arc<Run>,
}

// SAFETY: the buffer owns its part of the run and hands it out by the rules of `&` and `&mut`.
unsafe impl Send for Buffer {}
// SAFETY: as above; nothing inside is mutable through `&`.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `bytes` bytes, filled by `fill(part, bytes of the part)` for each of the equal `parts`;
    /// `run` calls its argument for every part, on any thread. Parts come zeroed.
    pub(crate) fn filled(
        arena: &Arena,
        (device, what): (&str, &str),
        (part_bytes, parts): (usize, usize),
        run: impl FnOnce(usize, &(dyn Fn(usize) + Sync)),
        fill: &(dyn Fn(usize, &mut [u8]) + Sync),
    ) -> Result<Self, BackendError> {
        let need = part_bytes as u128 * parts as u128;
        check(device, what, need)?;
        let refused = || out_of_memory(device, what, need, free_bytes().unwrap_or(0));
        let buffer = arena.take(part_bytes * parts).ok_or_else(refused)?;
        let base = Parts(buffer.start.as_ptr());
        run(parts, &|part| {
            assert!(part < parts);
            // SAFETY: part `part` lies inside the buffer and each is filled by one call, so
            // the slice is exclusive; it is zeroed before it is a slice.
            let slice = unsafe {
                let at = base.at(part * part_bytes);
                at.write_bytes(0, part_bytes);
                std::slice::from_raw_parts_mut(at, part_bytes)
            };
            fill(part, slice);
        });
        Ok(buffer)
    }

    /// The bytes, as many as they were filled with.
    pub(crate) fn start(&self) -> *const u8 {
        self.start.as_ptr()
    }
}

/// The start of a buffer under construction.
struct Parts(*mut u8);

// SAFETY: the threads that share it write disjoint parts.
unsafe impl Sync for Parts {}

impl Parts {
    /// # Safety
    /// `offset` must lie inside the allocation.
    unsafe fn at(&self, offset: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(offset) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn filled(arena: &Arena, part_bytes: usize, parts: usize, with: u8) -> Buffer {
        let serial = |n: usize, f: &(dyn Fn(usize) + Sync)| (0..n).for_each(f);
        let fill = |part: usize, bytes: &mut [u8]| {
            assert!(bytes.iter().all(|&b| b == 0));
            bytes.fill(part as u8 ^ with);
        };
        Buffer::filled(arena, ("cpu", "test"), (part_bytes, parts), serial, &fill).unwrap()
    }

    fn holds(buffer: &Buffer, part_bytes: usize, parts: usize, with: u8) -> bool {
        // SAFETY: the parts were filled.
        let bytes = unsafe { std::slice::from_raw_parts(buffer.start(), part_bytes * parts) };
        bytes.iter().enumerate().all(|(i, &b)| b == (i / part_bytes) as u8 ^ with)
    }

    #[test]
    fn buffers_follow_each_other_and_hold_what_their_parts_were_filled_with() {
        let arena = Arena::default();
        let first = filled(&arena, 1000, 3000, 0);
        let second = filled(&arena, 10, 7, 0x55);
        let large = filled(&arena, RUN_BYTES / 8, 9, 0xaa);
        assert_eq!(second.start().addr() - first.start().addr(), 3_000_000);
        assert!(large.start().addr().is_multiple_of(HUGE_BYTES), "a run of its own");
        assert!(second.start().addr().is_multiple_of(LINE_BYTES));
        drop(arena);
        assert!(holds(&first, 1000, 3000, 0) && holds(&second, 10, 7, 0x55));
        assert!(holds(&large, RUN_BYTES / 8, 9, 0xaa));
    }

    #[test]
    fn a_run_that_nobody_holds_is_cut_anew() {
        let arena = Arena::default();
        let start = filled(&arena, 1000, 1000, 1).start().addr();
        let (again, next) = (filled(&arena, 64, 10, 2), filled(&arena, 64, 10, 3));
        assert_eq!([again.start().addr(), next.start().addr()], [start, start + 640]);
        assert!(holds(&again, 64, 10, 2));
    }
}
