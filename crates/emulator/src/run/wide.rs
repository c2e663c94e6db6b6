//! `wgmma`: products of a warp's 16 rows by 64 columns that lie in shared memory. They are done
//! when the warp comes to them; that a wait lacks does not show.

use super::LANES;
use super::block::Block;
use super::calls::whole_warp;
use super::fault::{Fault, What};
use super::product::pairs;
use super::thread::{Meets, Thread};
use super::warp::meet;

/// Values of a product.
const DEPTH: u32 = 32;
/// Columns that lie together, 16 bytes each.
const TOGETHER: u32 = 8;
const COLUMNS: usize = 64;

/// A matrix in shared memory, as its 64 bits say: eight columns by 16 values lie together.
#[derive(Debug, Clone, Copy)]
struct Matrix {
    at: u32,
    /// From 16 values to the next ones.
    deep: u32,
    /// From eight columns to the next ones.
    wide: u32,
}

impl Matrix {
    /// None if it is laid out in another way.
    fn of(bits: u64) -> Option<Self> {
        let bytes = |from: u32| ((bits >> from) as u32 & 0x3fff) << 4;
        (bits >> 46 == 0).then(|| Self { at: bytes(0), deep: bytes(16), wide: bytes(32) })
    }

    /// Where the last of its bytes ends.
    fn end(self) -> u32 {
        let last = (DEPTH / 16 - 1) * self.deep + (COLUMNS as u32 / TOGETHER - 1) * self.wide;
        self.at + last + 16 * TOGETHER
    }
}

/// `wgmma.mma_async.m64n64k32` of a thread's sums and its part of the left side.
///
/// # Safety
/// `thread` must be the one that runs; there must be 32 sums and 4 words.
pub(super) unsafe fn product(
    thread: *mut Thread,
    line: u32,
    (sums, left): (*mut u32, *const u32),
    right: u64,
    adds: bool,
) {
    // SAFETY: the caller's promise; the matrix is checked, and the warp is whole.
    unsafe {
        whole_warp(thread, line);
        let all = (*thread).shared_bytes;
        let matrix = match Matrix::of(right) {
            Some(matrix) if matrix.end() <= all => matrix,
            Some(matrix) => {
                let what = What::Shared(matrix.end().into(), all);
                Block::fail(thread, Fault::at(thread, line, what))
            }
            None => Block::fail(thread, Fault::at(thread, line, What::Descriptor(right))),
        };
        (&mut (*thread).given)[..4].copy_from_slice(std::slice::from_raw_parts(left, 4));
        (*thread).sums = sums;
        meet(thread, Meets::Product, line, u32::MAX, |first, _| multiply(first, matrix, adds));
    }
}

/// # Safety
/// `first` must be the first thread of a warp whose lanes are all there, with sums.
unsafe fn multiply(first: *mut Thread, matrix: Matrix, adds: bool) {
    let mut left = [[[0_i16; 2]; 16]; 16];
    let mut right = [[[0_i16; 2]; COLUMNS]; 16];
    for lane in 0..LANES {
        // SAFETY: the caller's promise.
        let given = unsafe { (*first.add(lane)).given };
        let (group, place) = (lane / 4, lane % 4);
        for (i, &word) in given[..4].iter().enumerate() {
            let (row, pair) = (group + 8 * (i % 2), 8 * (i / 2) + 2 * place);
            [left[row][pair], left[row][pair + 1]] = pairs(word);
        }
    }
    // SAFETY: as above; the matrix lies within shared memory.
    let shared = unsafe { (*first).shared };
    for column in 0..COLUMNS as u32 {
        for half in 0..DEPTH / 16 {
            let at = matrix.at + column / TOGETHER * matrix.wide + half * matrix.deep;
            // SAFETY: as above.
            let words = unsafe {
                shared.add((at + column % TOGETHER * 16) as usize).cast::<[u32; 4]>().read()
            };
            for (i, word) in words.into_iter().enumerate() {
                let pair = 8 * half as usize + 2 * i;
                let column = column as usize;
                [right[pair][column], right[pair + 1][column]] = pairs(word);
            }
        }
    }
    let mut sums = [[0_i32; COLUMNS]; 16];
    for (sums, left) in sums.iter_mut().zip(&left) {
        for (a, right) in left.iter().zip(&right) {
            for (sum, b) in sums.iter_mut().zip(right) {
                *sum += i32::from(a[0]) * i32::from(b[0]) + i32::from(a[1]) * i32::from(b[1]);
            }
        }
    }
    for lane in 0..LANES {
        let (group, place) = (lane / 4, lane % 4);
        // SAFETY: as above.
        let own = unsafe { std::slice::from_raw_parts_mut((*first.add(lane)).sums, 32) };
        for (i, own) in own.iter_mut().enumerate() {
            let (row, column) = (group + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * place + i % 2);
            let before = if adds { *own } else { 0 };
            *own = before.wrapping_add(sums[row][column] as u32);
        }
    }
}
