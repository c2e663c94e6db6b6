//! An open checkpoint: its config, and its tensors by name.

use std::path::{Path, PathBuf};

use arith::format::{Format, Matrix};
use memmap2::Mmap;
use sha2::{Digest as _, Sha256};

use crate::gguf::{Header, Metadata, TensorEntry, types};
use crate::{Config, WeightsError, llama, mapping};

/// Where a tensor lies and what it is. A vector is a matrix of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// GGUF's name.
    pub name: String,
    /// Storage of the values.
    pub format: Format,
    /// Outputs.
    pub rows: usize,
    /// Values along K.
    pub cols: usize,
    /// Where the bytes start in the file.
    pub offset: usize,
    /// Bytes.
    pub bytes: usize,
}

/// A checkpoint, mapped: only what is asked for is read from the disk.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    mapping: Mmap,
    metadata: Metadata,
    config: Config,
    tensors: Vec<TensorInfo>,
}

impl Checkpoint {
    /// Opens a GGUF file and checks everything but the values: config, tensor names, shapes,
    /// types and places.
    ///
    /// # Errors
    /// [`WeightsError::Io`] where the file cannot be mapped, else [`WeightsError::InFile`] around
    /// the first thing that is wrong.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let mapping = mapping::map(path)?;
        let parts = read(&mapping).map_err(|source| WeightsError::InFile {
            path: path.to_path_buf(),
            source: Box::new(source),
        })?;
        let (metadata, config, tensors) = parts;
        Ok(Self {
            path: path.to_path_buf(),
            mapping,
            metadata,
            config,
            tensors,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the checkpoint says of its model.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// All metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Every tensor, in name order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Whether there is a tensor `name`.
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
            Err(_) => Err(WeightsError::NoTensor {
                name: name.to_owned(),
            }),
        }
    }

    /// Tensor `name` in its stored form.
    ///
    /// # Errors
    /// [`WeightsError::NoTensor`].
    pub fn matrix(&self, name: &str) -> Result<Matrix<'_>, WeightsError> {
        let info = self.info(name)?;
        Ok(Matrix {
            format: info.format,
            rows: info.rows,
            cols: info.cols,
            bytes: &self.mapping[info.offset..info.offset + info.bytes],
        })
    }

    /// The tensors of one layer, in name order.
    ///
    /// # Errors
    /// [`WeightsError::Layer`] where the model has no such layer.
    pub fn layer_names(&self, layer: u32) -> Result<Vec<&str>, WeightsError> {
        let layers = self.config.layers();
        if layer >= layers {
            return Err(WeightsError::Layer {
                found: layer,
                layers,
            });
        }
        let prefix = format!("blk.{layer}.");
        Ok(self.names(|name| name.starts_with(&prefix)))
    }

    /// The tensors of the ends (embedding, last norm, head), in name order.
    pub fn end_names(&self) -> Vec<&str> {
        self.names(|name| !name.starts_with("blk."))
    }

    fn names(&self, keep: impl Fn(&str) -> bool) -> Vec<&str> {
        self.tensors
            .iter()
            .map(|t| t.name.as_str())
            .filter(|name| keep(name))
            .collect()
    }

    /// Bytes of the tensors of layers `range.start..range.end`, and of the ends where `ends`.
    pub fn bytes_of(&self, range: std::ops::Range<u32>, ends: bool) -> u64 {
        let within = |name: &str| match layer_of(name) {
            Some(layer) => range.contains(&layer),
            None => ends,
        };
        self.tensors
            .iter()
            .filter(|t| within(&t.name))
            .map(|t| t.bytes as u64)
            .sum()
    }

    /// SHA-256 of the stored bytes of tensor `name`.
    ///
    /// # Errors
    /// [`WeightsError::NoTensor`].
    pub fn digest(&self, name: &str) -> Result<[u8; 32], WeightsError> {
        Ok(Sha256::digest(self.matrix(name)?.bytes).into())
    }

    /// The digest of a layer: SHA-256 over its tensors' digests in name order.
    ///
    /// # Errors
    /// [`WeightsError::Layer`] where the model has no such layer.
    pub fn layer_digest(&self, layer: u32) -> Result<[u8; 32], WeightsError> {
        self.digest_of(&self.layer_names(layer)?)
    }

    /// The digest of the ends: SHA-256 over their tensors' digests in name order.
    ///
    /// # Errors
    /// None in practice: the names are this checkpoint's own.
    pub fn end_digest(&self) -> Result<[u8; 32], WeightsError> {
        self.digest_of(&self.end_names())
    }

    fn digest_of(&self, names: &[&str]) -> Result<[u8; 32], WeightsError> {
        let mut sum = Sha256::new();
        for name in names {
            sum.update(self.digest(name)?);
        }
        Ok(sum.finalize().into())
    }
}

