//! Packed weight matrices, made once at load.
//!
//! Outputs go in **panels** of eight, one a vector lane; the last panel is padded with zeros.
//!
//! Block formats: a panel is a run of records, one a block of 32 values along K:
//! - 4-bit codes, 128 bytes: four vectors of 16-bit lanes. Lane `2 j + p` of vector `v` holds, in
//!   nibble `t`, value `8 v + 2 t + p` of output `j`: a shift and a mask give the pairs that
//!   `vpmaddwd` wants. Q4_0 keeps its unsigned nibble; 8 times the block's sum is taken off the
//!   integer dot.
//! - 8-bit codes, 256 bytes: byte `16 s + 2 j + p` is value `2 s + p` of output `j`.
//! - then eight f16 scales and, where the format has them, eight f16 offsets.
//!
//! Float formats: `[k][8]` values of the stored width, flushed.

use arith::base::SLICE_VALUES;
use arith::float::{bf16_to_f32, f16_to_f32, flush};
use arith::format::{Format, Matrix, read_block, read_float};
use backend::BackendError;

use crate::memory::Buffer;
use crate::pool::Pool;

/// Outputs of a panel.
pub(crate) const LANES: usize = 8;
/// Values of a block along K, of every block format here.
pub(crate) const BLOCK: usize = 32;
/// Blocks of a slice.
pub(crate) const SLICE_BLOCKS: usize = SLICE_VALUES / BLOCK;
/// Bytes of eight f16 scales.
pub(crate) const SCALES_BYTES: usize = 2 * LANES;

/// A weight matrix in packed form.
pub struct Linear {
    pub(crate) format: Format,
    pub(crate) outputs: usize,
    pub(crate) cols: usize,
    pub(crate) panels: usize,
    pub(crate) panel_bytes: usize,
    buffer: Buffer,
}

/// Bytes of the codes of one record.
pub(crate) const fn codes_bytes(format: Format) -> usize {
    match format {
        Format::Q4_0 | Format::Q4_1 => BLOCK * LANES / 2,
        _ => BLOCK * LANES,
    }
}

/// Bytes of one record of a block format.
pub(crate) const fn record_bytes(format: Format) -> usize {
    let offsets = matches!(format, Format::Q4_1) as usize;
    codes_bytes(format) + SCALES_BYTES * (1 + offsets)
}

impl Linear {
    /// Packs `matrix`, its panels spread over the pool.
    pub(crate) fn pack(
        pool: &Pool,
        device: &str,
        matrix: &Matrix<'_>,
    ) -> Result<Self, BackendError> {
        let (format, cols) = (matrix.format, matrix.cols);
        let shape = |what: &str, expected: String, found: String| BackendError::Shape {
            what: format!("{format} matrix [{}, {cols}], {what}", matrix.rows),
            expected,
            found,
        };
        if matrix.rows == 0 || cols == 0 {
            return Err(shape("size", "at least 1 x 1".into(), "nothing".into()));
        }
        if !cols.is_multiple_of(format.unit_values()) {
            let expected = format!("a multiple of {}", format.unit_values());
            return Err(shape("values along K", expected, cols.to_string()));
        }
        let expected = matrix.rows as u128 * matrix.row_bytes() as u128;
        if matrix.bytes.len() as u128 != expected {
            return Err(shape("bytes", expected.to_string(), matrix.bytes.len().to_string()));
        }
        let panels = matrix.rows.div_ceil(LANES);
        let panel_bytes = if format.is_float() {
            cols * LANES * format.unit_bytes()
        } else {
            cols / BLOCK * record_bytes(format)
        };
        let what = format!("packed {format} weights [{}, {cols}]", matrix.rows);
        let run = |parts: usize, f: &(dyn Fn(usize) + Sync)| pool.run(parts, &|i| f(i));
        let fill = |panel: usize, bytes: &mut [u8]| {
            if format.is_float() {
                pack_floats(matrix, panel, bytes);
            } else {
                pack_blocks(matrix, panel, bytes);
            }
        };
        let buffer = Buffer::filled(device, &what, panel_bytes, panels, run, &fill)?;
        Ok(Self { format, outputs: matrix.rows, cols, panels, panel_bytes, buffer })
    }

