//! Linear layers: rows are quantised once a call, then every matrix is multiplied.

use std::sync::Arc;

use arith::base::SLICE_VALUES;
use backend::BackendError;

use crate::device::{Buffer, Device, Params};
use crate::fuse::{self, Op};
use crate::matrix::{Floats, Form, Kind, Linear, Packed, Store, TILE_OUTPUTS};
use crate::rows::{Norm, Rows};

/// Matrices of one launch.
pub(crate) const MATRICES_MAX: usize = 4;
/// Rows of a tile.
const TILE_ROWS: usize = 4;
/// Rows of the largest block of rows of a launch, to which buffers are padded.
const BLOCK_ROWS: usize = 64;
/// Rows from which on a block takes many at once, and outputs and rows of its blocks.
const MANY_ROWS: usize = 17;
const GEMM_OUTPUTS: usize = 256;
/// Most rows of the kernels of few, and threads of their blocks.
const FEW_ROWS: usize = 8;
const FEW_THREADS: u32 = 256;
const GEMM_THREADS: u32 = 512;
const GEMM_ROWS: usize = 64;
/// Of the kernels of one row, of blocks of 64 (kernels/one.cu) and of 32 (kernels/pair.cu): tiles
/// of a warp, slices of its ring, most sets of warps of a block.
const ONE: [usize; 3] = [1, 3, 3];
const ONE_PAIR: [usize; 3] = [2, 2, 2];
/// Widest row that every block norms by itself: a wider one is normed sooner by one for all.
const FRONT_WIDTH_MAX: usize = 2048;
/// Bytes of a slice of the row besides its sums.
const ONE_SLICE_BYTES: usize = 2 * SLICE_VALUES + 16;
/// Most shared memory of those blocks, besides what is the kernels' own.
pub(crate) const ONE_SHARED_BYTES: u32 = 222 << 10;
/// Outputs of a piece and threads of a block of kernels/wide.cu.
const WIDE_OUTPUTS: usize = 192;
const WIDE_THREADS: u32 = 512;

