//! Weight matrices on the device, packed on the host from their stored form (kernels/matrix.wgsl).

use std::sync::Arc;

use arith::float::{flush, flush_scale};
use arith::format::{Format, Matrix, Mlx, Scales, read_float};
use arith::linear::Groups;
use backend::BackendError;

use crate::buffer::Buffer;
use crate::built::Kernel;
use crate::device::Device;
use crate::forms::Unit;
use crate::rows::{Rows, Vector};

/// Outputs of a tile.
const TILE: usize = 16;
/// Values of a piece along K.
const PIECE: usize = 16;
/// Packed bytes that are on the host at once.
const STAGED_BYTES: usize = 8 << 20;

/// A weight matrix on the device, cut over its outputs where a binding is small.
pub struct Linear {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) groups: Groups,
    pub(crate) store: Store,
}

/// How it lies there.
pub(crate) enum Store {
    Blocks(Form, Vec<Part>),
    Floats(Format, Vec<FloatPart>),
}

/// Outputs `first ..` as many as there are.
pub(crate) struct Part {
    pub(crate) first: usize,
    pub(crate) outputs: usize,
    pub(crate) codes: Buffer,
    pub(crate) scales: Buffer,
}

pub(crate) struct FloatPart {
    pub(crate) first: usize,
    pub(crate) outputs: usize,
    pub(crate) values: Buffer,
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
    pub(crate) offsets: bool,
}

/// How scales and offsets lie; numbered as in kernels/matrix.wgsl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    F32,
    F16,
    Bf16,
    K,
    K6,
}

impl Form {
    fn of(format: Format) -> Self {
        let (bytes, kind, zero) = match format {
            Format::Q4_0 => (false, Kind::F16, -8),
            Format::Q4_1 => (false, Kind::F16, 0),
            Format::Q4K => (false, Kind::K, 0),
            Format::Q5K => (true, Kind::K, 0),
            Format::Q6K => (true, Kind::K6, 0),
            Format::Mlx(Mlx { bits, scales, .. }) => {
                let kind = match scales {
                    Scales::F16 => Kind::F16,
                    Scales::Bf16 => Kind::Bf16,
                    Scales::F32 => Kind::F32,
                };
                (bits > 4, kind, if bits == 8 { 128 } else { 0 })
            }
            _ => (true, Kind::F16, 0),
        };
        let log = format.block_values().ilog2();
        Self { bytes, kind, log, zero, offsets: format.has_offset() }
    }

    /// Words of codes of a tile; those of nibbles are of two pieces each.
    fn code_words(self, cols: usize) -> usize {
        TILE * 4 * if self.bytes { cols / PIECE } else { cols.div_ceil(2 * PIECE) }
    }

    /// Words of scales of a tile.
    fn scale_words(self, cols: usize) -> usize {
        let blocks = cols >> self.log;
        match self.kind {
            Kind::F32 => blocks * TILE * 2,
            Kind::F16 | Kind::Bf16 => blocks * TILE,
            Kind::K | Kind::K6 => cols / 256 * TILE * 5,
        }
    }
}

/// Words of a tile of floats.
fn float_words(format: Format, cols: usize) -> usize {
    TILE * if format == Format::F32 { cols } else { cols.div_ceil(2) }
}

