//! A model's whole list of tensors with their digests, for files that hold a part of it: JSON
//! beside the file, [`FILE`]. The config is in the file's own metadata or in `config.json`, which
//! a cut keeps.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use arith::format::UnknownFormat;
use serde::{Deserialize, Serialize};

use crate::catalog::{Catalog, Part};
use crate::family::Reading;
use crate::gguf::{limits, types};
use crate::tensor::TensorInfo;
use crate::{Checkpoint, Digest, Digests, WeightsError, digest, file, folder};

/// The manifest's name in a model's folder.
pub const FILE: &str = "baton.manifest.json";
/// What this code reads and writes.
const VERSION: u32 = 1;
/// Most bytes of a manifest: room for 65,536 tensors with long names.
const BYTES_MAX: u64 = 32 << 20;
/// Most characters of an error, which may repeat a value.
const REASON_CHARS_MAX: usize = 512;

/// Every tensor of a model and its SHA-256.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Name of the file that it lies beside; of a folder its config's.
    file: String,
    /// In name order, placed nowhere.
    tensors: Vec<TensorInfo>,
    digests: Digests,
}

/// As it is stored.
#[derive(Deserialize)]
struct Stored {
    version: u32,
    file: String,
    tensors: Vec<Entry>,
}

/// One tensor, one line.
#[derive(Deserialize, Serialize)]
struct Entry {
    name: String,
    dtype: String,
    /// Rows and columns.
    shape: [u64; 2],
    sha256: String,
}

fn bad(reason: String) -> WeightsError {
    WeightsError::Manifest { reason: cut(&reason) }
}

fn cut(text: &str) -> String {
    text.chars().take(REASON_CHARS_MAX).collect()
}

/// The manifest at `at`, if there is one.
fn read(at: &Path) -> Result<Option<Manifest>, WeightsError> {
    let io = |source| WeightsError::Io { path: at.to_path_buf(), source };
    let file = match File::open(at) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    let mut text = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut text).map_err(io)?;
    let manifest = Manifest::parse(&text).map_err(|error| error.in_file(at))?;
    Ok(Some(manifest))
}

/// A tensor without its place.
fn unplaced(tensor: &TensorInfo) -> TensorInfo {
    TensorInfo { pieces: Vec::new(), reading: Reading::Plain, ..tensor.clone() }
}

impl Manifest {
    /// Of a whole model, from its bytes; `cache` as [`Digests::of`] has it.
    ///
    /// # Errors
    /// [`WeightsError::NotHeld`] for a file that holds a part, and what reading it says.
    pub fn of(checkpoint: &Checkpoint, cache: Option<&Path>) -> Result<Self, WeightsError> {
        let names: Vec<&str> = checkpoint.tensors().iter().map(|t| t.name.as_str()).collect();
        let name = match checkpoint.folder() {
            Some(_) => folder::CONFIG.as_ref(),
            None => checkpoint.path().file_name().unwrap_or_default(),
        };
        Ok(Self {
            file: name.to_string_lossy().into_owned(),
            tensors: checkpoint.tensors().iter().map(unplaced).collect(),
            digests: Digests::of(checkpoint, &names, cache)?,
        })
    }

    /// Of a model in a store, whose files are named `tensors` in full and `catalog` digests.
    pub(crate) fn of_catalog(
        file: String,
        tensors: &[TensorInfo],
        catalog: &Catalog,
    ) -> Result<Self, WeightsError> {
        let mut digests = Digests::default();
        let units = catalog.units().iter().filter(|unit| !matches!(unit.part, Part::Text(_)));
        for piece in units.flat_map(|unit| &unit.pieces) {
            digests.insert(&piece.name, piece.sha256);
        }
        if let Some(tensor) = tensors.iter().find(|tensor| digests.get(&tensor.name).is_none()) {
            let reason = format!("tensor `{}` is of no unit", tensor.name);
            return Err(WeightsError::Catalog { reason });
        }
        Ok(Self { file, tensors: tensors.iter().map(unplaced).collect(), digests })
    }

    /// The one beside the file at `path`, if there is one and it speaks of that file.
    pub(crate) fn beside(path: &Path) -> Result<Option<Self>, WeightsError> {
        let manifest = read(&path.with_file_name(FILE))?;
        let name = path.file_name().unwrap_or_default();
        Ok(manifest.filter(|m| name.to_string_lossy() == m.file))
    }

