//! Block formats for many rows: a pair of panels is unpacked once, then multiplied with four rows
//! at a time, so that a broadcast serves sixteen outputs and an unpacked weight four rows.
#![allow(
    clippy::needless_range_loop,
    reason = "rows, panels and groups index several arrays at once, with constant bounds"
)]

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use arith::base::SLICE_VALUES;
use arith::linear::{GROUPS, group_slices};

use crate::codes_avx2::{QUAD, quad};
use crate::layout::{Layout, strip_values};
use crate::pack::{LANES, Linear};
use crate::project::{GEMM_PANELS, Inputs, Outputs};
use crate::quantise::Activations;
use crate::scales_vector::{heads, scales};
use crate::vector::put_groups;

/// 16-bit lanes of a vector.
const HALVES: usize = 16;
/// Unpacked integers of a pair of values of all panels of a job.
const STEP_CODES: usize = GEMM_PANELS * HALVES;
/// Scales of a block of all panels of a job.
const BLOCK_SCALES: usize = GEMM_PANELS * LANES;

/// The panels of a job, unpacked. Kept by its thread, grown at first use.
#[derive(Default)]
struct Unpacked {
    /// `[pairs of values][GEMM_PANELS][HALVES]` integers w.
    codes: Vec<i16>,
    /// `[blocks][GEMM_PANELS][LANES]`.
    scales: Vec<f32>,
    /// As many, for formats that have offsets.
    offsets: Vec<f32>,
}

