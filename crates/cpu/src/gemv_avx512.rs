//! Block formats for few rows: straight from the packed codes, sixteen outputs a vector.
//!
//! A pair of panels is read once for up to four rows; what follows finds it in cache. Memory is
//! asked for a pair ahead: two streams side by side are more than the hardware foresees.
#![allow(
    clippy::needless_range_loop,
    reason = "rows, panels and groups index several arrays at once, with constant bounds"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use arith::base::SLICE_VALUES;

use crate::codes_avx512::{Twin, heads, quad, quad_unshifted, scales};
use crate::kinds::{OTHER, by_kind, layout_of};
use crate::layout::{Layout, strip_values};
use crate::pack::Linear;
use crate::project::{Inputs, Outputs};
use crate::quantise::Activations;
use crate::vector_avx512::{Steps, Tree, dot_pairs, store};

/// Panels taken at once.
pub(crate) const PANELS: usize = 2;
/// Rows taken at once, at most.
pub(crate) const ROWS: usize = 6;
/// Values of a [`quad`].
const QUAD: usize = 8;

/// Outputs of `panels` for `rows`.
///
/// # Safety
/// The CPU has the features; no other thread may write `panels` of `rows`; the rows are quantised.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn gemv_a16_blocks_avx512(
    linear: &Linear,
    inputs: &Inputs<'_>,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    let a16 = inputs.a16;
    // SAFETY: passed on.
    unsafe {
        by_kind!(linear, gemv(linear, a16, panels, rows, out));
    }
}

/// # Safety
/// As [`gemv_a16_blocks_avx512`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn gemv<const BITS: usize, const KIND: usize>(
    linear: &Linear,
    a16: &Activations,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    for first in panels.clone().step_by(PANELS) {
        let pair = first..panels.end.min(first + PANELS);
        let mut row = rows.start;
        while row < rows.end {
            let left = rows.end - row;
            let pair = pair.clone();
            // SAFETY: passed on.
            unsafe {
                row += match left.div_ceil(left.div_ceil(ROWS)) {
                    1 => pair_rows::<BITS, KIND, 1>(linear, pair, a16, row, out),
                    2 => pair_rows::<BITS, KIND, 2>(linear, pair, a16, row, out),
                    3 => pair_rows::<BITS, KIND, 3>(linear, pair, a16, row, out),
                    4 => pair_rows::<BITS, KIND, 4>(linear, pair, a16, row, out),
                    5 => pair_rows::<BITS, KIND, 5>(linear, pair, a16, row, out),
                    _ => pair_rows::<BITS, KIND, ROWS>(linear, pair, a16, row, out),
                };
            }
        }
    }
}

/// `R` rows from `row` through two panels, or one; gives R.
///
/// # Safety
/// As [`gemv_a16_blocks_avx512`].
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn pair_rows<const BITS: usize, const KIND: usize, const R: usize>(
    linear: &Linear,
    panels: Range<usize>,
    a16: &Activations,
    row: usize,
    out: &Outputs<'_>,
) -> usize {
    let layout = if KIND == OTHER { linear.layout() } else { const { layout_of(KIND) } };
    let (slices, units) = (a16.slices, linear.cols / layout.unit_values());
    let slice_units = SLICE_VALUES / layout.unit_values();
    let first = linear.panel(panels.start);
    // A panel alone is its own twin, whose outputs nobody reads.
    let base = Twin { at: first.as_ptr(), gap: (panels.len() - 1) * first.len() };
    let q = &a16.q[row * a16.cols..(row + R) * a16.cols];
    let d = &a16.d[row * slices..(row + R) * slices];
    let sums = a16.sums(layout.block);
    let rows = row * sums.blocks..(row + R) * sums.blocks;
    let sums = Sums {
        i32: sums.i32[rows.clone()].as_ptr(),
        f32: sums.f32[rows].as_ptr(),
        stride: sums.blocks,
    };
    let zero = _mm512_setzero_ps();
    let mut tree = Tree::<R>::new();
    for step in Steps::of(&linear.groups).iter() {
        let mut g = [zero; R];
        for slice in step.slices.clone() {
            let mut acc = [zero; R];
            for unit in slice * slice_units..units.min((slice + 1) * slice_units) {
                // SAFETY: a panel has `units` records, a row as many units, their blocks' sums
                // and `slices` steps; the slices above checked the lengths for R rows.
                unsafe {
                    let record = base.add(unit * layout.record_bytes());
                    let heads = heads(layout, record);
                    for b in 0..layout.blocks {
                        let block = unit * layout.blocks + b;
                        let codes = record.add(b * layout.block_bytes());
                        codes.prefetch(layout.block_bytes(), PANELS * first.len());
                        let q = q.as_ptr().add(block * layout.block);
                        let dots = dots::<BITS, KIND, R>(codes, layout.block, q, a16.cols);
                        scale(layout, codes, heads, &dots, sums.at(block), &mut acc);
                    }
                }
            }
            for r in 0..R {
                let d = _mm512_set1_ps(d[r * slices + slice]);
                g[r] = _mm512_fmadd_ps(acc[r], d, g[r]);
            }
        }
        tree.take(step, g);
    }
    let lanes = panels.clone().map(|panel| linear.lanes(panel)).sum();
    for r in 0..R {
        // SAFETY: the caller's promise.
        let out = unsafe { out.panel(row + r, panels.start, lanes) };
        store(tree.root()[r], linear.end(a16.spoilt[row + r]), out);
    }
    R
}

