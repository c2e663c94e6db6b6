//! Block formats for many rows: slice by slice four panels are unpacked once, then multiplied with
//! six rows at a time, so that a broadcast serves 32 outputs and an unpacked weight six rows.
//!
//! What a slice needs at once, its weights and those of six rows, fits the first cache; the sums of
//! all tiles wait in the second one.
#![allow(
    clippy::needless_range_loop,
    reason = "rows, panels and groups index several arrays at once, with constant bounds"
)]

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use arith::base::SLICE_VALUES;

use crate::pack::Linear;
use crate::project::{Inputs, Outputs};
use crate::quantise::Activations;
use crate::unpacked_avx512::{
    Ahead, BLOCK_SCALES, BYTES, FLOATS, PAIR, STEP_BYTES, TWINS, Unpacked,
};
use crate::vector_avx512::{NODES, dot_pairs_rows, store};
use crate::walk::by_rows;

/// Rows of a tile, at most.
pub(crate) const TILE_ROWS: usize = 6;

/// Sums of a tile: rows by panels of a job.
type Sums = [[__m512; TILE_ROWS]; TWINS];

/// A tile's nodes of the tree over the groups that wait, and the group at work.
pub(crate) type Nodes = [Sums; NODES];

/// A slice in its group, and that in the tree.
#[derive(Clone, Copy)]
pub(crate) struct At {
    pub(crate) slice: usize,
    /// It is the first of its group.
    first: bool,
    /// Nodes that wait before its group.
    held: usize,
    /// How many of these take the group with this slice.
    joins: usize,
}

impl At {
    /// The group's sums of R rows before this slice.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    pub(crate) fn before<const R: usize>(self, nodes: &Nodes) -> [[__m512; R]; TWINS] {
        let mut sums = [[_mm512_setzero_ps(); R]; TWINS];
        if !self.first {
            let before = &nodes[self.held];
            for p in 0..TWINS {
                for r in 0..R {
                    sums[p][r] = before[p][r];
                }
            }
        }
        sums
    }

    /// Keeps the group's sums with this slice, joined with those that take it.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    pub(crate) fn keep<const R: usize>(self, nodes: &mut Nodes, mut sums: [[__m512; R]; TWINS]) {
        for sister in nodes[self.held - self.joins..self.held].iter().rev() {
            for p in 0..TWINS {
                for r in 0..R {
                    sums[p][r] = _mm512_add_ps(sister[p][r], sums[p][r]);
                }
            }
        }
        let to = &mut nodes[self.held - self.joins];
        for p in 0..TWINS {
            for r in 0..R {
                to[p][r] = sums[p][r];
            }
        }
    }
}

/// Some rows as an arithmetic multiplies them with unpacked weights.
pub(crate) trait Tiles: Copy {
    /// Unpacks slice `slice` of at most [`PANELS`](crate::unpacked_avx512::PANELS) `panels`.
    ///
    /// # Safety
    /// The CPU has the features.
    unsafe fn unpack(self, to: &mut Unpacked, linear: &Linear, panels: Range<usize>, slice: usize);

    /// Adds a slice of R rows from `row` on to the sums of its group.
    ///
    /// # Safety
    /// The CPU has the features, and the slice is unpacked.
    unsafe fn add<const R: usize>(self, unpacked: &Unpacked, at: At, row: usize, nodes: &mut Nodes);

    /// Whether the row's outputs are not finite.
    fn spoilt(self, row: usize) -> bool;
}

/// Kept by its thread, the tiles grown at first use.
struct Scratch {
    unpacked: Unpacked,
    tiles: Vec<Nodes>,
}

thread_local! {
    static SCRATCH: RefCell<Box<Scratch>> =
        RefCell::new(Box::new(Scratch { unpacked: Unpacked::new(), tiles: Vec::new() }));
}

