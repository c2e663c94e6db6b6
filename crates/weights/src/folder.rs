//! A model's folder, as Hugging Face and MLX write it: `config.json` and `model.safetensors`, or
//! shards that `model.safetensors.index.json` names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use crate::family::{self, Form, Named, Reading};
use crate::file::Source;
use crate::mlx::{self, Quantisation};
use crate::safetensors::{self, Entry, Header};
use crate::tensor::{Dtype, Piece, TensorInfo};
use crate::{Config, WeightsError};

/// The config's name.
pub(crate) const CONFIG: &str = "config.json";
/// The tensors' name where one file holds them.
pub(crate) const SINGLE: &str = "model.safetensors";
/// The name of the list of shards.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// Most bytes of a config.
const CONFIG_BYTES_MAX: u64 = 32 << 20;
/// Most bytes of a list of shards.
const INDEX_BYTES_MAX: u64 = 64 << 20;
/// Most shards of a model.
const SHARDS_MAX: usize = 4_096;

/// An open folder: its config's text and its files' headers.
pub(crate) struct Folder {
    /// `config.json`.
    pub json: Value,
    /// The files that hold tensors.
    pub files: Vec<Arc<Source>>,
    /// Which of the two forms the tensors have.
    pub form: Form,
    quantisation: Quantisation,
    /// Every tensor by its name, with its file.
    entries: BTreeMap<String, (usize, Entry)>,
}

/// The list of shards.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The model's folder that `path` means: a folder, or a folder's config, index or shard.
pub(crate) fn folder_of(path: &Path) -> Option<PathBuf> {
    if path.is_dir() {
        return Some(path.to_path_buf());
    }
    let name = path.file_name()?.to_str()?;
    let of_folder = [CONFIG, INDEX].contains(&name) || name.ends_with(".safetensors");
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    of_folder.then(|| parent.unwrap_or(Path::new(".")).to_path_buf())
}

