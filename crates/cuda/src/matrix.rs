//! Weight matrices on the card, packed there from their stored form.

use std::sync::Arc;

use arith::base::SLICE_VALUES;
use arith::format::{Format, Matrix, Mlx, Scales};
use arith::linear::{GROUPS, Groups};
use backend::BackendError;

use crate::device::{Buffer, Device, Params};
use crate::rows::{Rows, Vector, blocks};

/// Stored bytes that are on the card at once while a matrix is packed.
const STAGED_BYTES: usize = 64 << 20;
/// Outputs of a tile.
pub(crate) const TILE_OUTPUTS: usize = 16;

/// A weight matrix on the card.
pub struct Linear {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    groups: Groups,
    pub(crate) store: Store,
}

/// How it lies there.
pub(crate) enum Store {
    /// kernels/layout.cu.
    Blocks { form: Form, codes: Buffer, scales: Buffer, units: Option<Buffer> },
    /// `[cols, rows padded to 32]`.
    Floats { format: Format, values: Buffer },
}

/// What a kernel must know of packed blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// A byte a code, or a nibble.
    pub(crate) bytes: bool,
    pub(crate) kind: Kind,
    /// log2 of a block's values.
    pub(crate) log: u32,
    /// What is added to a stored code.
    pub(crate) zero: i32,
    /// Whether it is a share of K.
    pub(crate) share: bool,
}

/// How scales and offsets lie; numbered as in kernels/layout.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    F32,
    F16,
    Bf16,
    K,
}

impl Form {
    fn of(format: Format, groups: &Groups) -> Self {
        let (bytes, kind, zero) = match format {
            Format::Q4_0 => (false, Kind::F16, -8),
            Format::Q4_1 => (false, Kind::F16, 0),
            Format::Q5_0 | Format::Q5_1 | Format::Q8_0 => (true, Kind::F16, 0),
            Format::Q4K => (false, Kind::K, 0),
            Format::Q5K => (true, Kind::K, 0),
            Format::Mlx(Mlx { bits, scales, .. }) => {
                let kind = match scales {
                    Scales::F16 => Kind::F16,
                    Scales::Bf16 => Kind::Bf16,
                    Scales::F32 => Kind::F32,
                };
                (bits > 4, kind, if bits == 8 { 128 } else { 0 })
            }
            Format::Q6K | Format::F32 | Format::F16 | Format::Bf16 => (true, Kind::F32, 0),
        };
        let log = format.block_values().ilog2();
        Self { bytes, kind, log, zero, share: groups.is_node() }
    }

    /// Bytes of codes, of scales and of K-quants' units for a padded matrix.
    fn bytes(self, tiles: u128, slices: u128) -> [u128; 3] {
        let outputs = tiles * TILE_OUTPUTS as u128;
        let codes = outputs * slices * SLICE_VALUES as u128 / if self.bytes { 1 } else { 2 };
        let blocks = outputs * (slices << (8 - self.log));
        match self.kind {
            Kind::F32 => [codes, blocks * 8, 0],
            Kind::F16 | Kind::Bf16 => [codes, blocks * 4, 0],
            Kind::K => [codes, blocks * 2, outputs * slices * 4],
        }
    }
}

/// `KGroups` of kernels/prelude.cu.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq)]
struct Starts {
    starts: [i32; GROUPS + 1],
    node: i32,
}

impl From<&Groups> for Starts {
    fn from(groups: &Groups) -> Self {
        let end = |group: usize| groups.slices(group.min(GROUPS - 1)).end as i32;
        let first = groups.first();
        let starts = std::array::from_fn(|i| i.checked_sub(1).map_or(0, |i| end(first + i)));
        Self { starts, node: groups.is_node().into() }
    }
}

/// `Matrix` of kernels/layout.cu.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) struct Packed {
    codes: u64,
    scales: u64,
    units: u64,
    pub(crate) out: u64,
    n: i32,
    k: i32,
    slices: i32,
    bytes: i32,
    kind: i32,
    block: i32,
    zero: i32,
    pub(crate) tile: i32,
    groups: Starts,
}

