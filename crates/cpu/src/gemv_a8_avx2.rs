//! Block formats for few rows in arith 2: straight from the packed codes, eight outputs a vector.
#![allow(
    clippy::needless_range_loop,
    reason = "rows, panels and groups index several arrays at once, with constant bounds"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use arith::a8::BLOCK_VALUES;
use arith::linear::GROUPS;

use crate::bytes_avx2::{centred, fields_a_sum, four, pairs, taken, widened, zero_of};
use crate::codes_avx2::joined;
use crate::kinds::{self, by_kind};
use crate::layout::{Layout, strip_values};
use crate::pack::Linear;
use crate::project::{Inputs, Outputs};
use crate::quantise_a8::ActivationsA8;
use crate::scales_vector::{heads, scales};
use crate::vector::put_groups;
use crate::walk::{Sums, by_rows, walk};

/// Outputs of `panels` for `rows`.
///
/// # Safety
/// The CPU has AVX2, FMA and F16C; no other thread may write `panels` of `rows`; the rows are
/// quantised.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn gemv_a8_blocks_avx2(
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
/// As [`gemv_a8_blocks_avx2`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn gemv<const BITS: usize, const KIND: usize>(
    linear: &Linear,
    a8: &ActivationsA8,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    assert_eq!(linear.layout().bits, BITS);
    for panel in panels {
        by_rows!(rows.clone(), [1 2 3 4], |row, R| {
            // SAFETY: passed on.
            unsafe { panel_rows::<BITS, KIND, R>(linear, panel, a8, row, out) }
        });
    }
}

/// What R rows have from some piece on, the rows `cols` values apart.
#[derive(Clone, Copy)]
struct Pieces {
    q: *const i8,
    d: *const f32,
    i32: *const i32,
    f32: *const f32,
    cols: usize,
}

/// `R` rows from `row` through one panel.
///
/// # Safety
/// As [`gemv_a8_blocks_avx2`].
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn panel_rows<const BITS: usize, const KIND: usize, const R: usize>(
    linear: &Linear,
    panel: usize,
    a8: &ActivationsA8,
    row: usize,
    out: &Outputs<'_>,
) {
    let (layout, cols, zero) = (linear.layout(), linear.cols, [_mm256_setzero_ps(); R]);
    let piece = layout.block.min(BLOCK_VALUES);
    let sums = a8.sums(piece);
    let rows = |width: usize| row * (cols / width)..(row + R) * (cols / width);
    assert_eq!((a8.cols, sums.blocks), (cols, cols / piece));
    let mut tile = Tile::<BITS, KIND, R> {
        layout,
        panel: linear.panel(panel).as_ptr(),
        rows: Pieces {
            q: a8.q[rows(1)].as_ptr(),
            d: a8.d[rows(BLOCK_VALUES)].as_ptr(),
            i32: sums.i32[rows(piece)].as_ptr(),
            f32: sums.f32[rows(piece)].as_ptr(),
            cols,
        },
        acc: zero,
        g: zero,
        groups: [zero; GROUPS],
    };
    let unit = kinds::layout::<KIND>(layout).unit_values();
    // SAFETY: a panel has a record a unit, a row as many units; the slices above checked the
    // lengths for R rows.
    unsafe { walk(&mut tile, &linear.groups, cols, unit) };
    for r in 0..R {
        // SAFETY: the caller's promise.
        let out = unsafe { out.panel(row + r, panel, linear.lanes(panel)) };
        let groups = std::array::from_fn(|k| tile.groups[k][r]);
        put_groups(groups, linear.end(a8.spoilt[row + r]), out);
    }
}

/// The sums of one panel in R rows.
struct Tile<const BITS: usize, const KIND: usize, const R: usize> {
    layout: Layout,
    panel: *const u8,
    rows: Pieces,
    acc: [__m256; R],
    g: [__m256; R],
    groups: [[__m256; R]; GROUPS],
}

