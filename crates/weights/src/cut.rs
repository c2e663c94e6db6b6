//! Checkpoints that hold a layer range only, for machines that run no other.

use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::gguf::write::Writer;
use crate::manifest::Manifest;
use crate::tensor::TensorInfo;
use crate::{Checkpoint, Digest, WeightsError, checkpoint, file};

/// Writes layers `range` of a checkpoint into `folder`, with the ends where layer 0 is among them:
/// a GGUF file of the same name with all metadata, and `manifest`, by which every tensor is checked
/// on its way. Gives the file's path.
///
/// # Errors
/// [`WeightsError::Range`]; [`WeightsError::NotHeld`] where the checkpoint lacks a tensor of the
/// range itself; [`WeightsError::Io`], also where the folder holds a file of this name.
pub fn cut(
    checkpoint: &Checkpoint,
    manifest: &Manifest,
    range: Range<u32>,
    folder: &Path,
) -> Result<PathBuf, WeightsError> {
    let layers = checkpoint.config().layers();
    if range.is_empty() || range.end > layers {
        return Err(WeightsError::Range { first: range.start, end: range.end, layers });
    }
    let ends = range.start == 0;
    checkpoint.check_held(range.clone(), ends)?;
    let target = folder.join(checkpoint.path().file_name().unwrap_or_default());
    let io = |source| WeightsError::Io { path: target.clone(), source };
    std::fs::create_dir_all(folder).map_err(io)?;
    if target.exists() {
        return Err(io(io::ErrorKind::AlreadyExists.into()));
    }
    let mut tensors: Vec<&TensorInfo> = checkpoint.part(range, ends).collect();
    tensors.sort_by_key(|tensor| tensor.offset);
    let mut writer = pairs(checkpoint)?;
    for tensor in tensors {
        copy(&mut writer, checkpoint, tensor, manifest.digests().get(&tensor.name));
    }
    // The manifest first: a file that is there has its manifest.
    manifest.write(folder)?;
    file::replace(&target, |out| writer.write_to(out)).map_err(io)?;
    Ok(target)
}

/// A writer that starts with the checkpoint's metadata.
fn pairs(checkpoint: &Checkpoint) -> Result<Writer, WeightsError> {
    let mut pairs = vec![0; checkpoint.pairs.len()];
    checkpoint.source().read(checkpoint.pairs.start as u64, &mut pairs)?;
    let count = checkpoint.metadata().keys().count() as u64;
    Ok(Writer::with_pairs(pairs, count, checkpoint.alignment))
}

/// Announces `tensor`, whose bytes will be copied and held against `expected`.
fn copy(
    writer: &mut Writer,
    checkpoint: &Checkpoint,
    tensor: &TensorInfo,
    expected: Option<Digest>,
) {
    let source = Arc::clone(checkpoint.source());
    let (name, bytes) = (tensor.name.clone(), tensor.bytes);
    let at = tensor.offset.unwrap_or_default();
    let fill = move |out: &mut dyn Write| {
        let mut sum = Sha256::new();
        checkpoint::pieces(&source, at, bytes, |piece| {
            sum.update(piece);
            out.write_all(piece)
        })?;
        if expected == Some(sum.finalize().into()) {
            return Ok(());
        }
        let what = format!("tensor `{name}` has another SHA-256 than the manifest says");
        Err(io::Error::other(what))
    };
    let dims = [tensor.cols as u64, tensor.rows as u64];
    // A vector has one dim.
    let dims = if tensor.rows == 1 { &dims[..1] } else { &dims[..] };
    writer.tensor_from(&tensor.name, tensor.format, dims, bytes as u64, fill);
}
