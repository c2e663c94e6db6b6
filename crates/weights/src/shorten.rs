//! A GGUF file with its first layers alone: a whole model of fewer layers, not a part of one.

use std::path::Path;

use crate::requantise::Stored;
use crate::tensor::TensorInfo;
use crate::{Checkpoint, WeightsError, cut, file};

/// The type number of a u32 in GGUF.
const U32: u32 = 4;

/// Writes the first `layers` layers of a checkpoint and its ends to `to`, in one step, as a model
/// that has no more: all is as it is stored but for the count of layers.
///
/// # Errors
/// [`WeightsError::Range`]; [`WeightsError::NotHeld`] where the files were cut without a tensor;
/// [`WeightsError::KeyValue`] where the count stands otherwise; [`WeightsError::Io`].
///
/// # Panics
/// Where the checkpoint is no GGUF file.
pub fn shorten(checkpoint: &Checkpoint, layers: u32, to: &Path) -> Result<(), WeightsError> {
    let metadata = checkpoint.metadata();
    let metadata = metadata.unwrap_or_else(|| panic!("{} is no GGUF", checkpoint.path().display()));
    let all = checkpoint.config().layers();
    if layers == 0 || layers > all {
        return Err(WeightsError::Range { first: 0, end: layers, layers: all });
    }
    let architecture = metadata.str("general.architecture")?.unwrap_or_default();
    let key = format!("{architecture}.block_count");
    let mut writer = cut::pairs(checkpoint)?;
    writer.set_u32(&key, layers).ok_or_else(|| WeightsError::KeyValue {
        key: key.clone(),
        expected: "a u32".into(),
        found: "another type".into(),
    })?;
    let mut tensors: Vec<&TensorInfo> = checkpoint.part(0..layers, true).collect();
    tensors.sort_by_key(|tensor| tensor.offset());
    for tensor in tensors {
        let tensor = checkpoint.held(&tensor.name)?;
        let stored = Stored { source: checkpoint.files()[0].clone(), tensor: tensor.clone() };
        let (format, dims, bytes) = (tensor.format, &tensor.pieces[0].dims, tensor.bytes as u64);
        writer.tensor_from(&tensor.name, format, dims, bytes, move |out| stored.copy(out));
    }
    let io = |source| WeightsError::Io { path: to.to_path_buf(), source };
    file::replace(to, |out| writer.write_to(out)).map_err(io)
}

/// Where a u32's value stands in pairs as they are stored, `None` where it is of another type.
pub(crate) fn place_of_u32(pairs: &[u8], key: &str) -> Option<usize> {
    let start =
        [&(key.len() as u64).to_le_bytes()[..], key.as_bytes(), &U32.to_le_bytes()].concat();
    pairs.windows(start.len()).position(|bytes| bytes == start).map(|at| at + start.len())
}
