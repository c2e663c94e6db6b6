//! Tensors of a checkpoint onto a device.

use arith::format::Matrix;
use backend::Backend;
use weights::Checkpoint;

use crate::{Fault, StageError};

/// Loads tensors of one checkpoint, whose shapes were checked when it was opened. One at a time is
/// in memory as the file stores it, and beside one that is split, half of it again.
pub(super) struct Loader<'a, B> {
    backend: &'a B,
    checkpoint: &'a Checkpoint,
    fault: Option<Fault>,
    buffer: Vec<u8>,
}

impl<'a, B: Backend> Loader<'a, B> {
    pub(super) fn new(backend: &'a B, checkpoint: &'a Checkpoint, fault: Option<Fault>) -> Self {
        Self { backend, checkpoint, fault, buffer: Vec::new() }
    }

    pub(super) fn linear(&mut self, name: &str) -> Result<B::Linear, StageError> {
        let matrix = self.checkpoint.read(name, &mut self.buffer)?;
        Ok(self.backend.linear(&matrix)?)
    }

    pub(super) fn vector(&mut self, name: &str) -> Result<B::Vector, StageError> {
        let matrix = self.checkpoint.read(name, &mut self.buffer)?;
        if self.fault == Some(Fault::TwiceShifted) && name.ends_with("norm.weight") {
            return Ok(self.backend.vector(&shifted(&matrix, &mut Vec::new()))?);
        }
        Ok(self.backend.vector(&matrix)?)
    }

    /// A matrix whose rows are `dim` of one output, then `dim` of another, and so on, as two.
    pub(super) fn split(
        &mut self,
        name: &str,
        dim: usize,
    ) -> Result<(B::Linear, B::Linear), StageError> {
        let matrix = self.checkpoint.read(name, &mut self.buffer)?;
        let dim = match self.fault {
            Some(Fault::HalvedGate) => matrix.rows / 2,
            _ => dim,
        };
        let mut bytes = Vec::with_capacity(matrix.bytes.len() / 2);
        let mut half = |skipped: usize| {
            bytes.clear();
            let runs = matrix.bytes.chunks_exact(dim * matrix.row_bytes());
            runs.skip(skipped).step_by(2).for_each(|run| bytes.extend_from_slice(run));
            self.backend.linear(&Matrix { rows: matrix.rows / 2, bytes: &bytes, ..matrix })
        };
        Ok((half(0)?, half(1)?))
    }
}

/// `1 + w`, for [`Fault::TwiceShifted`].
fn shifted<'a>(matrix: &Matrix<'_>, bytes: &'a mut Vec<u8>) -> Matrix<'a> {
    use arith::format::{Format, read_float};
    let values = 0..matrix.rows * matrix.cols;
    let values = values.map(|i| 1.0 + read_float(matrix.format, matrix.bytes, i));
    bytes.extend(values.flat_map(f32::to_le_bytes));
    Matrix { format: Format::F32, rows: matrix.rows, cols: matrix.cols, bytes }
}
