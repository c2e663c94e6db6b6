//! Stored values become those that a layer program uses: the bytes of a matrix, from its pieces.

use std::ops::Range;
use std::sync::Arc;

use arith::format::{Format, Matrix, Mlx, read_block, read_float};

use crate::WeightsError;
use crate::family::Reading;
use crate::file::Source;
use crate::tensor::TensorInfo;

/// Bytes of codes, and room for their scales and biases, that are in memory beside the matrix.
const STEP_BYTES: usize = 1 << 20;

/// What a tensor is once it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub format: Format,
    pub rows: usize,
    pub cols: usize,
}

impl Shape {
    /// Of `tensor`; codes as f32 where `widened`.
    pub fn of(tensor: &TensorInfo, widened: bool) -> Self {
        let TensorInfo { format, rows, cols, .. } = *tensor;
        match (tensor.reading, format) {
            (Reading::Plain, Format::Mlx(_)) if widened => Self { format: Format::F32, rows, cols },
            (Reading::Plain, _) => Self { format, rows, cols },
            (Reading::Taps, _) => Self { format: Format::F32, rows: cols, cols: rows },
            _ => Self { format: Format::F32, rows, cols },
        }
    }

    pub fn bytes(self) -> usize {
        self.rows * (self.cols / self.format.unit_values()) * self.format.unit_bytes()
    }

    /// A matrix over `bytes`.
    pub fn over(self, bytes: &[u8]) -> Matrix<'_> {
        let Self { format, rows, cols } = self;
        Matrix { format, rows, cols, bytes }
    }
}

/// A part of a matrix: some of its rows, run by run, and of each the same values along K.
#[derive(Clone, Debug)]
pub(crate) struct Cut<'a> {
    pub rows: &'a [Range<usize>],
    /// Whole units.
    pub cols: Range<usize>,
}

impl Cut<'_> {
    /// Rows of all runs.
    pub fn count(&self) -> usize {
        self.rows.iter().map(ExactSizeIterator::len).sum()
    }

    /// Reads rows `rows`, of one of its runs, from a piece of `row_bytes` bytes a row of `all`
    /// values.
    fn read(
        &self,
        (source, at): (&Source, u64),
        (all, row_bytes): (usize, usize),
        rows: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), WeightsError> {
        let offset = |row: usize| at + (row * row_bytes) as u64;
        if self.cols == (0..all) {
            return source.read(offset(rows.start), out);
        }
        let [first, end] = [self.cols.start, self.cols.end].map(|col| col * row_bytes / all);
        for (row, out) in rows.zip(out.chunks_exact_mut(end - first)) {
            source.read(offset(row) + first as u64, out)?;
        }
        Ok(())
    }
}

/// Reads `tensor`, which has all its pieces in `files`, into `out`, as [`Shape::of`] has it.
pub(crate) fn fill(
    files: &[Arc<Source>],
    tensor: &TensorInfo,
    widened: bool,
    out: &mut [u8],
) -> Result<(), WeightsError> {
    if tensor.reading == Reading::Plain {
        let (whole, cols) = (0..tensor.rows, 0..tensor.cols);
        let cut = Cut { rows: std::slice::from_ref(&whole), cols };
        return fill_cut(files, tensor, widened, &cut, out);
    }
    let piece = &tensor.pieces[0];
    let source = &files[piece.file];
    // A vector or a convolution's taps: small.
    let mut stored = vec![0; piece.bytes];
    source.read(piece.at, &mut stored)?;
    let value = |at: usize| read_float(tensor.format, &stored, at);
    let (rows, cols) = (tensor.rows, tensor.cols);
    for (at, out) in out.chunks_exact_mut(4).enumerate() {
        let value: f32 = match tensor.reading {
            Reading::Plain => value(at),
            Reading::OnePlus => 1.0 + value(at),
            Reading::Exp => libm::exp(f64::from(value(at))) as f32,
            Reading::Negate => -value(at),
            Reading::Taps => value(at % rows * cols + at / rows),
        };
        out.copy_from_slice(&value.to_le_bytes());
    }
    Ok(())
}

/// Reads a part of `tensor`, whose values are read as they are stored, into `out`.
pub(crate) fn fill_cut(
    files: &[Arc<Source>],
    tensor: &TensorInfo,
    widened: bool,
    cut: &Cut<'_>,
    out: &mut [u8],
) -> Result<(), WeightsError> {
    if let Format::Mlx(mlx) = tensor.format {
        return units(files, tensor, (mlx, cut), STEP_BYTES, widened, out);
    }
    let piece = &tensor.pieces[0];
    let row = (tensor.cols, tensor.bytes / tensor.rows);
    let mut rest = out;
    for run in cut.rows {
        let (now, later) = rest.split_at_mut(run.len() * (row.1 * cut.cols.len() / row.0));
        cut.read((&files[piece.file], piece.at), row, run.clone(), now)?;
        rest = later;
    }
    Ok(())
}

