//! Block formats for few rows: straight from the packed codes, sixteen outputs a vector.
//!
//! A pair of panels is read once for up to eight rows; what follows finds it in cache. Memory is
//! asked for a pair ahead: two streams side by side are more than the hardware foresees.
#![allow(
    clippy::needless_range_loop,
    reason = "rows, panels and groups index several arrays at once, with constant bounds"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use arith::base::SLICE_VALUES;

use crate::codes_avx512::{Twin, heads, quad, quad_unshifted, scales};
use crate::kinds::{self, by_kind};
use crate::layout::{Layout, strip_values};
use crate::pack::Linear;
use crate::project::{Inputs, Outputs};
use crate::quantise::Activations;
use crate::vector_avx512::{Tree, dot_pairs, store};
use crate::walk::by_rows;

/// Panels taken at once.
pub(crate) const PANELS: usize = 2;
/// Values of a [`quad`].
const QUAD: usize = 8;

/// Some rows as an arithmetic multiplies them with packed codes.
pub(crate) trait Few: Copy {
    /// What the rows of a tile have, from their start on.
    type Tile: Copy;

    /// R rows from `row` on, which are there.
    fn tile<const R: usize>(self, layout: Layout, row: usize) -> Self::Tile;

    /// Adds a block of weights, whose values begin at `at`, to the sums of their slice.
    ///
    /// # Safety
    /// The CPU has the features; `codes` points to two blocks of `layout`, the unit's own scales
    /// are `heads`, and the R rows have the values.
    unsafe fn block<const BITS: usize, const KIND: usize, const R: usize>(
        x: Self::Tile,
        layout: Layout,
        codes: Twin,
        heads: [__m512; 2],
        at: usize,
        acc: &mut [__m512; R],
    );

    /// Adds the sums of slice `slice` to those of its group.
    ///
    /// # Safety
    /// The CPU has the features, and the R rows have the slice.
    unsafe fn end_slice<const R: usize>(
        x: Self::Tile,
        slice: usize,
        acc: [__m512; R],
        sums: &mut [__m512; R],
    );

    /// Whether the row's outputs are not finite.
    fn spoilt(self, row: usize) -> bool;
}

/// Outputs of `panels` for `rows`.
///
/// # Safety
/// The CPU has the features; no other thread may write `panels` of `rows`; the rows are quantised.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn gemv<const BITS: usize, const KIND: usize, T: Few>(
    linear: &Linear,
    x: T,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    for first in panels.clone().step_by(PANELS) {
        let pair = first..panels.end.min(first + PANELS);
        // SAFETY: passed on.
        by_rows!(rows.clone(), [1 2 3 4 5 6 7 8], |row, R| unsafe {
            pair_rows::<BITS, KIND, R, T>(linear, pair.clone(), x, row, out);
        });
    }
}

/// `R` rows from `row` through two panels, or one.
///
/// # Safety
/// As [`gemv`].
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn pair_rows<const BITS: usize, const KIND: usize, const R: usize, T: Few>(
    linear: &Linear,
    panels: Range<usize>,
    x: T,
    row: usize,
    out: &Outputs<'_>,
) {
    let layout = kinds::layout::<KIND>(linear.layout());
    let units = linear.cols / layout.unit_values();
    let slice_units = SLICE_VALUES / layout.unit_values();
    let first = linear.panel(panels.start);
    // A panel alone is its own twin, whose outputs nobody reads.
    let base = Twin { at: first.as_ptr(), gap: (panels.len() - 1) * first.len() };
    let tile = x.tile::<R>(layout, row);
    let zero = _mm512_setzero_ps();
    let mut tree = Tree::<R>::new();
    for step in linear.steps.iter() {
        let mut g = [zero; R];
        for slice in step.slices.clone() {
            let mut acc = [zero; R];
            for unit in slice * slice_units..units.min((slice + 1) * slice_units) {
                // SAFETY: a panel has `units` records, a row as many units.
                unsafe {
                    let record = base.add(unit * layout.record_bytes());
                    let heads = heads(layout, record);
                    for b in 0..layout.blocks {
                        let codes = record.add(b * layout.block_bytes());
                        codes.prefetch(layout.block_bytes(), PANELS * first.len());
                        let at = (unit * layout.blocks + b) * layout.block;
                        T::block::<BITS, KIND, R>(tile, layout, codes, heads, at, &mut acc);
                    }
                }
            }
            // SAFETY: passed on.
            unsafe { T::end_slice(tile, slice, acc, &mut g) };
        }
        tree.take(step, g);
    }
    let lanes = panels.clone().map(|panel| linear.lanes(panel)).sum();
    for r in 0..R {
        // SAFETY: the caller's promise.
        let out = unsafe { out.panel(row + r, panels.start, lanes) };
        store(tree.root()[r], linear.end(x.spoilt(row + r)), out);
    }
}