    /// Parses what [`Manifest::to_json`] gives.
    ///
    /// # Errors
    /// [`WeightsError::Manifest`] and, by their own names, limits and dims.
    pub fn parse(text: &[u8]) -> Result<Self, WeightsError> {
        let limit = |what: &str, found: u64, limit: u64| match found > limit {
            true => Err(WeightsError::Limit { what: what.to_owned(), limit, found }),
            false => Ok(()),
        };
        limit("the manifest's size", text.len() as u64, BYTES_MAX)?;
        let stored: Stored = serde_json::from_slice(text).map_err(|e| bad(e.to_string()))?;
        if stored.version != VERSION {
            let found = stored.version;
            return Err(bad(format!("version: expected {VERSION}, found {found}")));
        }
        let count = stored.tensors.len() as u64;
        limit("the manifest's tensor count", count, limits::TENSORS_MAX)?;
        let mut tensors = Vec::with_capacity(stored.tensors.len());
        let mut digests = Digests::default();
        for entry in stored.tensors {
            let (tensor, digest) = entry.read()?;
            if !digests.insert(&tensor.name, digest) {
                return Err(WeightsError::Duplicate { what: "tensor", name: tensor.name });
            }
            tensors.push(tensor);
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { file: stored.file, tensors, digests })
    }

    /// As text, a line a tensor.
    pub fn to_json(&self) -> String {
        let name = serde_json::Value::from(self.file.as_str());
        let mut out = format!("{{\n\"version\": {VERSION},\n\"file\": {name},\n\"tensors\": [");
        for (at, tensor) in self.tensors.iter().enumerate() {
            let digest = self.digests.get(&tensor.name).unwrap_or_default();
            let entry = Entry {
                name: tensor.name.clone(),
                dtype: tensor.format.to_string(),
                shape: [tensor.rows as u64, tensor.cols as u64],
                sha256: digest::hex(&digest),
            };
            let comma = if at > 0 { "," } else { "" };
            let line = serde_json::to_value(entry).unwrap_or_default();
            let _ = write!(out, "{comma}\n{line}");
        }
        out + "\n]\n}\n"
    }

    /// Writes it into `folder`, in one step. One that lies there is replaced, unless it speaks of
    /// another file that is there too and may need it.
    ///
    /// # Errors
    /// [`WeightsError::Io`]; [`WeightsError::Manifest`] where one must stay.
    pub fn write(&self, folder: &Path) -> Result<PathBuf, WeightsError> {
        let at = folder.join(FILE);
        let there = read(&at).ok().flatten();
        if let Some(other) = there.filter(|m| m.file != self.file && folder.join(&m.file).exists())
        {
            let (ours, theirs) = (&self.file, other.file);
            let reason = format!(
                "it is that of `{theirs}`, expected `{ours}`: a model needs its own folder"
            );
            return Err(bad(reason).in_file(&at));
        }
        let written = file::replace(&at, |out| out.write_all(self.to_json().as_bytes()));
        written.map_err(|source| WeightsError::Io { path: at.clone(), source })?;
        Ok(at)
    }

    /// SHA-256 of every tensor.
    pub fn digests(&self) -> &Digests {
        &self.digests
    }

    /// The whole list, those of `held` placed where they are.
    pub(crate) fn whole(&self, held: Vec<TensorInfo>) -> Result<Vec<TensorInfo>, WeightsError> {
        let mut whole = self.tensors.clone();
        for tensor in held {
            let other = |expected: String| WeightsError::OtherManifest {
                name: tensor.name.clone(),
                expected,
                found: tensor.kind(),
            };
            let Ok(at) = whole.binary_search_by(|t| t.name.cmp(&tensor.name)) else {
                return Err(other("that there is none".to_owned()));
            };
            if whole[at].kind() != tensor.kind() {
                return Err(other(whole[at].kind()));
            }
            whole[at] = tensor;
        }
        Ok(whole)
    }
}

impl Entry {
    fn read(self) -> Result<(TensorInfo, Digest), WeightsError> {
        let name = &self.name;
        if name.len() as u64 > limits::NAME_BYTES_MAX {
            return Err(WeightsError::Limit {
                what: "a tensor name's size".to_owned(),
                limit: limits::NAME_BYTES_MAX,
                found: name.len() as u64,
            });
        }
        let [rows, cols] = self.shape;
        if [rows, cols].iter().any(|n| !(1..=limits::DIM_MAX).contains(n)) {
            let most = limits::DIM_MAX;
            let reason =
                format!("tensor `{name}`: shape: expected 1 to {most}, found [{rows}, {cols}]");
            return Err(bad(reason));
        }
        let format = self.dtype.parse().map_err(|UnknownFormat| WeightsError::UnsupportedType {
            name: name.clone(),
            found: cut(&self.dtype),
            expected: types::READ,
        })?;
        let digest = digest::parse_hex(&self.sha256).ok_or_else(|| {
            let found = &self.sha256;
            bad(format!("tensor `{name}`: sha256: expected 64 hexadecimal digits, found `{found}`"))
        })?;
        Ok((TensorInfo::new(name, format, &[cols, rows])?, digest))
    }
}
