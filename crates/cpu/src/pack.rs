//! Packed weight matrices, made once at load.
//!
//! Outputs go in **panels** of eight, one a vector lane; the last panel is padded with zeros.
//! Block formats: a panel is a run of records ([`Layout`]). Float formats: `[k][8]` values of the
//! stored width, flushed.

use arith::base::SLICE_VALUES;
use arith::float::{bf16_to_f32, f16_to_f32, flush};
use arith::format::{Format, Matrix, read_block, read_float};
use arith::linear::Groups;
use backend::BackendError;

use crate::arena::{Arena, Buffer};
use crate::layout::{BLOCK_MAX, Layout};
use crate::pool::Pool;
#[cfg(target_arch = "x86_64")]
use crate::vector_avx512::Steps;

/// Outputs of a panel.
pub(crate) const LANES: usize = 8;

/// What becomes of sums over K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Their row is spoilt.
    Spoilt,
    /// They are outputs, and flushed.
    Root,
    /// They are a node of the tree that other shares of K belong to.
    Node,
}

/// A weight matrix in packed form.
pub struct Linear {
    pub(crate) format: Format,
    pub(crate) outputs: usize,
    pub(crate) cols: usize,
    /// Where K's groups begin; of a share, those of others are empty.
    pub(crate) groups: Groups,
    pub(crate) panels: usize,
    pub(crate) panel_bytes: usize,
    /// The order in which K is summed.
    #[cfg(target_arch = "x86_64")]
    pub(crate) steps: Steps,
    buffer: Buffer,
}

impl Linear {
    /// Packs `matrix`, which holds the groups `groups` of K, its panels spread over the pool.
    pub(crate) fn pack(
        (pool, arena): (&Pool, &Arena),
        device: &str,
        matrix: &Matrix<'_>,
        groups: Groups,
    ) -> Result<Self, BackendError> {
        assert_eq!(groups.count(), matrix.cols.div_ceil(SLICE_VALUES), "slices of the matrix");
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
            cols / format.unit_values() * Layout::of(format).record_bytes()
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
        let buffer = Buffer::filled(arena, (device, &what), (panel_bytes, panels), run, &fill)?;
        Ok(Self {
            format,
            outputs: matrix.rows,
            cols,
            #[cfg(target_arch = "x86_64")]
            steps: Steps::of(&groups),
            groups,
            panels,
            panel_bytes,
            buffer,
        })
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

    /// What becomes of the sums of a row.
    #[inline]
    pub(crate) fn end(&self, spoilt: bool) -> End {
        match (spoilt, self.groups.is_node()) {
            (true, _) => End::Spoilt,
            (false, true) => End::Node,
            (false, false) => End::Root,
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
        let layout = self.layout();
        let places = layout.places();
        let records = panel.chunks_exact(layout.record_bytes());
        for (record, out) in records.zip(out.chunks_exact_mut(layout.unit_values())) {
            for (block, out) in out.chunks_exact_mut(layout.block).enumerate() {
                let (a, c) = layout.affine(record, block, lane);
                let codes = &record[block * layout.block_bytes()..][..layout.codes_bytes()];
                for (k, out) in out.iter_mut().enumerate() {
                    let w = places.get(codes, k, lane) - layout.zero;
                    *out = flush(f32::from(w).mul_add(a, c));
                }
            }
        }
    }

    /// How the records of a block format lie.
    #[inline]
    pub(crate) fn layout(&self) -> Layout {
        Layout::of(self.format)
    }
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
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

/// The f16 scale and minimum of a stored unit, in formats whose blocks have factors.
fn heads(format: Format, unit: &[u8]) -> [u16; 2] {
    match format {
        Format::Q4K | Format::Q5K => [half(unit, 0), half(unit, 2)],
        Format::Q6K => [half(unit, 208), 0],
        _ => [0, 0],
    }
}

fn pack_blocks(matrix: &Matrix<'_>, panel: usize, out: &mut [u8]) {
    let (format, layout) = (matrix.format, Layout::of(matrix.format));
    let places = layout.places();
    let rows = panel * LANES..matrix.rows.min((panel + 1) * LANES);
    let mut w = [0_i16; BLOCK_MAX];
    for (lane, row) in rows.enumerate() {
        let units = matrix.row(row).chunks_exact(format.unit_bytes());
        for (unit, record) in units.zip(out.chunks_exact_mut(layout.record_bytes())) {
            let heads = heads(format, unit);
            for block in 0..layout.blocks {
                let w = &mut w[..layout.block];
                let affine = read_block(format, unit, block, w);
                let codes = &mut record[block * layout.block_bytes()..][..layout.codes_bytes()];
                for (k, &w) in w.iter().enumerate() {
                    places.put(codes, k, lane, (w + layout.zero) as u8);
                }
                layout.put_scale(record, (block, 0, lane), affine.a, heads[0]);
                if let Some(c) = affine.c {
                    layout.put_scale(record, (block, 1, lane), c, heads[1]);
                }
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
    fn a_packed_matrix_holds_the_codes_of_its_blocks() {
        let (pool, arena) = (Pool::new(2).unwrap(), Arena::default());
        for format in Format::plain_all().chain(Format::mlx_all()).filter(|f| !f.is_float()) {
            let layout = Layout::of(format);
            let places = layout.places();
            let (rows, cols) = (11, 2 * format.unit_values());
            let n = rows * 2 * format.unit_bytes();
            let bytes: Vec<u8> = (0..n).map(|i| (i * i / 7) as u8 & 0x3f).collect();
            let matrix = Matrix { format, rows, cols, bytes: &bytes };
            let packed = Linear::pack((&pool, &arena), "cpu", &matrix, Groups::of(cols)).unwrap();
            let mut w = vec![0; layout.block];
            for (row, b) in (0..16).flat_map(|row| (0..2 * layout.blocks).map(move |b| (row, b))) {
                let record =
                    &packed.panel(row / LANES)[b / layout.blocks * layout.record_bytes()..];
                let (b_unit, lane) = (b % layout.blocks, row % LANES);
                let codes = &record[b_unit * layout.block_bytes()..][..layout.codes_bytes()];
                let codes = (0..layout.block).map(|k| places.get(codes, k, lane));
                let affine = layout.affine(record, b_unit, lane);
                if row >= rows {
                    assert_eq!(affine, (0.0, 0.0));
                    assert!(codes.into_iter().all(|code| code == 0));
                    continue;
                }
                let block = matrix.read_block(matrix.row(row), b, &mut w);
                assert!(codes.eq(w.iter().map(|w| w + layout.zero)), "{format}");
                assert_eq!(affine, (block.a, block.c.unwrap_or(0.0)), "{format}");
            }
        }
    }
}
