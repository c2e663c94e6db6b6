//! Block formats for many rows in arith 2: a pair of panels is unpacked once to bytes, then
//! multiplied with four rows at a time.
#![allow(
    clippy::needless_range_loop,
    reason = "rows, panels and groups index several arrays at once, with constant bounds"
)]

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use arith::a8::BLOCK_VALUES;
use arith::linear::GROUPS;

use crate::bytes_avx2::{centred, fields_a_sum, four, pairs, widened, zero_of};
use crate::pack::{LANES, Linear};
use crate::project::{GEMM_PANELS, Inputs, Outputs};
use crate::quantise_a8::ActivationsA8;
use crate::unpacked_avx2::{BLOCK_SCALES, BYTES, FIELD, STEP_BYTES, Unpacked};
use crate::vector::put_groups;
use crate::walk::{Sums, by_rows, walk};

thread_local! {
    static UNPACKED: RefCell<Unpacked<FIELD>> = RefCell::default();
}

/// Outputs of at most [`GEMM_PANELS`] `panels` for `rows`.
///
/// # Safety
/// The CPU has AVX2, FMA and F16C; no other thread may write `panels` of `rows`; the rows are
/// quantised.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn gemm_a8_blocks_avx2(
    linear: &Linear,
    inputs: &Inputs<'_>,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    let layout = linear.layout();
    UNPACKED.with_borrow_mut(|unpacked| {
        // SAFETY: passed on.
        unsafe { unpacked.fill(linear, panels.clone()) };
        let job = Job { linear, unpacked, a8: inputs.a8, panels, out };
        // SAFETY: passed on.
        unsafe {
            match (layout.bits, layout.zero, layout.block) {
                (..=4, 0, _) => job.rows::<4, 32, 0, true>(rows),
                (..=4, _, _) => job.rows::<4, 32, 8, false>(rows),
                (5, 0, _) => job.rows::<5, 32, 0, true>(rows),
                (5, _, _) => job.rows::<5, 32, 16, false>(rows),
                (6, _, 16) => job.rows::<6, 16, 32, false>(rows),
                (6, _, _) => job.rows::<6, 32, 0, true>(rows),
                (_, 0, _) => job.rows::<8, 32, { zero_of(8, 0) }, true>(rows),
                (_, _, _) => job.rows::<8, 32, 0, false>(rows),
            }
        }
    });
}

/// What the tiles of one job share.
struct Job<'a> {
    linear: &'a Linear,
    unpacked: &'a Unpacked<FIELD>,
    a8: &'a ActivationsA8,
    panels: Range<usize>,
    out: &'a Outputs<'a>,
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

impl Job<'_> {
    /// # Safety
    /// As [`gemm_a8_blocks_avx2`]; the format has codes of at most `BITS` bits, pieces of `PIECE`
    /// values and `ZERO` for 0 in codes as `pairs` takes them.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn rows<const BITS: usize, const PIECE: usize, const ZERO: i32, const OFFSETS: bool>(
        &self,
        rows: Range<usize>,
    ) {
        by_rows!(rows, [1 2 3 4], |row, R| {
            // SAFETY: passed on.
            unsafe { self.tile::<BITS, PIECE, ZERO, OFFSETS, R>(row) }
        });
    }

    /// R rows from `row` with all panels of the job.
    ///
    /// # Safety
    /// As [`Job::rows`].
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile<
        const BITS: usize,
        const PIECE: usize,
        const ZERO: i32,
        const OFFSETS: bool,
        const R: usize,
    >(
        &self,
        row: usize,
    ) {
        let (a8, cols, block) = (self.a8, self.linear.cols, self.linear.layout().block);
        let (sums, zero) = (a8.sums(PIECE), [[_mm256_setzero_ps(); GEMM_PANELS]; R]);
        assert_eq!((a8.cols, sums.blocks), (cols, cols / PIECE));
        let rows = |width: usize| row * (cols / width)..(row + R) * (cols / width);
        let mut tile = Tile::<BITS, PIECE, ZERO, OFFSETS, R> {
            cols,
            block,
            first: Piece {
                codes: self.unpacked.codes.as_ptr(),
                scales: self.unpacked.scales.as_ptr(),
                offsets: self.unpacked.offsets.as_ptr(),
                q: a8.q[rows(1)].as_ptr(),
                d: a8.d[rows(BLOCK_VALUES)].as_ptr(),
                i32: sums.i32[rows(PIECE)].as_ptr(),
                f32: sums.f32[rows(PIECE)].as_ptr(),
            },
            acc: zero,
            g: zero,
            groups: [zero; GROUPS],
        };
        // SAFETY: `fill` unpacked `cols` values, a row has as many; the slices above checked the
        // lengths for R rows.
        unsafe { walk(&mut tile, &self.linear.groups, cols, PIECE) };
        for r in 0..R {
            for (p, panel) in self.panels.clone().enumerate() {
                let lanes = self.linear.lanes(panel);
                // SAFETY: the caller's promise.
                let out = unsafe { self.out.panel(row + r, panel, lanes) };
                let groups = std::array::from_fn(|k| tile.groups[k][r][p]);
                put_groups(groups, self.linear.end(a8.spoilt[row + r]), out);
            }
        }
    }
}