/// Puts codes, scales and biases together to units, the rows of about `step_bytes` of codes at a
/// time.
fn units(
    files: &[Arc<Source>],
    tensor: &TensorInfo,
    (mlx, cut): (Mlx, &Cut<'_>),
    step_bytes: usize,
    widened: bool,
    out: &mut [u8],
) -> Result<(), WeightsError> {
    let format = Format::Mlx(mlx);
    let (group, scale_bytes) = (usize::from(mlx.group), mlx.scales.bytes());
    let (groups, code_bytes) = (cut.cols.len() / group, group * usize::from(mlx.bits) / 8);
    // Bytes of a group in each piece.
    let wide = [code_bytes, scale_bytes, scale_bytes];
    let step = (step_bytes / (groups * wide[0])).clamp(1, tensor.rows);
    let mut parts = wide.map(|bytes| vec![0; step * groups * bytes]);
    let mut unit = vec![0; format.unit_bytes()];
    let mut codes = vec![0; group];
    let out_bytes = if widened { 4 * group } else { unit.len() };
    let mut out = out.chunks_exact_mut(out_bytes);
    let steps = cut
        .rows
        .iter()
        .flat_map(|run| run.clone().step_by(step).map(|first| first..run.end.min(first + step)));
    for rows in steps {
        for ((piece, part), bytes) in tensor.pieces.iter().zip(&mut parts).zip(wide) {
            let part = &mut part[..rows.len() * groups * bytes];
            let row = (tensor.cols, tensor.cols / group * bytes);
            cut.read((&files[piece.file], piece.at), row, rows.clone(), part)?;
        }
        for (at, out) in out.by_ref().take(rows.len() * groups).enumerate() {
            let target = if widened { &mut unit[..] } else { &mut *out };
            let [codes_in, scales, biases] = &parts;
            let (scale, rest) = target.split_at_mut(scale_bytes);
            let (bias, packed) = rest.split_at_mut(scale_bytes);
            scale.copy_from_slice(&scales[at * scale_bytes..][..scale_bytes]);
            bias.copy_from_slice(&biases[at * scale_bytes..][..scale_bytes]);
            packed.copy_from_slice(&codes_in[at * code_bytes..][..code_bytes]);
            if widened {
                widen(format, &unit, &mut codes, out);
            }
        }
    }
    Ok(())
}

/// A unit's values in the two roundings of `code * scale + bias`.
fn widen(format: Format, unit: &[u8], codes: &mut [i16], out: &mut [u8]) {
    let affine = read_block(format, unit, 0, codes);
    for (&code, out) in codes.iter().zip(out.chunks_exact_mut(4)) {
        let product = f32::from(code) * affine.a;
        let value = product + affine.c.unwrap_or(0.0);
        out.copy_from_slice(&value.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{Dtype, Piece};

    #[test]
    fn units_are_the_same_however_many_rows_are_read_at_once() -> Result<(), WeightsError> {
        let (rows, cols, name) = (7, 256, format!("baton-reading-{}", std::process::id()));
        let path = std::env::temp_dir().join(name);
        let noise: Vec<u8> =
            (0..16_384_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::fs::write(&path, &noise)
            .map_err(|e| WeightsError::Io { path: path.clone(), source: e })?;
        let files = [Arc::new(Source::open(&path)?)];
        let _ = std::fs::remove_file(&path);
        for format in Format::mlx_all() {
            let Format::Mlx(mlx) = format else { continue };
            let mut tensor = TensorInfo::new("x", format, &[cols, rows])?;
            let groups = (rows * cols) as usize / usize::from(mlx.group);
            let scales = groups * mlx.scales.bytes();
            let codes = tensor.bytes - 2 * scales;
            let piece = |at: usize, bytes| {
                let (name, dims) = (String::new(), Vec::new());
                Piece { name, dtype: Dtype::Words, dims, file: 0, at: at as u64, bytes }
            };
            // Apart and in another order than they are put together.
            let places = [piece(9_000, codes), piece(5, scales), piece(4_500, scales)];
            tensor.pieces = places.to_vec();
            let read_cut = |step_bytes, cut: &Cut<'_>| {
                let share = cut.count() * cut.cols.len();
                let mut out = vec![0; tensor.bytes * share / (rows * cols) as usize];
                units(&files, &tensor, (mlx, cut), step_bytes, false, &mut out).map(|()| out)
            };
            let all = 0..rows as usize;
            let whole = Cut { rows: std::slice::from_ref(&all), cols: 0..cols as usize };
            let read = |step_bytes| read_cut(step_bytes, &whole);
            let mut expected: Vec<u8> = Vec::new();
            for unit in 0..groups {
                for piece in [&places[1], &places[2], &places[0]] {
                    let bytes = piece.bytes / groups;
                    expected.extend(&noise[piece.at as usize + unit * bytes..][..bytes]);
                }
            }
            for step_bytes in [1, 300, 1 << 20] {
                assert!(read(step_bytes)? == expected, "{format}, {step_bytes} bytes at once");
                let row = expected.len() / rows as usize;
                let runs = [1..2, 3..7];
                let half: Vec<u8> = runs
                    .iter()
                    .cloned()
                    .flatten()
                    .flat_map(|at| expected[at * row + row / 2..(at + 1) * row].to_vec())
                    .collect();
                let cut = Cut { rows: &runs, cols: 128..256 };
                assert!(read_cut(step_bytes, &cut)? == half, "{format}, a part");
            }
        }
        Ok(())
    }
}
