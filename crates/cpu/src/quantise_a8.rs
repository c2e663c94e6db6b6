//! Activation rows as 8-bit integers ([`arith::a8`]) with what the kernels need beside them.
//!
//! Integers lie in the order of the packed codes ([`crate::layout`]): each eight values as 0, 4, 1,
//! 5, 2, 6, 3, 7, so that four bytes meet the four codes that a field has in a 32-bit lane.

use arith::a8::BLOCK_VALUES;

use crate::Level;
use crate::layout::BLOCK_MIN;
use crate::pool::Pool;
use crate::quantise::{Sums, ZERO_BITS, amax_bits, grow, is_spoilt, round_even};
use crate::rows::{Cells, for_rows};

/// Shortest pieces: those of weight blocks of 16.
const SHORT: usize = BLOCK_MIN;
/// Values whose integers change places among themselves.
pub(crate) const TURN: usize = 8;

/// What makes an integer unsigned.
#[cfg(target_arch = "x86_64")]
pub(crate) const BIAS: u8 = 128;

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
    /// The same with 128 added, where asked for.
    pub(crate) biased: Vec<u8>,
    /// `[rows, cols / 32]` scales.
    pub(crate) d: Vec<f32>,
    /// Sums of each 16 and of each 32 values.
    sums: [Sums; 2],
    /// Rows whose outputs are all the one NaN.
    pub(crate) spoilt: Vec<bool>,
}

/// One row's share.
struct Parts<'a> {
    q: &'a mut [i8],
    /// Empty where nobody asked.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "AVX-512 alone asks"))]
    biased: &'a mut [u8],
    d: &'a mut [f32],
    /// By length: 16, 32.
    sums: [(&'a mut [i32], &'a mut [f32]); 2],
}

impl ActivationsA8 {
    /// Tests and quantises the first `rows` rows, also with a bias where `biased`. `row` gives a
    /// row of `cols` values and is called once for each.
    pub(crate) fn fill<'x>(
        &mut self,
        (pool, level): (&Pool, Level),
        (rows, cols): (usize, usize),
        row: impl Fn(usize) -> &'x [f32] + Sync,
        biased: bool,
    ) {
        assert!(cols.is_multiple_of(BLOCK_VALUES), "{cols} values in blocks of {BLOCK_VALUES}");
        let blocks = cols / BLOCK_VALUES;
        self.cols = cols;
        grow(&mut self.q, rows * cols);
        grow(&mut self.d, rows * blocks);
        let biased = if biased { cols } else { 0 };
        grow(&mut self.biased, rows * biased);
        for (sums, length) in self.sums.iter_mut().zip([SHORT, BLOCK_VALUES]) {
            sums.blocks = cols / length;
            grow(&mut sums.i32, rows * sums.blocks);
            grow(&mut sums.f32, rows * sums.blocks);
        }
        grow(&mut self.spoilt, rows);
        let (q, d) = (Cells::new(&mut self.q), Cells::new(&mut self.d));
        let unsigned = Cells::new(&mut self.biased);
        let sums = self
            .sums
            .each_mut()
            .map(|sums| (sums.blocks, Cells::new(&mut sums.i32), Cells::new(&mut sums.f32)));
        let spoilt = Cells::new(&mut self.spoilt);
        for_rows(pool, rows, cols, |r| {
            // SAFETY: each row's ranges are disjoint and one job has each row.
            let (parts, spoilt) = unsafe {
                let parts = Parts {
                    q: q.slice(r * cols, cols),
                    biased: unsigned.slice(r * biased, biased),
                    d: d.slice(r * blocks, blocks),
                    sums: sums.each_ref().map(|&(blocks, ref i32, ref f32)| {
                        (i32.slice(r * blocks, blocks), f32.slice(r * blocks, blocks))
                    }),
                };
                (parts, &mut spoilt.slice(r, 1)[0])
            };
            let x = row(r);
            *spoilt = is_spoilt(x);
            if *spoilt {
                // Kernels may read what was there; what they make of it is not written.
                return;
            }
            quantise_row(level, x, parts);
        });
    }

    /// The sums of pieces of `piece` values: 16 or 32.
    pub(crate) fn sums(&self, piece: usize) -> &Sums {
        &self.sums[usize::from(piece > SHORT)]
    }
}

