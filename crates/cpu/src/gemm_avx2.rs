//! Block formats for many rows: a pair of panels is unpacked once, then multiplied with four rows
//! at a time, so that a broadcast serves sixteen outputs and an unpacked weight four rows.
#![allow(
    clippy::needless_range_loop,
    reason = "rows, panels and groups index several arrays at once, with constant bounds"
)]

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use arith::format::Format;
use arith::linear::{GROUPS, group_slices};

use crate::gemv_avx2::{Q4_0, Q4_1, Q8_0, format_of, store};
use crate::pack::{BLOCK, LANES, Linear, SCALES_BYTES, SLICE_BLOCKS, codes_bytes, record_bytes};
use crate::project::{GEMM_PANELS, Inputs, Outputs};
use crate::quantise::Activations;
use crate::vector_avx2::load_halves;

/// Pairs of values of a block.
const STEPS: usize = BLOCK / 2;
/// 16-bit lanes of a vector.
const HALVES: usize = 16;
/// Unpacked integers of a block of all panels of a job.
const BLOCK_CODES: usize = STEPS * GEMM_PANELS * HALVES;
/// Scales of a block of all panels of a job.
const BLOCK_SCALES: usize = GEMM_PANELS * LANES;

/// The panels of a job, unpacked. Kept by its thread, grown at first use.
#[derive(Default)]
struct Unpacked {
    /// `[blocks][STEPS][GEMM_PANELS][HALVES]` integers w.
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
        // SAFETY: passed on.
        unsafe {
            if linear.format.has_offset() {
                job.rows::<true>(rows);
            } else {
                job.rows::<false>(rows);
            }
        }
    });
}

