//! Block formats for many rows in arith 2: weights unpacked to bytes, under the tiles of
//! [`crate::gemm_avx512`].
#![allow(
    clippy::needless_range_loop,
    reason = "rows, panels and groups index several arrays at once, with constant bounds"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use arith::a8::BLOCK_VALUES;
use arith::base::SLICE_VALUES;

use crate::gemm_avx512::{At, Nodes, Tiles, gemm};
use crate::pack::Linear;
use crate::project::{Inputs, Outputs};
use crate::quantise_a8::ActivationsA8;
use crate::unpacked_avx512::{BLOCK_SCALES, BYTES, FIELD, FLOATS, STEP_BYTES, TWINS, Unpacked};
use crate::vector_avx512::dot_bytes_twice;

/// [`gemm`] in arith 2.
///
/// # Safety
/// As [`gemm`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn gemm_a8_blocks_avx512(
    linear: &Linear,
    inputs: &Inputs<'_>,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    let layout = linear.layout();
    let (a8, cols, block_bits) = (inputs.a8, linear.cols, layout.block.ilog2());
    assert_eq!(a8.cols, cols);
    // SAFETY: passed on.
    unsafe {
        match (layout.zero, layout.block) {
            (0, _) => {
                gemm(linear, Fields::<32, 0, true> { a8, cols, block_bits }, panels, rows, out);
            }
            (8, _) => {
                gemm(linear, Fields::<32, 3, false> { a8, cols, block_bits }, panels, rows, out);
            }
            (16, _) => {
                gemm(linear, Fields::<32, 4, false> { a8, cols, block_bits }, panels, rows, out);
            }
            (32, 16) => {
                gemm(linear, Fields::<16, 5, false> { a8, cols, block_bits }, panels, rows, out);
            }
            (128, 32) => {
                gemm(linear, Fields::<32, 7, false> { a8, cols, block_bits }, panels, rows, out);
            }
            (zero, block) => unreachable!("blocks of {block} about {zero}"),
        }
    }
}

/// Rows of `cols` bytes, times pieces of `PIECE` weights of blocks of `2^block_bits`: their code
/// for 0 is `2^ZERO`, or they have offsets.
#[derive(Clone, Copy)]
struct Fields<'a, const PIECE: usize, const ZERO: u32, const OFFSETS: bool> {
    a8: &'a ActivationsA8,
    cols: usize,
    block_bits: u32,
}

impl<const PIECE: usize, const ZERO: u32, const OFFSETS: bool> Tiles
    for Fields<'_, PIECE, ZERO, OFFSETS>
{
    const VALUES: usize = FIELD;

    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn add<const R: usize>(
        self,
        unpacked: &Unpacked,
        place: At,
        row: usize,
        nodes: &mut Nodes,
    ) {
        let Self { a8, cols, block_bits } = self;
        let sums = a8.sums(PIECE);
        assert_eq!(sums.blocks, cols / PIECE);
        let rows = |width: usize| row * (cols / width)..(row + R) * (cols / width);
        let (q, d) = (&a8.q[rows(1)], &a8.d[rows(BLOCK_VALUES)]);
        let (i32, f32) = (&sums.i32[rows(PIECE)], &sums.f32[rows(PIECE)]);
        let mut acc = [[_mm512_setzero_ps(); R]; TWINS];
        let from = place.slice * SLICE_VALUES;
        for at in (from..cols.min(from + SLICE_VALUES)).step_by(PIECE) {
            let scales = ((at - from) >> block_bits) * BLOCK_SCALES;
            // SAFETY: the slice is unpacked, a row has as many values; the slices above checked
            // the lengths for R rows.
            unsafe {
                let piece = Piece {
                    codes: unpacked.codes.as_ptr().add((at - from) / FIELD * STEP_BYTES),
                    scales: unpacked.scales.as_ptr().add(scales),
                    offsets: unpacked.offsets.as_ptr().add(scales),
                    q: q.as_ptr().add(at),
                    d: d.as_ptr().add(at / BLOCK_VALUES),
                    i32: i32.as_ptr().add(at / PIECE),
                    f32: f32.as_ptr().add(at / PIECE),
                };
                let dots = dots::<PIECE, ZERO, R>(piece, cols);
                scale::<PIECE, OFFSETS, R>(piece, cols, dots, &mut acc);
            }
        }
        for p in 0..TWINS {
            for r in 0..R {
                place.put(nodes, (p, r), |sum| _mm512_add_ps(sum, acc[p][r]));
            }
        }
    }

    fn spoilt(self, row: usize) -> bool {
        self.a8.spoilt[row]
    }
}

/// What R rows have of a piece.
#[derive(Clone, Copy)]
struct Piece {
    /// Codes of its first field.
    codes: *const u8,
    /// Scales of its block of weights, and offsets.
    scales: *const f32,
    offsets: *const f32,
    /// The first row's integers, scale and sums.
    q: *const i8,
    d: *const f32,
    i32: *const i32,
    f32: *const f32,
}

/// The dots of a piece's weights with R rows of `cols` values.
///
/// # Safety
/// All of the piece must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn dots<const PIECE: usize, const ZERO: u32, const R: usize>(
    piece: Piece,
    cols: usize,
) -> [[__m512i; R]; TWINS] {
    let mut dots = [[_mm512_setzero_si512(); R]; TWINS];
    // SAFETY: the caller's promise.
    unsafe {
        // What the code for 0 adds to the dots of codes is taken off first.
        for r in 0..if ZERO > 0 { R } else { 0 } {
            let excess = *piece.i32.add(r * (cols / PIECE)) << ZERO;
            dots[0][r] = _mm512_set1_epi32(excess.wrapping_neg());
            dots[1][r] = dots[0][r];
        }
        for i in 0..PIECE / FIELD {
            let at = piece.codes.add(i * STEP_BYTES);
            let w0 = _mm512_loadu_si512(at.cast());
            let w1 = _mm512_loadu_si512(at.add(BYTES).cast());
            for r in 0..R {
                let x = piece.q.add(r * cols + FIELD * i);
                (dots[0][r], dots[1][r]) = dot_bytes_twice(dots[0][r], dots[1][r], w0, w1, x);
            }
        }
    }
    dots
}

/// `acc = fma(f32(dot), a * d, acc)`, then `acc = fma(f32(s), c * d, acc)`.
///
/// # Safety
/// All of the piece must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn scale<const PIECE: usize, const OFFSETS: bool, const R: usize>(
    piece: Piece,
    cols: usize,
    dots: [[__m512i; R]; TWINS],
    acc: &mut [[__m512; R]; TWINS],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let load = |from: *const f32, p: usize| _mm512_loadu_ps(from.add(p * FLOATS));
        let a = [load(piece.scales, 0), load(piece.scales, 1)];
        let c = if OFFSETS { [load(piece.offsets, 0), load(piece.offsets, 1)] } else { a };
        for r in 0..R {
            let d = _mm512_set1_ps(*piece.d.add(r * (cols / BLOCK_VALUES)));
            for p in 0..TWINS {
                let dot = _mm512_cvtepi32_ps(dots[p][r]);
                acc[p][r] = _mm512_fmadd_ps(dot, _mm512_mul_ps(a[p], d), acc[p][r]);
            }
            if OFFSETS {
                let s = _mm512_set1_ps(*piece.f32.add(r * (cols / PIECE)));
                for p in 0..TWINS {
                    acc[p][r] = _mm512_fmadd_ps(s, _mm512_mul_ps(c[p], d), acc[p][r]);
                }
            }
        }
    }
}