    /// The bytes of panel `panel`.
    pub(crate) fn panel(&self, panel: usize) -> &[u8] {
        assert!(panel < self.panels);
        // SAFETY: `pack` filled `panels * panel_bytes` bytes, which live as long as `self`.
        unsafe {
            let start = self.buffer.start().add(panel * self.panel_bytes);
            std::slice::from_raw_parts(start, self.panel_bytes)
        }
    }

    /// Outputs of panel `panel` that aren't padding.
    pub(crate) fn lanes(&self, panel: usize) -> usize {
        (self.outputs - panel * LANES).min(LANES)
    }

    /// `out = row` of the matrix as [`arith::format::read_row`] has it, from the packed form.
    #[inline(always)]
    pub(crate) fn read_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.outputs && out.len() == self.cols);
        let (panel, lane) = (self.panel(row / LANES), row % LANES);
        if self.format.is_float() {
            for (k, out) in out.iter_mut().enumerate() {
                *out = float_at(self.format, panel, k, lane);
            }
            return;
        }
        let records = panel.chunks_exact(record_bytes(self.format));
        for (record, out) in records.zip(out.chunks_exact_mut(BLOCK)) {
            let (a, c) = affine(self.format, record, lane);
            let zero_point = if self.format == Format::Q4_0 { 8 } else { 0 };
            for (k, out) in out.iter_mut().enumerate() {
                let w = code(self.format, record, k, lane) - zero_point;
                *out = flush(f32::from(w).mul_add(a, c));
            }
        }
    }
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The stored code of value `k`, output `lane` (Q4_0: the unsigned nibble).
pub(crate) fn code(format: Format, record: &[u8], k: usize, lane: usize) -> i16 {
    let pair = 2 * lane + k % 2;
    if format == Format::Q8_0 {
        i16::from(record[16 * (k / 2) + pair] as i8)
    } else {
        let nibble = k % 8 / 2;
        let lanes = half(record, 32 * (k / 8) + 2 * pair);
        (lanes >> (4 * nibble) & 15) as i16
    }
}

/// Scale and offset (+0 where the format has none) of output `lane`.
pub(crate) fn affine(format: Format, record: &[u8], lane: usize) -> (f32, f32) {
    let at = codes_bytes(format) + 2 * lane;
    let a = f16_to_f32(half(record, at));
    let c = if format.has_offset() { f16_to_f32(half(record, at + SCALES_BYTES)) } else { 0.0 };
    (a, c)
}

/// Value `k` of output `lane` of a panel of floats.
pub(crate) fn float_at(format: Format, panel: &[u8], k: usize, lane: usize) -> f32 {
    let index = k * LANES + lane;
    match format {
        Format::F16 => f16_to_f32(half(panel, 2 * index)),
        Format::Bf16 => bf16_to_f32(half(panel, 2 * index)),
        _ => {
            let at = 4 * index;
            f32::from_le_bytes([panel[at], panel[at + 1], panel[at + 2], panel[at + 3]])
        }
    }
}

/// The f16 bits of a value that an f16 holds exactly.
fn exact_half(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let mantissa = (bits >> 13 & 0x3ff) as u16;
    match bits >> 23 & 255 {
        0 => 0,
        255 => sign | 0x7c00 | mantissa,
        // Subnormal there: 2^-24 a step.
        e @ 103..=112 => sign | ((bits & 0x7f_ffff | 0x80_0000) >> (126 - e)) as u16,
        e => sign | ((e - 112) as u16) << 10 | mantissa,
    }
}

