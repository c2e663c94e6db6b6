//! Block formats for few rows in arith 2: straight from the packed codes, sixteen outputs a vector,
//! as [`crate::gemv_avx512`] has them.
#![allow(
    clippy::needless_range_loop,
    reason = "rows, panels and groups index several arrays at once, with constant bounds"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use arith::a8::BLOCK_VALUES;
use arith::base::SLICE_VALUES;

use crate::codes_avx512::{Twin, heads, joined, scales};
use crate::gemv_avx512::{PANELS, ROWS};
use crate::kinds::{OTHER, by_kind, layout_of};
use crate::layout::{Layout, strip_values};
use crate::pack::Linear;
use crate::project::{Inputs, Outputs};
use crate::quantise_a8::ActivationsA8;
use crate::vector_avx512::{Steps, Tree, store};

/// Outputs of `panels` for `rows`.
///
/// # Safety
/// The CPU has the features; no other thread may write `panels` of `rows`; the rows are quantised.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn gemv_a8_blocks_avx512(
    linear: &Linear,
    inputs: &Inputs<'_>,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    let a8 = inputs.a8;
    // SAFETY: passed on.
    unsafe {
        by_kind!(linear, gemv(linear, a8, panels, rows, out));
    }
}

/// # Safety
/// As [`gemv_a8_blocks_avx512`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn gemv<const BITS: usize, const KIND: usize>(
    linear: &Linear,
    a8: &ActivationsA8,
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
                    1 => pair_rows::<BITS, KIND, 1>(linear, pair, a8, row, out),
                    2 => pair_rows::<BITS, KIND, 2>(linear, pair, a8, row, out),
                    3 => pair_rows::<BITS, KIND, 3>(linear, pair, a8, row, out),
                    4 => pair_rows::<BITS, KIND, 4>(linear, pair, a8, row, out),
                    5 => pair_rows::<BITS, KIND, 5>(linear, pair, a8, row, out),
                    _ => pair_rows::<BITS, KIND, ROWS>(linear, pair, a8, row, out),
                };
            }
        }
    }
}

/// `R` rows from `row` through two panels, or one; gives R.
///
/// # Safety
/// As [`gemv_a8_blocks_avx512`].
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn pair_rows<const BITS: usize, const KIND: usize, const R: usize>(
    linear: &Linear,
    panels: Range<usize>,
    a8: &ActivationsA8,
    row: usize,
    out: &Outputs<'_>,
) -> usize {
    let layout = if KIND == OTHER { linear.layout() } else { const { layout_of(KIND) } };
    let (cols, piece) = (linear.cols, layout.block.min(BLOCK_VALUES));
    let units = cols / layout.unit_values();
    let slice_units = SLICE_VALUES / layout.unit_values();
    let first = linear.panel(panels.start);
    // A panel alone is its own twin, whose outputs nobody reads.
    let base = Twin { at: first.as_ptr(), gap: (panels.len() - 1) * first.len() };
    let sums = a8.sums(piece);
    let rows = |width: usize| row * (cols / width)..(row + R) * (cols / width);
    assert_eq!((a8.cols, sums.blocks), (cols, cols / piece));
    let x = Pieces {
        q: a8.q[rows(1)].as_ptr(),
        d: a8.d[rows(BLOCK_VALUES)].as_ptr(),
        i32: sums.i32[rows(piece)].as_ptr(),
        f32: sums.f32[rows(piece)].as_ptr(),
        cols,
    };
    let zero = _mm512_setzero_ps();
    let mut tree = Tree::<R>::new();
    for step in Steps::of(&linear.groups).iter() {
        let mut g = [zero; R];
        for slice in step.slices.clone() {
            let mut acc = [zero; R];
            for unit in slice * slice_units..units.min((slice + 1) * slice_units) {
                // SAFETY: a panel has `units` records, a row as many units; the slices above
                // checked the lengths for R rows.
                unsafe {
                    let record = base.add(unit * layout.record_bytes());
                    let heads = heads(layout, record);
                    for b in 0..layout.blocks {
                        let at = (unit * layout.blocks + b) * layout.block;
                        let codes = record.add(b * layout.block_bytes());
                        codes.prefetch(layout.block_bytes(), PANELS * first.len());
                        block::<BITS, KIND, R>(layout, codes, heads, x, at, &mut acc);
                    }
                }
            }
            for r in 0..R {
                g[r] = _mm512_add_ps(g[r], acc[r]);
            }
        }
        tree.take(step, g);
    }
    let lanes = panels.clone().map(|panel| linear.lanes(panel)).sum();
    for r in 0..R {
        // SAFETY: the caller's promise.
        let out = unsafe { out.panel(row + r, panels.start, lanes) };
        store(tree.root()[r], linear.end(a8.spoilt[row + r]), out);
    }
    R
}

