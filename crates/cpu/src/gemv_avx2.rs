//! Block formats for few rows: straight from the packed codes, eight outputs a vector.
//!
//! A panel is read once for up to four rows at a time; what follows finds it in cache.
#![allow(
    clippy::needless_range_loop,
    reason = "rows, panels and groups index several arrays at once, with constant bounds"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use arith::float::SPOILT;
use arith::format::Format;
use arith::linear::{GROUPS, group_slices};

use crate::pack::{BLOCK, LANES, Linear, SCALES_BYTES, SLICE_BLOCKS, codes_bytes, record_bytes};
use crate::project::{Inputs, Outputs};
use crate::quantise::Activations;
use crate::vector_avx2::{flush, load_halves};

/// Formats as constants of the kernels.
pub(crate) const Q4_0: u8 = 0;
pub(crate) const Q4_1: u8 = 1;
pub(crate) const Q8_0: u8 = 2;

/// The format behind a kernel's constant.
pub(crate) const fn format_of(kernel: u8) -> Format {
    match kernel {
        Q4_0 => Format::Q4_0,
        Q4_1 => Format::Q4_1,
        _ => Format::Q8_0,
    }
}

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
        match linear.format {
            Format::Q4_0 => gemv::<Q4_0>(linear, a16, panels, rows, out),
            Format::Q4_1 => gemv::<Q4_1>(linear, a16, panels, rows, out),
            Format::Q8_0 => gemv::<Q8_0>(linear, a16, panels, rows, out),
            format => unreachable!("{format} has no blocks"),
        }
    }
}

/// # Safety
/// As [`gemv_a16_blocks_avx2`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn gemv<const F: u8>(
    linear: &Linear,
    a16: &Activations,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    for panel in panels {
        let mut row = rows.start;
        while row < rows.end {
            // SAFETY: passed on.
            unsafe {
                row += match rows.end - row {
                    1 => panel_rows::<F, 1>(linear, panel, a16, row, out),
                    2 => panel_rows::<F, 2>(linear, panel, a16, row, out),
                    3 => panel_rows::<F, 3>(linear, panel, a16, row, out),
                    _ => panel_rows::<F, 4>(linear, panel, a16, row, out),
                };
            }
        }
    }
}

/// `R` rows from `row` through one panel; gives R.
///
/// # Safety
/// As [`gemv_a16_blocks_avx2`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn panel_rows<const F: u8, const R: usize>(
    linear: &Linear,
    panel: usize,
    a16: &Activations,
    row: usize,
    out: &Outputs<'_>,
) -> usize {
    let (slices, blocks) = (a16.slices, a16.blocks);
    let bytes = const { record_bytes(format_of(F)) };
    let codes = const { codes_bytes(format_of(F)) };
    let base = linear.panel(panel).as_ptr();
    let q = &a16.q[row * a16.cols..(row + R) * a16.cols];
    let d = &a16.d[row * slices..(row + R) * slices];
    let sums = &a16.sums[row * blocks..(row + R) * blocks];
    let sums_f32 = &a16.sums_f32[row * blocks..(row + R) * blocks];
    let zero = _mm256_setzero_ps();
    let mut groups = [[zero; R]; GROUPS];
    for (group, g) in groups.iter_mut().enumerate() {
        for slice in group_slices(group, slices) {
            let mut acc = [zero; R];
            for block in slice * SLICE_BLOCKS..blocks.min((slice + 1) * SLICE_BLOCKS) {
                // SAFETY: a panel has `blocks` records, a row as many blocks, sums and `slices`
                // steps; the slices above checked the lengths for R rows.
                unsafe {
                    let record = base.add(block * bytes);
                    let q = q.as_ptr().add(block * BLOCK);
                    let mut dots = dots::<F, R>(record, q, a16.cols);
                    let a = load_halves(record.add(codes));
                    for r in 0..R {
                        if F == Q4_0 {
                            let s = _mm256_set1_epi32(*sums.as_ptr().add(r * blocks + block));
                            dots[r] = _mm256_sub_epi32(dots[r], _mm256_slli_epi32::<3>(s));
                        }
                        acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r]), a, acc[r]);
                    }
                    if F == Q4_1 {
                        let c = load_halves(record.add(codes + SCALES_BYTES));
                        for r in 0..R {
                            let s = _mm256_set1_ps(*sums_f32.as_ptr().add(r * blocks + block));
                            acc[r] = _mm256_fmadd_ps(s, c, acc[r]);
                        }
                    }
                }
            }
            for r in 0..R {
                let d = _mm256_set1_ps(d[r * slices + slice]);
                g[r] = _mm256_fmadd_ps(acc[r], d, g[r]);
            }
        }
    }
    for r in 0..R {
        // SAFETY: the caller's promise.
        let out = unsafe { out.panel(row + r, panel, linear.lanes(panel)) };
        store(std::array::from_fn(|k| groups[k][r]), a16.spoilt[row + r], out);
    }
    R
}