/// Outputs of a job's `panels` for `rows`.
///
/// # Safety
/// The CPU has the features; no other thread may write `panels` of `rows`; the rows are quantised.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn gemm<T: Tiles>(
    linear: &Linear,
    x: T,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    let zero = [[_mm512_setzero_ps(); TILE_ROWS]; TWINS];
    let slices = linear.cols.div_ceil(SLICE_VALUES);
    let place = Place::new(linear, panels.clone(), out);
    SCRATCH.with_borrow_mut(|scratch| {
        let Scratch { unpacked, tiles } = &mut **scratch;
        let count = rows.len().div_ceil(TILE_ROWS);
        tiles.resize(tiles.len().max(count), [zero; NODES]);
        let tiles = &mut tiles[..count];
        let mut held = 0;
        for step in linear.steps.iter() {
            for slice in step.slices.clone() {
                // SAFETY: passed on.
                unsafe { x.unpack(unpacked, linear, panels.clone(), slice) };
                let last = slice + 1 == step.slices.end;
                let joins = if last { step.joins } else { 0 };
                let at = At { slice, first: slice == step.slices.start, held, joins };
                let whole = slice + 1 == slices;
                let ahead = Ahead::of(linear, panels.clone(), slice + 1, count);
                let mut each = tiles.iter_mut().enumerate();
                // SAFETY: passed on; there are as many tiles.
                by_rows!(rows.clone(), [1 2 3 4 5 6], |row, R| unsafe {
                    let (tile, nodes) = each.next().expect("a tile's rows have their sums");
                    ahead.ask(tile);
                    if whole {
                        (row..row + R).for_each(|row| place.ask(row));
                    }
                    x.add::<R>(unpacked, at, row, nodes);
                    if whole {
                        let [sums, ..]: &Nodes = nodes;
                        (0..R).for_each(|r| place.put(sums, (row + r, r), x.spoilt(row + r)));
                    }
                });
            }
            held = held + 1 - step.joins;
        }
    });
}

/// Where the outputs of a job go.
struct Place<'a> {
    linear: &'a Linear,
    out: &'a Outputs<'a>,
    /// The first panel, and outputs of each pair.
    panel: usize,
    lanes: [usize; TWINS],
}

impl<'a> Place<'a> {
    fn new(linear: &'a Linear, panels: Range<usize>, out: &'a Outputs<'a>) -> Self {
        let lanes = std::array::from_fn(|p| {
            let first = panels.start + 2 * p;
            (first..panels.end.min(first + 2)).map(|i| linear.lanes(i)).sum()
        });
        Self { linear, out, panel: panels.start, lanes }
    }

    /// Asks for the lines of `row`'s outputs: they are wanted, to write to, a tile later.
    ///
    /// # Safety
    /// As [`Outputs::panel`].
    unsafe fn ask(&self, row: usize) {
        let lanes = self.lanes.iter().sum();
        // SAFETY: the caller's promise; the prefetch reads and writes nothing.
        unsafe {
            let to = self.out.panel(row, self.panel, lanes);
            for at in (0..lanes).step_by(FLOATS) {
                std::arch::asm!(
                    "prefetchw [{at}]",
                    at = in(reg) to.as_ptr().add(at),
                    options(nostack, readonly, preserves_flags)
                );
            }
        }
    }

    /// Writes the whole sums of row `r` of a tile, row `row` of the outputs.
    ///
    /// # Safety
    /// As [`Outputs::panel`], on a CPU that has the features.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn put(&self, sums: &Sums, (row, r): (usize, usize), spoilt: bool) {
        let end = self.linear.end(spoilt);
        for (p, sums) in sums.iter().enumerate() {
            if self.lanes[p] > 0 {
                // SAFETY: the caller's promise.
                let out = unsafe { self.out.panel(row, self.panel + 2 * p, self.lanes[p]) };
                store(sums[r], end, out);
            }
        }
    }
}