fn pack_blocks(matrix: &Matrix<'_>, panel: usize, out: &mut [u8]) {
    let format = matrix.format;
    let stored = format.unit_bytes();
    let codes = codes_bytes(format);
    let rows = panel * LANES..matrix.rows.min((panel + 1) * LANES);
    let mut w = [0_i16; BLOCK];
    for (lane, row) in rows.enumerate() {
        let blocks = matrix.row(row).chunks_exact(stored);
        for (block, record) in blocks.zip(out.chunks_exact_mut(record_bytes(format))) {
            let affine = read_block(format, block, 0, &mut w);
            for (k, &w) in w.iter().enumerate() {
                let pair = 2 * lane + k % 2;
                if format == Format::Q8_0 {
                    record[16 * (k / 2) + pair] = w as i8 as u8;
                } else {
                    let nibble = if format == Format::Q4_0 { w + 8 } else { w } as u8;
                    let byte = 32 * (k / 8) + 2 * pair + k % 8 / 4;
                    record[byte] |= nibble << (4 * (k / 2 % 2));
                }
            }
            let mut put = |at: usize, x: f32| {
                record[at + 2 * lane..][..2].copy_from_slice(&exact_half(x).to_le_bytes());
            };
            put(codes, affine.a);
            if let Some(c) = affine.c {
                put(codes + SCALES_BYTES, c);
            }
        }
    }
}

fn pack_floats(matrix: &Matrix<'_>, panel: usize, out: &mut [u8]) {
    let format = matrix.format;
    let bytes = format.unit_bytes();
    let rows = panel * LANES..matrix.rows.min((panel + 1) * LANES);
    for (lane, row) in rows.enumerate() {
        let row = matrix.row(row);
        for k in 0..matrix.cols {
            let at = (k * LANES + lane) * bytes;
            // What flushes becomes zero bits; the rest keeps its own.
            if read_float(format, row, k) != 0.0 {
                out[at..at + bytes].copy_from_slice(&row[k * bytes..(k + 1) * bytes]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_scale_that_an_f16_holds_keeps_its_bits() {
        for half in 0..=u16::MAX {
            let wide = f16_to_f32(half);
            let subnormal = half & 0x7c00 == 0;
            assert_eq!(exact_half(wide), if subnormal { 0 } else { half }, "{half:#06x}");
        }
    }

    #[test]
    fn a_packed_matrix_holds_the_codes_of_its_blocks() {
        let pool = Pool::new(2).unwrap();
        for format in [Format::Q4_0, Format::Q4_1, Format::Q8_0] {
            let (rows, cols) = (11, 96);
            let n = rows * cols / BLOCK * format.unit_bytes();
            let bytes: Vec<u8> = (0..n).map(|i| (i * i / 7) as u8 & 0x3f).collect();
            let matrix = Matrix { format, rows, cols, bytes: &bytes };
            let packed = Linear::pack(&pool, "cpu", &matrix).unwrap();
            let zero_point = if format == Format::Q4_0 { 8 } else { 0 };
            let mut w = [0; BLOCK];
            for row in 0..16 {
                let records = packed.panel(row / LANES).chunks_exact(record_bytes(format));
                for (b, record) in records.enumerate() {
                    let lane = row % LANES;
                    let codes = (0..BLOCK).map(|k| code(format, record, k, lane));
                    if row >= rows {
                        assert_eq!(affine(format, record, lane), (0.0, 0.0));
                        assert!(codes.into_iter().all(|code| code == 0));
                        continue;
                    }
                    let stored = &matrix.row(row)[b * format.unit_bytes()..];
                    let block = read_block(format, stored, 0, &mut w);
                    assert!(codes.eq(w.iter().map(|w| w + zero_point)));
                    let (a, c) = affine(format, record, lane);
                    assert_eq!((a, c), (block.a, block.c.unwrap_or(0.0)));
                }
            }
        }
    }
}