thread_local! {
    static UNPACKED: RefCell<Unpacked> = RefCell::default();
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
    assert!(panels.len() <= GEMM_PANELS);
    UNPACKED.with_borrow_mut(|unpacked| {
        unpacked.fill(linear, panels.clone());
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

impl Unpacked {
    fn fill(&mut self, linear: &Linear, panels: Range<usize>) {
        let layout = linear.layout();
        let (pairs, blocks) = (linear.cols / 2, linear.cols / layout.block);
        self.codes.resize(self.codes.len().max(pairs * STEP_CODES), 0);
        self.scales.resize(self.scales.len().max(blocks * BLOCK_SCALES), 0.0);
        self.offsets.resize(self.offsets.len().max(blocks * BLOCK_SCALES), 0.0);
        for (p, panel) in panels.enumerate() {
            let panel = linear.panel(panel);
            // SAFETY: the caller of the kernel vouches for the features.
            unsafe {
                match layout.bits {
                    2 => self.unpack::<2>(layout, panel, p),
                    3 => self.unpack::<3>(layout, panel, p),
                    4 => self.unpack::<4>(layout, panel, p),
                    5 => self.unpack::<5>(layout, panel, p),
                    6 => self.unpack::<6>(layout, panel, p),
                    _ => self.unpack::<8>(layout, panel, p),
                }
            }
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    fn unpack<const BITS: usize>(&mut self, layout: Layout, panel: &[u8], p: usize) {
        let mut codes = self.codes.chunks_exact_mut(layout.block / 2 * STEP_CODES);
        let mut parts = self
            .scales
            .chunks_exact_mut(BLOCK_SCALES)
            .zip(self.offsets.chunks_exact_mut(BLOCK_SCALES));
        for record in panel.chunks_exact(layout.record_bytes()) {
            // SAFETY: a record ends with its heads.
            let heads = unsafe { heads(layout, record.as_ptr()) };
            let blocks = record[..layout.head_at()].chunks_exact(layout.block_bytes());
            for (block, (codes, (a, c))) in blocks.zip(codes.by_ref().zip(parts.by_ref())) {
                let put = |at: usize, head: __m256, to: &mut [f32]| {
                    // SAFETY: a block holds its scales; `to` has room for panel `p`.
                    unsafe {
                        let scales = scales(layout.scales, block.as_ptr().add(at), head);
                        _mm256_storeu_ps(to[p * LANES..][..LANES].as_mut_ptr(), scales);
                    }
                };
                put(layout.codes_bytes(), heads[0], a);
                if layout.offsets {
                    put(layout.codes_bytes() + layout.scales_bytes(), heads[1], c);
                }
                // SAFETY: a block holds its codes; `codes` has room for all panels.
                unsafe {
                    unpack_codes::<BITS>(layout, block.as_ptr(), codes[p * HALVES..].as_mut_ptr())
                };
            }
        }
    }
}

/// The integers of one block, a vector a pair of values, these `STEP_CODES` apart.
///
/// # Safety
/// `block` holds a block of `layout`, `to` has room for its vectors.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack_codes<const BITS: usize>(layout: Layout, block: *const u8, to: *mut i16) {
    let zero = _mm256_set1_epi16(layout.zero);
    let width = const { strip_values(BITS) };
    for strip in 0..layout.block / width {
        for v in 0..width / QUAD {
            // SAFETY: the caller's promise.
            unsafe {
                let quad = quad::<BITS>(block.add(strip * width * BITS), v);
                for (t, w) in quad.into_iter().enumerate() {
                    let step = (strip * width + QUAD * v) / 2 + t;
                    _mm256_storeu_si256(
                        to.add(step * STEP_CODES).cast(),
                        _mm256_sub_epi16(w, zero),
                    );
                }
            }
        }
    }
}

/// What the tiles of one job share.
struct Job<'a> {
    linear: &'a Linear,
    unpacked: &'a Unpacked,
    a16: &'a Activations,
    panels: Range<usize>,
    out: &'a Outputs<'a>,
}

impl Job<'_> {
    /// # Safety
    /// As [`gemm_a16_blocks_avx2`].
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn rows<const BLOCK: usize, const OFFSETS: bool>(&self, rows: Range<usize>) {
        let mut row = rows.start;
        while row < rows.end {
            // SAFETY: passed on.
            unsafe {
                row += match rows.end - row {
                    1 => self.tile::<BLOCK, OFFSETS, 1>(row),
                    2 => self.tile::<BLOCK, OFFSETS, 2>(row),
                    3 => self.tile::<BLOCK, OFFSETS, 3>(row),
                    _ => self.tile::<BLOCK, OFFSETS, 4>(row),
                };
            }
        }
    }

    /// R rows from `row` with all panels of the job; gives R.
    ///
    /// # Safety
    /// As [`gemm_a16_blocks_avx2`].
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile<const BLOCK: usize, const OFFSETS: bool, const R: usize>(
        &self,
        row: usize,
    ) -> usize {
        let a16 = self.a16;
        let (slices, sums) = (a16.slices, a16.sums(BLOCK));
        let blocks = sums.blocks;
        let slice_blocks = const { SLICE_VALUES / BLOCK };
        let q = &a16.q[row * a16.cols..(row + R) * a16.cols];
        let d = &a16.d[row * slices..(row + R) * slices];
        let sums = &sums.f32[row * blocks..(row + R) * blocks];
        let zero = _mm256_setzero_ps();
        let mut groups = [[[zero; GEMM_PANELS]; R]; GROUPS];
        for (group, g) in groups.iter_mut().enumerate() {
            for slice in group_slices(group, slices) {
                let mut acc = [[zero; GEMM_PANELS]; R];
                for block in slice * slice_blocks..blocks.min((slice + 1) * slice_blocks) {
                    // SAFETY: `fill` unpacked `blocks` blocks, a row has as many; the slices
                    // above checked the lengths for R rows.
                    unsafe {
                        let q = q.as_ptr().add(block * BLOCK);
                        let dots = self.dots::<BLOCK, R>(block, q);
                        let sums = sums.as_ptr().add(block);
                        self.scale::<OFFSETS, R>(block, &dots, (sums, blocks), &mut acc);
                    }
                }
                for r in 0..R {
                    let d = _mm256_set1_ps(d[r * slices + slice]);
                    for p in 0..GEMM_PANELS {
                        g[r][p] = _mm256_fmadd_ps(acc[r][p], d, g[r][p]);
                    }
                }
            }
        }
        for r in 0..R {
            for (p, panel) in self.panels.clone().enumerate() {
                let lanes = self.linear.lanes(panel);
                // SAFETY: the caller's promise.
                let out = unsafe { self.out.panel(row + r, panel, lanes) };
                put_groups(std::array::from_fn(|k| groups[k][r][p]), a16.spoilt[row + r], out);
            }
        }
        R
    }

    /// # Safety
    /// `block` is one of the unpacked and `q` has it in R rows.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn dots<const BLOCK: usize, const R: usize>(
        &self,
        block: usize,
        q: *const i16,
    ) -> [[__m256i; GEMM_PANELS]; R] {
        let mut dots = [[_mm256_setzero_si256(); GEMM_PANELS]; R];
        // SAFETY: the caller's promise.
        unsafe {
            let codes = self.unpacked.codes.as_ptr().add(block * BLOCK / 2 * STEP_CODES);
            for s in 0..BLOCK / 2 {
                let at = codes.add(s * STEP_CODES);
                let w0 = _mm256_loadu_si256(at.cast());
                let w1 = _mm256_loadu_si256(at.add(HALVES).cast());
                for (r, dots) in dots.iter_mut().enumerate() {
                    let pair = q.add(r * self.a16.cols + 2 * s).cast::<i32>();
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
    /// `block` is one of the unpacked; `sums` points to its sum in
    /// the first of R rows, these `stride` apart.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scale<const OFFSETS: bool, const R: usize>(
        &self,
        block: usize,
        dots: &[[__m256i; GEMM_PANELS]; R],
        (sums, stride): (*const f32, usize),
        acc: &mut [[__m256; GEMM_PANELS]; R],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let scales = self.unpacked.scales.as_ptr().add(block * BLOCK_SCALES);
            let offsets = self.unpacked.offsets.as_ptr().add(block * BLOCK_SCALES);
            for p in 0..GEMM_PANELS {
                let a = _mm256_loadu_ps(scales.add(p * LANES));
                for r in 0..R {
                    let dot = _mm256_cvtepi32_ps(dots[r][p]);
                    acc[r][p] = _mm256_fmadd_ps(dot, a, acc[r][p]);
                }
                if OFFSETS {
                    let c = _mm256_loadu_ps(offsets.add(p * LANES));
                    for (r, acc) in acc.iter_mut().enumerate() {
                        let s = _mm256_set1_ps(*sums.add(r * stride));
                        acc[p] = _mm256_fmadd_ps(s, c, acc[p]);
                    }
                }
            }
        }
    }
}