/// Sums of a block's integers in several rows, `stride` apart.
#[derive(Clone, Copy)]
struct Sums {
    i32: *const i32,
    f32: *const f32,
    stride: usize,
}

impl Sums {
    /// # Safety
    /// The rows have `blocks` more blocks.
    #[inline(always)]
    unsafe fn at(self, blocks: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self { i32: self.i32.add(blocks), f32: self.f32.add(blocks), ..self } }
    }
}

/// `acc = fma(f32(dot - zero s), a, acc)`, then `acc = fma(f32(s), c, acc)`.
///
/// # Safety
/// `block` points to two blocks of `layout`, `sums` to their sums in R rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn scale<const R: usize>(
    layout: Layout,
    block: Twin,
    heads: [__m512; 2],
    dots: &[__m512i; R],
    sums: Sums,
    acc: &mut [__m512; R],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let at = block.add(layout.codes_bytes());
        let a = scales(layout.scales, at, heads[0]);
        for r in 0..R {
            let mut dot = dots[r];
            if layout.zero != 0 {
                let zero = i32::from(layout.zero);
                let s = _mm512_set1_epi32((*sums.i32.add(r * sums.stride)).wrapping_mul(zero));
                dot = _mm512_sub_epi32(dot, s);
            }
            acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), a, acc[r]);
        }
        if layout.offsets {
            let c = scales(layout.scales, at.add(layout.scales_bytes()), heads[1]);
            for r in 0..R {
                let s = _mm512_set1_ps(*sums.f32.add(r * sums.stride));
                acc[r] = _mm512_fmadd_ps(s, c, acc[r]);
            }
        }
    }
}

/// The integer dots of one block of `values` codes with R rows, the rows `stride` apart. Each kind
/// has a copy of its own, with one caller, so that it becomes part of its kernel.
///
/// # Safety
/// `codes` must hold the block twice and each row its integers from `q` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn dots<const BITS: usize, const KIND: usize, const R: usize>(
    codes: Twin,
    values: usize,
    q: *const i16,
    stride: usize,
) -> [__m512i; R] {
    let width = const { strip_values(BITS) };
    let mut dots = [_mm512_setzero_si512(); R];
    for strip in 0..values / width {
        // SAFETY: passed on, strip by strip.
        unsafe {
            let codes = codes.add(strip * width * BITS);
            let q = q.add(strip * width);
            if BITS == 4 && R <= 2 {
                strip_u4_unshifted::<KIND, R>(codes, q, stride, &mut dots);
            } else {
                strip_codes::<BITS, KIND, R>(codes, q, stride, &mut dots);
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
/// so that an addition need not wait for the one before.
///
/// # Safety
/// As [`dots`], for a strip.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn strip_codes<const BITS: usize, const KIND: usize, const R: usize>(
    codes: Twin,
    q: *const i16,
    stride: usize,
    dots: &mut [__m512i; R],
) {
    let mut odd = [_mm512_setzero_si512(); R];
    for v in 0..strip_values(BITS) / QUAD {
        // SAFETY: 8 values of the strip and of each row.
        unsafe {
            for (t, w) in quad::<BITS>(codes, v).into_iter().enumerate() {
                let sums = if t % 2 == 1 { &mut odd } else { &mut *dots };
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