impl Unpacked {
    fn fill(&mut self, linear: &Linear, panels: Range<usize>) {
        let blocks = linear.cols / BLOCK;
        self.codes.resize(self.codes.len().max(blocks * BLOCK_CODES), 0);
        self.scales.resize(self.scales.len().max(blocks * BLOCK_SCALES), 0.0);
        self.offsets.resize(self.offsets.len().max(blocks * BLOCK_SCALES), 0.0);
        for (p, panel) in panels.enumerate() {
            let panel = linear.panel(panel);
            // SAFETY: the caller of the kernel vouches for the features.
            unsafe {
                match linear.format {
                    Format::Q4_0 => self.unpack::<Q4_0>(panel, p),
                    Format::Q4_1 => self.unpack::<Q4_1>(panel, p),
                    Format::Q8_0 => self.unpack::<Q8_0>(panel, p),
                    format => unreachable!("{format} has no blocks"),
                }
            }
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    fn unpack<const F: u8>(&mut self, panel: &[u8], p: usize) {
        let at = const { codes_bytes(format_of(F)) };
        let records = panel.chunks_exact(const { record_bytes(format_of(F)) });
        let codes = self.codes.chunks_exact_mut(BLOCK_CODES);
        let scales = self.scales.chunks_exact_mut(BLOCK_SCALES);
        let offsets = self.offsets.chunks_exact_mut(BLOCK_SCALES);
        for (((record, codes), scales), offsets) in records.zip(codes).zip(scales).zip(offsets) {
            // SAFETY: a record holds what `unpack_codes` and the loads read, the chunks of a
            // block have room for panel `p`.
            unsafe {
                unpack_codes::<F>(record.as_ptr(), codes[p * HALVES..].as_mut_ptr());
                let a = load_halves(record.as_ptr().add(at));
                _mm256_storeu_ps(scales[p * LANES..][..LANES].as_mut_ptr(), a);
                if F == Q4_1 {
                    let c = load_halves(record.as_ptr().add(at + SCALES_BYTES));
                    _mm256_storeu_ps(offsets[p * LANES..][..LANES].as_mut_ptr(), c);
                }
            }
        }
    }
}

/// The integers of one record, a vector a step, steps `GEMM_PANELS` vectors apart.
///
/// # Safety
/// `record` must hold a record of the format and `to` the last of its steps.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack_codes<const F: u8>(record: *const u8, to: *mut i16) {
    let mask = _mm256_set1_epi16(15);
    let zero_point = _mm256_set1_epi16(if F == Q4_0 { 8 } else { 0 });
    // SAFETY: the caller's promise.
    let put = |step: usize, w: __m256i| unsafe {
        _mm256_storeu_si256(to.add(step * GEMM_PANELS * HALVES).cast(), w);
    };
    // SAFETY: the caller's promise.
    unsafe {
        if F == Q8_0 {
            for s in 0..STEPS {
                put(s, _mm256_cvtepi8_epi16(_mm_loadu_si128(record.add(16 * s).cast())));
            }
            return;
        }
        for v in 0..4 {
            let packed = _mm256_loadu_si256(record.add(32 * v).cast());
            let w = [
                _mm256_and_si256(packed, mask),
                _mm256_and_si256(_mm256_srli_epi16::<4>(packed), mask),
                _mm256_and_si256(_mm256_srli_epi16::<8>(packed), mask),
                _mm256_srli_epi16::<12>(packed),
            ];
            for (t, w) in w.into_iter().enumerate() {
                put(4 * v + t, _mm256_sub_epi16(w, zero_point));
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
    unsafe fn rows<const OFFSETS: bool>(&self, rows: Range<usize>) {
        let mut row = rows.start;
        while row < rows.end {
            // SAFETY: passed on.
            unsafe {
                row += match rows.end - row {
                    1 => self.tile::<OFFSETS, 1>(row),
                    2 => self.tile::<OFFSETS, 2>(row),
                    3 => self.tile::<OFFSETS, 3>(row),
                    _ => self.tile::<OFFSETS, 4>(row),
                };
            }
        }
    }

    /// R rows from `row` with all panels of the job; gives R.
    ///
    /// # Safety
    /// As [`gemm_a16_blocks_avx2`].
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile<const OFFSETS: bool, const R: usize>(&self, row: usize) -> usize {
        let a16 = self.a16;
        let (slices, blocks) = (a16.slices, a16.blocks);
        let q = &a16.q[row * a16.cols..(row + R) * a16.cols];
        let d = &a16.d[row * slices..(row + R) * slices];
        let sums = &a16.sums_f32[row * blocks..(row + R) * blocks];
        let zero = _mm256_setzero_ps();
        let mut groups = [[[zero; GEMM_PANELS]; R]; GROUPS];
        for (group, g) in groups.iter_mut().enumerate() {
            for slice in group_slices(group, slices) {
                let mut acc = [[zero; GEMM_PANELS]; R];
                for block in slice * SLICE_BLOCKS..blocks.min((slice + 1) * SLICE_BLOCKS) {
                    // SAFETY: `fill` unpacked `blocks` blocks, a row has as many; the slices
                    // above checked the lengths for R rows.
                    unsafe {
                        let q = q.as_ptr().add(block * BLOCK);
                        let dots = self.dots::<R>(block, q);
                        let sums = sums.as_ptr().add(block);
                        self.scale::<OFFSETS, R>(block, &dots, sums, &mut acc);
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
                store(std::array::from_fn(|k| groups[k][r][p]), a16.spoilt[row + r], out);
            }
        }
        R
    }

    /// # Safety
    /// `block` is one of the unpacked and `q` has it in R rows.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn dots<const R: usize>(
        &self,
        block: usize,
        q: *const i16,
    ) -> [[__m256i; GEMM_PANELS]; R] {
        let mut dots = [[_mm256_setzero_si256(); GEMM_PANELS]; R];
        // SAFETY: the caller's promise.
        unsafe {
            let codes = self.unpacked.codes.as_ptr().add(block * BLOCK_CODES);
            for s in 0..STEPS {
                let at = codes.add(s * GEMM_PANELS * HALVES);
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
    /// `block` is one of the unpacked; `sums` points to its sum in the first of R rows.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scale<const OFFSETS: bool, const R: usize>(
        &self,
        block: usize,
        dots: &[[__m256i; GEMM_PANELS]; R],
        sums: *const f32,
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
                        let s = _mm256_set1_ps(*sums.add(r * self.a16.blocks));
                        acc[p] = _mm256_fmadd_ps(s, c, acc[p]);
                    }
                }
            }
        }
    }
}
