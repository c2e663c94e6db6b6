//! Scalar twins of the linear kernels, over the same packed panels.

use std::cell::RefCell;
use std::ops::Range;

use arith::float::{SPOILT, flush};
use arith::linear::{GROUPS, tree};

use crate::pack::{LANES, Linear, float_at};
use crate::project::{Inputs, Outputs, slice_values};

thread_local! {
    /// One panel's integers, `[blocks][LANES][values]`.
    pub(crate) static CODES: RefCell<Vec<i16>> = const { RefCell::new(Vec::new()) };
}

/// Runs the groups of one row in order, `slice(index, values, g)` giving the group's next sums.
pub(crate) fn grouped(
    linear: &Linear,
    mut slice: impl FnMut(usize, Range<usize>, [f32; LANES]) -> [f32; LANES],
) -> [f32; LANES] {
    let mut groups = [[0.0; LANES]; GROUPS];
    for (group, g) in groups.iter_mut().enumerate() {
        for index in linear.groups.slices(group) {
            *g = slice(index, slice_values(index, linear.cols), *g);
        }
    }
    let end = |sum: f32| if linear.groups.is_node() { sum } else { flush(sum) };
    std::array::from_fn(|lane| end(tree(&groups.map(|g| g[lane]))))
}

/// Block formats, any row count.
///
/// # Safety
/// No other thread may write `panels` of `rows`.
pub(crate) unsafe fn project_a16_blocks_scalar(
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
                if inputs.a16.spoilt[row] {
                    out.fill(SPOILT);
                } else {
                    let sums = row_blocks(linear, panel, codes, inputs, row);
                    out.copy_from_slice(&sums[..out.len()]);
                }
            }
        }
    });
}

/// The integers w of a panel.
pub(crate) fn unpack(linear: &Linear, panel: usize, codes: &mut Vec<i16>) {
    let layout = linear.layout();
    let places = layout.places();
    codes.clear();
    for record in linear.panel(panel).chunks_exact(layout.record_bytes()) {
        for block in record[..layout.head_at()].chunks_exact(layout.block_bytes()) {
            for lane in 0..LANES {
                let code = |k| places.get(block, k, lane) - layout.zero;
                codes.extend((0..layout.block).map(code));
            }
        }
    }
}

fn row_blocks(
    linear: &Linear,
    panel: usize,
    codes: &[i16],
    inputs: &Inputs<'_>,
    row: usize,
) -> [f32; LANES] {
    let (a16, layout, cols) = (inputs.a16, linear.layout(), linear.cols);
    let width = layout.block;
    let q = &a16.q[row * cols..(row + 1) * cols];
    let d = &a16.d[row * a16.slices..(row + 1) * a16.slices];
    let sums = a16.sums(width);
    let sums = &sums.f32[row * sums.blocks..(row + 1) * sums.blocks];
    let bytes = layout.record_bytes();
    let panel = linear.panel(panel);
    grouped(linear, |slice, values, g| {
        let mut acc = [0.0; LANES];
        for block in values.start / width..values.end / width {
            let record = &panel[block / layout.blocks * bytes..][..bytes];
            let q = &q[block * width..(block + 1) * width];
            let w = &codes[block * width * LANES..(block + 1) * width * LANES];
            for (lane, (acc, w)) in acc.iter_mut().zip(w.chunks_exact(width)).enumerate() {
                let products = w.iter().zip(q).map(|(&w, &q)| i32::from(w) * i32::from(q));
                let dot: i32 = products.sum();
                let (a, c) = layout.affine(record, block % layout.blocks, lane);
                *acc = (dot as f32).mul_add(a, *acc);
                if layout.offsets {
                    *acc = sums[block].mul_add(c, *acc);
                }
            }
        }
        std::array::from_fn(|lane| acc[lane].mul_add(d[slice], g[lane]))
    })
}

/// Float formats, any row count.
///
/// # Safety
/// No other thread may write `panels` of `rows`.
pub(crate) unsafe fn project_f32_floats_scalar(
    linear: &Linear,
    inputs: &Inputs<'_>,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    for panel in panels {
        let bytes = linear.panel(panel);
        for row in rows.clone() {
            // SAFETY: the caller's promise.
            let out = unsafe { out.panel(row, panel, linear.lanes(panel)) };
            if inputs.a16.spoilt[row] {
                out.fill(SPOILT);
                continue;
            }
            let x = inputs.x.row(row);
            let sums = grouped(linear, |_, values, g| {
                let mut acc = [0.0; LANES];
                for k in values {
                    for (lane, acc) in acc.iter_mut().enumerate() {
                        *acc = float_at(linear.format, bytes, k, lane).mul_add(x[k], *acc);
                    }
                }
                std::array::from_fn(|lane| g[lane] + acc[lane])
            });
            out.copy_from_slice(&sums[..out.len()]);
        }
    }
}
