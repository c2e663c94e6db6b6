//! Block formats for many rows: four panels are unpacked once, then multiplied with six rows at a
//! time, so that a broadcast serves 32 outputs and an unpacked weight six rows.
#![allow(
    clippy::needless_range_loop,
    reason = "rows, panels and groups index several arrays at once, with constant bounds"
)]

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use arith::base::SLICE_VALUES;

use crate::codes_avx512::{Twin, heads, quad, scales};
use crate::layout::{Layout, strip_values};
use crate::pack::{LANES, Linear};
use crate::project::{Inputs, Outputs};
use crate::quantise::Activations;
use crate::vector_avx512::{Steps, Tree, dot_pairs_twice, store};

/// Panels of a job, which share their broadcasts.
pub(crate) const PANELS: usize = 2 * TWINS;
/// Pairs of panels of a job, a vector each.
const TWINS: usize = 2;
/// Rows of a tile, at most.
const TILE_ROWS: usize = 6;
/// Values of a [`quad`].
const QUAD: usize = 8;
/// 16-bit lanes of a vector.
const HALVES: usize = 32;
/// Unpacked integers of a pair of values of all panels of a job.
const STEP_CODES: usize = TWINS * HALVES;
/// Scales of a vector.
const FLOATS: usize = 2 * LANES;
/// Scales of a block of all panels of a job.
const BLOCK_SCALES: usize = TWINS * FLOATS;

/// The panels of a job, unpacked. Kept by its thread, grown at first use.
#[derive(Default)]
struct Unpacked {
    /// `[pairs of values][TWINS][HALVES]` integers w.
    codes: Vec<i16>,
    /// `[blocks][TWINS][FLOATS]`.
    scales: Vec<f32>,
    /// As many, for formats that have offsets.
    offsets: Vec<f32>,
}

thread_local! {
    static UNPACKED: RefCell<Unpacked> = RefCell::default();
}

/// Outputs of at most [`PANELS`] `panels` for `rows`.
///
/// # Safety
/// The CPU has the features; no other thread may write `panels` of `rows`; the rows are quantised.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn gemm_a16_blocks_avx512(
    linear: &Linear,
    inputs: &Inputs<'_>,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    assert!((1..=PANELS).contains(&panels.len()));
    UNPACKED.with_borrow_mut(|unpacked| {
        unpacked.fill(linear, panels.clone());
        let steps = &Steps::of(&linear.groups);
        let job = Job { linear, unpacked, a16: inputs.a16, steps, panels, out };
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
        for twin in 0..TWINS {
            // Where panels are missing others stand in; nobody reads their outputs.
            let first = (panels.start + 2 * twin).min(panels.end - 1);
            let second = (first + 1).min(panels.end - 1);
            let panel = linear.panel(first);
            let gap = (second - first) * panel.len();
            let (from, bytes) = (Twin { at: panel.as_ptr(), gap }, panel.len());
            // SAFETY: the caller of the kernel vouches for the features; both panels are whole.
            unsafe {
                match layout.bits {
                    2 => self.unpack::<2>(layout, from, bytes, twin),
                    3 => self.unpack::<3>(layout, from, bytes, twin),
                    4 => self.unpack::<4>(layout, from, bytes, twin),
                    5 => self.unpack::<5>(layout, from, bytes, twin),
                    6 => self.unpack::<6>(layout, from, bytes, twin),
                    _ => self.unpack::<8>(layout, from, bytes, twin),
                }
            }
        }
    }

    /// # Safety
    /// `panel` points to two panels of `bytes` bytes of `layout`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn unpack<const BITS: usize>(
        &mut self,
        layout: Layout,
        panel: Twin,
        bytes: usize,
        twin: usize,
    ) {
        let mut codes = self.codes.chunks_exact_mut(layout.block / 2 * STEP_CODES);
        let mut parts = self
            .scales
            .chunks_exact_mut(BLOCK_SCALES)
            .zip(self.offsets.chunks_exact_mut(BLOCK_SCALES));
        for record in 0..bytes / layout.record_bytes() {
            // SAFETY: the panels hold the record, which ends with its heads.
            let (record, heads) = unsafe {
                let record = panel.add(record * layout.record_bytes());
                (record, heads(layout, record))
            };
            let blocks = (0..layout.blocks).zip(codes.by_ref().zip(parts.by_ref()));
            for (block, (codes, (a, c))) in blocks {
                // SAFETY: a record holds its blocks, a block its codes and scales; `codes` has
                // room for all panels of a block.
                unsafe {
                    let block = record.add(block * layout.block_bytes());
                    block.prefetch(layout.block_bytes(), PANELS * bytes);
                    let at = block.add(layout.codes_bytes());
                    put(scales(layout.scales, at, heads[0]), twin, a);
                    if layout.offsets {
                        let at = at.add(layout.scales_bytes());
                        put(scales(layout.scales, at, heads[1]), twin, c);
                    }
                    unpack_codes::<BITS>(layout, block, codes[twin * HALVES..].as_mut_ptr());
                }
            }
        }
    }
}

/// Writes the scales of a pair of panels.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn put(x: __m512, twin: usize, to: &mut [f32]) {
    // SAFETY: sixteen floats are sixteen lanes.
    unsafe { _mm512_storeu_ps(to[twin * FLOATS..][..FLOATS].as_mut_ptr(), x) };
}

