//! Block formats on NEON, any row count: eight outputs in two vectors, straight from the packed
//! codes, which one pass unpacks for up to four rows.
//!
//! Activations are bytes: one plane in arith 2, two in arith 1, whose dots join as
//! `256 upper + lower` modulo 2^32, exactly.
#![allow(
    clippy::needless_range_loop,
    reason = "rows, planes and groups index several arrays at once, with constant bounds"
)]

use std::arch::aarch64::*;
use std::ops::Range;

use arith::a8::BLOCK_VALUES;
use arith::base::{Arith, SLICE_VALUES};
use arith::linear::GROUPS;

use crate::Product;
use crate::codes_neon::{DOT, Dots, FIELD, MATRIX, PLAIN, VECTOR, dot, field};
use crate::lanes::*;
use crate::layout::{Layout, strip_values};
use crate::pack::Linear;
use crate::products_neon::products;
use crate::project::{Inputs, Outputs};
use crate::scales_vector::{heads, scales};
use crate::vector::put_groups;
use crate::walk::{Sums, by_bits, by_rows, walk};

/// Planes of activations in arith 1.
const A16: usize = 2;
/// Planes of activations in arith 2.
const A8: usize = 1;

/// What the rows of a call have: of its first row, and how far the next one's lie.
#[derive(Clone, Copy)]
struct Rows<'a> {
    /// `[planes, cols]` bytes.
    q: &'a [i8],
    /// Steps or scales.
    d: &'a [f32],
    /// `[cols / piece]` sums.
    sums: &'a [i32],
    cols: usize,
    /// Values that share a dot.
    piece: usize,
    spoilt: &'a [bool],
}

impl<'a> Rows<'a> {
    /// Row `row`, with its bytes, scales and sums.
    fn parts(&self, planes: usize, row: usize) -> (&'a [i8], &'a [f32], &'a [i32]) {
        let (cols, pieces) = (self.cols, self.cols / self.piece);
        let steps = cols.div_ceil(if planes == A16 { SLICE_VALUES } else { BLOCK_VALUES });
        (
            &self.q[row * planes * cols..][..planes * cols],
            &self.d[row * steps..][..steps],
            &self.sums[row * pieces..][..pieces],
        )
    }
}

/// A kernel of `project`.
type Kernel = unsafe fn(&Linear, &Inputs<'_>, Range<usize>, Range<usize>, &Outputs<'_>);

/// The kernel that multiplies by `product`, which the CPU must have.
pub(crate) fn kernel(product: Product, arith: Arith) -> Kernel {
    match (arith, product) {
        (Arith::One, Product::Plain) => project_a16_blocks_neon::<PLAIN>,
        (Arith::One, Product::Dot) => project_a16_blocks_neon::<DOT>,
        (Arith::One, Product::Matrix) => project_a16_blocks_neon::<MATRIX>,
        (Arith::Two, Product::Plain) => project_a8_blocks_neon::<PLAIN>,
        (Arith::Two, Product::Dot) => project_a8_blocks_neon::<DOT>,
        (Arith::Two, Product::Matrix) => project_a8_blocks_neon::<MATRIX>,
    }
}

/// Outputs of `panels` for `rows` in arith 1.
///
/// # Safety
/// The CPU has the product `HOW`; no other thread may write `panels` of `rows`; the rows are
/// quantised.
unsafe fn project_a16_blocks_neon<const HOW: usize>(
    linear: &Linear,
    inputs: &Inputs<'_>,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    // SAFETY: passed on.
    unsafe { project::<A16, HOW>(linear, of_a16(linear, inputs), panels, rows, out) }
}

/// Outputs of `panels` for `rows` in arith 2.
///
/// # Safety
/// As [`project_a16_blocks_neon`].
unsafe fn project_a8_blocks_neon<const HOW: usize>(
    linear: &Linear,
    inputs: &Inputs<'_>,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    // SAFETY: passed on.
    unsafe { project::<A8, HOW>(linear, of_a8(linear, inputs), panels, rows, out) }
}

