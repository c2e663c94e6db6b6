//! Activation rows as 16-bit integers ([`arith::a16`]) with what the kernels need beside them.

use arith::base::SLICE_VALUES;

use crate::Level;
use crate::layout::{BLOCK_MAX, BLOCK_MIN};
use crate::pool::Pool;
use crate::quantise_a8::{TURN, place};
use crate::rows::{Cells, for_rows};

/// A row at or above this amax (2^60), or one that isn't finite, is spoilt.
const SPOILT_BITS: u32 = 0x5d80_0000;
/// A slice whose amax is below this (2^-30) quantises to zeros.
pub(crate) const ZERO_BITS: u32 = 0x3080_0000;

/// Lengths that a block can have, each twice the one before.
const LENGTHS: usize = (BLOCK_MAX / BLOCK_MIN).ilog2() as usize + 1;

/// The index of a block length.
fn length(block: usize) -> usize {
    (block / BLOCK_MIN).ilog2() as usize
}

/// `[rows, blocks]` sums of the integers of each block of some length.
#[derive(Default)]
pub(crate) struct Sums {
    /// Blocks of a row.
    pub(crate) blocks: usize,
    pub(crate) i32: Vec<i32>,
    /// The same, exact in f32.
    pub(crate) f32: Vec<f32>,
}

/// The rows of one `project`, quantised. Grown at first use, then kept.
#[derive(Default)]
pub(crate) struct Activations {
    pub(crate) cols: usize,
    pub(crate) slices: usize,
    /// `[rows, cols]` integers.
    pub(crate) q: Vec<i16>,
    /// `[rows, slices]` steps.
    pub(crate) d: Vec<f32>,
    /// For kernels that multiply bytes: `[rows, 2, cols]`, a row's upper bytes, then its lower
    /// ones, `q = 256 upper + lower` and both signed, in the order of [`place`].
    pub(crate) bytes: Vec<i8>,
    /// By the length of blocks: [`Activations::sums`].
    sums: [Sums; LENGTHS],
    /// Rows whose outputs are all the one NaN.
    pub(crate) spoilt: Vec<bool>,
}

pub(crate) fn grow<T: Clone + Default>(v: &mut Vec<T>, len: usize) {
    if v.len() < len {
        v.resize(len, T::default());
    }
}

impl Activations {
    /// Tests the first `rows` rows and quantises them, with the sums of blocks of all `lengths`,
    /// unless there are none. `row` gives a row of `cols` values and is called once for each.
    pub(crate) fn fill<'x>(
        &mut self,
        (pool, level): (&Pool, Level),
        (rows, cols): (usize, usize),
        row: impl Fn(usize) -> &'x [f32] + Sync,
        lengths: impl Iterator<Item = usize>,
    ) {
        let slices = cols.div_ceil(SLICE_VALUES);
        (self.cols, self.slices) = (cols, slices);
        grow(&mut self.spoilt, rows);
        self.sums.iter_mut().for_each(|sums| sums.blocks = 0);
        let mut integers = false;
        for block in lengths {
            let sums = &mut self.sums[length(block)];
            sums.blocks = cols / block;
            grow(&mut sums.i32, rows * sums.blocks);
            grow(&mut sums.f32, rows * sums.blocks);
            integers = true;
        }
        if integers {
            grow(&mut self.q, rows * cols);
            grow(&mut self.d, rows * slices);
        }
        let planes = if integers && level.multiplies_bytes() { 2 * cols } else { 0 };
        grow(&mut self.bytes, rows * planes);
        let bytes = Cells::new(&mut self.bytes);
        let spoilt = Cells::new(&mut self.spoilt);
        let q = Cells::new(&mut self.q);
        let d = Cells::new(&mut self.d);
        let sums = self
            .sums
            .each_mut()
            .map(|sums| (sums.blocks, Cells::new(&mut sums.i32), Cells::new(&mut sums.f32)));
        let quantised = |r: usize| {
            let x = row(r);
            // SAFETY: each row's ranges are disjoint and one job has each row.
            let spoilt = unsafe { &mut spoilt.slice(r, 1)[0] };
            *spoilt = is_spoilt(x);
            if !integers {
                return;
            }
            // SAFETY: as above.
            let parts = unsafe {
                Parts {
                    q: q.slice(r * cols, cols),
                    d: d.slice(r * slices, slices),
                    bytes: bytes.slice(r * planes, planes),
                    sums: sums.each_ref().map(|&(blocks, ref i32, ref f32)| {
                        (i32.slice(r * blocks, blocks), f32.slice(r * blocks, blocks))
                    }),
                }
            };
            quantise_row(level, x, *spoilt, parts);
        };
        for_rows(pool, rows, cols, quantised);
    }

    /// The sums of blocks of `block` values, one of the lengths that [`Activations::fill`] got.
    pub(crate) fn sums(&self, block: usize) -> &Sums {
        let sums = &self.sums[length(block)];
        assert_eq!(sums.blocks * block, self.cols, "sums of blocks of {block}");
        sums
    }
}