/// [`gemv`] in arith 1.
///
/// # Safety
/// As [`gemv`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn gemv_a16_blocks_avx512(
    linear: &Linear,
    inputs: &Inputs<'_>,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    let x = inputs.a16;
    // SAFETY: passed on.
    unsafe {
        by_kind!(linear, gemv::<_>(linear, x, panels, rows, out));
    }
}

/// What some rows of 16-bit integers have from their start on.
#[derive(Clone, Copy)]
pub(crate) struct Pairs {
    q: *const i16,
    d: *const f32,
    i32: *const i32,
    f32: *const f32,
    /// Values, slices and blocks of a row.
    cols: usize,
    slices: usize,
    blocks: usize,
}

impl Few for &Activations {
    type Tile = Pairs;

    #[inline]
    fn tile<const R: usize>(self, layout: Layout, row: usize) -> Pairs {
        let (cols, slices, sums) = (self.cols, self.slices, self.sums(layout.block));
        let rows = |width: usize| row * width..(row + R) * width;
        Pairs {
            q: self.q[rows(cols)].as_ptr(),
            d: self.d[rows(slices)].as_ptr(),
            i32: sums.i32[rows(sums.blocks)].as_ptr(),
            f32: sums.f32[rows(sums.blocks)].as_ptr(),
            cols,
            slices,
            blocks: sums.blocks,
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn block<const BITS: usize, const KIND: usize, const R: usize>(
        x: Pairs,
        layout: Layout,
        codes: Twin,
        heads: [__m512; 2],
        at: usize,
        acc: &mut [__m512; R],
    ) {
        // A constant again, so that all below becomes part of the kernel.
        let layout = kinds::layout::<KIND>(layout);
        // SAFETY: the caller's promise.
        unsafe {
            let dots = dots::<BITS, KIND, R>(layout, codes, x.q.add(at), x.cols);
            let sums = at / layout.block;
            scale::<BITS, KIND, R>(layout, codes, heads, &dots, (x, sums), acc);
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn end_slice<const R: usize>(
        x: Pairs,
        slice: usize,
        acc: [__m512; R],
        sums: &mut [__m512; R],
    ) {
        for r in 0..R {
            // SAFETY: the caller's promise.
            let d = _mm512_set1_ps(unsafe { *x.d.add(r * x.slices + slice) });
            sums[r] = _mm512_fmadd_ps(acc[r], d, sums[r]);
        }
    }

    #[inline]
    fn spoilt(self, row: usize) -> bool {
        self.spoilt[row]
    }
}

/// Whether R rows have the format's zero taken off the codes: for fewer it is less work to take it
/// off their dots.
const fn centred(rows: usize) -> bool {
    rows >= 4
}

/// `acc = fma(f32(dot - zero s), a, acc)`, then `acc = fma(f32(s), c, acc)`.
///
/// # Safety
/// `block` points to two blocks of `layout`, number `at` of the rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn scale<const BITS: usize, const KIND: usize, const R: usize>(
    layout: Layout,
    block: Twin,
    heads: [__m512; 2],
    dots: &[__m512i; R],
    (x, at): (Pairs, usize),
    acc: &mut [__m512; R],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let from = block.add(layout.codes_bytes());
        let a = scales(layout.scales, from, heads[0]);
        for r in 0..R {
            let mut dot = dots[r];
            if layout.zero != 0 && !centred(R) {
                let zero = i32::from(layout.zero);
                let s = _mm512_set1_epi32((*x.i32.add(r * x.blocks + at)).wrapping_mul(zero));
                dot = _mm512_sub_epi32(dot, s);
            }
            acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), a, acc[r]);
        }
        if layout.offsets {
            let c = scales(layout.scales, from.add(layout.scales_bytes()), heads[1]);
            for r in 0..R {
                let s = _mm512_set1_ps(*x.f32.add(r * x.blocks + at));
                acc[r] = _mm512_fmadd_ps(s, c, acc[r]);
            }
        }
    }
}

