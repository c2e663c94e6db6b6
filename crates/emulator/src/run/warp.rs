//! What the lanes of a warp do together: the last one to come does it for all.

use super::LANES;
use super::block::Block;
use super::fault::{Fault, What};
use super::thread::{Meets, Thread, Waits};

/// Waits until all lanes of `mask` are here; `work` is done once, with the warp's first thread and
/// the mask.
///
/// # Safety
/// `thread` must be the one that runs.
pub(super) unsafe fn meet(
    thread: *mut Thread,
    what: Meets,
    line: u32,
    mask: u32,
    work: impl FnOnce(*mut Thread, u32),
) {
    // SAFETY: the block and its threads live while any of them runs, and only one runs at a time.
    unsafe {
        let block = &mut *(*thread).block;
        let index = (*thread).index as usize;
        let (warp, lane) = (index / LANES, index % LANES);
        let mask = mask & block.lanes(warp);
        if mask >> lane & 1 == 0 {
            Block::fail(thread, Fault::at(thread, line, What::NotOfMask(mask)));
        }
        let waits = Waits::Warp { what, line, mask };
        (*thread).waits = waits;
        block.meets[warp] |= 1 << lane;
        if block.meets[warp] & mask != mask {
            Block::suspend(thread);
            return;
        }
        let first = block.threads.add(warp * LANES);
        for other in lanes(mask) {
            if !is_same((*first.add(other)).waits, waits) {
                let found = (*first.add(other)).waits;
                Block::fail(thread, Fault::at(thread, line, What::Apart(other as u32, found)));
            }
        }
        work(first, mask);
        for other in lanes(mask) {
            (*first.add(other)).waits = Waits::Not;
        }
        block.meets[warp] &= !mask;
        block.ready[warp] |= mask & !(1 << lane);
    }
}

/// Whether lanes wait for the same. Barriers of a warp may be of several places.
fn is_same(one: Waits, other: Waits) -> bool {
    match (one, other) {
        (
            Waits::Warp { what: Meets::Nothing, mask: a, .. },
            Waits::Warp { what: Meets::Nothing, mask: b, .. },
        ) => a == b,
        _ => one == other,
    }
}

/// The set bits of a mask.
pub(super) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 == 1)
}

/// What is given where a lane is asked for that does not take part.
const ABSENT: u32 = 0x7fde_ad00;

/// `shfl.sync` by `how`: 0 up, 1 down, 2 bfly, 3 idx. What a lane gives is its `given`: value, by
/// and within; it takes the value and whether it came from another lane's range.
///
/// # Safety
/// `first` must be a warp's first thread, and `mask` of lanes that are there.
pub(super) unsafe fn shuffle(first: *mut Thread, mask: u32, how: u32) {
    for lane in lanes(mask) {
        // SAFETY: the caller's promise.
        unsafe {
            let own = first.add(lane);
            let [value, by, within, ..] = (*own).given;
            let (lane, by, clamp, segment) = (lane as u32, by & 31, within & 31, within >> 8 & 31);
            let most = lane & segment | clamp & !segment;
            let (from, is_in) = match how {
                0 => (lane.wrapping_sub(by), lane as i32 - by as i32 >= most as i32),
                1 => (lane + by, lane + by <= most),
                2 => (lane ^ by, lane ^ by <= most),
                _ => {
                    let from = lane & segment | by & !segment;
                    (from, from <= most)
                }
            };
            (*own).taken[0] = match is_in {
                false => value,
                true if mask >> from & 1 == 0 => ABSENT,
                true => (*first.add(from as usize)).given[0],
            };
            (*own).taken[1] = u32::from(is_in);
        }
    }
}

/// `vote.sync` by `how`: 0 any, 1 all, 2 uni, 3 ballot.
///
/// # Safety
/// As [`shuffle`].
pub(super) unsafe fn vote(first: *mut Thread, mask: u32, how: u32) {
    // SAFETY: the caller's promise.
    let said = |lane: usize| unsafe { (*first.add(lane)).given[0] != 0 };
    let ballot = lanes(mask).filter(|&lane| said(lane)).fold(0, |all, lane| all | 1 << lane);
    let found = match how {
        0 => u32::from(ballot != 0),
        1 => u32::from(ballot == mask),
        2 => u32::from(ballot == 0 || ballot == mask),
        _ => ballot,
    };
    for lane in lanes(mask) {
        // SAFETY: as above.
        unsafe { (*first.add(lane)).taken[0] = found };
    }
}
