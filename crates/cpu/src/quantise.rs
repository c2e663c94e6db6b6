//! Activation rows as 16-bit integers ([`arith::a16`]) with what the kernels need beside them.

use arith::base::SLICE_VALUES;

use crate::Level;
use crate::pack::BLOCK;
use crate::pool::Pool;
use crate::rows::{Cells, Rows, for_rows};

/// A row at or above this amax (2^60), or one that isn't finite, is spoilt.
const SPOILT_BITS: u32 = 0x5d80_0000;
/// A slice whose amax is below this (2^-30) quantises to zeros.
const ZERO_BITS: u32 = 0x3080_0000;

/// The rows of one `project`, quantised. Grown at first use, then kept.
#[derive(Default)]
pub(crate) struct Activations {
    pub(crate) cols: usize,
    pub(crate) slices: usize,
    pub(crate) blocks: usize,
    /// `[rows, cols]` integers.
    pub(crate) q: Vec<i16>,
    /// `[rows, slices]` steps.
    pub(crate) d: Vec<f32>,
    /// `[rows, blocks]` sums of the integers of a block.
    pub(crate) sums: Vec<i32>,
    /// The same, exact in f32.
    pub(crate) sums_f32: Vec<f32>,
    /// Rows whose outputs are all the one NaN.
    pub(crate) spoilt: Vec<bool>,
}

fn grow<T: Clone + Default>(v: &mut Vec<T>, len: usize) {
    if v.len() < len {
        v.resize(len, T::default());
    }
}

impl Activations {
    /// Tests the first `rows` rows of `x` and, if `integers`, quantises them.
    pub(crate) fn fill(
        &mut self,
        pool: &Pool,
        level: Level,
        x: &Rows,
        rows: usize,
        integers: bool,
    ) {
        let cols = x.width;
        let (slices, blocks) = (cols.div_ceil(SLICE_VALUES), cols.div_ceil(BLOCK));
        (self.cols, self.slices, self.blocks) = (cols, slices, blocks);
        grow(&mut self.spoilt, rows);
        if integers {
            grow(&mut self.q, rows * cols);
            grow(&mut self.d, rows * slices);
            grow(&mut self.sums, rows * blocks);
            grow(&mut self.sums_f32, rows * blocks);
        }
        let spoilt = Cells::new(&mut self.spoilt);
        let q = Cells::new(&mut self.q);
        let d = Cells::new(&mut self.d);
        let sums = Cells::new(&mut self.sums);
        let sums_f32 = Cells::new(&mut self.sums_f32);
        let row = |r: usize| {
            let x = x.row(r);
            // SAFETY: each row's ranges are disjoint and one job has each row.
            let spoilt = unsafe { &mut spoilt.slice(r, 1)[0] };
            *spoilt = is_spoilt(x);
            if integers {
                // SAFETY: as above.
                let parts = unsafe {
                    Parts {
                        q: q.slice(r * cols, cols),
                        d: d.slice(r * slices, slices),
                        sums: sums.slice(r * blocks, blocks),
                        sums_f32: sums_f32.slice(r * blocks, blocks),
                    }
                };
                quantise_row(level, x, *spoilt, parts);
            }
        };
        for_rows(pool, rows, cols, row);
    }
}

/// One row's share of the activations.
struct Parts<'a> {
    q: &'a mut [i16],
    d: &'a mut [f32],
    sums: &'a mut [i32],
    sums_f32: &'a mut [f32],
}

/// The largest magnitude, as the bits of an f32: magnitudes order as their bits do.
#[inline(always)]
fn amax_bits(x: &[f32]) -> u32 {
    x.iter().fold(0, |m, x| m.max(x.to_bits() & 0x7fff_ffff))
}

/// Whether a row is not finite or has an amax of 2^60 or more ([`arith::float::is_spoilt`]).
#[inline(always)]
pub(crate) fn is_spoilt(x: &[f32]) -> bool {
    amax_bits(x) >= SPOILT_BITS
}

fn quantise_row(level: Level, x: &[f32], spoilt: bool, parts: Parts<'_>) {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level says that the CPU has the features.
        Level::Avx2 => unsafe { quantise_row_a16_avx2(x, spoilt, parts) },
        Level::Scalar => quantise_row_a16_scalar(x, spoilt, parts),
    }
}

/// The same code as the scalar twin, compiled for wider vectors: every step is exact or correctly
/// rounded whatever its width.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn quantise_row_a16_avx2(x: &[f32], spoilt: bool, parts: Parts<'_>) {
    quantise(x, spoilt, parts);
}

fn quantise_row_a16_scalar(x: &[f32], spoilt: bool, parts: Parts<'_>) {
    quantise(x, spoilt, parts);
}

#[inline(always)]
fn quantise(x: &[f32], spoilt: bool, parts: Parts<'_>) {
    let slices = x.chunks(SLICE_VALUES).zip(parts.q.chunks_mut(SLICE_VALUES));
    for ((x, q), d) in slices.zip(parts.d) {
        let amax = amax_bits(x);
        if spoilt || amax < ZERO_BITS {
            q.fill(0);
            *d = 0.0;
            continue;
        }
        let amax = f32::from_bits(amax);
        *d = amax / 32639.0;
        let inv = 32639.0 / amax;
        for (x, q) in x.iter().zip(q) {
            *q = round_even(x * inv).clamp(-32639, 32639) as i16;
        }
    }
    let sums = parts.sums.iter_mut().zip(parts.sums_f32);
    for (q, (sum, sum_f32)) in parts.q.chunks(BLOCK).zip(sums) {
        *sum = q.iter().map(|&q| i32::from(q)).sum();
        *sum_f32 = *sum as f32;
    }
}

/// Rounds |x| < 2^22 half to even: adding 1.5 * 2^23 leaves the integer in the low mantissa bits.
#[inline(always)]
fn round_even(x: f32) -> i32 {
    const MAGIC: f32 = 12_582_912.0;
    (x + MAGIC).to_bits().wrapping_sub(MAGIC.to_bits()) as i32
}
