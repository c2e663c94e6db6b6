//! `mbarrier` and `cp.async.bulk`: barriers in shared memory that count bytes which arrive.

use std::collections::BTreeMap;

use super::block::Block;
use super::calls::shared;
use super::fault::{Fault, What};
use super::thread::{Thread, Waits};

/// A block's, by where they lie.
#[derive(Default)]
pub(super) struct Phases {
    all: BTreeMap<u32, Phase>,
}

struct Phase {
    /// Arrivals that each phase takes.
    count: u32,
    left: u32,
    /// Bytes that are said to come, less those that came.
    bytes: i64,
    parity: u32,
    waiting: Vec<u32>,
    /// Copies that have not arrived.
    copies: Vec<Bulk>,
}

#[derive(Clone, Copy)]
struct Bulk {
    to: *mut u8,
    from: *const u8,
    bytes: u32,
    line: u32,
}

impl Phases {
    pub(super) fn begin(&mut self) {
        self.all.clear();
    }

    pub(super) fn make(&mut self, at: u32, count: u32) {
        let phase =
            Phase { count, left: count, bytes: 0, parity: 0, waiting: vec![], copies: vec![] };
        self.all.insert(at, phase);
    }
}

/// # Safety
/// `thread` must be the one that runs.
unsafe fn found<'a>(thread: *mut Thread, line: u32, at: u32) -> &'a mut Phase {
    // SAFETY: the caller's promise; the block lives as long.
    unsafe {
        match (*(*thread).block).phases.all.get_mut(&at) {
            Some(phase) => phase,
            None => Block::fail(thread, Fault::at(thread, line, What::NoPhase(at))),
        }
    }
}

/// Goes on to the next phase if this one has all.
///
/// # Safety
/// `thread` must be the one that runs.
unsafe fn turn(thread: *mut Thread, line: u32, at: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let phase = found(thread, line, at);
        if phase.left > 0 || phase.bytes != 0 {
            return;
        }
        (phase.left, phase.parity) = (phase.count, phase.parity ^ 1);
        for index in std::mem::take(&mut phase.waiting) {
            (*(*thread).block).wake(index as usize);
        }
    }
}

/// Arrives, with so many bytes to come.
///
/// # Safety
/// `thread` must be the one that runs.
pub(super) unsafe fn arrive(thread: *mut Thread, line: u32, at: u32, bytes: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let phase = found(thread, line, at);
        phase.bytes += i64::from(bytes);
        phase.left = phase.left.saturating_sub(1);
        turn(thread, line, at);
    }
}

/// Waits until the phase of `parity` is through. Copies arrive now if they have not.
///
/// # Safety
/// `thread` must be the one that runs.
pub(super) unsafe fn wait(thread: *mut Thread, line: u32, at: u32, parity: u32) {
    // SAFETY: the caller's promise; what is found is found anew after others ran.
    unsafe {
        loop {
            if found(thread, line, at).parity != parity & 1 {
                return;
            }
            for copy in std::mem::take(&mut found(thread, line, at).copies) {
                land(thread, at, copy);
            }
            let phase = found(thread, line, at);
            if phase.parity != parity & 1 {
                return;
            }
            phase.waiting.push((*thread).index);
            (*thread).waits = Waits::Phase { at, parity, line };
            Block::suspend(thread);
        }
    }
}

/// Begins a copy of `bytes`, which the barrier at `at` counts.
///
/// # Safety
/// `thread` must be the one that runs.
pub(super) unsafe fn copy(
    thread: *mut Thread,
    line: u32,
    (to, from, bytes): (u32, u64, u32),
    at: u32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let to = shared(thread, line, to, bytes, 16);
        if !from.is_multiple_of(16) || !bytes.is_multiple_of(16) {
            Block::fail(thread, Fault::at(thread, line, What::Alignment(from)));
        }
        let copy = Bulk { to, from: from as *const u8, bytes, line };
        let early = (*(*thread).block).options.early;
        let phase = found(thread, line, at);
        if early || !phase.waiting.is_empty() {
            land(thread, at, copy);
        } else {
            phase.copies.push(copy);
        }
    }
}

/// # Safety
/// `thread` must be the one that runs. What is read may be no memory: that is its fault.
unsafe fn land(thread: *mut Thread, at: u32, copy: Bulk) {
    // SAFETY: the caller's promise, and a place that was checked.
    unsafe {
        (*thread).line = copy.line;
        std::ptr::copy_nonoverlapping(copy.from, copy.to, copy.bytes as usize);
        found(thread, copy.line, at).bytes -= i64::from(copy.bytes);
        turn(thread, copy.line, at);
    }
}