impl Packed {
    /// Outputs.
    pub(crate) fn outputs(&self) -> usize {
        self.n as usize
    }
}

/// `Floats` of kernels/pack.cu.
#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Floats {
    values: u64,
    pub(crate) out: u64,
    n: i32,
    padded: i32,
    k: i32,
    format: i32,
    groups: Starts,
}

impl Floats {
    /// Outputs.
    pub(crate) fn outputs(&self) -> usize {
        self.n as usize
    }
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct Stored {
    rows: u64,
    row_bytes: u64,
    format: i32,
    bits: i32,
    group: i32,
    scale_bytes: i32,
    count: i32,
    ntile: i32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct Pack {
    from: Stored,
    to: Packed,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct Transpose {
    from: Stored,
    to: Floats,
    first: i32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct Widen {
    from: u64,
    to: u64,
    count: i32,
    format: i32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct Noise {
    to: u64,
    words: u64,
    kept: u32,
    set: u32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct Embed<T> {
    table: T,
    ids: u64,
    out: u64,
    rows: i32,
}

// SAFETY: as kernels/pack.cu declares it.
unsafe impl Params for Pack {}
// SAFETY: as above.
unsafe impl Params for Transpose {}
// SAFETY: as above.
unsafe impl Params for Widen {}
// SAFETY: as above.
unsafe impl Params for Noise {}
// SAFETY: as above.
unsafe impl Params for Embed<Packed> {}
// SAFETY: as above.
unsafe impl Params for Embed<Floats> {}

/// The format's number in kernels/pack.cu.
fn number(format: Format) -> i32 {
    match format {
        Format::Q4_0 => 0,
        Format::Q4_1 => 1,
        Format::Q5_0 => 2,
        Format::Q5_1 => 3,
        Format::Q8_0 => 4,
        Format::Q4K => 5,
        Format::Q5K => 6,
        Format::Q6K => 7,
        Format::Mlx(_) => 8,
        Format::F32 => 9,
        Format::F16 => 10,
        Format::Bf16 => 11,
    }
}

impl Linear {
    /// Takes a stored matrix, of which K has `groups`, to the card, some rows at a time, and packs
    /// it there.
    pub(crate) fn new(
        device: &Arc<Device>,
        matrix: &Matrix<'_>,
        groups: Groups,
    ) -> Result<Self, BackendError> {
        check(matrix)?;
        assert_eq!(groups.count(), matrix.cols.div_ceil(SLICE_VALUES), "slices of the matrix");
        let linear = Self::empty(device, matrix.format, (matrix.rows, matrix.cols), groups)?;
        let row_bytes = matrix.row_bytes();
        let fitting = (STAGED_BYTES / row_bytes.max(1)).max(1);
        let at_once = (fitting / TILE_OUTPUTS * TILE_OUTPUTS).max(TILE_OUTPUTS).min(matrix.rows);
        let staged = Buffer::new(device, "rows to be packed", (at_once * row_bytes) as u128)?;
        for first in (0..matrix.rows).step_by(at_once.max(1)) {
            let count = at_once.min(matrix.rows - first);
            staged.upload(0, &matrix.bytes[first * row_bytes..][..count * row_bytes]);
            linear.pack(device, matrix.format, &staged, row_bytes, first, count);
        }
        device.wait();
        Ok(linear)
    }

    /// Room for a matrix; zeros.
    pub(crate) fn empty(
        device: &Arc<Device>,
        format: Format,
        (rows, cols): (usize, usize),
        groups: Groups,
    ) -> Result<Self, BackendError> {
        let what = format!("{format} matrix [{rows}, {cols}]");
        let store = if format.is_float() {
            let bytes = rows.next_multiple_of(32) as u128 * cols as u128;
            let bytes = bytes * format.unit_bytes() as u128;
            Store::Floats { format, values: Buffer::new(device, &what, bytes)? }
        } else {
            let form = Form::of(format, &groups);
            let (tiles, slices) = (rows.div_ceil(TILE_OUTPUTS), cols.div_ceil(SLICE_VALUES));
            let [codes, scales, units] = form.bytes(tiles as u128, slices as u128);
            let units = match units {
                0 => None,
                bytes => Some(Buffer::new(device, &what, bytes)?),
            };
            Store::Blocks {
                form,
                codes: Buffer::new(device, &what, codes)?,
                scales: Buffer::new(device, &what, scales)?,
                units,
            }
        };
        Ok(Self { rows, cols, groups, store })
    }

    /// Packs `count` staged rows as rows `first ..`.
    fn pack(
        &self,
        device: &Device,
        format: Format,
        staged: &Buffer,
        row_bytes: usize,
        first: usize,
        count: usize,
    ) {
        let (bits, group, scale_bytes) = match format {
            Format::Mlx(mlx) => (mlx.bits.into(), mlx.group.into(), mlx.scales.bytes() as i32),
            _ => (0, 32, 0),
        };
        let from = Stored {
            rows: staged.at(),
            row_bytes: row_bytes as u64,
            format: number(format),
            bits,
            group,
            scale_bytes,
            count: count as i32,
            ntile: (first / TILE_OUTPUTS) as i32,
        };
        match &self.store {
            Store::Floats { .. } => {
                let to = self.floats(0).expect("floats");
                let params = Transpose { from, to, first: first as i32 };
                device.launch("transpose", blocks(count * self.cols, 256), 256, &params);
            }
            Store::Blocks { form, .. } => {
                let to = self.packed(0).expect("blocks");
                let params = Pack { from, to };
                let (tiles, slices) = (count.div_ceil(TILE_OUTPUTS), to.slices as usize);
                let words = tiles * slices * 4 * if form.bytes { 256 } else { 128 };
                device.launch("pack_codes", blocks(words, 256), 256, &params);
                let scales = tiles * TILE_OUTPUTS * (slices << (8 - form.log));
                device.launch("pack_scales", blocks(scales, 256), 256, &params);
            }
        }
    }

    /// As kernels take packed blocks, writing to `out`.
    pub(crate) fn packed(&self, out: u64) -> Option<Packed> {
        let Store::Blocks { form, codes, scales, units } = &self.store else { return None };
        Some(Packed {
            codes: codes.at(),
            scales: scales.at(),
            units: units.as_ref().map_or(0, Buffer::at),
            out,
            n: self.rows as i32,
            k: self.cols as i32,
            slices: self.cols.div_ceil(SLICE_VALUES) as i32,
            bytes: form.bytes.into(),
            kind: form.kind as i32,
            block: form.log as i32,
            zero: form.zero,
            tile: 0,
            groups: (&self.groups).into(),
        })
    }

    /// As kernels take floats, writing to `out`.
    pub(crate) fn floats(&self, out: u64) -> Option<Floats> {
        let Store::Floats { format, values } = &self.store else { return None };
        Some(Floats {
            values: values.at(),
            out,
            n: self.rows as i32,
            padded: self.rows.next_multiple_of(32) as i32,
            k: self.cols as i32,
            format: number(*format),
            groups: (&self.groups).into(),
        })
    }

    /// Bytes on the card.
    pub fn bytes(&self) -> usize {
        match &self.store {
            Store::Floats { values, .. } => values.bytes(),
            Store::Blocks { codes, scales, units, .. } => {
                codes.bytes() + scales.bytes() + units.as_ref().map_or(0, Buffer::bytes)
            }
        }
    }

    /// Weights without meaning, of moderate size, for measurements.
    pub(crate) fn noise(
        device: &Arc<Device>,
        format: Format,
        (rows, cols): (usize, usize),
        groups: Groups,
    ) -> Result<Self, BackendError> {
        let linear = Self::empty(device, format, (rows, cols), groups)?;
        let fill = |buffer: &Buffer, kept: u32, set: u32| {
            let words = buffer.bytes() as u64 / 4;
            let params = Noise { to: buffer.at(), words, kept, set };
            device.launch("noise", blocks(words as usize, 256), 256, &params);
        };
        // Halves of 0.0625 and more; factors of up to 63.
        let (halves, digits) = (0x2c00_2c00, 0x007f_007f);
        match &linear.store {
            Store::Floats { values, .. } => fill(values, digits, halves),
            Store::Blocks { form, codes, scales, units } => {
                fill(codes, u32::MAX, 0);
                match form.kind {
                    Kind::F32 => fill(scales, 0x007f_ffff, 0x3c00_0000),
                    Kind::F16 => fill(scales, digits, halves),
                    Kind::Bf16 => fill(scales, digits, 0x3c00_3c00),
                    Kind::K => fill(scales, 0x3f3f_3f3f, 0),
                }
                units.iter().for_each(|units| fill(units, digits, 0x1400_1400));
            }
        }
        Ok(linear)
    }
}

/// Writes where no memory is.
pub(crate) fn write_nowhere(device: &Device) {
    let params = Noise { to: 64, words: 1, kept: 0, set: 1 };
    device.launch("noise", [1, 1, 1], 256, &params);
}

/// A row that is no multiple of a unit, or bytes that are not the matrix's.
fn check(matrix: &Matrix<'_>) -> Result<(), BackendError> {
    let unit = matrix.format.unit_values();
    let what = format!("{} matrix [{}, {}]", matrix.format, matrix.rows, matrix.cols);
    if !matrix.cols.is_multiple_of(unit) {
        let (expected, found) = (format!("a multiple of {unit}"), matrix.cols.to_string());
        return Err(BackendError::Shape { what: format!("K of {what}"), expected, found });
    }
    let bytes = matrix.rows * matrix.row_bytes();
    if matrix.bytes.len() != bytes {
        let (expected, found) = (bytes.to_string(), matrix.bytes.len().to_string());
        return Err(BackendError::Shape { what: format!("bytes of {what}"), expected, found });
    }
    Ok(())
}

/// Takes a vector of floats to the card.
pub(crate) fn vector(device: &Arc<Device>, matrix: &Matrix<'_>) -> Result<Vector, BackendError> {
    if !matrix.format.is_float() {
        return Err(BackendError::Shape {
            what: "vector of weights".to_owned(),
            expected: "floats".to_owned(),
            found: matrix.format.to_string(),
        });
    }
    check(matrix)?;
    let len = matrix.rows * matrix.cols;
    let buffer = Buffer::new(device, "vector of weights", len as u128 * 4)?;
    let staged = Buffer::new(device, "weights to be widened", matrix.bytes.len() as u128)?;
    staged.upload(0, matrix.bytes);
    let format = number(matrix.format);
    let params = Widen { from: staged.at(), to: buffer.at(), count: len as i32, format };
    device.launch("widen", blocks(len, 256), 256, &params);
    device.wait();
    Ok(Vector { buffer, len })
}

/// Rows of a table; `place` holds their ids on the card, grown as needed.
pub(crate) fn embed(
    device: &Arc<Device>,
    place: &mut Buffer,
    table: &Linear,
    ids: &[u32],
    out: &mut Rows,
) {
    for id in ids {
        assert!((*id as usize) < table.rows, "token {id} of {}", table.rows);
    }
    crate::put(device, place, "token ids", size_of_val(ids));
    place.upload(0, ids);
    let rows = ids.len();
    assert_eq!(out.width, table.cols, "rows of a table to {out:?}");
    out.holds(rows);
    let (ids, out, count) = (place.at(), out.at(), rows as i32);
    let grid = blocks(rows * table.cols, 256);
    if let Some(table) = table.packed(0) {
        device.launch("embed", grid, 256, &Embed { table, ids, out, rows: count });
    } else if let Some(table) = table.floats(0) {
        device.launch("embed_floats", grid, 256, &Embed { table, ids, out, rows: count });
    }
}