fn quantise_row(level: Level, x: &[f32], parts: Parts<'_>) {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level says that the CPU has the features.
        Level::Avx2 => unsafe { quantise_row_a8_avx2(x, parts) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx512 => unsafe { wide::quantise_row_a8_avx512(x, parts) },
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
    let [(halves_i32, halves_f32), (wholes_i32, wholes_f32)] = parts.sums;
    let to = parts.q.as_chunks_mut::<BLOCK_VALUES>().0;
    for (b, (x, q)) in x.as_chunks::<BLOCK_VALUES>().0.iter().zip(to).enumerate() {
        let mut integers = [0_i32; BLOCK_VALUES];
        parts.d[b] = block(x, &mut integers);
        let sums: [i32; 2] = [&integers[..SHORT], &integers[SHORT..]].map(|half| half.iter().sum());
        for (at, sum) in [2 * b, 2 * b + 1].into_iter().zip(sums) {
            (halves_i32[at], halves_f32[at]) = (sum, sum as f32);
        }
        let sum = sums[0] + sums[1];
        (wholes_i32[b], wholes_f32[b]) = (sum, sum as f32);
        for (k, integer) in integers.into_iter().enumerate() {
            q[place(k)] = integer as i8;
        }
    }
}

/// The integers of a block, in their own order, and its scale.
#[inline(always)]
fn block(x: &[f32; BLOCK_VALUES], q: &mut [i32; BLOCK_VALUES]) -> f32 {
    let amax = amax_bits(x);
    if amax < ZERO_BITS {
        return 0.0;
    }
    let amax = f32::from_bits(amax);
    let inv = 127.0 / amax;
    for (x, q) in x.iter().zip(q) {
        *q = round_even(x * inv).clamp(-127, 127);
    }
    amax / 127.0
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::*;

    use super::*;

    /// Two vectors a block, each a half of it: the same steps as the scalar twin's.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    pub(super) fn quantise_row_a8_avx512(x: &[f32], parts: Parts<'_>) {
        let [(halves_i32, halves_f32), (wholes_i32, wholes_f32)] = parts.sums;
        let blocks = x.as_chunks::<BLOCK_VALUES>().0.iter();
        let to = parts.q.as_chunks_mut::<BLOCK_VALUES>().0.iter_mut().zip(parts.d);
        let sums = halves_i32.as_chunks_mut::<2>().0.iter_mut().zip(wholes_i32);
        let floats = halves_f32.as_chunks_mut::<2>().0.iter_mut().zip(wholes_f32);
        for (((x, (q, d)), (halves, whole)), (halves_f32, whole_f32)) in
            blocks.zip(to).zip(sums).zip(floats)
        {
            *d = block_a8_avx512(x, q, halves);
            *whole = halves[0] + halves[1];
            *halves_f32 = [halves[0] as f32, halves[1] as f32];
            *whole_f32 = *whole as f32;
        }
        for (biased, &q) in parts.biased.iter_mut().zip(&*parts.q) {
            *biased = q as u8 ^ BIAS;
        }
    }

    /// The integers of a block, each in its [`place`], with the sums of both halves; its scale.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    fn block_a8_avx512(
        x: &[f32; BLOCK_VALUES],
        q: &mut [i8; BLOCK_VALUES],
        sums: &mut [i32; 2],
    ) -> f32 {
        // SAFETY: 32 values are two vectors.
        let (low, high) =
            unsafe { (_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(SHORT))) };
        let most = _mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high));
        // Magnitudes order as their bits do.
        let amax = _mm512_reduce_max_epi32(_mm512_castps_si512(most)) as u32;
        let tiny = amax < ZERO_BITS;
        let amax = f32::from_bits(amax);
        let (d, inv) = if tiny { (0.0, 0.0) } else { (amax / 127.0, 127.0 / amax) };
        let inv = _mm512_set1_ps(inv);
        // SAFETY: 16 of 32 bytes each.
        unsafe {
            sums[0] = half_a8_avx512(_mm512_mul_ps(low, inv), q.as_mut_ptr());
            sums[1] = half_a8_avx512(_mm512_mul_ps(high, inv), q.as_mut_ptr().add(SHORT));
        }
        d
    }

    /// Sixteen integers of a block, each in its [`place`]; their sum.
    ///
    /// # Safety
    /// 16 bytes at `to` must be writable.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn half_a8_avx512(x: __m512, to: *mut i8) -> i32 {
        let order = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
        // Rounds half to even; a zero of either sign gives 0.
        let integers = _mm512_cvtps_epi32(x);
        let integers = _mm512_min_epi32(integers, _mm512_set1_epi32(127));
        let integers = _mm512_max_epi32(integers, _mm512_set1_epi32(-127));
        let bytes = _mm_shuffle_epi8(_mm512_cvtepi32_epi8(integers), order);
        // SAFETY: the caller's promise.
        unsafe { _mm_storeu_si128(to.cast(), bytes) };
        _mm512_reduce_add_epi32(integers)
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
