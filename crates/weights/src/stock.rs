//! A model on this machine as its units: what others may be given of it.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::catalog::{Catalog, HEAD_BYTES_MAX, Listed, Part, Piece, Run, Unit};
use crate::checkpoint::Container;
use crate::file::Source;
use crate::{Checkpoint, Digest, Digests, TensorInfo, WeightsError, catalog, folder, manifest};

/// A checkpoint's catalog and the files that its units are read from.
#[derive(Debug)]
pub struct Stock {
    catalog: Arc<Catalog>,
    /// Those with tensors.
    files: Vec<Arc<Source>>,
    /// The others.
    texts: Vec<PathBuf>,
    /// Units' numbers by address.
    numbers: HashMap<Digest, usize>,
}

impl Stock {
    /// Of a checkpoint: digests of tensors as [`Digests::of`] has them with `cache`, texts read.
    /// What lies in a store has its catalog already.
    ///
    /// # Errors
    /// [`WeightsError::NotHeld`] for a file that was cut; what reading it says, and limits.
    pub fn of(checkpoint: &Checkpoint, cache: Option<&Path>) -> Result<Self, WeightsError> {
        let files = checkpoint.files().to_vec();
        let texts = texts(checkpoint)?;
        if let Some(catalog) = checkpoint.catalog() {
            let named = catalog.files()[files.len()..].iter();
            let texts = named.map(|file| checkpoint.path().join(&file.name)).collect();
            return Ok(Self::new(catalog.clone(), files, texts));
        }
        let layers = checkpoint.config().layers();
        for tensor in checkpoint.tensors() {
            checkpoint.held(&tensor.name)?;
        }
        let names: Vec<&str> = checkpoint.tensors().iter().map(|t| t.name.as_str()).collect();
        let digests = Digests::of(checkpoint, &names, cache)?;
        let mut listed = Vec::new();
        for (at, file) in files.iter().enumerate() {
            let head = head(checkpoint, at, file)?;
            listed.push(Listed { name: name(file.path()), bytes: file.stamp().bytes, head });
        }
        for path in &texts {
            let io = |source| WeightsError::Io { path: path.clone(), source };
            let bytes = std::fs::metadata(path).map_err(io)?.len();
            listed.push(Listed { name: name(path), bytes, head: bytes });
        }
        let mut units = Vec::new();
        for (at, file) in listed.iter().enumerate() {
            let path = files.get(at).map_or_else(|| &*texts[at - files.len()], |f| f.path());
            units.push(text(at, file, path)?);
        }
        units.extend(tensors(checkpoint, &digests)?);
        let folder = checkpoint.folder().is_some();
        let catalog = Catalog::new(checkpoint.name(), folder, layers, listed, units)?;
        Ok(Self::new(Arc::new(catalog), files, texts))
    }

    fn new(catalog: Arc<Catalog>, files: Vec<Arc<Source>>, texts: Vec<PathBuf>) -> Self {
        let units = catalog.units().iter().enumerate();
        let numbers = units.map(|(at, unit)| (unit.digest(), at)).collect();
        Self { catalog, files, texts, numbers }
    }

    /// The model's units.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// The number of the unit of that address.
    pub fn find(&self, unit: &Digest) -> Option<usize> {
        self.numbers.get(unit).copied()
    }

    /// Whether all bytes of a unit are here.
    pub fn holds(&self, unit: usize) -> bool {
        let unit = &self.catalog.units()[unit];
        let mut runs = unit.pieces.iter().flat_map(|piece| &piece.runs);
        matches!(unit.part, Part::Text(_))
            || runs.all(|run| self.files[run.0 as usize].holds(run.1, run.2))
    }

    /// Fills `out` from byte `at` of unit number `unit`.
    ///
    /// # Errors
    /// [`WeightsError::Io`], also for bytes past its end.
    pub fn read(&self, unit: usize, mut at: u64, mut out: &mut [u8]) -> Result<(), WeightsError> {
        for run in self.catalog.units()[unit].pieces.iter().flat_map(|piece| &piece.runs) {
            if at >= run.2 {
                at -= run.2;
                continue;
            }
            let step = out.len().min((run.2 - at).min(usize::MAX as u64) as usize);
            let (now, rest) = out.split_at_mut(step);
            self.read_file(run.0 as usize, run.1 + at, now)?;
            (out, at) = (rest, 0);
            if out.is_empty() {
                return Ok(());
            }
        }
        let source = std::io::Error::other("bytes past the unit's end");
        Err(WeightsError::Io { path: self.files[0].path().to_path_buf(), source })
    }

