//! A GGUF file with its layers in another format.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use arith::format::{Format, Matrix, read_row};

use crate::cut::pairs;
use crate::family::Reading;
use crate::file::Source;
use crate::quantise::quantise;
use crate::tensor::TensorInfo;
use crate::{Checkpoint, WeightsError, checkpoint, file};

/// Writes a checkpoint with the matrices of its layers stored in `format` to `to`, in one step:
/// each value is read and quantised again, by the nearest code. Metadata, ends, norms and what has
/// no whole units a row stay as they are stored.
///
/// # Errors
/// [`WeightsError::NotHeld`] where the files were cut without a tensor; [`WeightsError::Io`].
///
/// # Panics
/// Where the checkpoint is no GGUF file, or GGUF has no such format.
pub fn requantise(checkpoint: &Checkpoint, format: Format, to: &Path) -> Result<(), WeightsError> {
    assert!(checkpoint.metadata().is_some(), "{} is no GGUF", checkpoint.path().display());
    let mut writer = pairs(checkpoint)?;
    let names = checkpoint.tensors().iter().map(|tensor| checkpoint.held(&tensor.name));
    let mut tensors = names.collect::<Result<Vec<&TensorInfo>, _>>()?;
    tensors.sort_by_key(|tensor| tensor.offset());
    for tensor in tensors {
        let stored = Stored { source: checkpoint.files()[0].clone(), tensor: tensor.clone() };
        let (name, dims) = (&tensor.name, &tensor.pieces[0].dims);
        if stored.changes(format) {
            let bytes = (tensor.rows * tensor.cols / format.unit_values()) * format.unit_bytes();
            let fill = move |out: &mut dyn Write| stored.write_in(format, out);
            writer.tensor_from(name, format, dims, bytes as u64, fill);
        } else {
            let (kind, bytes) = (tensor.format, tensor.bytes as u64);
            writer.tensor_from(name, kind, dims, bytes, move |out| stored.copy(out));
        }
    }
    let io = |source| WeightsError::Io { path: to.to_path_buf(), source };
    file::replace(to, |out| writer.write_to(out)).map_err(io)
}

/// A tensor and the file that it lies in.
pub(crate) struct Stored {
    pub(crate) source: Arc<Source>,
    pub(crate) tensor: TensorInfo,
}

impl Stored {
    /// Whether it is a layer's matrix with whole units of `format` a row.
    fn changes(&self, format: Format) -> bool {
        let tensor = &self.tensor;
        let matrix = tensor.rows > 1 && tensor.reading == Reading::Plain;
        matrix && tensor.layer().is_some() && tensor.cols.is_multiple_of(format.unit_values())
    }

    /// Writes it as it is stored.
    pub(crate) fn copy(&self, out: &mut dyn Write) -> io::Result<()> {
        let piece = &self.tensor.pieces[0];
        checkpoint::pieces(&self.source, piece.at, piece.bytes, |bytes| out.write_all(bytes))
    }

    /// Writes it row by row in `format`.
    fn write_in(&self, format: Format, out: &mut dyn Write) -> io::Result<()> {
        let (piece, cols) = (&self.tensor.pieces[0], self.tensor.cols);
        let mut bytes = vec![0; self.tensor.bytes / self.tensor.rows];
        let mut values = vec![0.0; cols];
        for row in 0..self.tensor.rows {
            let at = piece.at + (row * bytes.len()) as u64;
            self.source.read(at, &mut bytes)?;
            let matrix = Matrix { format: self.tensor.format, rows: 1, cols, bytes: &bytes };
            read_row(&matrix, 0, &mut values);
            out.write_all(&quantise(format, &values))?;
        }
        Ok(())
    }
}
