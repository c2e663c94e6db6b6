//! Scalar twin of the linear kernels of arith 2, over the same packed panels.

use std::ops::Range;

use arith::a8::BLOCK_VALUES;
use arith::float::SPOILT;

use crate::pack::{LANES, Linear};
use crate::project::{Inputs, Outputs};
use crate::project_scalar::{CODES, grouped, unpack};
use crate::quantise_a8::place;

/// Block formats, any row count.
///
/// # Safety
/// No other thread may write `panels` of `rows`.
pub(crate) unsafe fn project_a8_blocks_scalar(
    linear: &Linear,
    inputs: &Inputs<'_>,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    CODES.with_borrow_mut(|codes| {
        for panel in panels {
            unpack(linear, panel, codes);
            for row in rows.clone() {
                // SAFETY: the caller's promise.
                let out = unsafe { out.panel(row, panel, linear.lanes(panel)) };
                if inputs.a8.spoilt[row] {
                    out.fill(SPOILT);
                } else {
                    let sums = row_blocks(linear, panel, codes, inputs, row);
                    out.copy_from_slice(&sums[..out.len()]);
                }
            }
        }
    });
}

fn row_blocks(
    linear: &Linear,
    panel: usize,
    codes: &[i16],
    inputs: &Inputs<'_>,
    row: usize,
) -> [f32; LANES] {
    let (a8, layout, cols) = (inputs.a8, linear.layout(), linear.cols);
    let (width, piece) = (layout.block, layout.block.min(BLOCK_VALUES));
    let q = &a8.q[row * cols..(row + 1) * cols];
    let d = &a8.d[row * cols / BLOCK_VALUES..(row + 1) * cols / BLOCK_VALUES];
    let sums = &a8.sums(piece).f32[row * cols / piece..(row + 1) * cols / piece];
    let bytes = layout.record_bytes();
    let panel = linear.panel(panel);
    grouped(linear, |_, values, g| {
        let mut acc = [0.0; LANES];
        for at in values.step_by(piece) {
            let block = at / width;
            let record = &panel[block / layout.blocks * bytes..][..bytes];
            let (scale, sum) = (d[at / BLOCK_VALUES], sums[at / piece]);
            for (lane, acc) in acc.iter_mut().enumerate() {
                let w = &codes[(block * LANES + lane) * width + at % width..][..piece];
                let product = |(k, &w): (usize, &i16)| {
                    i32::from(w) * i32::from(q[at / BLOCK_VALUES * BLOCK_VALUES..][place_in(at, k)])
                };
                let dot: i32 = w.iter().enumerate().map(product).sum();
                let (a, c) = layout.affine(record, block % layout.blocks, lane);
                *acc = (dot as f32).mul_add(a * scale, *acc);
                if layout.offsets {
                    *acc = sum.mul_add(c * scale, *acc);
                }
            }
        }
        std::array::from_fn(|lane| g[lane] + acc[lane])
    })
}

/// Where in its block of activations value `k` of the piece at `at` has its integer.
fn place_in(at: usize, k: usize) -> usize {
    place(at % BLOCK_VALUES + k)
}