impl Folder {
    /// Reads everything but the values of the folder at `path`.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let at = path.join(CONFIG);
        let text = read(&at, CONFIG_BYTES_MAX)?;
        let text = text.ok_or(WeightsError::NoModel { missing: CONFIG })?;
        let json: Value = serde_json::from_slice(&text)
            .map_err(|error| WeightsError::json("the config", &error).in_file(&at))?;
        let quantisation = Quantisation::read(&json).map_err(|error| error.in_file(&at))?;
        let (names, index) = shards(path)?;
        let mut all = Self {
            json,
            files: Vec::with_capacity(names.len()),
            form: Form::HuggingFace,
            quantisation,
            entries: BTreeMap::new(),
        };
        let mut mlx = false;
        for name in &names {
            let at = path.join(name);
            let header = all.add(&at).map_err(|error| error.in_file(&at))?;
            mlx |= header.as_deref() == Some("mlx");
        }
        if let Some(index) = index {
            all.check_index(&names, &index).map_err(|error| error.in_file(&path.join(INDEX)))?;
        }
        all.form = all.form_of(mlx);
        Ok(all)
    }

    /// Adds the tensors of a file; gives what it says of its writer.
    fn add(&mut self, at: &Path) -> Result<Option<String>, WeightsError> {
        let source = Source::open(at)?;
        let header = Header::read(&source)?;
        let file = self.files.len();
        self.files.push(Arc::new(source));
        for entry in header.entries {
            if let Some((name, _)) = self.entries.get_key_value(&entry.name) {
                return Err(WeightsError::Duplicate { what: "tensor", name: name.clone() });
            }
            self.entries.insert(entry.name.clone(), (file, entry));
        }
        Ok(header.format)
    }

    /// The index and the shards, `names`, must speak of the same tensors.
    fn check_index(&self, names: &[String], index: &Index) -> Result<(), WeightsError> {
        for (name, expected) in &index.weight_map {
            let found = self.entries.get(name).map(|(file, _)| &names[*file]);
            if found != Some(expected) {
                let found = found.map_or("nowhere".to_owned(), |file| format!("in `{file}`"));
                let expected = format!("in `{expected}`");
                return Err(WeightsError::OtherShard { name: name.clone(), expected, found });
            }
        }
        match self.entries.iter().find(|(name, _)| !index.weight_map.contains_key(*name)) {
            Some((name, (file, _))) => Err(WeightsError::OtherShard {
                name: name.clone(),
                expected: "nowhere".to_owned(),
                found: format!("in `{}`", names[*file]),
            }),
            None => Ok(()),
        }
    }

    /// A shard that was `asked` for is one of the model's.
    pub fn check_named(&self, asked: &Path) -> Result<(), WeightsError> {
        let shard = asked.file_name().filter(|_| asked.extension() == Some("safetensors".as_ref()));
        let ours = |name| self.files.iter().any(|file| file.path().file_name() == Some(name));
        match shard.filter(|name| !asked.is_dir() && !ours(name)) {
            Some(name) => {
                Err(WeightsError::OtherFile { found: name.to_string_lossy().into_owned() })
            }
            None => Ok(()),
        }
    }

    /// The convolutions tell the form, as in mlx-lm; without any, the files' writer does.
    fn form_of(&self, mlx: bool) -> Form {
        let mut convolutions = self
            .entries
            .iter()
            .filter(|(name, _)| name.ends_with(".conv1d.weight"))
            .map(|(_, (_, entry))| entry.shape.last() != Some(&1))
            .peekable();
        let hugging_face = match convolutions.peek() {
            Some(_) => convolutions.any(|hugging_face| hugging_face),
            None => !mlx,
        };
        if hugging_face { Form::HuggingFace } else { Form::Mlx }
    }

    /// The tensors of the text model, in name order, and the names of those that are none of this
    /// family's.
    pub fn tensors(&self, config: &Config) -> Result<(Vec<TensorInfo>, Vec<String>), WeightsError> {
        let (mut tensors, mut unknown) = (Vec::new(), Vec::new());
        for (name, (file, entry)) in &self.entries {
            let part = [".scales", ".biases"].iter().find_map(|end| name.strip_suffix(end));
            // Scales and biases go with the weight that they belong to.
            let weight = part.map(|module| format!("{module}.weight"));
            let known =
                family::from_hugging_face(config, self.form, weight.as_ref().unwrap_or(name));
            match known {
                Named::Skipped => {}
                Named::Unknown => unknown.push(name.clone()),
                Named::Tensor { .. } if part.is_some() => self.check_part(name)?,
                Named::Tensor { name, reading } => {
                    let tensor = self.tensor(&name, reading, *file, entry);
                    tensors.push(tensor.map_err(|e| e.in_file(self.files[*file].path()))?);
                }
            }
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
            let name = pair[0].name.clone();
            return Err(WeightsError::Duplicate { what: "tensor", name });
        }
        Ok((tensors, unknown))
    }

    /// Scales or biases need the two that they belong to.
    fn check_part(&self, name: &str) -> Result<(), WeightsError> {
        let module = name.rsplit_once('.').map_or(name, |(module, _)| module);
        let missing = ["weight", "scales", "biases"]
            .map(|part| format!("{module}.{part}"))
            .into_iter()
            .find(|part| !self.entries.contains_key(part));
        match missing {
            Some(missing) => Err(WeightsError::Quantised {
                name: name.to_owned(),
                expected: format!("`{missing}` beside it"),
                found: "none".to_owned(),
            }),
            None => Ok(()),
        }
    }

    fn tensor(
        &self,
        name: &str,
        reading: Reading,
        file: usize,
        entry: &Entry,
    ) -> Result<TensorInfo, WeightsError> {
        let module = entry.name.strip_suffix(".weight").unwrap_or(&entry.name);
        let part = |part: &str| self.entries.get(&format!("{module}.{part}"));
        let weight = piece(file, entry)?;
        let mut tensor = match (part("scales"), part("biases")) {
            (Some((at, scales)), Some((with, biases))) => {
                let parts = [weight, piece(*at, scales)?, piece(*with, biases)?];
                mlx::join(name, &self.quantisation, parts)?
            }
            // `check_part` speaks of a single one.
            _ => whole(name, reading, weight)?,
        };
        tensor.read_as(reading)?;
        Ok(tensor)
    }
}