/// One row's share of the activations.
struct Parts<'a> {
    q: &'a mut [i16],
    d: &'a mut [f32],
    /// Empty where nobody multiplies them.
    bytes: &'a mut [i8],
    /// By length, empty where nobody asked.
    sums: [(&'a mut [i32], &'a mut [f32]); LENGTHS],
}

/// The largest magnitude, as the bits of an f32: magnitudes order as their bits do.
#[inline(always)]
pub(crate) fn amax_bits(x: &[f32]) -> u32 {
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
        Level::Avx2 | Level::Avx512 => unsafe { quantise_row_a16_avx2(x, spoilt, parts) },
        #[cfg(target_arch = "aarch64")]
        // NEON is part of the target, so the twin is compiled for it as it is.
        Level::Neon(_) => quantise_row_a16_scalar(x, spoilt, parts),
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
    if !parts.bytes.is_empty() {
        split(parts.q, parts.bytes);
    }
    let [a, b, c, d] = parts.sums;
    sum::<BLOCK_MIN>(parts.q, a);
    sum::<{ 2 * BLOCK_MIN }>(parts.q, b);
    sum::<{ 4 * BLOCK_MIN }>(parts.q, c);
    sum::<BLOCK_MAX>(parts.q, d);
}

/// Upper and lower bytes of integers: `q + 128` is at most 32767.
#[inline(always)]
fn split(q: &[i16], bytes: &mut [i8]) {
    let (upper, lower) = bytes.split_at_mut(q.len());
    let eights = q.as_chunks::<TURN>().0.iter();
    let upper = upper.as_chunks_mut::<TURN>().0.iter_mut();
    let lower = lower.as_chunks_mut::<TURN>().0.iter_mut();
    for ((q, upper), lower) in eights.zip(upper).zip(lower) {
        for (k, &q) in q.iter().enumerate() {
            let high = (q + 128) >> 8;
            upper[place(k)] = high as i8;
            lower[place(k)] = (q - (high << 8)) as i8;
        }
    }
}

/// Sums of blocks of N values, as many as there is room for.
#[inline(always)]
fn sum<const N: usize>(q: &[i16], (i32, f32): (&mut [i32], &mut [f32])) {
    for (q, (i32, f32)) in q.as_chunks::<N>().0.iter().zip(i32.iter_mut().zip(f32)) {
        *i32 = q.iter().map(|&q| i32::from(q)).sum();
        *f32 = *i32 as f32;
    }
}

/// Rounds |x| < 2^22 half to even: adding 1.5 * 2^23 leaves the integer in the low mantissa bits.
#[inline(always)]
pub(crate) fn round_even(x: f32) -> i32 {
    const MAGIC: f32 = 12_582_912.0;
    (x + MAGIC).to_bits().wrapping_sub(MAGIC.to_bits()) as i32
}
