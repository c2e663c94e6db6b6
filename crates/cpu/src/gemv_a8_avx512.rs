//! Block formats for few rows in arith 2, as [`crate::gemv_avx512`] has them.
#![allow(
    clippy::needless_range_loop,
    reason = "rows, panels and groups index several arrays at once, with constant bounds"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use arith::a8::BLOCK_VALUES;

use crate::codes_avx512::{Twin, joined, scales};
use crate::gemv_avx512::{Few, gemv};
use crate::kinds::{self, by_kind};
use crate::layout::{Layout, strip_values};
use crate::pack::Linear;
use crate::project::{Inputs, Outputs};
use crate::quantise_a8::ActivationsA8;
use crate::vector_avx512::everywhere;

/// [`gemv`] in arith 2.
///
/// # Safety
/// As [`gemv`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn gemv_a8_blocks_avx512(
    linear: &Linear,
    inputs: &Inputs<'_>,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    let x = inputs.a8;
    // SAFETY: passed on.
    unsafe {
        by_kind!(linear, gemv::<_>(linear, x, panels, rows, out));
    }
}

/// What some rows of bytes have from their start on, the rows `cols` values apart.
#[derive(Clone, Copy)]
pub(crate) struct Pieces {
    q: *const i8,
    d: *const f32,
    i32: *const i32,
    f32: *const f32,
    cols: usize,
}

impl Few for &ActivationsA8 {
    type Tile = Pieces;

    #[inline]
    fn tile<const R: usize>(self, layout: Layout, row: usize) -> Pieces {
        let (cols, piece) = (self.cols, layout.block.min(BLOCK_VALUES));
        let sums = self.sums(piece);
        assert_eq!(sums.blocks, cols / piece);
        let rows = |width: usize| row * (cols / width)..(row + R) * (cols / width);
        Pieces {
            q: self.q[rows(1)].as_ptr(),
            d: self.d[rows(BLOCK_VALUES)].as_ptr(),
            i32: sums.i32[rows(piece)].as_ptr(),
            f32: sums.f32[rows(piece)].as_ptr(),
            cols,
        }
    }

    /// Piece by piece: `acc = fma(f32(dot), a * d, acc)`, then `acc = fma(f32(s), c * d, acc)`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn block<const BITS: usize, const KIND: usize, const R: usize>(
        x: Pieces,
        layout: Layout,
        codes: Twin,
        heads: [__m512; 2],
        at: usize,
        acc: &mut [__m512; R],
    ) {
        // A constant again, so that all below becomes part of the kernel.
        let layout = kinds::layout::<KIND>(layout);
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
                    let d =
                        _mm512_set1_ps(*x.d.add(r * (x.cols / BLOCK_VALUES) + from / BLOCK_VALUES));
                    let sum = r * (x.cols / piece) + from / piece;
                    let mut dot = dots[r];
                    if layout.zero != 0 {
                        let s = everywhere(x.i32.add(sum));
                        let excess =
                            _mm512_sll_epi32(s, _mm_cvtsi32_si128(layout.zero.ilog2() as i32));
                        dot = _mm512_sub_epi32(dot, excess);
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

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn end_slice<const R: usize>(
        _: Pieces,
        _: usize,
        acc: [__m512; R],
        sums: &mut [__m512; R],
    ) {
        for r in 0..R {
            sums[r] = _mm512_add_ps(sums[r], acc[r]);
        }
    }

    #[inline]
    fn spoilt(self, row: usize) -> bool {
        self.spoilt[row]
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
    let mut odd = dots;
    for strip in 0..values / width {
        for i in 0..fields {
            // One row alone has two sums, so that an addition need not wait for the one before.
            let sums = if i % 2 == 1 && R == 1 { &mut odd } else { &mut dots };
            // SAFETY: four values of the strip and of each row.
            unsafe {
                let w = joined::<BITS>(codes.add(strip * width * BITS), i);
                for r in 0..R {
                    let x = q.add(r * stride + strip * width + 4 * i).cast::<i32>();
                    let x = _mm512_set1_epi32(x.read_unaligned());
                    sums[r] = _mm512_dpbusd_epi32(sums[r], w, x);
                }
            }
        }
    }
    if R == 1 {
        dots[0] = _mm512_add_epi32(dots[0], odd[0]);
    }
    dots
}