fn of_a8<'a>(linear: &Linear, inputs: &Inputs<'a>) -> Rows<'a> {
    let (a8, piece) = (inputs.a8, linear.layout().block.min(BLOCK_VALUES));
    assert_eq!(a8.cols, linear.cols);
    let sums = &a8.sums(piece).i32;
    Rows { q: &a8.q, d: &a8.d, sums, cols: a8.cols, piece, spoilt: &a8.spoilt }
}

fn of_a16<'a>(linear: &Linear, inputs: &Inputs<'a>) -> Rows<'a> {
    let (a16, piece) = (inputs.a16, linear.layout().block);
    assert_eq!(a16.cols, linear.cols);
    let sums = &a16.sums(piece).i32;
    Rows { q: &a16.bytes, d: &a16.d, sums, cols: a16.cols, piece, spoilt: &a16.spoilt }
}

/// # Safety
/// As [`project_a16_blocks_neon`].
unsafe fn project<const PLANES: usize, const HOW: usize>(
    linear: &Linear,
    inputs: Rows<'_>,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    let job = Job { linear, layout: linear.layout(), inputs, out };
    for panel in panels {
        by_bits!(job.layout.bits, |BITS| {
            by_rows!(rows.clone(), [1 2 3 4], |row, R| {
                // SAFETY: passed on.
                unsafe { job.some::<BITS, PLANES, R, HOW>(panel, row) }
            });
        });
    }
}

/// What the panels of a call share.
struct Job<'a> {
    linear: &'a Linear,
    layout: Layout,
    inputs: Rows<'a>,
    out: &'a Outputs<'a>,
}

impl Job<'_> {
    /// # Safety
    /// As [`project`].
    unsafe fn some<const BITS: usize, const PLANES: usize, const R: usize, const HOW: usize>(
        &self,
        panel: usize,
        row: usize,
    ) {
        // SAFETY: passed on.
        unsafe {
            match HOW {
                MATRIX => self.rows_matrix::<BITS, PLANES, R>(panel, row),
                DOT => self.rows_dot::<BITS, PLANES, R>(panel, row),
                _ => self.rows::<BITS, PLANES, R, PLAIN>(panel, row),
            }
        }
    }

    /// # Safety
    /// As [`project`] with the matrix product.
    #[inline(never)]
    #[target_feature(enable = "neon,dotprod,i8mm")]
    unsafe fn rows_matrix<const BITS: usize, const PLANES: usize, const R: usize>(
        &self,
        panel: usize,
        row: usize,
    ) {
        // SAFETY: passed on.
        unsafe { self.rows::<BITS, PLANES, R, MATRIX>(panel, row) }
    }

    /// # Safety
    /// As [`project`] with the dot product.
    #[inline(never)]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn rows_dot<const BITS: usize, const PLANES: usize, const R: usize>(
        &self,
        panel: usize,
        row: usize,
    ) {
        // SAFETY: passed on.
        unsafe { self.rows::<BITS, PLANES, R, DOT>(panel, row) }
    }

    /// `R` rows from `row` through one panel.
    ///
    /// # Safety
    /// As [`project`].
    #[inline(always)]
    unsafe fn rows<const BITS: usize, const PLANES: usize, const R: usize, const HOW: usize>(
        &self,
        panel: usize,
        row: usize,
    ) {
        let zeros = [zero(); R];
        let mut tile = Tile::<PLANES, BITS, R, HOW> {
            job: self,
            panel: self.linear.panel(panel).as_ptr(),
            rows: std::array::from_fn(|r| self.inputs.parts(PLANES, row + r)),
            acc: zeros,
            g: zeros,
            groups: [zeros; GROUPS],
        };
        // SAFETY: a panel has a record a unit, a row as many units of values.
        unsafe {
            walk(&mut tile, &self.linear.groups, self.linear.cols, self.layout.unit_values())
        };
        for r in 0..R {
            // SAFETY: the caller's promise.
            let out = unsafe { self.out.panel(row + r, panel, self.linear.lanes(panel)) };
            let groups = std::array::from_fn(|k| tile.groups[k][r]);
            put_groups(groups, self.linear.end(self.inputs.spoilt[row + r]), out);
        }
    }
}

