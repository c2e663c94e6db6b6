//! Linear layers of arith 2: rows become 8-bit integers, one plane of bytes, with a scale a block.

use std::sync::Arc;

use arith::base::SLICE_VALUES;
use backend::BackendError;

use crate::device::{Device, Params};
use crate::matrix::{Form, Kind, Linear, Packed, Store};
use crate::project::{MATRICES_MAX, Scratch, by_form, check, launch_floats, tiled};
use crate::rows::Rows;

/// Rows of a tile, and tiles of the blocks that take many.
const TILE_ROWS: usize = 8;
const TILES_MAX: usize = 4;

/// `A8` of kernels/a8.cu.
#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct Quantised {
    q: u64,
    d: u64,
    sums: u64,
    spoilt: u64,
    slices: i32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct Quantise {
    x: u64,
    to: Quantised,
    width: i32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct Project {
    matrices: [Packed; MATRICES_MAX],
    x: Quantised,
    count: i32,
    rows: i32,
}

// SAFETY: as kernels/a8.cu declares it.
unsafe impl Params for Quantise {}
// SAFETY: as above.
unsafe impl Params for Project {}

/// Each `outs[i] = x W_i^T` for the first `rows` rows.
pub(crate) fn project(
    device: &Arc<Device>,
    scratch: &mut Scratch,
    x: &Rows,
    rows: usize,
    weights: &[&Linear],
    outs: &mut [&mut Rows],
) -> Result<(), BackendError> {
    check(x, rows, weights, outs);
    if rows == 0 {
        return Ok(());
    }
    let slices = x.width.div_ceil(SLICE_VALUES);
    let padded = rows.next_multiple_of(TILE_ROWS * TILES_MAX) * slices;
    // A byte a value, then scales of 32 values, sums of 16, flags.
    let need = [padded * SLICE_VALUES, 4 * padded * 8, 4 * padded * 16, 4 * rows];
    let [q, d, sums, spoilt] = scratch.take(device, need)?;
    let to = Quantised { q, d, sums, spoilt, slices: slices as i32 };
    let params = Quantise { x: x.at(), to, width: x.width as i32 };
    let threads = (slices * 32).clamp(64, if rows > TILE_ROWS { 256 } else { 1024 }) as u32;
    device.launch("quantise_a8", [rows as u32, 1, 1], threads, &params);
    let mut blocks = Vec::new();
    for (weights, out) in weights.iter().zip(outs) {
        if let (Some(packed), Store::Blocks { form, .. }) =
            (weights.packed(out.at()), &weights.store)
        {
            blocks.push((*form, packed));
        } else if let Some(matrix) = weights.floats(out.at()) {
            launch_floats(device, matrix, x, rows, to.spoilt);
        }
    }
    by_form(blocks, |form, some| {
        let (matrices, tiles) = tiled(some, 1);
        let params = Project { matrices, x: to, count: some.len() as i32, rows: rows as i32 };
        let at_once = if rows > TILE_ROWS { TILES_MAX } else { 1 };
        let grid = [tiles as u32, rows.div_ceil(TILE_ROWS * at_once) as u32, 1];
        device.launch(&format!("{}_{at_once}", kernel(form)), grid, 256, &params);
    });
    Ok(())
}

/// The kernels of a form.
fn kernel(form: Form) -> &'static str {
    match (form.bytes, form.kind, form.log) {
        (false, Kind::Bf16, 6) => "a8_nibbles_bf16_64",
        (false, Kind::F16, 5) => "a8_nibbles_f16_32",
        (false, Kind::K, 5) => "a8_nibbles_k_32",
        (false, ..) => "a8_nibbles",
        (true, Kind::F16, 5) => "a8_bytes_f16_32",
        (true, Kind::F32, 4) => "a8_bytes_f32_16",
        (true, ..) => "a8_bytes",
    }
}
