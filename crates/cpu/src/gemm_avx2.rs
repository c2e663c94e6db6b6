//! Block formats for many rows: a pair of panels is unpacked once, then multiplied with four rows
//! at a time, so that a broadcast serves sixteen outputs and an unpacked weight four rows.
#![allow(
    clippy::needless_range_loop,
    reason = "rows, panels and groups index several arrays at once, with constant bounds"
)]

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use arith::linear::GROUPS;

use crate::pack::{LANES, Linear};
use crate::project::{GEMM_PANELS, Inputs, Outputs};
use crate::quantise::Activations;
use crate::unpacked_avx2::{BLOCK_SCALES, BYTES, PAIR, STEP_BYTES, Unpacked};
use crate::vector::put_groups;
use crate::walk::{Sums, by_rows, walk};

thread_local! {
    static UNPACKED: RefCell<Unpacked<PAIR>> = RefCell::default();
}

/// Outputs of at most [`GEMM_PANELS`] `panels` for `rows`.
///
/// # Safety
/// The CPU has AVX2, FMA and F16C; no other thread may write `panels` of `rows`; the rows are
/// quantised.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn gemm_a16_blocks_avx2(
    linear: &Linear,
    inputs: &Inputs<'_>,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    UNPACKED.with_borrow_mut(|unpacked| {
        // SAFETY: passed on.
        unsafe { unpacked.fill(linear, panels.clone()) };
        let job = Job { linear, unpacked, a16: inputs.a16, panels, out };
        let layout = linear.layout();
        // SAFETY: passed on.
        unsafe {
            match (layout.block, layout.offsets) {
                (16, _) => job.rows::<16, false>(rows),
                (32, false) => job.rows::<32, false>(rows),
                (32, true) => job.rows::<32, true>(rows),
                (64, _) => job.rows::<64, true>(rows),
                _ => job.rows::<128, true>(rows),
            }
        }
    });
}

/// What the tiles of one job share.
struct Job<'a> {
    linear: &'a Linear,
    unpacked: &'a Unpacked<PAIR>,
    a16: &'a Activations,
    panels: Range<usize>,
    out: &'a Outputs<'a>,
}

impl Job<'_> {
    /// # Safety
    /// As [`gemm_a16_blocks_avx2`].
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn rows<const BLOCK: usize, const OFFSETS: bool>(&self, rows: Range<usize>) {
        // SAFETY: passed on.
        by_rows!(rows, [1 2 3 4], |row, R| unsafe { self.tile::<BLOCK, OFFSETS, R>(row) });
    }

    /// R rows from `row` with all panels of the job.
    ///
    /// # Safety
    /// As [`gemm_a16_blocks_avx2`].
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile<const BLOCK: usize, const OFFSETS: bool, const R: usize>(&self, row: usize) {
        let (a16, zero) = (self.a16, [[_mm256_setzero_ps(); GEMM_PANELS]; R]);
        let (slices, sums) = (a16.slices, a16.sums(BLOCK));
        let mut tile = Tile::<BLOCK, OFFSETS, R> {
            unpacked: self.unpacked,
            cols: a16.cols,
            q: a16.q[row * a16.cols..(row + R) * a16.cols].as_ptr(),
            d: a16.d[row * slices..(row + R) * slices].as_ptr(),
            slices,
            sums: sums.f32[row * sums.blocks..(row + R) * sums.blocks].as_ptr(),
            acc: zero,
            g: zero,
            groups: [zero; GROUPS],
        };
        // SAFETY: `fill` unpacked `cols` values, a row has as many; the slices above checked the
        // lengths for R rows.
        unsafe { walk(&mut tile, &self.linear.groups, a16.cols, BLOCK) };
        for r in 0..R {
            for (p, panel) in self.panels.clone().enumerate() {
                let lanes = self.linear.lanes(panel);
                // SAFETY: the caller's promise.
                let out = unsafe { self.out.panel(row + r, panel, lanes) };
                let groups = std::array::from_fn(|k| tile.groups[k][r][p]);
                put_groups(groups, self.linear.end(a16.spoilt[row + r]), out);
            }
        }
    }
}