/// The layer that a tensor belongs to, by its name.
fn layer_of(name: &str) -> Option<u32> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// Reads and checks the whole header of a file.
fn read(file: &[u8]) -> Result<(Metadata, Config, Vec<TensorInfo>), WeightsError> {
    let header = Header::parse(file)?;
    llama::check_family(&header.metadata)?;
    let tensors = place_all(&header, file.len() as u64)?;
    let config = llama::config(&header.metadata, &tensors)?;
    llama::check_tensors(&config, &tensors)?;
    Ok((header.metadata, Config::Llama(config), tensors))
}

/// Places every tensor in the file, in name order; none outside, none over another.
fn place_all(header: &Header, file_bytes: u64) -> Result<Vec<TensorInfo>, WeightsError> {
    let mut tensors = header
        .tensors
        .iter()
        .map(|entry| place(entry, header.data_at, file_bytes))
        .collect::<Result<Vec<_>, _>>()?;
    tensors.sort_by_key(|t| t.offset);
    for pair in tensors.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            return Err(WeightsError::Overlap {
                first: pair[0].name.clone(),
                second: pair[1].name.clone(),
                at: pair[1].offset as u64,
            });
        }
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tensors)
}

fn place(entry: &TensorEntry, data_at: u64, file_bytes: u64) -> Result<TensorInfo, WeightsError> {
    let format = types::format(entry.kind).ok_or_else(|| WeightsError::UnsupportedType {
        name: entry.name.clone(),
        found: types::name(entry.kind),
        expected: types::READ,
    })?;
    let dims = |reason: &str| WeightsError::Dims {
        name: entry.name.clone(),
        dims: entry.dims.clone(),
        reason: reason.to_owned(),
    };
    let (block_values, block_bytes) = (format.block_values() as u64, format.block_bytes() as u64);
    let cols = entry.dims[0];
    if !cols.is_multiple_of(block_values) {
        return Err(dims(&format!(
            "expected a multiple of {block_values} for {}",
            format.name()
        )));
    }
    let overflow = || dims("their bytes do not fit 64 bits");
    let rows = entry.dims[1..]
        .iter()
        .try_fold(1u64, |rows, &dim| rows.checked_mul(dim))
        .ok_or_else(overflow)?;
    let bytes = (cols / block_values * block_bytes)
        .checked_mul(rows)
        .ok_or_else(overflow)?;
    let offset = data_at.checked_add(entry.offset);
    let end = offset.and_then(|offset| offset.checked_add(bytes));
    match (offset, end) {
        (Some(offset), Some(end)) if end <= file_bytes => Ok(TensorInfo {
            name: entry.name.clone(),
            format,
            rows: rows as usize,
            cols: cols as usize,
            offset: offset as usize,
            bytes: bytes as usize,
        }),
        _ => Err(WeightsError::Place {
            name: entry.name.clone(),
            at: entry.offset,
            bytes,
            reason: format!("end outside the file of {file_bytes} bytes (data at {data_at})"),
        }),
    }
}