/// A tensor of one piece.
fn whole(name: &str, reading: Reading, piece: Piece) -> Result<TensorInfo, WeightsError> {
    let Dtype::Values(format) = piece.dtype else {
        return Err(WeightsError::UnsupportedType {
            name: piece.name,
            found: piece.dtype.to_string(),
            expected: safetensors::READ,
        });
    };
    let mut dims: Vec<u64> = piece.dims.iter().rev().copied().collect();
    if reading == Reading::Taps && dims.len() == 3 {
        // [channels, 1, taps] or [channels, taps, 1].
        match dims[..] {
            [1, taps, channels] | [taps, 1, channels] => dims = vec![taps, channels],
            _ => {
                let reason = "expected [channels, 1, taps] or [channels, taps, 1]".to_owned();
                return Err(WeightsError::Dims { name: piece.name, dims: piece.dims, reason });
            }
        }
    }
    let mut tensor = TensorInfo::new(name, format, &dims)?;
    tensor.pieces.push(piece);
    Ok(tensor)
}

fn piece(file: usize, entry: &Entry) -> Result<Piece, WeightsError> {
    let dtype = safetensors::dtype(&entry.dtype).ok_or_else(|| WeightsError::UnsupportedType {
        name: entry.name.clone(),
        found: WeightsError::excerpt(&entry.dtype),
        expected: safetensors::READ,
    })?;
    Ok(Piece {
        name: entry.name.clone(),
        dtype,
        dims: entry.shape.clone(),
        file,
        at: entry.at,
        bytes: entry.bytes as usize,
    })
}

/// The names of the files that hold tensors, in order, and the index that lists them.
fn shards(path: &Path) -> Result<(Vec<String>, Option<Index>), WeightsError> {
    let at = path.join(INDEX);
    let Some(text) = read(&at, INDEX_BYTES_MAX)? else {
        return match path.join(SINGLE).exists() {
            true => Ok((vec![SINGLE.to_owned()], None)),
            false => Err(WeightsError::NoModel { missing: SINGLE }),
        };
    };
    let parse = || {
        let index: Index = serde_json::from_slice(&text)
            .map_err(|error| WeightsError::json("the list of shards", &error))?;
        let names: BTreeSet<&String> = index.weight_map.values().collect();
        if names.len() > SHARDS_MAX || names.is_empty() {
            return Err(WeightsError::Limit {
                what: "the shard count (at least 1)".to_owned(),
                limit: SHARDS_MAX as u64,
                found: names.len() as u64,
            });
        }
        // A name leads nowhere but into this folder.
        let outside = |name: &&&String| Path::new(name).file_name() != Some(name.as_ref());
        if let Some(name) = names.iter().find(outside) {
            let found = WeightsError::excerpt(name);
            let expected = "a file's name".to_owned();
            return Err(WeightsError::KeyValue { key: "weight_map".to_owned(), expected, found });
        }
        let names = names.into_iter().cloned().collect();
        Ok((names, Some(index)))
    };
    parse().map_err(|error| error.in_file(&at))
}

/// The bytes of a small file; `None` where there is none.
pub(crate) fn read(at: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>, WeightsError> {
    let io = |source| WeightsError::Io { path: at.to_path_buf(), source };
    let file = match File::open(at) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    let mut text = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut text).map_err(io)?;
    if text.len() as u64 > bytes_max {
        let what = "the file's size".to_owned();
        let found = text.len() as u64;
        return Err(WeightsError::Limit { what, limit: bytes_max, found }.in_file(at));
    }
    Ok(Some(text))
}

/// Whether a file is one of those beside the tensors, by its name.
pub(crate) fn is_text(path: &Path) -> bool {
    ["json", "jinja"].map(Some).contains(&path.extension().and_then(|end| end.to_str()))
}