    fn read_file(&self, file: usize, at: u64, out: &mut [u8]) -> Result<(), WeightsError> {
        if let Some(source) = self.files.get(file) {
            return source.read(at, out);
        }
        let path = &self.texts[file - self.files.len()];
        let read = File::open(path).and_then(|file| file.read_exact_at(out, at));
        read.map_err(|source| WeightsError::Io { path: path.clone(), source })
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// What a model's folder has beside the tensors: config, tokenizer, templates, index.
fn texts(checkpoint: &Checkpoint) -> Result<Vec<PathBuf>, WeightsError> {
    let Some(folder) = checkpoint.folder() else {
        return Ok(Vec::new());
    };
    let io = |source| WeightsError::Io { path: folder.to_path_buf(), source };
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let name = path.file_name().unwrap_or_default();
        let ours = [manifest::FILE, catalog::FILE].iter().any(|ours| name == *ours);
        let full = || std::fs::metadata(&path).is_ok_and(|info| info.is_file() && info.len() > 0);
        if folder::is_text(&path) && !ours && full() {
            texts.push(path);
        }
    }
    texts.sort();
    Ok(texts)
}

/// Bytes of file number `at` before its tensors.
fn head(checkpoint: &Checkpoint, at: usize, file: &Source) -> Result<u64, WeightsError> {
    if let Container::Folder { .. } = checkpoint.container() {
        let mut length = [0; 8];
        file.read(0, &mut length)?;
        return Ok(u64::from_le_bytes(length).saturating_add(8));
    }
    let pieces = checkpoint.tensors().iter().flat_map(|tensor| &tensor.pieces);
    let first = pieces.filter(|piece| piece.file == at).map(|piece| piece.at).min();
    Ok(first.unwrap_or(file.stamp().bytes))
}

/// The unit of a file's head.
fn text(at: usize, file: &Listed, path: &Path) -> Result<Unit, WeightsError> {
    let found = file.head;
    if found > HEAD_BYTES_MAX {
        let what = format!("the head of `{}`", file.name);
        return Err(WeightsError::Limit { what, limit: HEAD_BYTES_MAX, found });
    }
    let mut bytes = vec![0; found as usize];
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut bytes, 0));
    read.map_err(|source| WeightsError::Io { path: path.to_path_buf(), source })?;
    let piece = Piece {
        name: file.name.clone(),
        sha256: Sha256::digest(&bytes).into(),
        runs: vec![Run(at as u32, 0, file.head)],
    };
    Ok(Unit { part: Part::Text(at as u32), pieces: vec![piece] })
}

/// The units of tensors: the ends, then the layers.
fn tensors(checkpoint: &Checkpoint, digests: &Digests) -> Result<Vec<Unit>, WeightsError> {
    let part = |tensor: &TensorInfo| match tensor.layer() {
        None if tensor.name.starts_with("token_embd") => Part::Embedding,
        None => Part::Head,
        Some(layer) => Part::Layer(layer),
    };
    let order = |part: Part| match part {
        Part::Text(_) | Part::Embedding => 0,
        Part::Head => 1,
        Part::Layer(layer) => 2 + u64::from(layer),
    };
    // In name order within a unit, as ranks describe their layers.
    let mut tensors: Vec<&TensorInfo> = checkpoint.tensors().iter().collect();
    tensors.sort_by_key(|tensor| order(part(tensor)));
    let mut units: Vec<Unit> = Vec::new();
    for tensor in tensors {
        let no_tensor = || WeightsError::NoTensor { name: tensor.name.clone() };
        let runs = tensor.pieces.iter().map(|p| Run(p.file as u32, p.at, p.bytes as u64));
        let piece = Piece {
            name: tensor.name.clone(),
            sha256: digests.get(&tensor.name).ok_or_else(no_tensor)?,
            runs: runs.collect(),
        };
        match units.last_mut().filter(|unit| unit.part == part(tensor)) {
            Some(unit) => unit.pieces.push(piece),
            None => units.push(Unit { part: part(tensor), pieces: vec![piece] }),
        }
    }
    Ok(units)
}
