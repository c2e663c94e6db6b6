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
use crate::vector_avx512::{dot_biased_rows, dot_codes_rows, scale_twice};

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
        match (layout.offsets, layout.block) {
            (true, _) => {
                gemm(linear, Fields::<32, true> { a8, cols, block_bits }, panels, rows, out);
            }
            (false, 16) => {
                gemm(linear, Fields::<16, false> { a8, cols, block_bits }, panels, rows, out);
            }
            (false, 32) => {
                gemm(linear, Fields::<32, false> { a8, cols, block_bits }, panels, rows, out);
            }
            (false, block) => unreachable!("blocks of {block} without offsets"),
        }
    }
}

/// Rows of `cols` bytes, times pieces of `PIECE` weights of blocks of `2^block_bits`. Where these
/// have offsets their codes are unsigned and the rows' integers signed; else their codes are
/// signed, and the integers [`BIAS`](crate::quantise_a8::BIAS) too large.
#[derive(Clone, Copy)]
struct Fields<'a, const PIECE: usize, const OFFSETS: bool> {
    a8: &'a ActivationsA8,
    cols: usize,
    block_bits: u32,
}

impl<const PIECE: usize, const OFFSETS: bool> Tiles for Fields<'_, PIECE, OFFSETS> {
    #[inline]
    unsafe fn unpack(self, to: &mut Unpacked, linear: &Linear, panels: Range<usize>, slice: usize) {
        // SAFETY: passed on.
        unsafe { to.fill::<FIELD>(linear, panels, slice) };
    }

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
        let rows = |width: usize| row * (cols / width)..(row + R) * (cols / width);
        let d = &a8.d[rows(BLOCK_VALUES)];
        let q: *const u8 = match OFFSETS {
            true => a8.q[rows(1)].as_ptr().cast(),
            false => a8.biased[rows(1)].as_ptr(),
        };
        let sums = if OFFSETS { &a8.sums(PIECE).f32[rows(PIECE)] } else { d };
        let mut acc = [[_mm512_setzero_ps(); R]; TWINS];
        let from = place.slice * SLICE_VALUES;
        for at in (from..cols.min(from + SLICE_VALUES)).step_by(PIECE) {
            let scales = ((at - from) >> block_bits) * BLOCK_SCALES;
            // SAFETY: the slice is unpacked, a row has as many values; the slices above checked
            // the lengths for R rows.
            unsafe {
                let piece = Piece {
                    codes: unpacked.codes.as_ptr().add((at - from) / FIELD * STEP_BYTES),
                    starts: unpacked.starts.as_ptr().add(scales),
                    scales: unpacked.scales.as_ptr().add(scales),
                    offsets: unpacked.offsets.as_ptr().add(scales),
                    q: q.add(at),
                    d: d.as_ptr().add(at / BLOCK_VALUES),
                    sums: if OFFSETS { sums.as_ptr().add(at / PIECE) } else { sums.as_ptr() },
                };
                let dots = dots::<PIECE, OFFSETS, R>(piece, cols);
                scale::<PIECE, OFFSETS, R>(piece, cols, dots, &mut acc);
            }
        }
        let mut sums = place.before::<R>(nodes);
        for p in 0..TWINS {
            for r in 0..R {
                sums[p][r] = _mm512_add_ps(sums[p][r], acc[p][r]);
            }
        }
        place.keep(nodes, sums);
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
    /// What its dots begin at, in formats without offsets.
    starts: *const i32,
    /// Scales of its block of weights, and offsets.
    scales: *const f32,
    offsets: *const f32,
    /// The first row's integers and scale, and its sum where there are offsets.
    q: *const u8,
    d: *const f32,
    sums: *const f32,
}

/// The dots of a piece's weights with R rows of `cols` values.
///
/// # Safety
/// All of the piece must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn dots<const PIECE: usize, const OFFSETS: bool, const R: usize>(
    piece: Piece,
    cols: usize,
) -> [[__m512i; R]; TWINS] {
    let mut dots = [[_mm512_setzero_si512(); R]; TWINS];
    // SAFETY: the caller's promise.
    unsafe {
        if !OFFSETS {
            for p in 0..TWINS {
                dots[p] = [_mm512_loadu_si512(piece.starts.add(p * FLOATS).cast()); R];
            }
        }
        for i in 0..PIECE / FIELD {
            let at = piece.codes.add(i * STEP_BYTES);
            let w = [_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(BYTES).cast())];
            let q = piece.q.add(FIELD * i);
            if OFFSETS {
                dot_codes_rows(&mut dots, w, q, cols);
            } else {
                dot_biased_rows(&mut dots, w, q, cols);
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
        if !OFFSETS {
            for r in 0..R {
                let d = piece.d.add(r * (cols / BLOCK_VALUES));
                let [first, second] = &mut *acc;
                scale_twice([&mut first[r], &mut second[r]], [dots[0][r], dots[1][r]], a, d);
            }
            return;
        }
        let c = [load(piece.offsets, 0), load(piece.offsets, 1)];
        for r in 0..R {
            let d = _mm512_set1_ps(*piece.d.add(r * (cols / BLOCK_VALUES)));
            for p in 0..TWINS {
                let dot = _mm512_cvtepi32_ps(dots[p][r]);
                acc[p][r] = _mm512_fmadd_ps(dot, _mm512_mul_ps(a[p], d), acc[p][r]);
            }
            let s = _mm512_set1_ps(*piece.sums.add(r * (cols / PIECE)));
            for p in 0..TWINS {
                acc[p][r] = _mm512_fmadd_ps(s, _mm512_mul_ps(c[p], d), acc[p][r]);
            }
        }
    }
}