impl<const BITS: usize, const KIND: usize, const R: usize> Sums for Tile<BITS, KIND, R> {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn step(&mut self, unit: usize) {
        let layout = kinds::layout::<KIND>(self.layout);
        // SAFETY: the caller's promise.
        unsafe {
            let record = self.panel.add(unit * layout.record_bytes());
            let heads = heads(layout, record);
            for b in 0..layout.blocks {
                let at = (unit * layout.blocks + b) * layout.block;
                let codes = record.add(b * layout.block_bytes());
                block::<BITS, KIND, R>(layout, codes, heads, self.rows, at, &mut self.acc);
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn end_slice(&mut self, _slice: usize) {
        for r in 0..R {
            self.g[r] = _mm256_add_ps(self.g[r], self.acc[r]);
        }
        self.acc = [_mm256_setzero_ps(); R];
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn end_group(&mut self, group: usize, _empty: bool) {
        self.groups[group] = self.g;
        self.g = [_mm256_setzero_ps(); R];
    }
}

/// The pieces of one block of weights, whose values begin at `at`:
/// `acc = fma(f32(dot), a * d, acc)`, then `acc = fma(f32(s), c * d, acc)`.
///
/// # Safety
/// `codes` points to a block of `layout`, and R rows have its values.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn block<const BITS: usize, const KIND: usize, const R: usize>(
    layout: Layout,
    codes: *const u8,
    heads: [__m256; 2],
    x: Pieces,
    at: usize,
    acc: &mut [__m256; R],
) {
    let piece = layout.block.min(BLOCK_VALUES);
    let zero = zero_of(BITS, layout.zero);
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
            let q = x.q.add(from);
            let codes = codes.add(p * piece * BITS);
            let dots = dots::<BITS, KIND, R>(codes, piece, q, x.cols);
            for r in 0..R {
                let d = _mm256_set1_ps(*x.d.add(r * (x.cols / BLOCK_VALUES) + from / BLOCK_VALUES));
                let sum = r * (x.cols / piece) + from / piece;
                let dot = _mm256_cvtepi32_ps(centred(dots[r], zero, x.i32.add(sum)));
                acc[r] = _mm256_fmadd_ps(dot, _mm256_mul_ps(a, d), acc[r]);
                if layout.offsets {
                    let s = _mm256_set1_ps(*x.f32.add(sum));
                    acc[r] = _mm256_fmadd_ps(s, _mm256_mul_ps(c, d), acc[r]);
                }
            }
        }
    }
}

/// The integer dots of one piece of `values` codes with R rows, the rows `stride` apart. Each kind
/// has a copy of its own, with one caller, so that it becomes part of its kernel.
///
/// # Safety
/// `codes` must hold the piece and each row its integers from `q` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots<const BITS: usize, const KIND: usize, const R: usize>(
    codes: *const u8,
    values: usize,
    q: *const i8,
    stride: usize,
) -> [__m256i; R] {
    let (width, fields) = const { (strip_values(BITS), strip_values(BITS) / 4) };
    let budget = const { if BITS == 8 { 1 } else { fields_a_sum(BITS) } };
    let zero = _mm256_setzero_si256();
    let mut dots = [zero; R];
    for strip in 0..values / width {
        let mut sums = [zero; R];
        for i in 0..fields {
            // SAFETY: four values of the strip and of each row.
            unsafe {
                let w = taken::<BITS>(joined::<BITS>(codes.add(strip * width * BITS), i));
                for r in 0..R {
                    let x = four(q.add(r * stride + strip * width + 4 * i));
                    sums[r] = _mm256_add_epi16(sums[r], pairs::<BITS>(w, x));
                }
            }
            if (i + 1) % budget == 0 || i + 1 == fields {
                for r in 0..R {
                    dots[r] = _mm256_add_epi32(dots[r], widened(sums[r]));
                    sums[r] = zero;
                }
            }
        }
    }
    dots
}
