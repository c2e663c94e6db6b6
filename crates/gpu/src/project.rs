//! Linear layers: rows are quantised once a call, then every matrix is multiplied.

use std::sync::Arc;

use arith::base::SLICE_VALUES;
use arith::linear::{GROUPS, Groups};
use backend::BackendError;

use crate::buffer::Buffer;
use crate::built::Kernel;
use crate::device::Device;
use crate::forms::Unit;
use crate::matrix::{Form, Linear, Store, float_kernel};
use crate::rows::Rows;

/// Rows from which on a workgroup takes 32 or 64, with what they share in its memory.
const MANY: usize = 17;
/// Bytes of that memory.
const MANY_BYTES: u32 = 1088 * 16 + 512 * 4 + 256 * 16 + 256 * 8;
/// Outputs of a tile.
const TILE: usize = 16;

/// Where rows are quantised to; grown at first use, then kept.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Planes of bytes, sums, scales.
    buffers: Option<[Buffer; 3]>,
}

impl Scratch {
    /// Room for `rows` rows of `slices` slices.
    fn room(
        &mut self,
        device: &Arc<Device>,
        rows: usize,
        slices: usize,
    ) -> Result<&[Buffer; 3], BackendError> {
        let values = rows * slices * SLICE_VALUES;
        let need = [2 * values, values / 4, 4 * rows * slices];
        let fits = |buffers: &[Buffer; 3]| {
            buffers.iter().zip(need).all(|(buffer, need)| buffer.bytes() >= need)
        };
        if !self.buffers.as_ref().is_some_and(fits) {
            let old = self.buffers.take().map_or([0; 3], |b| b.each_ref().map(Buffer::bytes));
            let take =
                |i: usize| Buffer::new(device, "quantised rows", old[i].max(need[i]) as u128);
            self.buffers = Some([take(0)?, take(1)?, take(2)?]);
        }
        Ok(self.buffers.as_ref().unwrap_or_else(|| unreachable!("made above")))
    }
}

/// Where the eight groups begin, then where the last ends.
fn starts(groups: &Groups) -> impl Iterator<Item = u32> {
    let firsts = (0..GROUPS).map(|group| groups.slices(group).start as u32);
    firsts.chain([groups.count() as u32])
}

/// Each `outs[i] = x W_i^T` for the first `rows` rows.
pub(crate) fn project(
    device: &Arc<Device>,
    scratch: &mut Scratch,
    x: &Rows,
    rows: usize,
    weights: &[&Linear],
    outs: &mut [&mut Rows],
) -> Result<(), BackendError> {
    assert_eq!(weights.len(), outs.len());
    x.holds(rows);
    for (weights, out) in weights.iter().zip(&*outs) {
        assert!(weights.cols == x.width && weights.rows == out.width, "{x:?} to {out:?}");
        out.holds(rows);
    }
    if rows == 0 {
        return Ok(());
    }
    let slices = x.width.div_ceil(SLICE_VALUES);
    let quantised = scratch.room(device, rows, slices)?;
    if weights.iter().any(|weights| matches!(weights.store, Store::Blocks(..))) {
        let (grid, across) = Device::spread(rows * slices);
        let params = [(rows * slices) as u32, across, x.width as u32, slices as u32];
        let [planes, sums, steps] = quantised;
        let buffers = [(0, planes), (1, sums), (2, steps), (3, &x.buffer)];
        device.launch(&Kernel::new(Unit::Quantise, "quantise"), &buffers, &params, grid);
    }
    for (weights, out) in weights.iter().zip(outs) {
        match &weights.store {
            Store::Blocks(..) => blocks(device, quantised, rows, weights, out),
            Store::Floats(..) => floats(device, x, rows, weights, out),
        }
    }
    Ok(())
}

/// How many rows a workgroup of few takes.
fn at_once(rows: usize) -> usize {
    match rows {
        1 => 1,
        2..=4 => 4,
        _ => 8,
    }
}

/// What a launch over blocks is: the kernel, and outputs and rows of a workgroup.
struct Launch {
    kernel: Kernel,
    outputs: usize,
    rows: usize,
}

impl Launch {
    fn of(device: &Device, form: Form, rows: usize, slices: usize) -> Self {
        let (memory, threads) = device.workgroup();
        let kernel = |entry| {
            let kernel = form.kernel(Unit::Linear, entry).with("OFFSETS", form.offsets.into());
            kernel.with("SUMS", (form.offsets || form.zero != 0).into())
        };
        if rows >= MANY && memory >= MANY_BYTES && threads >= 128 {
            let fours = if rows > 32 && threads >= 256 { 16 } else { 8 };
            let kernel = kernel("many").with("FOURS", fours);
            return Self { kernel, outputs: 2 * TILE, rows: 4 * fours as usize };
        }
        let at_once = at_once(rows);
        // Two numbers alone, since each is a kernel of its own.
        let lanes = if slices > 8 && threads >= 256 { 16 } else { 4 };
        let kernel = kernel("few").with("ROWS", at_once as u32).with("LANES", lanes);
        Self { kernel, outputs: TILE, rows: at_once }
    }
}

fn blocks(device: &Device, x: &[Buffer; 3], rows: usize, weights: &Linear, out: &mut Rows) {
    let Store::Blocks(form, parts) = &weights.store else { return };
    let slices = weights.cols.div_ceil(SLICE_VALUES);
    let launch = Launch::of(device, *form, rows, slices);
    let node = u32::from(weights.groups.is_node());
    for part in parts {
        let [outputs, first] = [part.outputs, part.first].map(|n| n as u32);
        let sizes = [rows as u32, outputs, first, out.width as u32, weights.cols as u32];
        let mut params = sizes.to_vec();
        params.extend([slices as u32, form.zero as u32, node]);
        params.extend(starts(&weights.groups));
        let buffers = [
            (0, &out.buffer),
            (1, &part.codes),
            (2, &part.scales),
            (3, &x[0]),
            (4, &x[1]),
            (5, &x[2]),
        ];
        let tiles = part.outputs.div_ceil(launch.outputs);
        let grid = [tiles as u32, rows.div_ceil(launch.rows) as u32, 1];
        device.launch(&launch.kernel, &buffers, &params, grid);
    }
}

fn floats(device: &Device, x: &Rows, rows: usize, weights: &Linear, out: &mut Rows) {
    let Store::Floats(format, parts) = &weights.store else { return };
    let at_once = at_once(rows);
    let kernel = float_kernel(Unit::Floats, "floats", *format).with("ROWS", at_once as u32);
    let node = u32::from(weights.groups.is_node());
    for part in parts {
        let [outputs, first] = [part.outputs, part.first].map(|n| n as u32);
        let mut params =
            vec![rows as u32, outputs, first, out.width as u32, weights.cols as u32, node];
        params.extend(starts(&weights.groups));
        let buffers = [(0, &out.buffer), (1, &part.values), (2, &x.buffer)];
        let grid = [part.outputs.div_ceil(TILE) as u32, rows.div_ceil(at_once) as u32, 1];
        device.launch(&kernel, &buffers, &params, grid);
    }
}