/// The tree over the groups, flushed, to as many outputs as `out` has.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn store(g: [__m256; GROUPS], spoilt: bool, out: &mut [f32]) {
    if spoilt {
        return out.fill(SPOILT);
    }
    let add = |a, b| _mm256_add_ps(a, b);
    let low = add(add(g[0], g[1]), add(g[2], g[3]));
    let high = add(add(g[4], g[5]), add(g[6], g[7]));
    let sum = flush(add(low, high));
    let mut lanes = [0.0; LANES];
    // SAFETY: eight floats are eight lanes.
    unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), sum) };
    let len = out.len();
    out.copy_from_slice(&lanes[..len]);
}

/// The integer dots of one record with R rows, the rows `stride` apart.
///
/// # Safety
/// `record` must hold a record and each row 32 integers from `q` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots<const F: u8, const R: usize>(
    record: *const u8,
    q: *const i16,
    stride: usize,
) -> [__m256i; R] {
    // SAFETY: passed on.
    unsafe {
        if F == Q8_0 {
            dots_i8::<R>(record, q, stride)
        } else if R <= 2 {
            dots_u4_unshifted::<R>(record, q, stride)
        } else {
            dots_u4::<R>(record, q, stride)
        }
    }
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

/// Nibbles moved to the bottom of their lanes by shifts that all rows share.
///
/// # Safety
/// As [`dots`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots_u4<const R: usize>(record: *const u8, q: *const i16, stride: usize) -> [__m256i; R] {
    let mask = _mm256_set1_epi16(15);
    let mut dots = [_mm256_setzero_si256(); R];
    for v in 0..4 {
        // SAFETY: 32 bytes of the 128 of the codes; 8 values of the 32 of each row.
        unsafe {
            let packed = _mm256_loadu_si256(record.add(32 * v).cast());
            let w = [
                _mm256_and_si256(packed, mask),
                _mm256_and_si256(_mm256_srli_epi16::<4>(packed), mask),
                _mm256_and_si256(_mm256_srli_epi16::<8>(packed), mask),
                _mm256_srli_epi16::<12>(packed),
            ];
            for (t, w) in w.into_iter().enumerate() {
                for (r, dot) in dots.iter_mut().enumerate() {
                    let x = pair(q.add(r * stride), 8 * v + 2 * t);
                    *dot = _mm256_add_epi32(*dot, _mm256_madd_epi16(w, x));
                }
            }
        }
    }
    dots
}

/// Nibbles left where they are: the second and third of a lane give 16 and 256 times their dots,
/// each an exact i32 (at most 256 * 15 * 8 * 32639 = 1.003e9), shifted once a block.
///
/// # Safety
/// As [`dots`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots_u4_unshifted<const R: usize>(
    record: *const u8,
    q: *const i16,
    stride: usize,
) -> [__m256i; R] {
    let mask = [0x000f, 0x00f0, 0x0f00].map(|m| _mm256_set1_epi16(m));
    let zero = _mm256_setzero_si256();
    let (mut units, mut sixteens, mut twofiftysixes) = ([zero; R], [zero; R], [zero; R]);
    for v in 0..4 {
        // SAFETY: 32 bytes of the 128 of the codes; 8 values of the 32 of each row.
        unsafe {
            let packed = _mm256_loadu_si256(record.add(32 * v).cast());
            let w0 = _mm256_and_si256(packed, mask[0]);
            let w1 = _mm256_and_si256(packed, mask[1]);
            let w2 = _mm256_and_si256(packed, mask[2]);
            let w3 = _mm256_srli_epi16::<12>(packed);
            for r in 0..R {
                let q = q.add(r * stride);
                let at = 8 * v;
                let add = |sum: &mut __m256i, w, x| {
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(w, x));
                };
                add(&mut units[r], w0, pair(q, at));
                add(&mut sixteens[r], w1, pair(q, at + 2));
                add(&mut twofiftysixes[r], w2, pair(q, at + 4));
                add(&mut units[r], w3, pair(q, at + 6));
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

/// Signed bytes, widened.
///
/// # Safety
/// As [`dots`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots_i8<const R: usize>(record: *const u8, q: *const i16, stride: usize) -> [__m256i; R] {
    let mut dots = [_mm256_setzero_si256(); R];
    for s in 0..BLOCK / 2 {
        // SAFETY: 16 bytes of the 256 of the codes; 2 values of the 32 of each row.
        unsafe {
            let w = _mm256_cvtepi8_epi16(_mm_loadu_si128(record.add(16 * s).cast()));
            for (r, dot) in dots.iter_mut().enumerate() {
                let x = pair(q.add(r * stride), 2 * s);
                *dot = _mm256_add_epi32(*dot, _mm256_madd_epi16(w, x));
            }
        }
    }
    dots
}
