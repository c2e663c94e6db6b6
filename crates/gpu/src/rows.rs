//! Buffers of rows, and the ops on rows alone.

use std::fmt;
use std::sync::Arc;

use backend::{BackendError, Pairing, RopeRows};

use crate::buffer::Buffer;
use crate::built::Kernel;
use crate::device::Device;
use crate::forms::Unit;

/// Threads of a workgroup of an op value by value.
const THREADS: usize = 64;

/// `[rows_max, width]` f32 on the device.
pub struct Rows {
    pub(crate) rows_max: usize,
    pub(crate) width: usize,
    pub(crate) buffer: Buffer,
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rows[{}, {}] on the GPU", self.rows_max, self.width)
    }
}

impl Rows {
    pub(crate) fn new(
        device: &Arc<Device>,
        rows_max: usize,
        width: usize,
    ) -> Result<Self, BackendError> {
        let bytes = rows_max as u128 * width as u128 * 4;
        let buffer = Buffer::new(device, &format!("buffer of {rows_max} rows"), bytes)?;
        Ok(Self { rows_max, width, buffer })
    }

    /// Asserts that there are `rows` rows.
    pub(crate) fn holds(&self, rows: usize) {
        assert!(rows <= self.rows_max, "{rows} rows of {self:?}");
    }
}

/// A vector of weights on the device.
pub struct Vector {
    pub(crate) buffer: Buffer,
    pub(crate) len: usize,
}

/// The grid of an op value by value, and its first parameters.
pub(crate) fn each(count: usize) -> ([u32; 3], [u32; 2]) {
    let (grid, across) = Device::spread(count.div_ceil(THREADS));
    (grid, [count as u32, across])
}

/// What a norm makes of its rows.
pub(crate) enum Norm<'a> {
    /// Rows of `x` to others.
    Rows(&'a Rows),
    /// Heads in place.
    Heads,
    /// Heads in place, times silu of these.
    Gated(&'a Rows),
}

pub(crate) fn norm(
    device: &Device,
    norm: &Norm<'_>,
    w: &Vector,
    eps: f32,
    rows: usize,
    out: &mut Rows,
) {
    assert!(out.width.is_multiple_of(w.len), "heads of {} in {out:?}", w.len);
    out.holds(rows);
    let (entry, other) = match norm {
        Norm::Rows(x) => ("rms", Some(*x)),
        Norm::Heads => ("head", None),
        Norm::Gated(z) => ("gated", Some(*z)),
    };
    if let Some(other) = other {
        assert_eq!(other.width, out.width, "{other:?} to {out:?}");
        other.holds(rows);
    }
    if matches!(norm, Norm::Rows(_)) {
        assert_eq!(w.len, out.width, "norm of {} of {out:?}", w.len);
    }
    let count = rows * (out.width / w.len);
    let (grid, across) = Device::spread(count);
    let share = 1.0 / w.len as f32;
    let params = [count as u32, across, w.len as u32, eps.to_bits(), share.to_bits(), 0, 0, 0, 0];
    let mut buffers = vec![(0, &out.buffer), (1, &w.buffer)];
    buffers.extend(other.map(|other| (2, &other.buffer)));
    if count > 0 {
        // A long row is read by many; what is added up takes 32 either way.
        let threads = if w.len > 1024 && device.workgroup().1 >= 256 { 256 } else { 64 };
        let kernel = Kernel::new(Unit::Norm, entry).with("THREADS", threads);
        device.launch(&kernel, &buffers, &params, grid);
    }
}

/// Cosines at the start of `tables[0]`, sines of `tables[1]`.
pub(crate) fn rope(
    device: &Device,
    x: &mut Rows,
    heads: usize,
    dim: usize,
    pairing: Pairing,
    rope: &RopeRows,
    tables: &[Buffer; 2],
) {
    let (rows, pairs) = (rope.rows(), rope.dims / 2);
    assert!(x.width == heads * dim && rope.dims <= dim, "{heads} heads of {dim} in {x:?}");
    x.holds(rows);
    let count = rows * heads * pairs;
    let (grid, [count, across]) = each(count);
    let adjacent = u32::from(pairing == Pairing::Adjacent);
    let params = [count, across, pairs as u32, heads as u32, dim as u32, adjacent];
    let buffers = [(0, &x.buffer), (1, &tables[0]), (2, &tables[1])];
    if count > 0 {
        device.launch(&Kernel::new(Unit::Rows, "rope"), &buffers, &params, grid);
    }
}

/// `add`, `gate` (in place, `right` none) or `silu_mul` over the first `rows` rows.
pub(crate) fn pairwise(
    device: &Device,
    entry: &'static str,
    left: &Rows,
    right: Option<&Rows>,
    rows: usize,
    out: &mut Rows,
) {
    for other in [Some(left), right].into_iter().flatten() {
        assert_eq!(other.width, out.width, "{entry} of {other:?}");
        other.holds(rows);
    }
    out.holds(rows);
    let (grid, [count, across]) = each(rows * out.width);
    let mut buffers = vec![(0, &out.buffer), (1, &left.buffer)];
    buffers.extend(right.map(|right| (2, &right.buffer)));
    if count > 0 {
        let params = [count, across, 0, 0, 0, 0];
        device.launch(&Kernel::new(Unit::Rows, entry), &buffers, &params, grid);
    }
}

pub(crate) fn gates(
    device: &Device,
    [b, a]: [&Rows; 2],
    bias: &Vector,
    amplitude: &Vector,
    rows: usize,
    out: &mut Rows,
) {
    let heads = bias.len;
    assert!(b.width == heads && a.width == heads && out.width == 2 * heads, "{b:?} to {out:?}");
    assert_eq!(amplitude.len, heads, "amplitudes");
    for x in [b, a, &*out] {
        x.holds(rows);
    }
    let (grid, [count, across]) = each(rows * heads);
    let buffers = [
        (0, &out.buffer),
        (1, &b.buffer),
        (2, &a.buffer),
        (3, &bias.buffer),
        (4, &amplitude.buffer),
    ];
    if count > 0 {
        let params = [count, across, heads as u32, 0, 0, 0];
        device.launch(&Kernel::new(Unit::Rows, "gates"), &buffers, &params, grid);
    }
}