/// The sums of one panel in R rows.
struct Tile<'a, const PLANES: usize, const BITS: usize, const R: usize, const HOW: usize> {
    job: &'a Job<'a>,
    panel: *const u8,
    rows: [(&'a [i8], &'a [f32], &'a [i32]); R],
    acc: [F32s; R],
    g: [F32s; R],
    groups: [[F32s; R]; GROUPS],
}

impl<const PLANES: usize, const BITS: usize, const R: usize, const HOW: usize> Sums
    for Tile<'_, PLANES, BITS, R, HOW>
{
    #[inline(always)]
    unsafe fn step(&mut self, unit: usize) {
        let layout = self.job.layout;
        // SAFETY: the caller's promise.
        unsafe {
            let record = self.panel.add(unit * layout.record_bytes());
            let heads = heads(layout, record);
            for b in 0..layout.blocks {
                let at = (unit * layout.blocks + b) * layout.block;
                self.block(record.add(b * layout.block_bytes()), heads, at);
            }
        }
    }

    #[inline(always)]
    unsafe fn end_slice(&mut self, slice: usize) {
        for r in 0..R {
            self.g[r] = if PLANES == A16 {
                fma(self.acc[r], splat(self.rows[r].1[slice]), self.g[r])
            } else {
                add(self.g[r], self.acc[r])
            };
        }
        self.acc = [zero(); R];
    }

    #[inline(always)]
    unsafe fn end_group(&mut self, group: usize, _empty: bool) {
        self.groups[group] = self.g;
        self.g = [zero(); R];
    }
}

impl<const PLANES: usize, const BITS: usize, const R: usize, const HOW: usize>
    Tile<'_, PLANES, BITS, R, HOW>
{
    /// The block at value `at`, piece by piece: `acc = fma(f32(dot - zero s), a, acc)`, then
    /// `acc = fma(f32(s), c, acc)`; in arith 2 with `a` and `c` times the scale of the rows.
    ///
    /// # Safety
    /// `block` holds a block of the layout, each row the values.
    #[inline(always)]
    unsafe fn block(&mut self, block: *const u8, heads: [F32s; 2], at: usize) {
        let (layout, piece) = (self.job.layout, self.job.inputs.piece);
        // Codes of 8 bits come with 128 off.
        let zero = i32::from(layout.zero) - if BITS == 8 { 128 } else { 0 };
        // SAFETY: the caller's promise.
        unsafe {
            let factors = block.add(layout.codes_bytes());
            let a = scales(layout.scales, factors, heads[0]);
            let c = if layout.offsets {
                scales(layout.scales, factors.add(layout.scales_bytes()), heads[1])
            } else {
                splat(0.0)
            };
            for from in (0..layout.block).step_by(piece) {
                let codes = block.add(from * BITS);
                let q = self.rows.map(|(q, _, _)| q.as_ptr().add(at + from));
                let dots = self.dots(codes, q);
                for r in 0..R {
                    let (_, d, sums) = self.rows[r];
                    let sum = *sums.get_unchecked((at + from) / piece);
                    let mut dots = int32x4x2_t(dots[r][0], dots[r][1]);
                    if zero != 0 {
                        dots = sub_ints(dots, ints(sum.wrapping_mul(zero)));
                    }
                    let (mut a, mut c) = (a, c);
                    if PLANES == A8 {
                        let d = splat(*d.get_unchecked((at + from) / BLOCK_VALUES));
                        (a, c) = (mul(a, d), mul(c, d));
                    }
                    self.acc[r] = fma(from_ints(dots), a, self.acc[r]);
                    if layout.offsets {
                        self.acc[r] = fma(splat(sum as f32), c, self.acc[r]);
                    }
                }
            }
        }
    }

    /// The integer dots of one piece with R rows.
    ///
    /// # Safety
    /// `codes` holds the piece and each row its bytes from `q` on, in every plane.
    #[inline(always)]
    unsafe fn dots(&self, codes: *const u8, q: [*const i8; R]) -> [Dots; R] {
        let width = const { strip_values(BITS) };
        // SAFETY: NEON is part of the target; the caller's promise, 16 values at a time.
        unsafe {
            if HOW == MATRIX && PLANES * R > 1 {
                let (piece, cols) = (self.job.inputs.piece, self.job.inputs.cols);
                return joined(products::<BITS, PLANES, R>(codes, piece, q, cols));
            }
            let mut sums = [[[vdupq_n_s32(0); 2]; PLANES]; R];
            for strip in 0..self.job.inputs.piece / width {
                let codes = codes.add(strip * width * BITS);
                let q = q.map(|q| q.add(strip * width));
                // Constants, so that each field has its own shifts.
                sixteen::<BITS, PLANES, R, HOW>(codes, 0, q, self.job.inputs.cols, &mut sums);
                if width > VECTOR {
                    sixteen::<BITS, PLANES, R, HOW>(codes, 1, q, self.job.inputs.cols, &mut sums);
                }
            }
            joined(sums)
        }
    }
}

/// Dots with the planes of rows as dots with the rows.
#[inline(always)]
fn joined<const PLANES: usize, const R: usize>(sums: [[Dots; PLANES]; R]) -> [Dots; R] {
    sums.map(|planes| {
        let mut all = planes[0];
        for lower in &planes[1..] {
            // SAFETY: NEON is part of the target.
            let join = |h: usize| unsafe { vaddq_s32(vshlq_n_s32::<8>(all[h]), lower[h]) };
            all = [join(0), join(1)];
        }
        all
    })
}

/// Values 16 `some` to 16 `some` + 16 of a strip with every row, whose planes lie `cols` apart.
///
/// # Safety
/// `codes` points to a strip that has them and each row has them from `q` on.
#[inline(always)]
unsafe fn sixteen<const BITS: usize, const PLANES: usize, const R: usize, const HOW: usize>(
    codes: *const u8,
    some: usize,
    q: [*const i8; R],
    cols: usize,
    sums: &mut [[Dots; PLANES]; R],
) {
    // SAFETY: NEON is part of the target; the caller's promise.
    unsafe {
        let at = |p: usize| p * cols + some * VECTOR;
        let x = q.map(|q| std::array::from_fn(|p| vld1q_s8(q.add(at(p)))));
        let i = some * (VECTOR / FIELD);
        turn::<BITS, PLANES, R, 0, HOW>(codes, i, &x, sums);
        turn::<BITS, PLANES, R, 1, HOW>(codes, i, &x, sums);
        turn::<BITS, PLANES, R, 2, HOW>(codes, i, &x, sums);
        turn::<BITS, PLANES, R, 3, HOW>(codes, i, &x, sums);
    }
}

/// Field `i + I` of a strip with lane `I` of every row.
///
/// # Safety
/// `codes` points to a strip that has the field.
#[inline(always)]
unsafe fn turn<
    const BITS: usize,
    const PLANES: usize,
    const R: usize,
    const I: usize,
    const HOW: usize,
>(
    codes: *const u8,
    i: usize,
    x: &[[int8x16_t; PLANES]; R],
    sums: &mut [[Dots; PLANES]; R],
) {
    for half in 0..2 {
        // SAFETY: the caller's promise.
        unsafe {
            let w = field::<BITS>(codes, i + I, half);
            for r in 0..R {
                for p in 0..PLANES {
                    sums[r][p][half] = dot::<I, HOW>(sums[r][p][half], w, x[r][p]);
                }
            }
        }
    }
}
