//! Stored values become those that a layer program uses: the bytes of a matrix, from its pieces.

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

/// Reads `tensor`, which has all its pieces in `files`, into `out`, as [`Shape::of`] has it.
pub(crate) fn fill(
    files: &[Arc<Source>],
    tensor: &TensorInfo,
    widened: bool,
    out: &mut [u8],
) -> Result<(), WeightsError> {
    if let Format::Mlx(mlx) = tensor.format {
        return units(files, tensor, mlx, STEP_BYTES, widened, out);
    }
    let piece = &tensor.pieces[0];
    let source = &files[piece.file];
    if tensor.reading == Reading::Plain {
        return source.read(piece.at, out);
    }
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

/// Puts codes, scales and biases together to units, the rows of about `step_bytes` of codes at a
/// time.
fn units(
    files: &[Arc<Source>],
    tensor: &TensorInfo,
    mlx: Mlx,
    step_bytes: usize,
    widened: bool,
    out: &mut [u8],
) -> Result<(), WeightsError> {
    let format = Format::Mlx(mlx);
    let (group, scale_bytes) = (usize::from(mlx.group), mlx.scales.bytes());
    let (groups, code_bytes) = (tensor.cols / group, group * usize::from(mlx.bits) / 8);
    // Bytes a row of each piece.
    let wide = [groups * code_bytes, groups * scale_bytes, groups * scale_bytes];
    let step = (step_bytes / wide[0]).clamp(1, tensor.rows);
    let mut parts = wide.map(|bytes| vec![0; step * bytes]);
    let mut unit = vec![0; format.unit_bytes()];
    let mut codes = vec![0; group];
    let out_bytes = if widened { 4 * group } else { unit.len() };
    let mut out = out.chunks_exact_mut(out_bytes);
    for first in (0..tensor.rows).step_by(step) {
        let rows = step.min(tensor.rows - first);
        for ((piece, part), bytes) in tensor.pieces.iter().zip(&mut parts).zip(wide) {
            let at = piece.at + (first * bytes) as u64;
            files[piece.file].read(at, &mut part[..rows * bytes])?;
        }
        for (at, out) in out.by_ref().take(rows * groups).enumerate() {
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
            let read = |step_bytes| {
                let mut out = vec![0; tensor.bytes];
                units(&files, &tensor, mlx, step_bytes, false, &mut out).map(|()| out)
            };
            let mut expected: Vec<u8> = Vec::new();
            for unit in 0..groups {
                for piece in [&places[1], &places[2], &places[0]] {
                    let bytes = piece.bytes / groups;
                    expected.extend(&noise[piece.at as usize + unit * bytes..][..bytes]);
                }
            }
            for step_bytes in [1, 300, 1 << 20] {
                assert!(read(step_bytes)? == expected, "{format}, {step_bytes} bytes at once");
            }
        }
        Ok(())
    }
}
