//! Block formats for many rows in arith 2: four panels are unpacked once to bytes, then multiplied
//! with six rows at a time, whose sums then fit the registers.
#![allow(
    clippy::needless_range_loop,
    reason = "rows, panels and groups index several arrays at once, with constant bounds"
)]

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use arith::a8::BLOCK_VALUES;
use arith::base::SLICE_VALUES;

use crate::codes_avx512::{Twin, heads, joined, scales};
use crate::layout::{Layout, strip_values};
use crate::pack::{LANES, Linear};
use crate::project::{Inputs, Outputs};
use crate::quantise_a8::ActivationsA8;
use crate::vector_avx512::{Steps, Tree, dot_bytes_twice, store};

/// Panels of a job, which share their broadcasts.
pub(crate) const PANELS: usize = 2 * TWINS;
/// Pairs of panels of a job, a vector each.
const TWINS: usize = 2;
/// Rows of a tile, at most.
const TILE_ROWS: usize = 6;
/// Values of a vector's lane, a field of the packed codes.
const FIELD: usize = 4;
/// Bytes of a vector.
const BYTES: usize = 64;
/// Codes of a field of all panels of a job.
const STEP_CODES: usize = TWINS * BYTES;
/// Scales of a vector.
const FLOATS: usize = 2 * LANES;
/// Scales of a block of all panels of a job.
const BLOCK_SCALES: usize = TWINS * FLOATS;

/// The panels of a job, unpacked. Kept by its thread, grown at first use.
#[derive(Default)]
struct Unpacked {
    /// `[fields][TWINS][BYTES]` codes.
    codes: Vec<u8>,
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
pub(crate) unsafe fn gemm_a8_blocks_avx512(
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
        let job = Job { linear, unpacked, a8: inputs.a8, steps, panels, out };
        let layout = linear.layout();
        // SAFETY: passed on.
        unsafe {
            match (layout.zero, layout.block) {
                (0, _) => job.rows::<32, 0, true>(rows),
                (8, _) => job.rows::<32, 3, false>(rows),
                (16, _) => job.rows::<32, 4, false>(rows),
                (32, 16) => job.rows::<16, 5, false>(rows),
                (128, 32) => job.rows::<32, 7, false>(rows),
                (zero, block) => unreachable!("blocks of {block} about {zero}"),
            }
        }
    });
}

impl Unpacked {
    fn fill(&mut self, linear: &Linear, panels: Range<usize>) {
        let layout = linear.layout();
        let (fields, blocks) = (linear.cols / FIELD, linear.cols / layout.block);
        self.codes.resize(self.codes.len().max(fields * STEP_CODES), 0);
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
        let mut codes = self.codes.chunks_exact_mut(layout.block / FIELD * STEP_CODES);
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
                    unpack_codes::<BITS>(layout, block, codes[twin * BYTES..].as_mut_ptr());
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

/// The codes of one block, a vector a field, these `STEP_CODES` apart.
///
/// # Safety
/// `block` points to two blocks of `layout`, `to` has room for its vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn unpack_codes<const BITS: usize>(layout: Layout, block: Twin, to: *mut u8) {
    let (width, fields) = const { (strip_values(BITS), strip_values(BITS) / FIELD) };
    for strip in 0..layout.block / width {
        for i in 0..fields {
            // SAFETY: the caller's promise.
            unsafe {
                let w = joined::<BITS>(block.add(strip * width * BITS), i);
                _mm512_storeu_si512(to.add((strip * fields + i) * STEP_CODES).cast(), w);
            }
        }
    }
}

/// What the tiles of one job share.
struct Job<'a> {
    linear: &'a Linear,
    unpacked: &'a Unpacked,
    a8: &'a ActivationsA8,
    steps: &'a Steps,
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
    /// Cuts the rows into tiles as equal as can be.
    ///
    /// # Safety
    /// As [`gemm_a8_blocks_avx512`]; the format has pieces of `PIECE` values and the code
    /// `2^ZERO` for 0, or 0 and offsets.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn rows<const PIECE: usize, const ZERO: u32, const OFFSETS: bool>(
        &self,
        rows: Range<usize>,
    ) {
        let mut row = rows.start;
        while row < rows.end {
            let left = rows.end - row;
            // SAFETY: passed on.
            unsafe {
                row += match left.div_ceil(left.div_ceil(TILE_ROWS)) {
                    1 => self.tile::<PIECE, ZERO, OFFSETS, 1>(row),
                    2 => self.tile::<PIECE, ZERO, OFFSETS, 2>(row),
                    3 => self.tile::<PIECE, ZERO, OFFSETS, 3>(row),
                    4 => self.tile::<PIECE, ZERO, OFFSETS, 4>(row),
                    5 => self.tile::<PIECE, ZERO, OFFSETS, 5>(row),
                    _ => self.tile::<PIECE, ZERO, OFFSETS, TILE_ROWS>(row),
                };
            }
        }
    }

    /// R rows from `row` with all panels of the job; gives R.
    ///
    /// # Safety
    /// As [`Job::rows`].
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn tile<const PIECE: usize, const ZERO: u32, const OFFSETS: bool, const R: usize>(
        &self,
        row: usize,
    ) -> usize {
        let (a8, cols, shift) = (self.a8, self.linear.cols, self.linear.layout().block.ilog2());
        let sums = a8.sums(PIECE);
        assert_eq!((a8.cols, sums.blocks), (cols, cols / PIECE));
        let rows = |width: usize| row * (cols / width)..(row + R) * (cols / width);
        let (q, d) = (&a8.q[rows(1)], &a8.d[rows(BLOCK_VALUES)]);
        let (i32, f32) = (&sums.i32[rows(PIECE)], &sums.f32[rows(PIECE)]);
        let zero = _mm512_setzero_ps();
        let mut trees = [Tree::<R>::new(), Tree::new()];
        for step in self.steps.iter() {
            let mut g = [[zero; R]; TWINS];
            for slice in step.slices.clone() {
                let mut acc = [[zero; R]; TWINS];
                let end = cols.min((slice + 1) * SLICE_VALUES);
                for at in (slice * SLICE_VALUES..end).step_by(PIECE) {
                    let scales = (at >> shift) * BLOCK_SCALES;
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
                        let dots = dots::<PIECE, ZERO, R>(piece, cols);
                        scale::<PIECE, OFFSETS, R>(piece, cols, dots, &mut acc);
                    }
                }
                for p in 0..TWINS {
                    for r in 0..R {
                        g[p][r] = _mm512_add_ps(g[p][r], acc[p][r]);
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
                store(tree.root()[r], self.linear.end(a8.spoilt[row + r]), out);
            }
        }
        R
    }
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
            let at = piece.codes.add(i * STEP_CODES);
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
