//! Activation rows as 8-bit integers ([`arith::a8`]) with what the kernels need beside them.
//!
//! Integers lie in the order of the packed codes ([`crate::layout`]): each eight values as 0, 4, 1,
//! 5, 2, 6, 3, 7, so that four bytes meet the four codes that a field has in a 32-bit lane.

use arith::a8::BLOCK_VALUES;

use crate::Level;
use crate::layout::BLOCK_MIN;
use crate::pool::Pool;
use crate::quantise::{ZERO_BITS, amax_bits, grow, is_spoilt, round_even};
use crate::rows::{Cells, Rows, for_rows};

/// Shortest pieces: those of weight blocks of 16.
const SHORT: usize = BLOCK_MIN;
/// Values whose integers change places among themselves.
pub(crate) const TURN: usize = 8;

/// Where value `k` of a block has its integer.
pub(crate) const fn place(k: usize) -> usize {
    k / TURN * TURN + k % 4 * 2 + k % TURN / 4
}

/// The rows of one `project`, quantised. Grown at first use, then kept.
#[derive(Default)]
pub(crate) struct ActivationsA8 {
    pub(crate) cols: usize,
    /// `[rows, cols]` integers, each block of 32 in the order of [`place`].
    pub(crate) q: Vec<i8>,
    /// `[rows, cols / 32]` scales.
    pub(crate) d: Vec<f32>,
    /// `[rows, cols / 32]` sums of the integers of each block.
    sums: Vec<i32>,
    /// `[rows, cols / 16]` sums of the integers of each half block.
    short_sums: Vec<i32>,
    /// Rows whose outputs are all the one NaN.
    pub(crate) spoilt: Vec<bool>,
}

/// One row's share.
struct Parts<'a> {
    q: &'a mut [i8],
    d: &'a mut [f32],
    sums: &'a mut [i32],
    short_sums: &'a mut [i32],
}

impl ActivationsA8 {
    /// Tests and quantises the first `rows` rows of `x`.
    pub(crate) fn fill(&mut self, pool: &Pool, level: Level, x: &Rows, rows: usize) {
        let cols = x.width;
        assert!(cols.is_multiple_of(BLOCK_VALUES), "{cols} values in blocks of {BLOCK_VALUES}");
        let (blocks, halves) = (cols / BLOCK_VALUES, cols / SHORT);
        self.cols = cols;
        grow(&mut self.q, rows * cols);
        grow(&mut self.d, rows * blocks);
        grow(&mut self.sums, rows * blocks);
        grow(&mut self.short_sums, rows * halves);
        grow(&mut self.spoilt, rows);
        let (q, d) = (Cells::new(&mut self.q), Cells::new(&mut self.d));
        let (sums, short) = (Cells::new(&mut self.sums), Cells::new(&mut self.short_sums));
        let spoilt = Cells::new(&mut self.spoilt);
        for_rows(pool, rows, cols, |r| {
            // SAFETY: each row's ranges are disjoint and one job has each row.
            let (parts, spoilt) = unsafe {
                let parts = Parts {
                    q: q.slice(r * cols, cols),
                    d: d.slice(r * blocks, blocks),
                    sums: sums.slice(r * blocks, blocks),
                    short_sums: short.slice(r * halves, halves),
                };
                (parts, &mut spoilt.slice(r, 1)[0])
            };
            *spoilt = is_spoilt(x.row(r));
            if *spoilt {
                // Kernels may compute with them; what they give is not written.
                parts.q.fill(0);
                parts.d.fill(0.0);
                parts.sums.fill(0);
                return parts.short_sums.fill(0);
            }
            quantise_row(level, x.row(r), parts);
        });
    }

    /// `[rows, cols / piece]` sums of pieces of `piece` values: 16 or 32.
    pub(crate) fn sums(&self, piece: usize) -> &[i32] {
        if piece == SHORT { &self.short_sums } else { &self.sums }
    }
}

fn quantise_row(level: Level, x: &[f32], parts: Parts<'_>) {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level says that the CPU has the features.
        Level::Avx2 => unsafe { quantise_row_a8_avx2(x, parts) },
        #[allow(unreachable_patterns, reason = "levels vary by target")]
        _ => quantise_row_a8_scalar(x, parts),
    }
}

/// The same code as the scalar twin, compiled for wider vectors: every step is exact or correctly
/// rounded whatever its width.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn quantise_row_a8_avx2(x: &[f32], parts: Parts<'_>) {
    quantise(x, parts);
}

fn quantise_row_a8_scalar(x: &[f32], parts: Parts<'_>) {
    quantise(x, parts);
}

#[inline(always)]
fn quantise(x: &[f32], parts: Parts<'_>) {
    let blocks = x.as_chunks::<BLOCK_VALUES>().0.iter();
    let to = parts.q.as_chunks_mut::<BLOCK_VALUES>().0.iter_mut();
    let scales = parts.d.iter_mut().zip(parts.sums);
    let shorts = parts.short_sums.as_chunks_mut::<2>().0.iter_mut();
    for (((x, q), (d, sum)), short) in blocks.zip(to).zip(scales).zip(shorts) {
        let amax = amax_bits(x);
        if amax < ZERO_BITS {
            q.fill(0);
            (*d, *sum, *short) = (0.0, 0, [0; 2]);
            continue;
        }
        let amax = f32::from_bits(amax);
        *d = amax / 127.0;
        let inv = 127.0 / amax;
        let mut integers = [0_i32; BLOCK_VALUES];
        for (x, q) in x.iter().zip(&mut integers) {
            *q = round_even(x * inv).clamp(-127, 127);
        }
        *short = [integers[..SHORT].iter().sum(), integers[SHORT..].iter().sum()];
        *sum = short[0] + short[1];
        for (k, integer) in integers.into_iter().enumerate() {
            q[place(k)] = integer as i8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_bytes_are_the_values_of_a_field() {
        let mut order = [0; 16];
        (0..16).for_each(|k| order[place(k)] = k);
        assert_eq!(order, [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]);
    }
}