fn float_kind(format: Format) -> u32 {
    match format {
        Format::F32 => 0,
        Format::F16 => 1,
        _ => 2,
    }
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

impl Linear {
    pub(crate) fn new(
        device: &Arc<Device>,
        matrix: &Matrix<'_>,
        groups: Groups,
    ) -> Result<Self, BackendError> {
        check(matrix)?;
        let (rows, cols, format) = (matrix.rows, matrix.cols, matrix.format);
        let store = if format.is_float() {
            let cuts = cuts(device, matrix, &[float_words(format, cols)])?;
            let parts = cuts.into_iter().map(|(first, outputs)| {
                let tile = |tile: usize, to: &mut [u32]| float_tile(matrix, tile, to);
                let words = float_words(format, cols);
                let values = packed(device, matrix, first, outputs, words, tile)?;
                Ok::<_, BackendError>(FloatPart { first, outputs, values })
            });
            Store::Floats(format, parts.collect::<Result<_, _>>()?)
        } else {
            let form = Form::of(format);
            let words = [form.code_words(cols), form.scale_words(cols)];
            let parts = cuts(device, matrix, &words)?.into_iter().map(|(first, outputs)| {
                let code = |tile: usize, to: &mut [u32]| code_tile(matrix, form, tile, to);
                let scale = |tile: usize, to: &mut [u32]| scale_tile(matrix, form, tile, to);
                Ok::<_, BackendError>(Part {
                    first,
                    outputs,
                    codes: packed(device, matrix, first, outputs, words[0], code)?,
                    scales: packed(device, matrix, first, outputs, words[1], scale)?,
                })
            });
            Store::Blocks(form, parts.collect::<Result<_, _>>()?)
        };
        Ok(Self { rows, cols, groups, store })
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> usize {
        match &self.store {
            Store::Floats(_, parts) => parts.iter().map(|part| part.values.bytes()).sum(),
            Store::Blocks(_, parts) => {
                parts.iter().map(|part| part.codes.bytes() + part.scales.bytes()).sum()
            }
        }
    }
}

/// First output and outputs of each part, so that none of its buffers is larger than a binding.
fn cuts(
    device: &Device,
    matrix: &Matrix<'_>,
    tile_words: &[usize],
) -> Result<Vec<(usize, usize)>, BackendError> {
    let tile_bytes = tile_words.iter().map(|words| words * 4).max().unwrap_or(0).max(1);
    let tiles = (device.binding_bytes() / tile_bytes as u64) as usize;
    if tiles == 0 {
        return Err(BackendError::Shape {
            what: format!("16 outputs of a {} matrix on gpu:{}", matrix.format, device.ordinal()),
            expected: format!("at most {} bytes in one buffer", device.binding_bytes()),
            found: tile_bytes.to_string(),
        });
    }
    let step = tiles.saturating_mul(TILE).min(matrix.rows.max(1).next_multiple_of(TILE));
    let firsts = (0..matrix.rows).step_by(step);
    Ok(firsts.map(|first| (first, step.min(matrix.rows - first))).collect())
}

/// A buffer of the tiles of outputs `first ..`, made some megabytes at a time.
fn packed(
    device: &Arc<Device>,
    matrix: &Matrix<'_>,
    first: usize,
    outputs: usize,
    words: usize,
    tile: impl Fn(usize, &mut [u32]),
) -> Result<Buffer, BackendError> {
    let tiles = outputs.div_ceil(TILE);
    let what = format!("{} matrix [{outputs}, {}]", matrix.format, matrix.cols);
    let buffer = Buffer::new(device, &what, (tiles * words * 4) as u128)?;
    let at_once = (STAGED_BYTES / (4 * words).max(1)).max(1);
    let mut staged = Vec::new();
    for from in (0..tiles).step_by(at_once) {
        let count = at_once.min(tiles - from);
        staged.clear();
        staged.resize(count * words, 0);
        for (i, to) in staged.chunks_exact_mut(words.max(1)).enumerate() {
            tile(first / TILE + from + i, to);
        }
        buffer.upload(from * words * 4, &staged);
    }
    device.flush();
    Ok(buffer)
}

/// The rows of a tile that there are.
fn tile_rows<'a>(matrix: &'a Matrix<'a>, tile: usize) -> impl Iterator<Item = (usize, &'a [u8])> {
    let first = tile * TILE;
    (first..matrix.rows.min(first + TILE)).map(move |row| (row - first, matrix.row(row)))
}

fn code_tile(matrix: &Matrix<'_>, form: Form, tile: usize, to: &mut [u32]) {
    let width = 1 << form.log;
    let mut w = vec![0; width];
    for (output, row) in tile_rows(matrix, tile) {
        for block in 0..matrix.cols / width {
            matrix.read_block(row, block, &mut w);
            for (i, w) in w.chunks_exact(PIECE).enumerate() {
                let piece = block * (width / PIECE) + i;
                let code = |i: usize| (i32::from(w[i]) - form.zero) as u32 & 255;
                if form.bytes {
                    for word in 0..4 {
                        let bytes = (0..4).fold(0, |all, i| all | code(4 * word + i) << (8 * i));
                        to[4 * (piece * TILE + output) + word] = bytes;
                    }
                } else {
                    for word in 0..2 {
                        let byte = |i: usize| code(8 * word + i) | code(8 * word + 4 + i) << 4;
                        let bytes = (0..4).fold(0, |all, i| all | byte(i) << (8 * i));
                        let pair = 4 * (piece / 2 * TILE + output);
                        to[pair + 2 * (piece % 2) + word] = bytes;
                    }
                }
            }
        }
    }
}

fn half_at(unit: &[u8], at: usize) -> u32 {
    u32::from(u16::from_le_bytes([unit[at], unit[at + 1]]))
}

fn scale_tile(matrix: &Matrix<'_>, form: Form, tile: usize, to: &mut [u32]) {
    let (values, bytes) = (matrix.format.unit_values(), matrix.format.unit_bytes());
    for (output, row) in tile_rows(matrix, tile) {
        for index in 0..matrix.cols / values {
            let unit = &row[index * bytes..(index + 1) * bytes];
            let at = index * TILE + output;
            match form.kind {
                Kind::F32 => {
                    let mut w = vec![0; values];
                    let affine = matrix.read_block(row, index, &mut w);
                    to[2 * at] = affine.a.to_bits();
                    to[2 * at + 1] = affine.c.unwrap_or(0.0).to_bits();
                }
                Kind::F16 => {
                    let offset = if form.offsets { half_at(unit, 2) } else { 0 };
                    to[at] = half_at(unit, 0) | offset << 16;
                }
                Kind::Bf16 => {
                    let kept = |at: usize| {
                        flush_scale(f32::from_bits(half_at(unit, at) << 16)).to_bits() >> 16
                    };
                    to[at] = kept(0) | kept(2) << 16;
                }
                Kind::K => {
                    k_unit(unit, |word, bits| to[index * TILE * 5 + word * TILE + output] = bits)
                }
                Kind::K6 => {
                    let mut put =
                        |word: usize, bits| to[index * TILE * 5 + word * TILE + output] = bits;
                    put(0, half_at(unit, 208));
                    for (i, f) in unit[192..208].chunks_exact(4).enumerate() {
                        put(1 + i, u32::from_le_bytes([f[0], f[1], f[2], f[3]]));
                    }
                }
            }
        }
    }
}

/// Scale and minimum of a unit of Q4_K or Q5_K, then the factors of both a block, two blocks a
/// word.
fn k_unit(unit: &[u8], mut put: impl FnMut(usize, u32)) {
    put(0, half_at(unit, 0) | half_at(unit, 2) << 16);
    let f = &unit[4..16];
    let factors = |block: usize| -> u32 {
        let (scale, minimum) = if block < 4 {
            (f[block] & 63, f[block + 4] & 63)
        } else {
            let low = f[block + 4];
            (low & 15 | f[block - 4] >> 6 << 4, low >> 4 | f[block] >> 6 << 4)
        };
        u32::from(scale) | u32::from(minimum) << 8
    };
    for pair in 0..4 {
        put(1 + pair, factors(2 * pair) | factors(2 * pair + 1) << 16);
    }
}

fn float_tile(matrix: &Matrix<'_>, tile: usize, to: &mut [u32]) {
    for (output, row) in tile_rows(matrix, tile) {
        for i in 0..matrix.cols {
            match matrix.format {
                Format::F32 => {
                    to[i * TILE + output] = read_float(matrix.format, row, i).to_bits();
                }
                format => {
                    // As stored; a binary16 is never below what the flush takes.
                    let half = half_at(row, 2 * i);
                    let value = f32::from_bits(half << 16);
                    let gone = format == Format::Bf16 && flush(value) != value;
                    let half = if gone && !value.is_nan() { 0 } else { half };
                    to[i / 2 * TILE + output] |= half << (16 * (i % 2));
                }
            }
        }
    }
}

/// Takes a vector of floats to the device.
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
    let words: Vec<u32> =
        (0..len).map(|i| read_float(matrix.format, matrix.bytes, i).to_bits()).collect();
    let buffer = Buffer::new(device, "vector of weights", len as u128 * 4)?;
    buffer.upload(0, &words);
    Ok(Vector { buffer, len })
}