/// What R rows have from their start on, the rows `cols` values apart.
#[derive(Clone, Copy)]
struct Pieces {
    q: *const i8,
    d: *const f32,
    i32: *const i32,
    f32: *const f32,
    cols: usize,
}

/// The pieces of one block of weights, whose values begin at `at`:
/// `acc = fma(f32(dot), a * d, acc)`, then `acc = fma(f32(s), c * d, acc)`.
///
/// # Safety
/// `codes` points to two blocks of `layout`, and R rows have their values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn block<const BITS: usize, const KIND: usize, const R: usize>(
    layout: Layout,
    codes: Twin,
    heads: [__m512; 2],
    x: Pieces,
    at: usize,
    acc: &mut [__m512; R],
) {
    let piece = layout.block.min(BLOCK_VALUES);
    // SAFETY: the caller's promise.
    unsafe {
        let scale = codes.add(layout.codes_bytes());
        let a = scales(layout.scales, scale, heads[0]);
        let c = match layout.offsets {
            true => scales(layout.scales, scale.add(layout.scales_bytes()), heads[1]),
            false => a,
        };
        for p in 0..layout.block / piece {
            let from = at + p * piece;
            let (q, codes) = (x.q.add(from), codes.add(p * piece * BITS));
            let dots = dots::<BITS, KIND, R>(codes, piece, q, x.cols);
            for r in 0..R {
                let d = _mm512_set1_ps(*x.d.add(r * (x.cols / BLOCK_VALUES) + from / BLOCK_VALUES));
                let sum = r * (x.cols / piece) + from / piece;
                let mut dot = dots[r];
                if layout.zero != 0 {
                    let s = (*x.i32.add(sum)).wrapping_mul(layout.zero.into());
                    dot = _mm512_sub_epi32(dot, _mm512_set1_epi32(s));
                }
                let dot = _mm512_cvtepi32_ps(dot);
                acc[r] = _mm512_fmadd_ps(dot, _mm512_mul_ps(a, d), acc[r]);
                if layout.offsets {
                    let s = _mm512_set1_ps(*x.f32.add(sum));
                    acc[r] = _mm512_fmadd_ps(s, _mm512_mul_ps(c, d), acc[r]);
                }
            }
        }
    }
}

/// The dots of the codes of one piece of `values` with R rows, the rows `stride` apart. Each kind
/// has a copy of its own, with one caller, so that it becomes part of its kernel.
///
/// # Safety
/// `codes` must hold the piece twice and each row its integers from `q` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn dots<const BITS: usize, const KIND: usize, const R: usize>(
    codes: Twin,
    values: usize,
    q: *const i8,
    stride: usize,
) -> [__m512i; R] {
    let (width, fields) = const { (strip_values(BITS), strip_values(BITS) / 4) };
    let mut dots = [_mm512_setzero_si512(); R];
    for strip in 0..values / width {
        for i in 0..fields {
            // SAFETY: four values of the strip and of each row.
            unsafe {
                let w = joined::<BITS>(codes.add(strip * width * BITS), i);
                for r in 0..R {
                    let x = q.add(r * stride + strip * width + 4 * i).cast::<i32>();
                    let x = _mm512_set1_epi32(x.read_unaligned());
                    dots[r] = _mm512_dpbusd_epi32(dots[r], w, x);
                }
            }
        }
    }
    dots
}
