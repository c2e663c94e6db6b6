//! Block formats for few rows: straight from the packed codes, eight outputs a vector.
//!
//! A panel is read once for up to four rows at a time; what follows finds it in cache.
#![allow(
    clippy::needless_range_loop,
    reason = "rows, panels and groups index several arrays at once, with constant bounds"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use arith::linear::GROUPS;

use crate::codes_avx2::{QUAD, quad};
use crate::kinds::{self, by_kind};
use crate::layout::{Layout, strip_values};
use crate::pack::Linear;
use crate::project::{Inputs, Outputs};
use crate::quantise::Activations;
use crate::scales_vector::{heads, scales};
use crate::vector::put_groups;
use crate::walk::{Sums, by_rows, walk};

/// Outputs of `panels` for `rows`.
///
/// # Safety
/// The CPU has AVX2, FMA and F16C; no other thread may write `panels` of `rows`; the rows are
/// quantised.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn gemv_a16_blocks_avx2(
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
/// As [`gemv_a16_blocks_avx2`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn gemv<const BITS: usize, const KIND: usize>(
    linear: &Linear,
    a16: &Activations,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    assert_eq!(linear.layout().bits, BITS);
    for panel in panels {
        by_rows!(rows.clone(), [1 2 3 4], |row, R| {
            // SAFETY: passed on.
            unsafe { panel_rows::<BITS, KIND, R>(linear, panel, a16, row, out) }
        });
    }
}

/// `R` rows from `row` through one panel.
///
/// # Safety
/// As [`gemv_a16_blocks_avx2`].
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn panel_rows<const BITS: usize, const KIND: usize, const R: usize>(
    linear: &Linear,
    panel: usize,
    a16: &Activations,
    row: usize,
    out: &Outputs<'_>,
) {
    let (layout, slices, zero) = (linear.layout(), a16.slices, [_mm256_setzero_ps(); R]);
    let sums = a16.sums(layout.block);
    let rows = row * sums.blocks..(row + R) * sums.blocks;
    let mut tile = Tile::<BITS, KIND, R> {
        layout,
        panel: linear.panel(panel).as_ptr(),
        cols: a16.cols,
        q: a16.q[row * a16.cols..(row + R) * a16.cols].as_ptr(),
        d: a16.d[row * slices..(row + R) * slices].as_ptr(),
        slices,
        sums: BlockSums {
            i32: sums.i32[rows.clone()].as_ptr(),
            f32: sums.f32[rows].as_ptr(),
            stride: sums.blocks,
        },
        acc: zero,
        g: zero,
        groups: [zero; GROUPS],
    };
    let unit = kinds::layout::<KIND>(layout).unit_values();
    // SAFETY: a panel has a record a unit, a row as many units, their blocks' sums and `slices`
    // steps; the slices above checked the lengths for R rows.
    unsafe { walk(&mut tile, &linear.groups, linear.cols, unit) };
    for r in 0..R {
        // SAFETY: the caller's promise.
        let out = unsafe { out.panel(row + r, panel, linear.lanes(panel)) };
        let groups = std::array::from_fn(|k| tile.groups[k][r]);
        put_groups(groups, linear.end(a16.spoilt[row + r]), out);
    }
}

/// The sums of one panel in R rows of `cols` values and `slices` steps.
struct Tile<const BITS: usize, const KIND: usize, const R: usize> {
    layout: Layout,
    panel: *const u8,
    cols: usize,
    q: *const i16,
    d: *const f32,
    slices: usize,
    sums: BlockSums,
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
                let block = unit * layout.blocks + b;
                let codes = record.add(b * layout.block_bytes());
                let q = self.q.add(block * layout.block);
                let dots = dots::<BITS, KIND, R>(codes, layout.block, q, self.cols);
                scale(layout, codes, heads, &dots, self.sums.at(block), &mut self.acc);
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn end_slice(&mut self, slice: usize) {
        for r in 0..R {
            // SAFETY: the caller's promise.
            let d = _mm256_set1_ps(unsafe { *self.d.add(r * self.slices + slice) });
            self.g[r] = _mm256_fmadd_ps(self.acc[r], d, self.g[r]);
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

/// Sums of a block's integers in several rows, `stride` apart.
#[derive(Clone, Copy)]
struct BlockSums {
    i32: *const i32,
    f32: *const f32,
    stride: usize,
}

impl BlockSums {
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
/// `block` points to a block of `layout`, `sums` to its sums in R rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scale<const R: usize>(
    layout: Layout,
    block: *const u8,
    heads: [__m256; 2],
    dots: &[__m256i; R],
    sums: BlockSums,
    acc: &mut [__m256; R],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let at = block.add(layout.codes_bytes());
        let a = scales(layout.scales, at, heads[0]);
        for r in 0..R {
            let mut dot = dots[r];
            if layout.zero != 0 {
                let s = _mm256_set1_epi32(*sums.i32.add(r * sums.stride));
                let zero = _mm256_set1_epi32(layout.zero.into());
                dot = _mm256_sub_epi32(dot, _mm256_mullo_epi32(s, zero));
            }
            acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), a, acc[r]);
        }
        if layout.offsets {
            let c = scales(layout.scales, at.add(layout.scales_bytes()), heads[1]);
            for r in 0..R {
                let s = _mm256_set1_ps(*sums.f32.add(r * sums.stride));
                acc[r] = _mm256_fmadd_ps(s, c, acc[r]);
            }
        }
    }
}

