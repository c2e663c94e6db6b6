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
use arith::linear::{GROUPS, group_slices};

use crate::Product;
use crate::codes_neon::{DOT, Dots, FIELD, MATRIX, PLAIN, VECTOR, dot, field};
use crate::lanes::*;
use crate::layout::{Layout, strip_values};
use crate::pack::Linear;
use crate::products_neon::products;
use crate::project::{Inputs, Outputs};
use crate::scales_vector::{heads, scales};
use crate::vector::put_groups;

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
        // SAFETY: passed on.
        unsafe {
            match job.layout.bits {
                2 => job.panel::<2, PLANES, HOW>(panel, rows.clone()),
                3 => job.panel::<3, PLANES, HOW>(panel, rows.clone()),
                4 => job.panel::<4, PLANES, HOW>(panel, rows.clone()),
                5 => job.panel::<5, PLANES, HOW>(panel, rows.clone()),
                6 => job.panel::<6, PLANES, HOW>(panel, rows.clone()),
                _ => job.panel::<8, PLANES, HOW>(panel, rows.clone()),
            }
        }
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
    unsafe fn panel<const BITS: usize, const PLANES: usize, const HOW: usize>(
        &self,
        panel: usize,
        rows: Range<usize>,
    ) {
        let mut row = rows.start;
        while row < rows.end {
            // SAFETY: passed on.
            unsafe {
                row += match rows.end - row {
                    1 => self.some::<BITS, PLANES, 1, HOW>(panel, row),
                    2 => self.some::<BITS, PLANES, 2, HOW>(panel, row),
                    3 => self.some::<BITS, PLANES, 3, HOW>(panel, row),
                    _ => self.some::<BITS, PLANES, 4, HOW>(panel, row),
                };
            }
        }
    }

    /// # Safety
    /// As [`project`].
    unsafe fn some<const BITS: usize, const PLANES: usize, const R: usize, const HOW: usize>(
        &self,
        panel: usize,
        row: usize,
    ) -> usize {
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
    ) -> usize {
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
    ) -> usize {
        // SAFETY: passed on.
        unsafe { self.rows::<BITS, PLANES, R, DOT>(panel, row) }
    }

    /// `R` rows from `row` through one panel; gives R.
    ///
    /// # Safety
    /// As [`project`].
    #[inline(always)]
    unsafe fn rows<const BITS: usize, const PLANES: usize, const R: usize, const HOW: usize>(
        &self,
        panel: usize,
        row: usize,
    ) -> usize {
        let (layout, cols) = (self.layout, self.linear.cols);
        let parts: [_; R] = std::array::from_fn(|r| self.inputs.parts(PLANES, row + r));
        let units = cols / layout.unit_values();
        let slice_units = SLICE_VALUES / layout.unit_values();
        let base = self.linear.panel(panel).as_ptr();
        let mut groups = [[zero(); R]; GROUPS];
        for (group, g) in groups.iter_mut().enumerate() {
            for slice in group_slices(group, cols.div_ceil(SLICE_VALUES)) {
                let mut acc = [zero(); R];
                for unit in slice * slice_units..units.min((slice + 1) * slice_units) {
                    // SAFETY: a panel has `units` records, a row as many units of values.
                    unsafe {
                        let record = base.add(unit * layout.record_bytes());
                        let heads = heads(layout, record);
                        for b in 0..layout.blocks {
                            let at = (unit * layout.blocks + b) * layout.block;
                            let block = record.add(b * layout.block_bytes());
                            self.block::<BITS, PLANES, R, HOW>(block, heads, at, &parts, &mut acc);
                        }
                    }
                }
                for r in 0..R {
                    g[r] = if PLANES == A16 {
                        fma(acc[r], splat(parts[r].1[slice]), g[r])
                    } else {
                        add(g[r], acc[r])
                    };
                }
            }
        }
        for r in 0..R {
            // SAFETY: the caller's promise.
            let out = unsafe { self.out.panel(row + r, panel, self.linear.lanes(panel)) };
            put_groups(std::array::from_fn(|k| groups[k][r]), self.inputs.spoilt[row + r], out);
        }
        R
    }

    /// The block at value `at`, piece by piece: `acc = fma(f32(dot - zero s), a, acc)`, then
    /// `acc = fma(f32(s), c, acc)`; in arith 2 with `a` and `c` times the scale of the rows.
    ///
    /// # Safety
    /// `block` holds a block of the layout, each row the values.
    #[inline(always)]
    unsafe fn block<const BITS: usize, const PLANES: usize, const R: usize, const HOW: usize>(
        &self,
        block: *const u8,
        heads: [F32s; 2],
        at: usize,
        rows: &[(&[i8], &[f32], &[i32]); R],
        acc: &mut [F32s; R],
    ) {
        let (layout, piece) = (self.layout, self.inputs.piece);
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
                let q = rows.map(|(q, _, _)| q.as_ptr().add(at + from));
                let dots = self.dots::<BITS, PLANES, R, HOW>(codes, q);
                for r in 0..R {
                    let (_, d, sums) = rows[r];
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
                    acc[r] = fma(from_ints(dots), a, acc[r]);
                    if layout.offsets {
                        acc[r] = fma(splat(sum as f32), c, acc[r]);
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
    unsafe fn dots<const BITS: usize, const PLANES: usize, const R: usize, const HOW: usize>(
        &self,
        codes: *const u8,
        q: [*const i8; R],
    ) -> [Dots; R] {
        let width = const { strip_values(BITS) };
        // SAFETY: NEON is part of the target; the caller's promise, 16 values at a time.
        unsafe {
            if HOW == MATRIX && PLANES * R > 1 {
                let (piece, cols) = (self.inputs.piece, self.inputs.cols);
                return joined(products::<BITS, PLANES, R>(codes, piece, q, cols));
            }
            let mut sums = [[[vdupq_n_s32(0); 2]; PLANES]; R];
            for strip in 0..self.inputs.piece / width {
                let codes = codes.add(strip * width * BITS);
                let q = q.map(|q| q.add(strip * width));
                // Constants, so that each field has its own shifts.
                sixteen::<BITS, PLANES, R, HOW>(codes, 0, q, self.inputs.cols, &mut sums);
                if width > VECTOR {
                    sixteen::<BITS, PLANES, R, HOW>(codes, 1, q, self.inputs.cols, &mut sums);
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