/// `ids` as they lie on the device.
pub(crate) fn embed(device: &Device, table: &Linear, ids: &Buffer, rows: usize, out: &mut Rows) {
    assert_eq!(out.width, table.cols, "rows of a table to {out:?}");
    out.holds(rows);
    let count = rows * table.cols;
    let (grid, across) = Device::spread(count.div_ceil(64));
    let params = |first: usize, outputs: usize| {
        vec![count as u32, across, table.cols as u32, first as u32, outputs as u32]
    };
    match &table.store {
        Store::Blocks(form, parts) => {
            let kernel = form.kernel(Unit::Embed, "embed");
            for part in parts {
                let mut params = params(part.first, part.outputs);
                params.push(form.zero as u32);
                let buffers = [(0, &out.buffer), (1, &part.codes), (2, &part.scales), (3, ids)];
                device.launch(&kernel, &buffers, &params, grid);
            }
        }
        Store::Floats(format, parts) => {
            let kernel = float_kernel(Unit::EmbedFloats, "embed_floats", *format);
            for part in parts {
                let buffers = [(0, &out.buffer), (1, &part.values), (2, ids)];
                device.launch(&kernel, &buffers, &params(part.first, part.outputs), grid);
            }
        }
    }
}

impl Form {
    /// A kernel over blocks of this form.
    pub(crate) fn kernel(self, unit: Unit, entry: &'static str) -> Kernel {
        let kernel = Kernel::new(unit, entry);
        let kernel = kernel.with("BYTES", self.bytes.into()).with("KIND", self.kind as u32);
        kernel.with("LOG", self.log)
    }
}

/// A kernel over floats.
pub(crate) fn float_kernel(unit: Unit, entry: &'static str, format: Format) -> Kernel {
    Kernel::new(unit, entry).with("KIND", float_kind(format))
}