/// The integers of one block, a vector a pair of values, these `STEP_CODES` apart.
///
/// # Safety
/// `block` points to two blocks of `layout`, `to` has room for its vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn unpack_codes<const BITS: usize>(layout: Layout, block: Twin, to: *mut i16) {
    let zero = _mm512_set1_epi16(layout.zero);
    let width = const { strip_values(BITS) };
    for strip in 0..layout.block / width {
        for v in 0..width / QUAD {
            // SAFETY: the caller's promise.
            unsafe {
                let quad = quad::<BITS>(block.add(strip * width * BITS), v);
                for (t, w) in quad.into_iter().enumerate() {
                    let step = (strip * width + QUAD * v) / 2 + t;
                    let w = _mm512_sub_epi16(w, zero);
                    _mm512_storeu_si512(to.add(step * STEP_CODES).cast(), w);
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
    steps: &'a Steps,
    panels: Range<usize>,
    out: &'a Outputs<'a>,
}

impl Job<'_> {
    /// Cuts the rows into tiles as equal as can be.
    ///
    /// # Safety
    /// As [`gemm_a16_blocks_avx512`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn rows<const BLOCK: usize, const OFFSETS: bool>(&self, rows: Range<usize>) {
        let mut row = rows.start;
        while row < rows.end {
            let left = rows.end - row;
            // SAFETY: passed on.
            unsafe {
                row += match left.div_ceil(left.div_ceil(TILE_ROWS)) {
                    1 => self.tile::<BLOCK, OFFSETS, 1>(row),
                    2 => self.tile::<BLOCK, OFFSETS, 2>(row),
                    3 => self.tile::<BLOCK, OFFSETS, 3>(row),
                    4 => self.tile::<BLOCK, OFFSETS, 4>(row),
                    5 => self.tile::<BLOCK, OFFSETS, 5>(row),

                    _ => self.tile::<BLOCK, OFFSETS, TILE_ROWS>(row),
                };
            }
        }
    }

    /// R rows from `row` with all panels of the job; gives R.
    ///
    /// # Safety
    /// As [`gemm_a16_blocks_avx512`].
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
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
        let zero = _mm512_setzero_ps();
        let mut trees = [Tree::<R>::new(), Tree::new()];
        for step in self.steps.iter() {
            let mut g = [[zero; R]; TWINS];
            for slice in step.slices.clone() {
                let mut acc = [[zero; R]; TWINS];
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
                    let d = _mm512_set1_ps(d[r * slices + slice]);
                    for p in 0..TWINS {
                        g[p][r] = _mm512_fmadd_ps(acc[p][r], d, g[p][r]);
                    }
                }
            }
            for (tree, g) in trees.iter_mut().zip(g) {
                tree.take(step, g);
            }
        }
        for (p, tree) in trees.iter().enumerate() {
            let first = self.panels.start + 2 * p;
            let lanes = (first..self.panels.end.min(first + 2)).map(|i| self.linear.lanes(i)).sum();
            if lanes == 0 {
                continue;
            }
            for r in 0..R {
                // SAFETY: the caller's promise.
                let out = unsafe { self.out.panel(row + r, first, lanes) };
                store(tree.root()[r], self.linear.end(a16.spoilt[row + r]), out);
            }
        }
        R
    }

    /// # Safety
    /// `block` is one of the unpacked and `q` has it in R rows.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn dots<const BLOCK: usize, const R: usize>(
        &self,
        block: usize,
        q: *const i16,
    ) -> [[__m512i; R]; TWINS] {
        let mut dots = [[_mm512_setzero_si512(); R]; TWINS];
        // SAFETY: the caller's promise.
        unsafe {
            let codes = self.unpacked.codes.as_ptr().add(block * BLOCK / 2 * STEP_CODES);
            for s in 0..BLOCK / 2 {
                let at = codes.add(s * STEP_CODES);
                let w0 = _mm512_loadu_si512(at.cast());
                let w1 = _mm512_loadu_si512(at.add(HALVES).cast());
                for r in 0..R {
                    let x = q.add(r * self.a16.cols + 2 * s);
                    (dots[0][r], dots[1][r]) = dot_pairs_twice(dots[0][r], dots[1][r], w0, w1, x);
                }
            }
        }
        dots
    }

    /// `acc = fma(f32(dot), a, acc)`, then `acc = fma(f32(s), c, acc)`.
    ///
    /// # Safety
    /// `block` is one of the unpacked; `sums` points to its sum in the first of R rows, these
    /// `stride` apart.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn scale<const OFFSETS: bool, const R: usize>(
        &self,
        block: usize,
        dots: &[[__m512i; R]; TWINS],
        (sums, stride): (*const f32, usize),
        acc: &mut [[__m512; R]; TWINS],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let scales = self.unpacked.scales.as_ptr().add(block * BLOCK_SCALES);
            let offsets = self.unpacked.offsets.as_ptr().add(block * BLOCK_SCALES);
            for p in 0..TWINS {
                let a = _mm512_loadu_ps(scales.add(p * FLOATS));
                for r in 0..R {
                    let dot = _mm512_cvtepi32_ps(dots[p][r]);
                    acc[p][r] = _mm512_fmadd_ps(dot, a, acc[p][r]);
                }
                if OFFSETS {
                    let c = _mm512_loadu_ps(offsets.add(p * FLOATS));
                    for r in 0..R {
                        let s = _mm512_set1_ps(*sums.add(r * stride));
                        acc[p][r] = _mm512_fmadd_ps(s, c, acc[p][r]);
                    }
                }
            }
        }
    }
}
