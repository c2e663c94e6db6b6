//! Tensors of a checkpoint onto a device.

use std::ops::Range;

use arith::base::SLICE_VALUES;
use arith::format::{Format, Matrix, read_row};
use arith::linear::Groups;
use backend::{Backend, BackendError};
use weights::Checkpoint;
use weights::quantise::quantise;

use crate::{Fault, StageError};

/// Loads tensors of one checkpoint, whose shapes were checked when it was opened. One at a time is
/// in memory as the file stores it, and beside one that is split, half of it again.
pub(super) struct Loader<'a, B> {
    backend: &'a B,
    checkpoint: &'a Checkpoint,
    fault: Option<Fault>,
    /// What matrices are put into on their way; as they are stored unless said.
    format: Option<Format>,
    buffer: Vec<u8>,
}

impl<'a, B: Backend> Loader<'a, B> {
    pub(super) fn new(backend: &'a B, checkpoint: &'a Checkpoint, fault: Option<Fault>) -> Self {
        Self { backend, checkpoint, fault, format: None, buffer: Vec::new() }
    }

    /// From now on matrices are stored in `format`.
    pub(super) fn set_format(&mut self, format: Option<Format>) {
        self.format = format;
    }

    pub(super) fn linear(&mut self, name: &str) -> Result<B::Linear, StageError> {
        let matrix = self.checkpoint.read(name, &mut self.buffer)?;
        Ok(put(self.backend, self.format, &matrix)?)
    }

    /// Some rows of a matrix, run by run.
    pub(super) fn rows(
        &mut self,
        name: &str,
        runs: &[Range<usize>],
    ) -> Result<B::Linear, StageError> {
        let (backend, format) = (self.backend, self.format);
        Ok(put(backend, format, &self.read_rows(name, runs)?)?)
    }

    /// The groups `groups` of a matrix of `cols` values along K.
    pub(super) fn groups(
        &mut self,
        name: &str,
        cols: usize,
        groups: Range<usize>,
    ) -> Result<B::Linear, StageError> {
        let rows = self.checkpoint.info(name)?.rows;
        let mut own = Groups::values(cols, groups.clone());
        if self.fault == Some(Fault::ShiftedShare) {
            let off =
                if own.end == cols { -(SLICE_VALUES as isize) } else { SLICE_VALUES as isize };
            own = own.start.wrapping_add_signed(off)..own.end.wrapping_add_signed(off);
        }
        let whole = 0..rows;
        let runs = std::slice::from_ref(&whole);
        let matrix = self.checkpoint.read_part(name, runs, own, &mut self.buffer)?;
        Ok(self.backend.linear_share(&matrix, Groups::share(cols, groups))?)
    }

    fn read_rows(&mut self, name: &str, runs: &[Range<usize>]) -> Result<Matrix<'_>, StageError> {
        let (rows, cols) = {
            let info = self.checkpoint.info(name)?;
            (info.rows, info.cols)
        };
        if is_all(runs, rows) {
            return Ok(self.checkpoint.read(name, &mut self.buffer)?);
        }
        Ok(self.checkpoint.read_part(name, runs, 0..cols, &mut self.buffer)?)
    }

    /// Some values of each row of a float matrix, run by run.
    pub(super) fn vector_part(
        &mut self,
        name: &str,
        runs: &[Range<usize>],
    ) -> Result<B::Vector, StageError> {
        let matrix = self.checkpoint.read(name, &mut self.buffer)?;
        if is_all(runs, matrix.cols) {
            return Ok(self.backend.vector(&matrix)?);
        }
        let width = matrix.format.unit_bytes();
        let rows = matrix.bytes.chunks_exact(matrix.row_bytes());
        let part = rows
            .flat_map(|row| runs.iter().flat_map(|run| &row[run.start * width..run.end * width]));
        let bytes: Vec<u8> = part.copied().collect();
        let cols = runs.iter().map(ExactSizeIterator::len).sum();
        Ok(self.backend.vector(&Matrix { cols, bytes: &bytes, ..matrix })?)
    }

    pub(super) fn vector(&mut self, name: &str) -> Result<B::Vector, StageError> {
        let matrix = self.checkpoint.read(name, &mut self.buffer)?;
        if self.fault == Some(Fault::TwiceShifted) && name.ends_with("norm.weight") {
            return Ok(self.backend.vector(&shifted(&matrix, &mut Vec::new()))?);
        }
        Ok(self.backend.vector(&matrix)?)
    }

    /// Some rows of a matrix, which are `dim` of one output, then `dim` of another, and so on, as
    /// two.
    pub(super) fn split(
        &mut self,
        name: &str,
        runs: &[Range<usize>],
        dim: usize,
    ) -> Result<(B::Linear, B::Linear), StageError> {
        let (backend, fault, format) = (self.backend, self.fault, self.format);
        let matrix = self.read_rows(name, runs)?;
        let dim = match fault {
            Some(Fault::HalvedGate) => matrix.rows / 2,
            _ => dim,
        };
        let mut bytes = Vec::with_capacity(matrix.bytes.len() / 2);
        let mut half = |skipped: usize| {
            bytes.clear();
            let runs = matrix.bytes.chunks_exact(dim * matrix.row_bytes());
            runs.skip(skipped).step_by(2).for_each(|run| bytes.extend_from_slice(run));
            put(backend, format, &Matrix { rows: matrix.rows / 2, bytes: &bytes, ..matrix })
        };
        Ok((half(0)?, half(1)?))
    }
}

/// A matrix on the device, in another format where one is given and its rows have whole units.
fn put<B: Backend>(
    backend: &B,
    format: Option<Format>,
    matrix: &Matrix<'_>,
) -> Result<B::Linear, BackendError> {
    let Some(format) = format.filter(|format| matrix.cols.is_multiple_of(format.unit_values()))
    else {
        return backend.linear(matrix);
    };
    let (mut values, mut bytes) = (vec![0.0; matrix.cols], Vec::new());
    for row in 0..matrix.rows {
        read_row(matrix, row, &mut values);
        bytes.extend(quantise(format, &values));
    }
    backend.linear(&Matrix { format, bytes: &bytes, ..*matrix })
}

/// Whether the runs are all of `0..all`.
fn is_all(runs: &[Range<usize>], all: usize) -> bool {
    matches!(runs, [run] if *run == (0..all))
}

/// `1 + w`, for [`Fault::TwiceShifted`].
fn shifted<'a>(matrix: &Matrix<'_>, bytes: &'a mut Vec<u8>) -> Matrix<'a> {
    use arith::format::read_float;
    let values = 0..matrix.rows * matrix.cols;
    let values = values.map(|i| 1.0 + read_float(matrix.format, matrix.bytes, i));
    bytes.extend(values.flat_map(f32::to_le_bytes));
    Matrix { format: Format::F32, rows: matrix.rows, cols: matrix.cols, bytes }
}
