//! Buffers of rows, and the ops on rows alone.

use std::fmt;
use std::sync::Arc;

use backend::{BackendError, Pairing, RopeRows};

use crate::device::{Buffer, Device, Params};
use crate::fuse::{self, Op};

/// Most rows that a kernel copies.
const COPIED_ROWS: usize = 32;

/// `[rows_max, width]` f32 on the card.
pub struct Rows {
    pub(crate) rows_max: usize,
    pub(crate) width: usize,
    pub(crate) buffer: Buffer,
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rows[{}, {}] on the card", self.rows_max, self.width)
    }
}

impl Rows {
    pub(crate) fn new(
        device: &Arc<Device>,
        rows_max: usize,
        width: usize,
    ) -> Result<Self, BackendError> {
        let bytes = rows_max as u128 * width as u128 * 4;
        let buffer = Buffer::shared(device, &format!("buffer of {rows_max} rows"), bytes)?;
        Ok(Self { rows_max, width, buffer })
    }

    pub(crate) fn at(&self) -> u64 {
        self.buffer.at()
    }

    /// Asserts that there are `rows` rows.
    pub(crate) fn holds(&self, rows: usize) {
        assert!(rows <= self.rows_max, "{rows} rows of {self:?}");
    }
}

/// A vector of weights on the card.
pub struct Vector {
    pub(crate) buffer: Buffer,
    pub(crate) len: usize,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Norm {
    pub(crate) x: u64,
    pub(crate) w: u64,
    pub(crate) out: u64,
    pub(crate) width: i32,
    pub(crate) eps: f32,
    pub(crate) inverse: f32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct HeadNorm {
    pub(crate) x: u64,
    pub(crate) w: u64,
    pub(crate) z: u64,
    pub(crate) heads: i32,
    pub(crate) dim: i32,
    pub(crate) eps: f32,
    pub(crate) inverse: f32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Pairs {
    pub(crate) x: u64,
    pub(crate) cos: u64,
    pub(crate) sin: u64,
    pub(crate) rows: i32,
    pub(crate) heads: i32,
    pub(crate) dim: i32,
    pub(crate) pairs: i32,
    pub(crate) adjacent: i32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Each {
    pub(crate) x: u64,
    pub(crate) y: u64,
    pub(crate) out: u64,
    pub(crate) values: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) struct Gates {
    pub(crate) b: u64,
    pub(crate) a: u64,
    pub(crate) bias: u64,
    pub(crate) amplitude: u64,
    pub(crate) out: u64,
    pub(crate) rows: i32,
    pub(crate) heads: i32,
}

// SAFETY: as kernels/rows.cu declares it.
unsafe impl Params for Norm {}
// SAFETY: as above.
unsafe impl Params for HeadNorm {}
// SAFETY: as above.
unsafe impl Params for Pairs {}
// SAFETY: as above.
unsafe impl Params for Each {}
// SAFETY: as above.
unsafe impl Params for Gates {}

/// Blocks of `threads` threads for `values` values.
pub(crate) fn blocks(values: usize, threads: usize) -> [u32; 3] {
    let blocks = u32::try_from(values.div_ceil(threads)).expect("a launch within the grid");
    [blocks, 1, 1]
}

/// Lets an op wait for what takes it, or launches it.
pub(crate) fn run(device: &Device, waits: bool, op: Op) {
    if waits {
        return device.defer(op);
    }
    device.flush();
    op.launch(device);
}

pub(crate) fn rms_norm(
    device: &Device,
    x: &Rows,
    w: &Vector,
    eps: f32,
    rows: usize,
    out: &mut Rows,
) {
    assert!(x.width == w.len && out.width == w.len, "norm of {} of {x:?} to {out:?}", w.len);
    x.holds(rows);
    out.holds(rows);
    let inverse = 1.0 / x.width as f32;
    let width = x.width as i32;
    let norm = Norm { x: x.at(), w: w.buffer.at(), out: out.at(), width, eps, inverse };
    let waits = fuse::row_waits(rows, x.width) && x.width <= fuse::NORM_WIDTH_MAX;
    run(device, waits, Op::Norm { norm, rows });
}

/// Norms every head in place, times silu of `z` where it is given.
pub(crate) fn head_norm(
    device: &Device,
    x: &mut Rows,
    w: &Vector,
    z: Option<&Rows>,
    eps: f32,
    rows: usize,
) {
    assert!(x.width.is_multiple_of(w.len), "heads of {} in {x:?}", w.len);
    x.holds(rows);
    if let Some(z) = z {
        assert_eq!(z.width, x.width, "{z:?} beside {x:?}");
        z.holds(rows);
    }
    let heads = rows * (x.width / w.len);
    let (dim, inverse) = (w.len as i32, 1.0 / w.len as f32);
    let z = z.map_or(0, Rows::at);
    let params =
        HeadNorm { x: x.at(), w: w.buffer.at(), z, heads: heads as i32, dim, eps, inverse };
    let width = x.width;
    match z {
        0 => run(device, rows <= fuse::ROWS_MAX, Op::HeadNorm { norm: params }),
        _ => run(
            device,
            fuse::gated_waits(&params, rows, width),
            Op::Gated { norm: params, rows, width },
        ),
    }
}

/// Cosines at the start of `table`, sines at its half.
pub(crate) fn rope(
    device: &Device,
    x: &mut Rows,
    heads: usize,
    dim: usize,
    pairing: Pairing,
    rope: &RopeRows,
    table: &Buffer,
) {
    let (rows, pairs) = (rope.rows(), rope.dims / 2);
    assert!(x.width == heads * dim && rope.dims <= dim, "{heads} heads of {dim} in {x:?}");
    x.holds(rows);
    let sin = table.at() + (table.bytes() / 2) as u64;
    let params = Pairs {
        x: x.at(),
        cos: table.at(),
        sin,
        rows: rows as i32,
        heads: heads as i32,
        dim: dim as i32,
        pairs: pairs as i32,
        adjacent: i32::from(pairing == Pairing::Adjacent),
    };
    run(device, rows <= fuse::ROWS_MAX, Op::Rope { pairs: params });
}

/// `add`, `silu_mul` or `gate` over the first `rows` rows.
pub(crate) fn each(
    device: &Device,
    kernel: &'static str,
    x: u64,
    y: &Rows,
    rows: usize,
    out: (u64, usize),
) {
    y.holds(rows);
    assert_eq!(out.1, y.width, "{kernel} of {y:?}");
    let (width, values) = (y.width, rows * y.width);
    if kernel == "add" && rows == 1 && fuse::added(device, x, y.at(), width) {
        return;
    }
    let each = Each { x, y: y.at(), out: out.0, values: values as u64 };
    let op = match kernel {
        "add" => Op::Add { each, rows, width },
        _ => Op::Mul { kernel, each, rows, width },
    };
    run(device, fuse::row_waits(rows, width), op);
}

/// `rows` rows of `from` from `first` on to `to` at `at`. A few are copied by a kernel, so that a
/// step of decode stays one stretch of launches.
pub(crate) fn copy(from: &Rows, first: usize, rows: usize, to: &mut Rows, at: usize) {
    assert_eq!(from.width, to.width, "{from:?} to {to:?}");
    from.holds(first + rows);
    to.holds(at + rows);
    let (width, device) = (from.width, from.buffer.device());
    if rows > COPIED_ROWS {
        let row = 4 * width;
        return to.buffer.copy_from(&from.buffer, first * row, at * row, rows * row);
    }
    let place = |rows: &Rows, row: usize| rows.at() + (4 * row * width) as u64;
    let values = (rows * width) as u64;
    let each = Each { x: place(from, first), y: 0, out: place(to, at), values };
    device.launch("copy", blocks(rows * width, 256), 256, &each);
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
    let params = Gates {
        b: b.at(),
        a: a.at(),
        bias: bias.buffer.at(),
        amplitude: amplitude.buffer.at(),
        out: out.at(),
        rows: rows as i32,
        heads: heads as i32,
    };
    run(device, rows <= fuse::ROWS_MAX, Op::Gates { gates: params });
}