/// The integer dots of the codes of one block with R rows, the rows `stride` apart. Each kind
/// has a copy of its own, with one caller, so that it becomes part of its kernel.
///
/// # Safety
/// `codes` must hold the block twice and each row its integers from `q` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn dots<const BITS: usize, const KIND: usize, const R: usize>(
    layout: Layout,
    codes: Twin,
    q: *const i16,
    stride: usize,
) -> [__m512i; R] {
    let width = const { strip_values(BITS) };
    let mut dots = [_mm512_setzero_si512(); R];
    for strip in 0..layout.block / width {
        // SAFETY: passed on, strip by strip.
        unsafe {
            let codes = codes.add(strip * width * BITS);
            let q = q.add(strip * width);
            if BITS == 4 && R <= 2 {
                strip_u4_unshifted::<KIND, R>(codes, q, stride, &mut dots);
            } else {
                strip_codes::<BITS, KIND, R>(layout, codes, q, stride, &mut dots);
            }
        };
    }
    dots
}

/// Two integers of a row from `at` on, in every lane.
///
/// # Safety
/// Both must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn pair(q: *const i16, at: usize) -> __m512i {
    // SAFETY: the caller's promise.
    _mm512_set1_epi32(unsafe { q.add(at).cast::<i32>().read_unaligned() })
}

/// Codes moved to the bottom of their lanes by shifts that all rows share. Rows have two sums each,
/// so that an addition need not wait for the one before, unless there are eight, whose second sums
/// no registers are left for.
///
/// # Safety
/// As [`dots`], for a strip.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn strip_codes<const BITS: usize, const KIND: usize, const R: usize>(
    layout: Layout,
    codes: Twin,
    q: *const i16,
    stride: usize,
    dots: &mut [__m512i; R],
) {
    let mut odd = [_mm512_setzero_si512(); R];
    let zero = _mm512_set1_epi16(layout.zero);
    for v in 0..strip_values(BITS) / QUAD {
        // SAFETY: 8 values of the strip and of each row.
        unsafe {
            for (t, w) in quad::<BITS>(codes, v).into_iter().enumerate() {
                let w = if centred(R) { _mm512_sub_epi16(w, zero) } else { w };
                let sums = if t % 2 == 1 && R < 8 { &mut odd } else { &mut *dots };
                for r in 0..R {
                    let x = pair(q.add(r * stride), QUAD * v + 2 * t);
                    sums[r] = dot_pairs(sums[r], w, x);
                }
            }
        }
    }
    for r in 0..R {
        dots[r] = _mm512_add_epi32(dots[r], odd[r]);
    }
}

/// Nibbles left where they are: the second and third of a lane give 16 and 256 times their dots,
/// each an exact i32 (at most 256 * 15 * 8 * 32639 = 1.003e9), shifted once a strip.
///
/// # Safety
/// As [`dots`], for a strip.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn strip_u4_unshifted<const KIND: usize, const R: usize>(
    codes: Twin,
    q: *const i16,
    stride: usize,
    dots: &mut [__m512i; R],
) {
    let zero = _mm512_setzero_si512();
    let mut sums = [*dots, [zero; R], [zero; R], [zero; R]];
    for v in 0..4 {
        // SAFETY: 32 bytes of the 128 of the strip; 8 values of the 32 of each row.
        unsafe {
            for (t, w) in quad_unshifted(codes, v).into_iter().enumerate() {
                for r in 0..R {
                    let x = pair(q.add(r * stride), QUAD * v + 2 * t);
                    sums[t][r] = dot_pairs(sums[t][r], w, x);
                }
            }
        }
    }
    for r in 0..R {
        let high = _mm512_srai_epi32::<4>(sums[2][r]);
        let high = _mm512_srai_epi32::<4>(_mm512_add_epi32(sums[1][r], high));
        dots[r] = _mm512_add_epi32(_mm512_add_epi32(sums[0][r], sums[3][r]), high);
    }
}
