//! What a model consists of, as units that have an address each: [`FILE`].
//!
//! A unit is what a machine needs or does not need as a whole: the tensors of a layer, the
//! embedding, the rest of the ends, or a text (a config, a tokenizer, a file's header). Its address
//! is SHA-256 over the SHA-256 of its pieces in order, so the address of a layer is what ranks
//! describe to each other, and no byte is digested twice. Its bytes are those of the pieces one
//! after the other, each as its file stores it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Component, Path};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::{Digest, WeightsError, digest};

/// A catalog's name beside the heads of its files.
pub const FILE: &str = "baton.catalog.json";
/// Most bytes of a catalog.
pub const BYTES_MAX: usize = 32 << 20;
/// Most files of a model.
pub const FILES_MAX: usize = 8_192;
/// Most units of a model.
pub const UNITS_MAX: usize = 16_384;
/// Most pieces of a model.
pub const PIECES_MAX: usize = 1 << 18;
/// Most runs of a piece: codes, scales and biases.
pub const RUNS_MAX: usize = 3;
/// Most bytes of a unit.
pub const UNIT_BYTES_MAX: u64 = 64 << 30;
/// Most bytes of a text or a file's head.
pub const HEAD_BYTES_MAX: u64 = 256 << 20;
/// What this code reads and writes.
const VERSION: u32 = 1;

/// The units of a model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Catalog {
    version: u32,
    /// The model's name.
    model: String,
    /// Whether it is opened as a folder; else as its first file.
    folder: bool,
    /// Layers of the trunk.
    layers: u32,
    files: Vec<Listed>,
    units: Vec<Unit>,
}

/// A file of a model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Listed {
    /// Name in the model's folder.
    pub name: String,
    /// Bytes of the whole.
    pub bytes: u64,
    /// Bytes before the first tensor; all of a text.
    pub head: u64,
}

/// What a unit is of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The head of the file of this number: every machine needs it.
    Text(u32),
    /// The embedding table, for rank 0.
    Embedding,
    /// What else is of no layer, for rank 0.
    Head,
    /// A layer; those beyond the trunk are a draft head's, for rank 0.
    Layer(u32),
}

/// Bytes that have an address.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Unit {
    /// What it is.
    pub part: Part,
    /// In the order of its bytes.
    pub pieces: Vec<Piece>,
}

/// A tensor or a text: the smallest that is checked by itself.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Piece {
    /// The tensor's name, or the file's.
    pub name: String,
    /// SHA-256 of its bytes.
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    pub sha256: Digest,
    /// Where its bytes lie in the model's files.
    pub runs: Vec<Run>,
}

/// File number, first byte, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Run(pub u32, pub u64, pub u64);

fn to_hex<S: Serializer>(digest: &Digest, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(&digest::hex(digest))
}

fn from_hex<'de, D: Deserializer<'de>>(text: D) -> Result<Digest, D::Error> {
    let text = String::deserialize(text)?;
    digest::parse_hex(&text)
        .ok_or_else(|| serde::de::Error::custom("sha256: expected 64 hexadecimal digits"))
}

impl Piece {
    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.2).sum()
    }
}

impl Unit {
    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(Piece::bytes).sum()
    }

    /// Its address.
    pub fn digest(&self) -> Digest {
        let mut sum = Sha256::new();
        self.pieces.iter().for_each(|piece| sum.update(piece.sha256));
        sum.finalize().into()
    }

    /// Bytes and SHA-256 of its pieces.
    pub fn sums(&self) -> Vec<(u64, Digest)> {
        self.pieces.iter().map(|piece| (piece.bytes(), piece.sha256)).collect()
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(file) => write!(f, "text {file}"),
            Self::Embedding => f.pad("the embedding"),
            Self::Head => f.pad("the head"),
            Self::Layer(layer) => write!(f, "layer {layer}"),
        }
    }
}

fn bad(reason: String) -> WeightsError {
    WeightsError::Catalog { reason: WeightsError::excerpt(&reason) }
}

fn limit(what: &str, found: u64, limit: u64) -> Result<(), WeightsError> {
    match found > limit {
        true => Err(WeightsError::Limit { what: what.to_owned(), limit, found }),
        false => Ok(()),
    }
}

impl Catalog {
    /// Of these files and units, which must be a model's.
    pub(crate) fn new(
        model: String,
        folder: bool,
        layers: u32,
        files: Vec<Listed>,
        units: Vec<Unit>,
    ) -> Result<Self, WeightsError> {
        let catalog = Self { version: VERSION, model, folder, layers, files, units };
        catalog.check()?;
        Ok(catalog)
    }

    /// Parses what [`Catalog::to_json`] gives.
    ///
    /// # Errors
    /// [`WeightsError::Limit`]; [`WeightsError::Catalog`] with the first thing that cannot be.
    pub fn parse(text: &[u8]) -> Result<Self, WeightsError> {
        limit("the catalog's size", text.len() as u64, BYTES_MAX as u64)?;
        let catalog: Self = serde_json::from_slice(text).map_err(|e| bad(e.to_string()))?;
        catalog.check()?;
        Ok(catalog)
    }

    /// As text; always the same for the same catalog.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// SHA-256 of its text: the model's address.
    pub fn id(&self) -> Digest {
        Sha256::digest(self.to_json()).into()
    }

    /// The model's name.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Layers of the trunk.
    pub fn layers(&self) -> u32 {
        self.layers
    }

    /// Files, those with tensors first.
    pub fn files(&self) -> &[Listed] {
        &self.files
    }

