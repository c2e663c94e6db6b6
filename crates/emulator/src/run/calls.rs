//! What the C of a kernel calls, as source/prelude.h declares it.

use super::barrier::{self, Reduce};
use super::block::Block;
use super::copies;
use super::fault::{Fault, What};
use super::thread::{Meets, Thread, Waits};
use super::warp::{self, meet};
use super::{bulk, product, wide};

type T = *mut Thread;

/// All calls.
#[repr(C)]
pub(super) struct Calls {
    fault: extern "C" fn(T, u32, u32, u64),
    shuffle: extern "C" fn(T, u32, u32, u32, u32, u32, u32) -> u32,
    vote: extern "C" fn(T, u32, u32, u32, u32) -> u32,
    warp: extern "C" fn(T, u32, u32),
    product: extern "C" fn(T, u32, u32),
    barrier: extern "C" fn(T, u32, u32, u32),
    barrier_reduce: extern "C" fn(T, u32, u32, u32, u32, u32) -> u32,
    arrive: extern "C" fn(T, u32, u32, u32),
    copy: extern "C" fn(T, u32, u32, u64, u32, u32),
    commit: extern "C" fn(T),
    wait_copies: extern "C" fn(T, u32),
    look: extern "C" fn(T, u32),
    phase_begin: extern "C" fn(T, u32, u32, u32),
    phase_arrive: extern "C" fn(T, u32, u32, u32),
    phase_wait: extern "C" fn(T, u32, u32, u32) -> u32,
    bulk: extern "C" fn(T, u32, u32, u64, u32, u32),
    wide: extern "C" fn(T, u32, *mut u32, *const u32, u64, u32),
}

pub(super) static CALLS: Calls = Calls {
    fault,
    shuffle,
    vote,
    warp: warp_sync,
    product: product_sync,
    barrier: barrier_sync,
    barrier_reduce,
    arrive,
    copy,
    commit,
    wait_copies,
    look,
    phase_begin,
    phase_arrive,
    phase_wait,
    bulk: bulk_copy,
    wide: wide_product,
};

// SAFETY of all below: C calls with the thread that runs, whose block lives as long.

extern "C" fn fault(thread: T, line: u32, what: u32, address: u64) {
    // SAFETY: as said above.
    unsafe {
        let what = match what {
            1 => What::Shared(address, (*thread).shared_bytes),
            2 => What::Alignment(address),
            3 => What::Trap,
            other => What::Unknown(other),
        };
        Block::fail(thread, Fault::at(thread, line, what))
    }
}

extern "C" fn shuffle(
    thread: T,
    line: u32,
    how: u32,
    value: u32,
    by: u32,
    within: u32,
    mask: u32,
) -> u32 {
    // SAFETY: as said above.
    unsafe {
        (&mut (*thread).given)[..3].copy_from_slice(&[value, by, within]);
        meet(thread, Meets::Shuffle, line, mask, |first, mask| warp::shuffle(first, mask, how));
        (*thread).taken[0]
    }
}

extern "C" fn vote(thread: T, line: u32, how: u32, value: u32, mask: u32) -> u32 {
    // SAFETY: as said above.
    unsafe {
        (*thread).given[0] = value;
        meet(thread, Meets::Vote, line, mask, |first, mask| warp::vote(first, mask, how));
        (*thread).taken[0]
    }
}

extern "C" fn warp_sync(thread: T, line: u32, mask: u32) {
    // SAFETY: as said above.
    unsafe { meet(thread, Meets::Nothing, line, mask, |_, _| ()) }
}

extern "C" fn product_sync(thread: T, line: u32, depth: u32) {
    // SAFETY: as said above; the warp is whole.
    unsafe {
        whole_warp(thread, line);
        meet(thread, Meets::Product, line, u32::MAX, |first, _| product::product(first, depth));
    }
}

/// A fault unless the thread's warp has all lanes.
///
/// # Safety
/// `thread` must be the one that runs.
pub(super) unsafe fn whole_warp(thread: T, line: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let warp = (*thread).index as usize / super::LANES;
        if (*(*thread).block).lanes(warp) != u32::MAX {
            Block::fail(thread, Fault::at(thread, line, What::NotWhole));
        }
    }
}

