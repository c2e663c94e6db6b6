//! `mma.sync` of bytes: 16 rows by 8 columns.

use super::LANES;
use super::thread::Thread;

/// `m16n8k16` or `m16n8k32`, as `depth` says. Lane `4 g + t` gives of the left side rows `g` and
/// `g + 8`, of the right one column `g`, four bytes from `4 t` on of every 16; its sums are
/// columns `2 t` and `2 t + 1` of those rows.
///
/// # Safety
/// `first` must be the first thread of a warp whose lanes are all there.
pub(super) unsafe fn product(first: *mut Thread, depth: u32) {
    let halves = depth as usize / 16;
    // Pairs of neighbours along the depth, of every row and of every column.
    let mut left = [[[0_i16; 2]; 16]; 16];
    let mut right = [[[0_i16; 2]; 8]; 16];
    for lane in 0..LANES {
        // SAFETY: the caller's promise.
        let given = unsafe { (*first.add(lane)).given };
        let (group, place) = (lane / 4, lane % 4);
        for half in 0..halves {
            let pair = 8 * half + 2 * place;
            for (row, word) in [(group, given[2 * half]), (group + 8, given[2 * half + 1])] {
                [left[row][pair], left[row][pair + 1]] = pairs(word);
            }
            [right[pair][group], right[pair + 1][group]] = pairs(given[4 + half]);
        }
    }
    let mut sums = [[0_i32; 8]; 16];
    for (sums, left) in sums.iter_mut().zip(&left) {
        for (a, right) in left.iter().zip(&right).take(8 * halves) {
            for (sum, b) in sums.iter_mut().zip(right) {
                *sum += i32::from(a[0]) * i32::from(b[0]) + i32::from(a[1]) * i32::from(b[1]);
            }
        }
    }
    for lane in 0..LANES {
        let (group, place) = (lane / 4, lane % 4);
        // SAFETY: the caller's promise.
        let thread = unsafe { &mut *first.add(lane) };
        for (i, (row, column)) in [(0, 0), (0, 1), (8, 0), (8, 1)].into_iter().enumerate() {
            let sum = sums[group + row][2 * place + column] as u32;
            thread.taken[i] = thread.given[6 + i].wrapping_add(sum);
        }
    }
}

/// Four bytes as two pairs.
pub(super) fn pairs(word: u32) -> [[i16; 2]; 2] {
    let [a, b, c, d] = word.to_le_bytes().map(|byte| i16::from(byte as i8));
    [[a, b], [c, d]]
}