    /// What [`crate::Checkpoint::open`] opens in the model's folder; the folder where `None`.
    pub fn opened(&self) -> Option<&str> {
        (!self.folder).then(|| self.files[0].name.as_str())
    }

    /// Units: texts, ends, layers.
    pub fn units(&self) -> &[Unit] {
        &self.units
    }

    /// The numbers of the units that a rank of layers `range` needs: all texts too, and where
    /// `ends` the embedding, the head and what lies beyond the trunk.
    ///
    /// # Errors
    /// [`WeightsError::Range`].
    pub fn wanted(&self, range: Range<u32>, ends: bool) -> Result<Vec<usize>, WeightsError> {
        if range.is_empty() || range.end > self.layers {
            let (first, end, layers) = (range.start, range.end, self.layers);
            return Err(WeightsError::Range { first, end, layers });
        }
        let wanted = |part: Part| match part {
            Part::Text(_) => true,
            Part::Embedding | Part::Head => ends,
            Part::Layer(layer) => range.contains(&layer) || (ends && layer >= self.layers),
        };
        let units = self.units.iter().enumerate();
        Ok(units.filter(|(_, unit)| wanted(unit.part)).map(|(at, _)| at).collect())
    }

    /// The numbers of the units that say what the model is, without any layer.
    pub fn texts(&self) -> Vec<usize> {
        let units = self.units.iter().enumerate();
        units.filter(|(_, unit)| matches!(unit.part, Part::Text(_))).map(|(at, _)| at).collect()
    }

    /// Bytes of units.
    pub fn bytes_of(&self, units: &[usize]) -> u64 {
        units.iter().map(|&unit| self.units[unit].bytes()).sum()
    }

    fn check(&self) -> Result<(), WeightsError> {
        if self.version != VERSION {
            return Err(bad(format!("version: expected {VERSION}, found {}", self.version)));
        }
        limit("the catalog's file count", self.files.len() as u64, FILES_MAX as u64)?;
        limit("the catalog's unit count", self.units.len() as u64, UNITS_MAX as u64)?;
        let pieces: usize = self.units.iter().map(|unit| unit.pieces.len()).sum();
        limit("the catalog's piece count", pieces as u64, PIECES_MAX as u64)?;
        if self.files.is_empty() {
            return Err(bad("files: expected one at least, found none".to_owned()));
        }
        let mut names = BTreeSet::new();
        for file in &self.files {
            self.check_file(file)?;
            if !names.insert(&file.name) {
                return Err(bad(format!("file `{}` occurs twice", file.name)));
            }
        }
        self.check_texts()?;
        let mut parts = BTreeSet::new();
        for unit in &self.units {
            self.check_unit(unit)?;
            if !parts.insert(unit.part.to_string()) {
                return Err(bad(format!("{} occurs twice", unit.part)));
            }
        }
        Ok(())
    }

    /// A name leads nowhere but into the model's folder, and to no file of ours.
    fn check_file(&self, file: &Listed) -> Result<(), WeightsError> {
        let Listed { name, bytes, head } = file;
        let mut components = Path::new(name).components();
        let is_name = matches!(components.next(), Some(Component::Normal(_)))
            && components.next().is_none()
            && !name.contains(['/', '\\', '\0']);
        if !is_name || name == FILE || name == crate::MANIFEST_FILE || name.len() > 255 {
            return Err(bad(format!("file `{name}`: expected a plain name of a model's file")));
        }
        if head > bytes || *head == 0 {
            return Err(bad(format!("file `{name}`: head {head} of {bytes} bytes")));
        }
        limit(&format!("the head of `{name}`"), *head, HEAD_BYTES_MAX)
    }

    /// Each file has its head as a unit, in order and before all others.
    fn check_texts(&self) -> Result<(), WeightsError> {
        for (at, file) in self.files.iter().enumerate() {
            let number = at as u32;
            let unit = self.units.get(at).filter(|unit| unit.part == Part::Text(number));
            let run = unit.and_then(|unit| match &unit.pieces[..] {
                [piece] => piece.runs.first().filter(|_| piece.runs.len() == 1),
                _ => None,
            });
            if run != Some(&Run(number, 0, file.head)) {
                return Err(bad(format!("file `{}`: expected its head as unit {at}", file.name)));
            }
        }
        Ok(())
    }

    fn check_unit(&self, unit: &Unit) -> Result<(), WeightsError> {
        let part = unit.part;
        if matches!(part, Part::Text(file) if file as usize >= self.files.len()) {
            return Err(bad(format!("{part}: expected a file below {}", self.files.len())));
        }
        let mut all = 0u64;
        for piece in &unit.pieces {
            if piece.runs.is_empty() || piece.runs.len() > RUNS_MAX {
                let found = piece.runs.len();
                return Err(bad(format!("{part}: expected 1 to {RUNS_MAX} runs, found {found}")));
            }
            for &Run(file, at, bytes) in &piece.runs {
                let there = self.files.get(file as usize).map_or(0, |file| file.bytes);
                if bytes == 0 || at.checked_add(bytes).is_none_or(|end| end > there) {
                    let reason = format!("{bytes} bytes at {at} of file {file} of {there} bytes");
                    return Err(bad(format!("{part}: {reason}")));
                }
                all = all.saturating_add(bytes);
            }
        }
        if all == 0 {
            return Err(bad(format!("{part}: expected 1 byte at least, found none")));
        }
        limit(&format!("{part}"), all, UNIT_BYTES_MAX)
    }
}
