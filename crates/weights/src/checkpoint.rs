//! An open checkpoint: its config, and its tensors by name.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arith::format::Matrix;
use sha2::{Digest as _, Sha256};

use crate::file::Source;
use crate::gguf::{Header, Metadata, limits};
use crate::manifest::Manifest;
use crate::tensor::{self, TensorInfo};
use crate::{Config, Digest, WeightsError, family};

/// How much of a file is read for its header at first.
const HEADER_BYTES_FIRST: u64 = 1 << 20;
/// How much of a tensor is in memory at once while it is digested or copied.
const PIECE_BYTES: usize = 1 << 20;

/// A checkpoint: a model's tensors, of which this file may hold a part.
#[derive(Debug)]
pub struct Checkpoint {
    source: Arc<Source>,
    metadata: Metadata,
    config: Config,
    tensors: Vec<TensorInfo>,
    manifest: Option<Manifest>,
    /// Where the header's pairs lie in the file.
    pub(crate) pairs: Range<usize>,
    /// Bytes that tensors are aligned to.
    pub(crate) alignment: u64,
}

impl Checkpoint {
    /// Opens a GGUF file and checks everything but the values: config, tensor names, shapes,
    /// types and places. With a manifest of this file beside it, the manifest says what the model
    /// is and the file may hold a part.
    ///
    /// # Errors
    /// [`WeightsError::Io`] where the file or the manifest cannot be read, else
    /// [`WeightsError::InFile`] around the first thing that is wrong.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let source = Arc::new(Source::open(path)?);
        let manifest = Manifest::beside(path)?;
        Self::read_all(source, manifest).map_err(|source| source.in_file(path))
    }

    fn read_all(source: Arc<Source>, manifest: Option<Manifest>) -> Result<Self, WeightsError> {
        let header = read_header(&source)?;
        let held = tensor::place_all(&header, source.stamp().bytes)?;
        let tensors = match &manifest {
            Some(manifest) => manifest.whole(&held)?,
            None => held,
        };
        let config = family::config_from_gguf(&header.metadata, &tensors)?;
        let checked = family::check_tensors(&config, &tensors);
        checked.map_err(|error| match error {
            WeightsError::MissingTensor { .. } if manifest.is_none() => {
                WeightsError::NoManifest { source: Box::new(error) }
            }
            error => error,
        })?;
        Ok(Self {
            source,
            metadata: header.metadata,
            config,
            tensors,
            manifest,
            pairs: header.pairs,
            alignment: header.alignment,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        self.source.path()
    }

    /// The file, for those that outlive the checkpoint.
    pub(crate) fn source(&self) -> &Arc<Source> {
        &self.source
    }

    /// What the checkpoint says of its model.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// All metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Every tensor of the model, in name order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The manifest beside the file.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref()
    }

    /// Whether the model has a tensor `name`.
    pub fn has(&self, name: &str) -> bool {
        self.info(name).is_ok()
    }

    /// What and where tensor `name` is.
    ///
    /// # Errors
    /// [`WeightsError::NoTensor`].
    pub fn info(&self, name: &str) -> Result<&TensorInfo, WeightsError> {
        match self.tensors.binary_search_by(|t| t.name.as_str().cmp(name)) {
            Ok(at) => Ok(&self.tensors[at]),
            Err(_) => Err(WeightsError::NoTensor { name: name.to_owned() }),
        }
    }

    /// What tensor `name` is, and where in the file.
    fn held(&self, name: &str) -> Result<(&TensorInfo, u64), WeightsError> {
        let info = self.info(name)?;
        let offset = info.offset.ok_or_else(|| WeightsError::NotHeld {
            name: name.to_owned(),
            path: self.path().to_path_buf(),
        })?;
        Ok((info, offset))
    }

    /// Tensor `name` in its stored form, read into `buffer`, which grows where it must.
    ///
    /// # Errors
    /// [`WeightsError::NoTensor`]; [`WeightsError::NotHeld`] where the file was cut without it;
    /// [`WeightsError::Io`].
    pub fn read<'a>(
        &self,
        name: &str,
        buffer: &'a mut Vec<u8>,
    ) -> Result<Matrix<'a>, WeightsError> {
        let (info, offset) = self.held(name)?;
        if buffer.len() < info.bytes {
            // Exactly, and nothing of the old contents is moved.
            buffer.clear();
            buffer.reserve_exact(info.bytes);
            buffer.resize(info.bytes, 0);
        }
        let bytes = &mut buffer[..info.bytes];
        self.source.read(offset, bytes)?;
        Ok(Matrix { format: info.format, rows: info.rows, cols: info.cols, bytes })
    }

    /// Whether the file holds layers `range`, and the ends where `ends`.
    ///
    /// # Errors
    /// [`WeightsError::NotHeld`] with the first tensor that it does not.
    pub fn check_held(&self, range: Range<u32>, ends: bool) -> Result<(), WeightsError> {
        let mut part = self.part(range, ends);
        part.try_for_each(|tensor| self.held(&tensor.name).map(|_| ()))
    }

    /// The tensors of layers `range`, and of the ends where `ends`, in name order.
    pub fn part(&self, range: Range<u32>, ends: bool) -> impl Iterator<Item = &TensorInfo> {
        let within = move |layer: u32| range.contains(&layer);
        let tensors = self.tensors.iter();
        tensors.filter(move |t| t.layer().map_or(ends, &within))
    }

    /// Bytes of the tensors of layers `range`, and of the ends where `ends`.
    pub fn bytes_of(&self, range: Range<u32>, ends: bool) -> u64 {
        self.part(range, ends).map(|t| t.bytes as u64).sum()
    }

    /// SHA-256 of the stored bytes of tensor `name`.
    ///
    /// # Errors
    /// As [`Checkpoint::read`].
    pub fn digest(&self, name: &str) -> Result<Digest, WeightsError> {
        let (info, offset) = self.held(name)?;
        let mut sum = Sha256::new();
        pieces(&self.source, offset, info.bytes, |piece| {
            sum.update(piece);
            Ok::<_, WeightsError>(())
        })?;
        Ok(sum.finalize().into())
    }
}

/// Hands `bytes` bytes of a file from offset `at` on to `each`, piece by piece.
pub(crate) fn pieces<E: From<WeightsError>>(
    source: &Source,
    at: u64,
    bytes: usize,
    mut each: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut buffer = vec![0; bytes.min(PIECE_BYTES)];
    let mut done = 0;
    while done < bytes {
        let piece = &mut buffer[..(bytes - done).min(PIECE_BYTES)];
        source.read(at + done as u64, piece)?;
        each(piece)?;
        done += piece.len();
    }
    Ok(())
}

/// Reads and parses a file's header, whose size nobody says: more and more of the file.
fn read_header(source: &Source) -> Result<Header, WeightsError> {
    let most = source.stamp().bytes.min(limits::HEADER_BYTES_MAX) as usize;
    let mut bytes = vec![0; most.min(HEADER_BYTES_FIRST as usize)];
    let mut have = 0;
    loop {
        source.read(have as u64, &mut bytes[have..])?;
        have = bytes.len();
        match Header::parse(&bytes) {
            Err(WeightsError::Truncated { .. }) if have < most => {
                bytes.resize(most.min(4 * have), 0);
            }
            parsed => return parsed,
        }
    }
}
