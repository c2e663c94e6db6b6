//! Checkpoints that hold a layer range only, for machines that run no other.

use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest as _, Sha256};

use crate::checkpoint::Container;
use crate::family::Form;
use crate::file::Source;
use crate::gguf::write::Writer;
use crate::manifest::Manifest;
use crate::tensor::TensorInfo;
use crate::{
    Checkpoint, Digest, WeightsError, catalog, checkpoint, file, folder, manifest, safetensors,
};

/// Most bytes of a file that is copied beside the tensors.
const TEXT_BYTES_MAX: u64 = 256 << 20;

/// Writes layers `range` of a checkpoint into `folder`, with the ends where layer 0 is among them
/// (and with them a draft head), and `manifest`, by which every tensor is checked on its way. Of a
/// GGUF file a file of the same name with all metadata; of a folder its JSON and template files and
/// one `model.safetensors`. Gives the path of what [`Checkpoint::open`] opens.
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
    let beyond = checkpoint.beyond().filter(|_| ends);
    let tensors: Vec<&TensorInfo> = checkpoint.part(range, ends).chain(beyond).collect();
    tensors.iter().try_for_each(|tensor| checkpoint.held(&tensor.name).map(|_| ()))?;
    let digest = |tensor: &TensorInfo| manifest.digests().get(&tensor.name);
    let parts = tensors.into_iter().map(|tensor| Part {
        files: checkpoint.files().to_vec(),
        read: checkpoint.bytes_read().clone(),
        expected: digest(tensor),
        tensor: tensor.clone(),
    });
    let parts: Vec<Part> = parts.collect();
    match checkpoint.container() {
        Container::Gguf { .. } => gguf(checkpoint, manifest, parts, folder),
        Container::Folder { form } => {
            of_folder(checkpoint.path(), *form, manifest, parts, folder)?;
            Ok(folder.to_path_buf())
        }
    }
}

/// A tensor on its way, and its digest.
struct Part {
    files: Vec<Arc<Source>>,
    tensor: TensorInfo,
    expected: Option<Digest>,
    /// Counts what was copied.
    read: Arc<AtomicU64>,
}

impl Part {
    /// Copies its bytes, which must have the digest.
    fn copy(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut sum = Sha256::new();
        for piece in &self.tensor.pieces {
            checkpoint::pieces(&self.files[piece.file], piece.at, piece.bytes, |bytes| {
                sum.update(bytes);
                self.read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                out.write_all(bytes)
            })?;
        }
        if self.expected == Some(sum.finalize().into()) {
            return Ok(());
        }
        let name = &self.tensor.name;
        let what = format!("tensor `{name}` has another SHA-256 than the manifest says");
        Err(io::Error::other(what))
    }
}

/// A new file in `folder`, which is made where there is none.
fn target(folder: &Path, name: &Path) -> Result<PathBuf, WeightsError> {
    let target = folder.join(name);
    let io = |source| WeightsError::Io { path: target.clone(), source };
    std::fs::create_dir_all(folder).map_err(io)?;
    if target.exists() {
        return Err(io(io::ErrorKind::AlreadyExists.into()));
    }
    Ok(target)
}

fn gguf(
    checkpoint: &Checkpoint,
    manifest: &Manifest,
    mut parts: Vec<Part>,
    folder: &Path,
) -> Result<PathBuf, WeightsError> {
    let target = target(folder, checkpoint.path().file_name().unwrap_or_default().as_ref())?;
    parts.sort_by_key(|part| part.tensor.offset());
    let mut writer = pairs(checkpoint)?;
    for part in parts {
        let (name, format) = (part.tensor.name.clone(), part.tensor.format);
        let (dims, bytes) = (part.tensor.pieces[0].dims.clone(), part.tensor.bytes as u64);
        writer.tensor_from(&name, format, &dims, bytes, move |out| part.copy(out));
    }
    // The manifest first: a file that is there has its manifest.
    manifest.write(folder)?;
    let io = |source| WeightsError::Io { path: target.clone(), source };
    file::replace(&target, |out| writer.write_to(out)).map_err(io)?;
    Ok(target)
}

/// A writer that starts with the checkpoint's metadata.
pub(crate) fn pairs(checkpoint: &Checkpoint) -> Result<Writer, WeightsError> {
    let Container::Gguf { metadata, pairs, alignment } = checkpoint.container() else {
        return Ok(Writer::new());
    };
    let mut bytes = vec![0; pairs.len()];
    checkpoint.files()[0].read(pairs.start as u64, &mut bytes)?;
    Ok(Writer::with_pairs(bytes, metadata.keys().count() as u64, *alignment))
}

fn of_folder(
    source: &Path,
    form: Form,
    manifest: &Manifest,
    mut parts: Vec<Part>,
    folder: &Path,
) -> Result<(), WeightsError> {
    // Shards of another model would hide the new file.
    target(folder, folder::INDEX.as_ref())?;
    let target = target(folder, folder::SINGLE.as_ref())?;
    // Wide values first, so that all lie at multiples of their width.
    parts.sort_by_key(|part| part.tensor.pieces.first().map_or(0, |p| 8 - p.dtype.width()));
    // The manifest first and the tensors last: a file that is there has what it needs.
    manifest.write(folder)?;
    copy_texts(source, folder)?;
    let format = match form {
        Form::HuggingFace => "pt",
        Form::Mlx => "mlx",
    };
    let write = |out: &mut dyn Write| {
        let pieces = parts.iter().flat_map(|part| &part.tensor.pieces);
        safetensors::write_header(out, format, pieces)?;
        parts.iter().try_for_each(|part| part.copy(out))
    };
    file::replace(&target, write).map_err(|source| WeightsError::Io { path: target, source })
}

/// Copies what a model's folder has beside the tensors: config, tokenizer, templates.
fn copy_texts(source: &Path, folder: &Path) -> Result<(), WeightsError> {
    let io = |path: &Path, source| WeightsError::Io { path: path.to_path_buf(), source };
    for entry in std::fs::read_dir(source).map_err(|error| io(source, error))? {
        let from = entry.map_err(|error| io(source, error))?.path();
        let name = from.file_name().unwrap_or_default();
        let others = [folder::INDEX, manifest::FILE, catalog::FILE];
        let other = others.iter().any(|other| name == *other);
        if folder::is_text(&from) && !other && from.is_file() {
            // What an earlier attempt left is as good.
            let bytes = folder::read(&from, TEXT_BYTES_MAX)?.unwrap_or_default();
            if std::fs::read(folder.join(name)).ok().as_ref() != Some(&bytes) {
                let to = target(folder, name.as_ref())?;
                file::replace(&to, |out| out.write_all(&bytes)).map_err(|error| io(&to, error))?;
            }
        }
    }
    Ok(())
}