/// The sums of R rows of `cols` values.
struct Tile<
    const BITS: usize,
    const PIECE: usize,
    const ZERO: i32,
    const OFFSETS: bool,
    const R: usize,
> {
    cols: usize,
    /// Values of a block of weights.
    block: usize,
    first: Piece,
    acc: [[__m256; GEMM_PANELS]; R],
    g: [[__m256; GEMM_PANELS]; R],
    groups: [[[__m256; GEMM_PANELS]; R]; GROUPS],
}

impl<const BITS: usize, const PIECE: usize, const ZERO: i32, const OFFSETS: bool, const R: usize>
    Sums for Tile<BITS, PIECE, ZERO, OFFSETS, R>
{
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn step(&mut self, step: usize) {
        let (at, first) = (step * PIECE, self.first);
        let scales = at / self.block * BLOCK_SCALES;
        // SAFETY: the caller's promise.
        unsafe {
            let piece = Piece {
                codes: first.codes.add(at / FIELD * STEP_BYTES),
                scales: first.scales.add(scales),
                offsets: first.offsets.add(scales),
                q: first.q.add(at),
                d: first.d.add(at / BLOCK_VALUES),
                i32: first.i32.add(step),
                f32: first.f32.add(step),
            };
            let dots = dots::<BITS, PIECE, R>(piece, self.cols);
            scale::<PIECE, ZERO, OFFSETS, R>(piece, self.cols, &dots, &mut self.acc);
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn end_slice(&mut self, _slice: usize) {
        for r in 0..R {
            for p in 0..GEMM_PANELS {
                self.g[r][p] = _mm256_add_ps(self.g[r][p], self.acc[r][p]);
            }
        }
        self.acc = [[_mm256_setzero_ps(); GEMM_PANELS]; R];
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn end_group(&mut self, group: usize, _empty: bool) {
        self.groups[group] = self.g;
        self.g = [[_mm256_setzero_ps(); GEMM_PANELS]; R];
    }
}

/// The integer dots of a piece with R rows of `cols` values.
///
/// # Safety
/// All of the piece must be readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots<const BITS: usize, const PIECE: usize, const R: usize>(
    piece: Piece,
    cols: usize,
) -> [[__m256i; GEMM_PANELS]; R] {
    let zero = _mm256_setzero_si256();
    let fields = const { PIECE / FIELD };
    let budget = const { if BITS == 8 { 1 } else { fields_a_sum(BITS) } };
    let mut dots = [[zero; GEMM_PANELS]; R];
    let mut first = 0;
    while first < fields {
        let end = fields.min(first + budget);
        let mut sums = [[zero; GEMM_PANELS]; R];
        for i in first..end {
            // SAFETY: the caller's promise.
            unsafe {
                let at = piece.codes.add(i * STEP_BYTES);
                let w0 = _mm256_loadu_si256(at.cast());
                let w1 = _mm256_loadu_si256(at.add(BYTES).cast());
                for r in 0..R {
                    let x = four(piece.q.add(r * cols + FIELD * i));
                    sums[r][0] = _mm256_add_epi16(sums[r][0], pairs::<BITS>(w0, x));
                    sums[r][1] = _mm256_add_epi16(sums[r][1], pairs::<BITS>(w1, x));
                }
            }
        }
        for r in 0..R {
            for p in 0..GEMM_PANELS {
                dots[r][p] = _mm256_add_epi32(dots[r][p], widened(sums[r][p]));
            }
        }
        first = end;
    }
    dots
}

/// `acc = fma(f32(dot), a * d, acc)`, then `acc = fma(f32(s), c * d, acc)`.
///
/// # Safety
/// All of the piece must be readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scale<const PIECE: usize, const ZERO: i32, const OFFSETS: bool, const R: usize>(
    piece: Piece,
    cols: usize,
    dots: &[[__m256i; GEMM_PANELS]; R],
    acc: &mut [[__m256; GEMM_PANELS]; R],
) {
    // SAFETY: the caller's promise.
    unsafe {
        for p in 0..GEMM_PANELS {
            let a = _mm256_loadu_ps(piece.scales.add(p * LANES));
            for r in 0..R {
                let d = _mm256_set1_ps(*piece.d.add(r * (cols / BLOCK_VALUES)));
                let dot = centred(dots[r][p], ZERO, piece.i32.add(r * (cols / PIECE)));
                let dot = _mm256_cvtepi32_ps(dot);
                acc[r][p] = _mm256_fmadd_ps(dot, _mm256_mul_ps(a, d), acc[r][p]);
            }
            if OFFSETS {
                let c = _mm256_loadu_ps(piece.offsets.add(p * LANES));
                for r in 0..R {
                    let d = _mm256_set1_ps(*piece.d.add(r * (cols / BLOCK_VALUES)));
                    let s = _mm256_set1_ps(*piece.f32.add(r * (cols / PIECE)));
                    acc[r][p] = _mm256_fmadd_ps(s, _mm256_mul_ps(c, d), acc[r][p]);
                }
            }
        }
    }
}