/// The sums of R rows of `cols` values, `slices` steps and as many sums as blocks.
struct Tile<'a, const BLOCK: usize, const OFFSETS: bool, const R: usize> {
    unpacked: &'a Unpacked<PAIR>,
    cols: usize,
    q: *const i16,
    d: *const f32,
    slices: usize,
    sums: *const f32,
    acc: [[__m256; GEMM_PANELS]; R],
    g: [[__m256; GEMM_PANELS]; R],
    groups: [[[__m256; GEMM_PANELS]; R]; GROUPS],
}

impl<const BLOCK: usize, const OFFSETS: bool, const R: usize> Sums for Tile<'_, BLOCK, OFFSETS, R> {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn step(&mut self, block: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let dots = self.dots(block);
            self.scale(block, &dots);
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn end_slice(&mut self, slice: usize) {
        for r in 0..R {
            // SAFETY: the caller's promise.
            let d = _mm256_set1_ps(unsafe { *self.d.add(r * self.slices + slice) });
            for p in 0..GEMM_PANELS {
                self.g[r][p] = _mm256_fmadd_ps(self.acc[r][p], d, self.g[r][p]);
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

impl<const BLOCK: usize, const OFFSETS: bool, const R: usize> Tile<'_, BLOCK, OFFSETS, R> {
    /// The integer dots of block `block`.
    ///
    /// # Safety
    /// It is one of the unpacked and of the rows.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn dots(&self, block: usize) -> [[__m256i; GEMM_PANELS]; R] {
        let mut dots = [[_mm256_setzero_si256(); GEMM_PANELS]; R];
        // SAFETY: the caller's promise.
        unsafe {
            let codes = self.unpacked.codes.as_ptr().add(block * BLOCK / PAIR * STEP_BYTES);
            let q = self.q.add(block * BLOCK);
            for s in 0..BLOCK / PAIR {
                let at = codes.add(s * STEP_BYTES);
                let w0 = _mm256_loadu_si256(at.cast());
                let w1 = _mm256_loadu_si256(at.add(BYTES).cast());
                for (r, dots) in dots.iter_mut().enumerate() {
                    let pair = q.add(r * self.cols + PAIR * s).cast::<i32>();
                    let x = _mm256_set1_epi32(pair.read_unaligned());
                    dots[0] = _mm256_add_epi32(dots[0], _mm256_madd_epi16(w0, x));
                    dots[1] = _mm256_add_epi32(dots[1], _mm256_madd_epi16(w1, x));
                }
            }
        }
        dots
    }

    /// `acc = fma(f32(dot), a, acc)`, then `acc = fma(f32(s), c, acc)`.
    ///
    /// # Safety
    /// Block `block` is one of the unpacked and of the rows.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scale(&mut self, block: usize, dots: &[[__m256i; GEMM_PANELS]; R]) {
        let blocks = self.cols / BLOCK;
        // SAFETY: the caller's promise.
        unsafe {
            let scales = self.unpacked.scales.as_ptr().add(block * BLOCK_SCALES);
            let offsets = self.unpacked.offsets.as_ptr().add(block * BLOCK_SCALES);
            for p in 0..GEMM_PANELS {
                let a = _mm256_loadu_ps(scales.add(p * LANES));
                for r in 0..R {
                    let dot = _mm256_cvtepi32_ps(dots[r][p]);
                    self.acc[r][p] = _mm256_fmadd_ps(dot, a, self.acc[r][p]);
                }
                if OFFSETS {
                    let c = _mm256_loadu_ps(offsets.add(p * LANES));
                    for r in 0..R {
                        let s = _mm256_set1_ps(*self.sums.add(r * blocks + block));
                        self.acc[r][p] = _mm256_fmadd_ps(s, c, self.acc[r][p]);
                    }
                }
            }
        }
    }
}
