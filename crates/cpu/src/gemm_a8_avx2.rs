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
use arith::base::SLICE_VALUES;
use arith::linear::{GROUPS, group_slices};

use crate::bytes_avx2::{centred, fields_a_sum, four, pairs, taken, widened, zero_of};
use crate::codes_avx2::joined;
use crate::layout::{Layout, strip_values};
use crate::pack::{LANES, Linear};
use crate::project::{GEMM_PANELS, Inputs, Outputs};
use crate::quantise_a8::ActivationsA8;
use crate::scales_vector::{heads, scales};
use crate::vector::put_groups;

/// Bytes of a vector.
const BYTES: usize = 32;
/// Values of a vector's lane, a field of the packed codes.
const FIELD: usize = 4;
/// Codes of a field of all panels of a job.
const STEP_CODES: usize = GEMM_PANELS * BYTES;
/// Scales of a block of all panels of a job.
const BLOCK_SCALES: usize = GEMM_PANELS * LANES;

/// The panels of a job, unpacked. Kept by its thread, grown at first use.
#[derive(Default)]
struct Unpacked {
    /// `[fields][GEMM_PANELS][BYTES]` codes, as `pairs` takes them.
    codes: Vec<u8>,
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
pub(crate) unsafe fn gemm_a8_blocks_avx2(
    linear: &Linear,
    inputs: &Inputs<'_>,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    assert!(panels.len() <= GEMM_PANELS);
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

impl Unpacked {
    /// # Safety
    /// The CPU has AVX2, FMA and F16C.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn fill(&mut self, linear: &Linear, panels: Range<usize>) {
        let layout = linear.layout();
        let (fields, blocks) = (linear.cols / FIELD, linear.cols / layout.block);
        self.codes.resize(self.codes.len().max(fields * STEP_CODES), 0);
        self.scales.resize(self.scales.len().max(blocks * BLOCK_SCALES), 0.0);
        self.offsets.resize(self.offsets.len().max(blocks * BLOCK_SCALES), 0.0);
        for (p, panel) in panels.enumerate() {
            let panel = linear.panel(panel);
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

    #[target_feature(enable = "avx2,fma,f16c")]
    fn unpack<const BITS: usize>(&mut self, layout: Layout, panel: &[u8], p: usize) {
        let mut codes = self.codes.chunks_exact_mut(layout.block / FIELD * STEP_CODES);
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
                    unpack_codes::<BITS>(layout, block.as_ptr(), codes[p * BYTES..].as_mut_ptr());
                }
            }
        }
    }
}

/// The codes of one block, a vector a field, these `STEP_CODES` apart.
///
/// # Safety
/// `block` holds a block of `layout`, `to` has room for its vectors.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack_codes<const BITS: usize>(layout: Layout, block: *const u8, to: *mut u8) {
    let (width, fields) = const { (strip_values(BITS), strip_values(BITS) / FIELD) };
    for strip in 0..layout.block / width {
        for i in 0..fields {
            // SAFETY: the caller's promise.
            unsafe {
                let w = taken::<BITS>(joined::<BITS>(block.add(strip * width * BITS), i));
                _mm256_storeu_si256(to.add((strip * fields + i) * STEP_CODES).cast(), w);
            }
        }
    }
}

/// What the tiles of one job share.
struct Job<'a> {
    linear: &'a Linear,
    unpacked: &'a Unpacked,
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
        let mut row = rows.start;
        while row < rows.end {
            // SAFETY: passed on.
            unsafe {
                row += match rows.end - row {
                    1 => self.tile::<BITS, PIECE, ZERO, OFFSETS, 1>(row),
                    2 => self.tile::<BITS, PIECE, ZERO, OFFSETS, 2>(row),
                    3 => self.tile::<BITS, PIECE, ZERO, OFFSETS, 3>(row),
                    _ => self.tile::<BITS, PIECE, ZERO, OFFSETS, 4>(row),
                };
            }
        }
    }

    /// R rows from `row` with all panels of the job; gives R.
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
    ) -> usize {
        let (a8, cols, block) = (self.a8, self.linear.cols, self.linear.layout().block);
        let sums = a8.sums(PIECE);
        assert_eq!((a8.cols, sums.blocks), (cols, cols / PIECE));
        let rows = |width: usize| row * (cols / width)..(row + R) * (cols / width);
        let (q, d) = (&a8.q[rows(1)], &a8.d[rows(BLOCK_VALUES)]);
        let (i32, f32) = (&sums.i32[rows(PIECE)], &sums.f32[rows(PIECE)]);
        let zero = _mm256_setzero_ps();
        let mut groups = [[[zero; GEMM_PANELS]; R]; GROUPS];
        for (group, g) in groups.iter_mut().enumerate() {
            for slice in group_slices(group, cols.div_ceil(SLICE_VALUES)) {
                let mut acc = [[zero; GEMM_PANELS]; R];
                let end = cols.min((slice + 1) * SLICE_VALUES);
                for at in (slice * SLICE_VALUES..end).step_by(PIECE) {
                    let scales = at / block * BLOCK_SCALES;
                    // SAFETY: `fill` unpacked `cols` values, a row has as many; the slices above
                    // checked the lengths for R rows.
                    unsafe {
                        let piece = Piece {
                            codes: self.unpacked.codes.as_ptr().add(at / FIELD * STEP_CODES),
                            scales: self.unpacked.scales.as_ptr().add(scales),
                            offsets: self.unpacked.offsets.as_ptr().add(scales),
                            q: q.as_ptr().add(at),
                            d: d.as_ptr().add(at / BLOCK_VALUES),
                            i32: i32.as_ptr().add(at / PIECE),
                            f32: f32.as_ptr().add(at / PIECE),
                        };
                        let dots = dots::<BITS, PIECE, R>(piece, cols);
                        scale::<PIECE, ZERO, OFFSETS, R>(piece, cols, &dots, &mut acc);
                    }
                }
                for r in 0..R {
                    for p in 0..GEMM_PANELS {
                        g[r][p] = _mm256_add_ps(g[r][p], acc[r][p]);
                    }
                }
            }
        }
        for r in 0..R {
            for (p, panel) in self.panels.clone().enumerate() {
                let lanes = self.linear.lanes(panel);
                // SAFETY: the caller's promise.
                let out = unsafe { self.out.panel(row + r, panel, lanes) };
                put_groups(std::array::from_fn(|k| groups[k][r][p]), a8.spoilt[row + r], out);
            }
        }
        R
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
                let at = piece.codes.add(i * STEP_CODES);
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