/// The integer dots of one block of `values` codes with R rows, the rows `stride` apart. Each kind
/// has a copy of its own, with one caller, so that it becomes part of its kernel.
///
/// # Safety
/// `codes` must hold the block and each row its integers from `q` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots<const BITS: usize, const KIND: usize, const R: usize>(
    codes: *const u8,
    values: usize,
    q: *const i16,
    stride: usize,
) -> [__m256i; R] {
    let width = const { strip_values(BITS) };
    let mut dots = [_mm256_setzero_si256(); R];
    for strip in 0..values / width {
        // SAFETY: passed on, strip by strip.
        let sums = unsafe {
            let codes = codes.add(strip * width * BITS);
            let q = q.add(strip * width);
            if BITS == 4 && R <= 2 {
                strip_u4_unshifted::<KIND, R>(codes, q, stride)
            } else {
                strip_codes::<BITS, KIND, R>(codes, q, stride)
            }
        };
        for (dot, sum) in dots.iter_mut().zip(sums) {
            *dot = _mm256_add_epi32(*dot, sum);
        }
    }
    dots
}

/// Two integers of a row from `at` on, in every lane.
///
/// # Safety
/// Both must be readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn pair(q: *const i16, at: usize) -> __m256i {
    // SAFETY: the caller's promise.
    _mm256_set1_epi32(unsafe { q.add(at).cast::<i32>().read_unaligned() })
}

/// Codes moved to the bottom of their lanes by shifts that all rows share.
///
/// # Safety
/// As [`dots`], for a strip.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn strip_codes<const BITS: usize, const KIND: usize, const R: usize>(
    codes: *const u8,
    q: *const i16,
    stride: usize,
) -> [__m256i; R] {
    let mut dots = [_mm256_setzero_si256(); R];
    for v in 0..strip_values(BITS) / QUAD {
        // SAFETY: 8 values of the strip and of each row.
        unsafe {
            for (t, w) in quad::<BITS>(codes, v).into_iter().enumerate() {
                for (r, dot) in dots.iter_mut().enumerate() {
                    let x = pair(q.add(r * stride), QUAD * v + 2 * t);
                    *dot = _mm256_add_epi32(*dot, _mm256_madd_epi16(w, x));
                }
            }
        }
    }
    dots
}

/// Nibbles left where they are: the second and third of a lane give 16 and 256 times their dots,
/// each an exact i32 (at most 256 * 15 * 8 * 32639 = 1.003e9), shifted once a strip.
///
/// # Safety
/// As [`dots`], for a strip.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn strip_u4_unshifted<const KIND: usize, const R: usize>(
    codes: *const u8,
    q: *const i16,
    stride: usize,
) -> [__m256i; R] {
    let mask = [0x000f, 0x00f0, 0x0f00].map(|m| _mm256_set1_epi16(m));
    let zero = _mm256_setzero_si256();
    let (mut units, mut sixteens, mut twofiftysixes) = ([zero; R], [zero; R], [zero; R]);
    for v in 0..4 {
        // SAFETY: 32 bytes of the 128 of the strip; 8 values of the 32 of each row.
        unsafe {
            let packed = _mm256_loadu_si256(codes.add(32 * v).cast());
            let w = [
                _mm256_and_si256(packed, mask[0]),
                _mm256_and_si256(packed, mask[1]),
                _mm256_and_si256(packed, mask[2]),
                _mm256_srli_epi16::<12>(packed),
            ];
            for (t, w) in w.into_iter().enumerate() {
                for r in 0..R {
                    let sum = match t {
                        1 => &mut sixteens[r],
                        2 => &mut twofiftysixes[r],
                        _ => &mut units[r],
                    };
                    let x = pair(q.add(r * stride), QUAD * v + 2 * t);
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(w, x));
                }
            }
        }
    }
    let mut dots = units;
    for r in 0..R {
        let high = _mm256_srai_epi32::<4>(twofiftysixes[r]);
        let high = _mm256_srai_epi32::<4>(_mm256_add_epi32(sixteens[r], high));
        dots[r] = _mm256_add_epi32(dots[r], high);
    }
    dots
}