extern "C" fn barrier_sync(thread: T, line: u32, id: u32, count: u32) {
    // SAFETY: as said above.
    unsafe { barrier::arrive(thread, line, (id, count), true, None) }
}

extern "C" fn barrier_reduce(
    thread: T,
    line: u32,
    how: u32,
    id: u32,
    count: u32,
    value: u32,
) -> u32 {
    let how = [Reduce::Or, Reduce::And, Reduce::Count][how.min(2) as usize];
    // SAFETY: as said above.
    unsafe {
        barrier::arrive(thread, line, (id, count), true, Some((how, value != 0)));
        (*thread).taken[0]
    }
}

extern "C" fn arrive(thread: T, line: u32, id: u32, count: u32) {
    // SAFETY: as said above.
    unsafe { barrier::arrive(thread, line, (id, count), false, None) }
}

/// A place of shared memory, or a fault.
///
/// # Safety
/// `thread` must be the one that runs.
pub(super) unsafe fn shared(thread: T, line: u32, at: u32, bytes: u32, align: u32) -> *mut u8 {
    // SAFETY: the caller's promise, and a place that is in it.
    unsafe {
        let all = (*thread).shared_bytes;
        if u64::from(at) + u64::from(bytes) > u64::from(all) {
            Block::fail(thread, Fault::at(thread, line, What::Shared(at.into(), all)));
        }
        if !at.is_multiple_of(align) {
            Block::fail(thread, Fault::at(thread, line, What::Alignment(at.into())));
        }
        (*thread).shared.add(at as usize)
    }
}

extern "C" fn copy(thread: T, line: u32, to: u32, from: u64, bytes: u32, given: u32) {
    // SAFETY: as said above.
    unsafe {
        let to = shared(thread, line, to, bytes, bytes);
        if !from.is_multiple_of(bytes.into()) {
            Block::fail(thread, Fault::at(thread, line, What::Alignment(from)));
        }
        let early = (*(*thread).block).options.early;
        copies::copy(thread, line, to, (from, bytes, given), early);
    }
}

extern "C" fn commit(thread: T) {
    // SAFETY: as said above.
    unsafe { copies::commit(thread) }
}

extern "C" fn wait_copies(thread: T, left: u32) {
    // SAFETY: as said above.
    unsafe { copies::wait(thread, (left != u32::MAX).then_some(left)) }
}

extern "C" fn look(thread: T, line: u32) {
    // SAFETY: as said above.
    unsafe {
        let block = &mut *(*thread).block;
        let index = (*thread).index as usize;
        (*thread).line = line;
        block.looks[index / super::LANES] |= 1 << (index % super::LANES);
        Block::suspend(thread);
    }
}

extern "C" fn phase_begin(thread: T, line: u32, at: u32, count: u32) {
    // SAFETY: as said above.
    unsafe {
        shared(thread, line, at, 8, 8);
        (*(*thread).block).phases.make(at, count);
    }
}

extern "C" fn phase_arrive(thread: T, line: u32, at: u32, bytes: u32) {
    // SAFETY: as said above.
    unsafe { bulk::arrive(thread, line, at, bytes) }
}

extern "C" fn phase_wait(thread: T, line: u32, at: u32, parity: u32) -> u32 {
    // SAFETY: as said above.
    unsafe { bulk::wait(thread, line, at, parity) }
    1
}

extern "C" fn bulk_copy(thread: T, line: u32, to: u32, from: u64, bytes: u32, at: u32) {
    // SAFETY: as said above.
    unsafe { bulk::copy(thread, line, (to, from, bytes), at) }
}

extern "C" fn wide_product(
    thread: T,
    line: u32,
    sums: *mut u32,
    left: *const u32,
    right: u64,
    adds: u32,
) {
    // SAFETY: as said above, and `sums` and `left` are on the thread's stack.
    unsafe { wide::product(thread, line, (sums, left), right, adds != 0) }
}

/// All that a thread does.
///
/// # Safety
/// `thread` must be the one that runs, of a kernel that fits its parameters.
pub(super) unsafe fn whole(thread: T) -> ! {
    // SAFETY: the caller's promise.
    unsafe {
        ((*thread).entry)(thread);
        copies::wait(thread, None);
        let block = &mut *(*thread).block;
        (*thread).waits = Waits::Ended;
        block.live -= 1;
        barrier::ended(block);
        loop {
            Block::suspend(thread);
        }
    }
}