/// `Quantised` of kernels/linear.cu.
#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Quantised {
    q: u64,
    d: u64,
    sums: u64,
    spoilt: u64,
    pub(crate) slices: i32,
    rows_max: i32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct Quantise {
    x: u64,
    to: Quantised,
    width: i32,
    wide: i32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Project {
    matrices: [Packed; MATRICES_MAX],
    x: Quantised,
    count: i32,
    rows: i32,
    parts: i32,
    pairs: i32,
}

/// A norm in front of one row's product; none if `x` is 0.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq)]
struct Front {
    x: u64,
    w: u64,
    out: u64,
    width: i32,
    eps: f32,
    inverse: f32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct One {
    project: Project,
    front: Front,
    residual: u64,
}

/// A product of one row and how it is launched.
#[derive(Clone, Copy)]
pub(crate) struct OneLaunch {
    name: &'static str,
    grid: u32,
    threads: u32,
    shared: u32,
    params: One,
}

impl OneLaunch {
    pub(crate) fn run(&self, device: &Device) {
        let Self { name, grid, threads, shared, params } = self;
        device.launch_with(name, [*grid, 1, 1], *threads, *shared, params);
    }

    /// With what it gives added to `x`, if it gives `y` alone and no block of it reads `x`.
    pub(crate) fn added(self, x: u64, y: u64, width: usize) -> Option<Self> {
        let One { project, front, residual } = self.params;
        let [only, ..] = project.matrices;
        let gives = project.count == 1 && only.out == y && only.outputs() == width;
        let apart = front.x == 0 && residual == 0 && x != y;
        let params = One { residual: x, ..self.params };
        (gives && apart).then_some(Self { params, ..self })
    }
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct FloatRows {
    matrix: Floats,
    x: u64,
    spoilt: u64,
    rows: i32,
}

// SAFETY: as kernels/linear.cu declares it.
unsafe impl Params for Quantise {}
// SAFETY: as above.
unsafe impl Params for Project {}
// SAFETY: as kernels/pack.cu declares it.
unsafe impl Params for FloatRows {}

// SAFETY: as kernels/front.cu declares it.
unsafe impl Params for One {}

/// Where rows are quantised to; grown at first use, then kept.
#[derive(Default)]
pub(crate) struct Scratch {
    buffers: Option<[Buffer; 4]>,
}

impl Scratch {
    /// Room for `rows` rows of `slices` slices.
    fn room(
        &mut self,
        device: &Arc<Device>,
        rows: usize,
        slices: usize,
    ) -> Result<Quantised, BackendError> {
        let rows = rows.next_multiple_of(BLOCK_ROWS);
        let values = rows * slices * SLICE_VALUES;
        // Bytes of both planes, or of panels that hold sums and scales too, then scales, sums of
        // 16, 32, 64 and 128 values, flags.
        let need = [2 * values / 32 * 37, 4 * rows * slices, 4 * rows * slices * 30, 4 * rows];
        let [q, d, sums, spoilt] = self.take(device, need)?;
        Ok(Quantised { q, d, sums, spoilt, slices: slices as i32, rows_max: rows as i32 })
    }

    /// Addresses of so many bytes each.
    pub(crate) fn take(
        &mut self,
        device: &Arc<Device>,
        need: [usize; 4],
    ) -> Result<[u64; 4], BackendError> {
        let fits = |buffers: &[Buffer; 4]| {
            buffers.iter().zip(need).all(|(buffer, need)| buffer.bytes() >= need)
        };
        if !self.buffers.as_ref().is_some_and(fits) {
            let old = self.buffers.take().map_or([0; 4], |b| b.each_ref().map(Buffer::bytes));
            let take =
                |i: usize| Buffer::new(device, "quantised rows", old[i].max(need[i]) as u128);
            self.buffers = Some([take(0)?, take(1)?, take(2)?, take(3)?]);
        }
        Ok(self.buffers.as_ref().map_or([0; 4], |b| b.each_ref().map(Buffer::at)))
    }
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
    check(x, rows, weights, outs);
    if rows == 0 {
        return Ok(());
    }
    let slices = x.width.div_ceil(SLICE_VALUES);
    let to = scratch.room(device, rows, slices)?;
    let quantise = |wide: bool| {
        let params = Quantise { x: x.at(), to, width: x.width as i32, wide: wide.into() };
        // A few rows are soonest done by a warp a slice.
        let threads = if rows > MANY_ROWS { 256 } else { (slices * 32).clamp(64, 1024) as u32 };
        device.launch("quantise", [rows as u32, 1, 1], threads, &params);
    };
    let (mut near, mut far) = (Vec::new(), Vec::new());
    let mut floats = Vec::new();
    for (weights, out) in weights.iter().zip(outs) {
        if let (Some(packed), Store::Blocks { form, .. }) =
            (weights.packed(out.at()), &weights.store)
        {
            let wide = rows >= MANY_ROWS && device.hopper() && hot(*form).is_some();
            if wide { &mut far } else { &mut near }.push((*form, packed));
        } else if let Some(matrix) = weights.floats(out.at()) {
            floats.push(matrix);
        }
    }
    let front = x.width <= FRONT_WIDTH_MAX;
    if rows == 1 && front && floats.is_empty() && far.is_empty() && with_norm(device, &near, x, to)
    {
        return Ok(());
    }
    // Floats take the rows as they are, and their flags.
    let fused = floats.is_empty() && far.is_empty() && fuse::quantise(device, x, rows, to);
    if !fused && (!near.is_empty() || !floats.is_empty()) {
        quantise(false);
    }
    floats.into_iter().for_each(|matrix| launch_floats(device, matrix, x, rows, to.spoilt));
    by_form(near, |form, some| launch(device, form, some, to, rows));
    if !far.is_empty() {
        quantise(true);
    }
    by_form(far, |form, some| launch_wide(device, form, some, to, rows));
    Ok(())
}

/// Asserts that the operands fit each other.
pub(crate) fn check(x: &Rows, rows: usize, weights: &[&Linear], outs: &[&mut Rows]) {
    assert_eq!(weights.len(), outs.len());
    x.holds(rows);
    for (weights, out) in weights.iter().zip(outs) {
        assert!(weights.cols == x.width && weights.rows == out.width, "{x:?} to {out:?}");
        out.holds(rows);
    }
}

/// A matrix of floats over rows as they are; `spoilt` has a flag a row.
pub(crate) fn launch_floats(device: &Device, matrix: Floats, x: &Rows, rows: usize, spoilt: u64) {
    let params = FloatRows { matrix, x: x.at(), spoilt, rows: rows as i32 };
    let grid = [matrix.outputs().div_ceil(32) as u32, rows.div_ceil(4) as u32, 1];
    device.launch("linear_floats", grid, 256, &params);
}

/// Gives `launch` the matrices of each form, as many at once as a launch takes.
pub(crate) fn by_form(
    mut blocks: Vec<(Form, Packed)>,
    mut launch: impl FnMut(Form, &[(Form, Packed)]),
) {
    while let Some(&(form, _)) = blocks.first() {
        // Hot kernels take no zero point, and all matrices of a launch are shares of K or none is.
        let of = |form: Form| (kernel(form), hot(form).is_some(), form.share);
        let alike = |other: &Form| of(*other) == of(form);
        let (some, rest): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|(f, _)| alike(f));
        blocks = rest;
        some.chunks(MATRICES_MAX).for_each(|some| launch(form, some));
    }
}

/// The kernels of a form; those of hot forms know all of it as they are compiled.
fn kernel(form: Form) -> &'static str {
    match form {
        Form { bytes: true, kind: Kind::F16, log: 5, .. } => "linear_bytes_f16_32",
        Form { bytes: true, kind: Kind::F32, log: 4, .. } => "linear_bytes_f32_16",
        Form { bytes: false, kind: Kind::Bf16, log: 6, .. } => "linear_nibbles_bf16_64",
        Form { bytes: false, kind: Kind::F16, log: 5, .. } => "linear_nibbles_f16_32",
        Form { bytes: false, kind: Kind::K, log: 5, .. } => "linear_nibbles_k_32",
        Form { bytes: false, .. } => "linear_nibbles",
        Form { bytes: true, .. } => "linear_bytes",
    }
}

/// The kernels of one row, of a few, of many and of many on Hopper, for hot forms without a zero
/// point.
fn hot(form: Form) -> Option<[&'static str; 4]> {
    match form {
        Form { zero, .. } if zero != 0 => None,
        Form { bytes: false, kind: Kind::Bf16, log: 6, .. } => Some([
            "one_nibbles_bf16_64",
            "few_nibbles_bf16_64",
            "gemm_nibbles_bf16_64",
            "wide_nibbles_bf16_64",
        ]),
        Form { bytes: false, kind: Kind::F16, log: 5, .. } => Some([
            "one_nibbles_f16_32",
            "few_nibbles_f16_32",
            "gemm_nibbles_f16_32",
            "wide_nibbles_f16_32",
        ]),
        Form { bytes: false, kind: Kind::K, log: 5, .. } => {
            Some(["one_nibbles_k_32", "few_nibbles_k_32", "gemm_nibbles_k_32", "wide_nibbles_k_32"])
        }
        _ => None,
    }
}

/// The operands of a launch over some matrices of one form, each of which begins with a part of
/// `tiles` tiles of its own, and how many such parts there are.
fn operands(some: &[(Form, Packed)], x: Quantised, rows: usize, tiles: usize) -> (Project, usize) {
    let (matrices, parts) = tiled(some, tiles);
    let (count, own) = (some.len() as i32, parts as i32);
    (Project { matrices, x, count, rows: rows as i32, parts: own, pairs: own }, parts)
}

/// As `operands` of pairs of tiles, for so many sets of warps at once.
fn in_pairs(some: &[(Form, Packed)], x: Quantised, rows: usize, slots: usize) -> Project {
    let (project, pairs) = operands(some, x, rows, 2);
    let even = some.iter().all(|(_, m)| m.outputs().div_ceil(TILE_OUTPUTS) % 2 == 0);
    let (parts, whole) = if even { cut(pairs, slots) } else { (pairs, pairs) };
    Project { parts: parts as i32, pairs: whole as i32, ..project }
}

/// Parts of a launch and how many of them are whole pairs of tiles: where there are fewer pairs
/// than places for them, some go a tile each.
fn cut(pairs: usize, slots: usize) -> (usize, usize) {
    let whole = if pairs < slots { (2 * pairs).saturating_sub(slots) } else { pairs };
    (2 * pairs - whole, whole)
}

/// Some matrices of a launch, each with its first part of `tiles` tiles, and how many parts they
/// have.
pub(crate) fn tiled(some: &[(Form, Packed)], tiles: usize) -> ([Packed; MATRICES_MAX], usize) {
    let mut matrices = [Packed::default(); MATRICES_MAX];
    let mut parts = 0;
    for (slot, (_, packed)) in matrices.iter_mut().zip(some) {
        *slot = *packed;
        slot.tile = parts as i32;
        parts += packed.outputs().div_ceil(TILE_OUTPUTS * tiles);
    }
    (matrices, parts)
}

/// Blocks of `outputs` outputs that cover some matrices.
fn across(some: &[(Form, Packed)], outputs: usize) -> u32 {
    some.iter().map(|(_, m)| m.outputs().div_ceil(outputs) as u32).sum()
}

/// Many rows on Hopper: as many blocks as the card has multiprocessors, each for some pieces.
fn launch_wide(device: &Device, form: Form, some: &[(Form, Packed)], x: Quantised, rows: usize) {
    let Some([.., wide]) = hot(form) else { unreachable!("only hot forms are wide") };
    let (params, _) = operands(some, x, rows, 1);
    let pieces = across(some, WIDE_OUTPUTS) * rows.div_ceil(BLOCK_ROWS) as u32;
    let blocks = pieces.min(device.multiprocessors());
    device.launch(wide, [blocks, 1, 1], WIDE_THREADS, &params);
}

/// One row that comes with its norm, if that waits and all matrices go in one launch.
fn with_norm(device: &Device, some: &[(Form, Packed)], x: &Rows, to: Quantised) -> bool {
    let [(form, _), ..] = some else { return false };
    let of = |form: Form| (hot(form), form.share);
    let alike = |(other, _): &(Form, Packed)| of(*other) == of(*form);
    let Some([one, ..]) = hot(*form).filter(|_| some.len() <= MATRICES_MAX) else { return false };
    if !some.iter().all(alike) || one_launch(device, one, some, to, &Front::wide(x.width)).is_none()
    {
        return false;
    }
    let Some(Norm { x, w, out, width, eps, inverse }) = fuse::norm(device, x) else { return false };
    let front = Front { x, w, out, width, eps, inverse };
    let launch = one_launch(device, one, some, to, &front);
    launch.iter().for_each(|launch| device.defer(Op::One { launch: *launch }));
    true
}

impl Front {
    /// Of a row of `width` values.
    fn wide(width: usize) -> Self {
        Self { width: width as i32, ..Self::default() }
    }
}

/// One row: a block a multiprocessor, with the row, what its norm needs if there is one, and the
/// rings of as many sets of warps as its shared memory has room for. None if the card lacks the
/// kernel, or for a row that is too long even for the rings of one: it is left to others.
fn one_launch(
    device: &Device,
    name: &'static str,
    some: &[(Form, Packed)],
    x: Quantised,
    front: &Front,
) -> Option<OneLaunch> {
    let &(form, _) = some.first().filter(|_| device.has(name))?;
    let [tiles, slices, most] = if form.log == 5 { ONE_PAIR } else { ONE };
    let blocks = SLICE_VALUES >> form.log;
    let (scales, units) = if form.kind == Kind::K { (256, 64) } else { (64 * blocks, 0) };
    // Of a share of K half of the groups have a warp each.
    let warps = if form.share { 4 } else { 8 };
    let most = most * 8 / warps;
    let ring = warps * slices * tiles * (2048 + scales + units);
    // A row before its norm, and the norm's weights.
    let row = x.slices as usize * (ONE_SLICE_BYTES + 4 * blocks) + 8 * front.width as usize;
    let sets = ((device.most_shared(name) as usize).saturating_sub(row) / ring).min(most);
    let all = device.multiprocessors();
    let project = match tiles {
        1 => operands(some, x, 1, 1).0,
        _ => in_pairs(some, x, 1, sets * all as usize),
    };
    (sets > 0).then(|| OneLaunch {
        name,
        grid: all.min(project.parts as u32),
        threads: (sets * warps * 32) as u32,
        shared: (sets * ring + row) as u32,
        params: One { project, front: *front, residual: 0 },
    })
}

/// One launch over the tiles of some matrices of one form.
fn launch(device: &Device, form: Form, some: &[(Form, Packed)], x: Quantised, rows: usize) {
    let (params, tiles) = operands(some, x, rows, 1);
    match (hot(form), rows) {
        (Some([one, ..]), 1) => {
            if let Some(launch) = one_launch(device, one, some, x, &Front::default()) {
                return device.defer(Op::One { launch });
            }
        }
        (Some([_, few, ..]), 2..=FEW_ROWS) if device.has(few) => {
            let (params, pairs) = operands(some, x, rows, 2);
            let blocks = (2 * device.multiprocessors()).min(pairs as u32);
            return device.launch(few, [blocks, 1, 1], FEW_THREADS, &params);
        }
        (Some([.., many, _]), MANY_ROWS..) if device.has(many) => {
            let blocks = across(some, GEMM_OUTPUTS) * rows.div_ceil(GEMM_ROWS) as u32;
            return device.launch(many, [blocks, 1, 1], GEMM_THREADS, &params);
        }
        _ => {}
    }
    let at_once = match rows {
        ..=8 => 2,
        _ => 4,
    };
    let name = format!("{}_{at_once}", kernel(form));
    let grid = [tiles as u32, rows.div_ceil(TILE_ROWS * at_once) as u32, 1];
    device.launch(&name, grid, 256, &params);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(outs: &[u64], front: Front) -> OneLaunch {
        let x = Quantised { q: 0, d: 0, sums: 0, spoilt: 0, slices: 1, rows_max: 64 };
        let mut matrices = [Packed::default(); MATRICES_MAX];
        matrices.iter_mut().zip(outs).for_each(|(matrix, out)| matrix.out = *out);
        let count = outs.len() as i32;
        let project = Project { matrices, x, count, rows: 1, parts: 1, pairs: 1 };
        let params = One { project, front, residual: 0 };
        OneLaunch { name: "one_nibbles_k_32", grid: 1, threads: 256, shared: 0, params }
    }

    #[test]
    fn few_pairs_are_cut_so_that_no_place_is_empty() {
        assert_eq!(cut(160, 264), (264, 56));
        assert_eq!(cut(32, 264), (64, 0));
        assert_eq!(cut(264, 264), (264, 264));
        assert_eq!(cut(515, 264), (515, 515));
    }

    #[test]
    fn a_product_is_added_where_it_gives_that_row_alone_and_reads_none_of_the_sum() {
        let none = Front::default();
        let sum = product(&[7], none).added(5, 7, 0).expect("it gives the row");
        assert_eq!(sum.params.residual, 5);
        let normed = Front { x: 5, ..none };
        let refused = [
            (product(&[7], none), 5, 8, 0),
            (product(&[7], none), 5, 7, 16),
            (product(&[7, 9], none), 5, 7, 0),
            (product(&[7], normed), 5, 7, 0),
            (product(&[7], none), 7, 7, 0),
            (sum, 6, 7, 0),
        ];
        for (i, (product, x, y, width)) in refused.into_iter().enumerate() {
            assert!(product.added(x, y, width).is_none(), "case {i}");
        }
    }
}