/// [`gemm`] in arith 1.
///
/// # Safety
/// As [`gemm`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn gemm_a16_blocks_avx512(
    linear: &Linear,
    inputs: &Inputs<'_>,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    let (layout, x) = (linear.layout(), inputs.a16);
    // SAFETY: passed on.
    unsafe {
        match (layout.block, layout.offsets) {
            (16, _) => gemm(linear, Pairs::<16, false>(x), panels, rows, out),
            (32, false) => gemm(linear, Pairs::<32, false>(x), panels, rows, out),
            (32, true) => gemm(linear, Pairs::<32, true>(x), panels, rows, out),
            (64, _) => gemm(linear, Pairs::<64, true>(x), panels, rows, out),
            _ => gemm(linear, Pairs::<128, true>(x), panels, rows, out),
        }
    }
}

/// Rows of 16-bit integers, times blocks of `BLOCK` weights that may have offsets.
#[derive(Clone, Copy)]
struct Pairs<'a, const BLOCK: usize, const OFFSETS: bool>(&'a Activations);

impl<const BLOCK: usize, const OFFSETS: bool> Tiles for Pairs<'_, BLOCK, OFFSETS> {
    #[inline]
    unsafe fn unpack(self, to: &mut Unpacked, linear: &Linear, panels: Range<usize>, slice: usize) {
        // SAFETY: passed on.
        unsafe { to.fill::<PAIR>(linear, panels, slice) };
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
        let a16 = self.0;
        let (slices, sums) = (a16.slices, a16.sums(BLOCK));
        let slice_blocks = const { SLICE_VALUES / BLOCK };
        let from = place.slice * slice_blocks;
        let blocks = from..sums.blocks.min(from + slice_blocks);
        let q = &a16.q[row * a16.cols..(row + R) * a16.cols];
        let d = &a16.d[row * slices..(row + R) * slices];
        let stride = sums.blocks;
        let sums = &sums.f32[row * stride..(row + R) * stride];
        let mut acc = [[_mm512_setzero_ps(); R]; TWINS];
        for block in blocks {
            let at = block - from;
            // SAFETY: a slice has so many blocks unpacked, a row as many; the slices above checked
            // the lengths for R rows.
            unsafe {
                let codes = unpacked.codes.as_ptr().add(at * (BLOCK / PAIR * STEP_BYTES));
                let q = q.as_ptr().add(block * BLOCK);
                let dots = dots::<BLOCK, R>(codes, q, a16.cols);
                let sums = sums.as_ptr().add(block);
                scale::<OFFSETS, R>(unpacked, at, &dots, (sums, stride), &mut acc);
            }
        }
        let mut sums = place.before::<R>(nodes);
        for r in 0..R {
            let d = _mm512_set1_ps(d[r * slices + place.slice]);
            for p in 0..TWINS {
                sums[p][r] = _mm512_fmadd_ps(acc[p][r], d, sums[p][r]);
            }
        }
        place.keep(nodes, sums);
    }

    fn spoilt(self, row: usize) -> bool {
        self.0.spoilt[row]
    }
}

/// The dots of the unpacked codes of a block with R rows, these `cols` values apart.
///
/// # Safety
/// All of them must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn dots<const BLOCK: usize, const R: usize>(
    codes: *const u8,
    q: *const i16,
    cols: usize,
) -> [[__m512i; R]; TWINS] {
    let mut dots = [[_mm512_setzero_si512(); R]; TWINS];
    // SAFETY: the caller's promise.
    unsafe {
        for s in 0..BLOCK / PAIR {
            let at = codes.add(s * STEP_BYTES);
            let w = [_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(BYTES).cast())];
            dot_pairs_rows(&mut dots, w, q.add(PAIR * s), cols);
        }
    }
    dots
}

/// `acc = fma(f32(dot), a, acc)`, then `acc = fma(f32(s), c, acc)`.
///
/// # Safety
/// Block `at` of the slice is unpacked; `sums` points to its sum in the first of R rows, these
/// `stride` apart.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn scale<const OFFSETS: bool, const R: usize>(
    unpacked: &Unpacked,
    at: usize,
    dots: &[[__m512i; R]; TWINS],
    (sums, stride): (*const f32, usize),
    acc: &mut [[__m512; R]; TWINS],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let scales = unpacked.scales.as_ptr().add(at * BLOCK_SCALES);
        let offsets = unpacked.offsets.as_ptr().add(at * BLOCK_SCALES);
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
