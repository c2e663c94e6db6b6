//! What can be wrong with a checkpoint.

use std::path::{Path, PathBuf};

use crate::manifest::FILE as MANIFEST;

/// Why a checkpoint cannot be used. Every message names the culprit, what was expected and what
/// was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The file cannot be opened, read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Something is wrong inside a file.
    #[error("{}: {source}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<WeightsError>,
    },
    /// The file does not start with GGUF's magic.
    #[error("no GGUF file: expected it to start with `GGUF`, found `{found}`")]
    NotGguf {
        /// The first bytes, printable.
        found: String,
    },
    /// A GGUF version that is not read.
    #[error("GGUF version {found} is not supported (expected 2 or 3, little-endian)")]
    Version {
        /// The version found.
        found: u32,
    },
    /// The file ends inside a value.
    #[error("the file ends inside {what}: {need} bytes needed at offset {at}, {have} there")]
    Truncated {
        /// What was being read.
        what: String,
        /// Where it starts.
        at: u64,
        /// Bytes needed.
        need: u64,
        /// Bytes there.
        have: u64,
    },
    /// A count or length is beyond its limit.
    #[error("{what} is {found}, above the limit of {limit}")]
    Limit {
        /// What is counted.
        what: String,
        /// The most that is accepted.
        limit: u64,
        /// The count found.
        found: u64,
    },
    /// Bytes that should be UTF-8 and are not.
    #[error("{what} is not valid UTF-8")]
    NotUtf8 {
        /// Which text.
        what: String,
    },
    /// An unknown type number of a metadata value.
    #[error("key `{key}` has the unknown value type {found} (expected 0 to 12)")]
    ValueType {
        /// The key.
        key: String,
        /// The type number.
        found: u32,
    },
    /// A name that occurs twice.
    #[error("{what} `{name}` occurs twice")]
    Duplicate {
        /// `metadata key` or `tensor`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A required metadata key is absent.
    #[error("key `{key}` is missing (expected {expected})")]
    MissingKey {
        /// The key.
        key: String,
        /// What it should hold.
        expected: String,
    },
    /// A metadata key holds the wrong type.
    #[error("key `{key}`: expected {expected}, found {found}")]
    KeyType {
        /// The key.
        key: String,
        /// The type expected.
        expected: &'static str,
        /// The type found.
        found: &'static str,
    },
    /// A metadata key holds a value that cannot be.
    #[error("key `{key}`: expected {expected}, found {found}")]
    KeyValue {
        /// The key.
        key: String,
        /// What it may hold.
        expected: String,
        /// What it holds.
        found: String,
    },
    /// A metadata key asks for something that is not implemented.
    #[error("key `{key}` asks for {found}, which is not supported (expected {expected})")]
    UnsupportedKey {
        /// The key.
        key: String,
        /// What is supported.
        expected: String,
        /// What it holds.
        found: String,
    },
    /// A model family that is not implemented.
    #[error("model family `{found}` is not supported (expected {expected})")]
    UnsupportedFamily {
        /// `general.architecture`, or `model_type` in a `config.json`.
        found: String,
        /// The families that are.
        expected: &'static str,
    },
    /// A tensor type that is not read.
    #[error("tensor `{name}` is {found}, which is not supported (expected {expected})")]
    UnsupportedType {
        /// The tensor.
        name: String,
        /// Its type.
        found: String,
        /// The types that are read here.
        expected: &'static str,
    },
    /// A tensor that needs an op that is not implemented.
    #[error("tensor `{name}` is not supported: {reason}")]
    UnsupportedTensor {
        /// The tensor.
        name: String,
        /// What it stands for.
        reason: &'static str,
    },
    /// Dims that make no matrix.
    #[error("tensor `{name}` has the dims {dims:?}: {reason}")]
    Dims {
        /// The tensor.
        name: String,
        /// Its dims, K first.
        dims: Vec<u64>,
        /// What is wrong with them.
        reason: String,
    },
    /// A tensor's bytes lie outside the file or out of alignment.
    #[error("tensor `{name}`: its {bytes} bytes at offset {at} {reason}")]
    Place {
        /// The tensor.
        name: String,
        /// Offset from the start of the tensor data.
        at: u64,
        /// Bytes.
        bytes: u64,
        /// What is wrong.
        reason: String,
    },
    /// Two tensors share bytes.
    #[error("tensors `{first}` and `{second}` overlap at offset {at}")]
    Overlap {
        /// The earlier one.
        first: String,
        /// The later one.
        second: String,
        /// Where the second starts in the file.
        at: u64,
    },
    /// A tensor that the model needs is absent.
    #[error("tensor `{name}` is missing (expected [{rows}, {cols}])")]
    MissingTensor {
        /// The tensor.
        name: String,
        /// Rows it should have.
        rows: usize,
        /// Columns it should have.
        cols: usize,
    },
    /// A file that holds a part of a model at most, and nothing says what the rest is.
    #[error("{source}, and no {MANIFEST} for this file lies beside it")]
    NoManifest {
        /// The first thing that is not there.
        source: Box<WeightsError>,
    },
    /// A manifest that cannot be.
    #[error("no manifest of a model: {reason}")]
    Manifest {
        /// What is wrong.
        reason: String,
    },
    /// A catalog that cannot be.
    #[error("no catalog of a model: {reason}")]
    Catalog {
        /// What is wrong.
        reason: String,
    },
    /// A tensor that the file and the manifest beside it speak of differently.
    #[error(
        "tensor `{name}`: {MANIFEST} says {expected}, the file holds {found}; \
         `baton manifest` writes it anew"
    )]
    OtherManifest {
        /// The tensor.
        name: String,
        /// What the manifest says.
        expected: String,
        /// What the file holds.
        found: String,
    },
    /// A tensor of the model that this file was cut without.
    #[error(
        "tensor `{name}` is not in {}, which holds a part of its model only; \
         `baton cut` writes another part", path.display()
    )]
    NotHeld {
        /// The tensor.
        name: String,
        /// The file.
        path: PathBuf,
    },
    /// A range of layers that the model does not have.
    #[error("layers {first}:{end}: expected a range within 0:{layers}, not empty")]
    Range {
        /// First layer asked for.
        first: u32,
        /// One past the last.
        end: u32,
        /// Layers of the model.
        layers: u32,
    },
    /// A name that is not in this checkpoint.
    #[error("the checkpoint has no tensor `{name}`")]
    NoTensor {
        /// The name asked for.
        name: String,
    },
    /// A tensor of another shape than the config says.
    #[error("tensor `{name}`: expected shape {expected:?}, found {found:?} (rows, cols)")]
    Shape {
        /// The tensor.
        name: String,
        /// Rows and columns by the config.
        expected: [usize; 2],
        /// Rows and columns in the file.
        found: [usize; 2],
    },
    /// A path that leads to no model.
    #[error(
        "no model: expected a GGUF file, or a folder with config.json and model.safetensors or its \
         shards and their model.safetensors.index.json; {missing} is not there"
    )]
    NoModel {
        /// The file that is looked for.
        missing: &'static str,
    },
    /// A safetensors file that its folder's model does not have.
    #[error("`{found}` is no file of this folder's model (expected model.safetensors or a shard)")]
    OtherFile {
        /// The file's name.
        found: String,
    },
    /// Text that should be JSON of a certain kind and is not.
    #[error("{what} is no JSON as expected: {reason}")]
    Json {
        /// Which text.
        what: &'static str,
        /// What is wrong, and where.
        reason: String,
    },
    /// A list of shards and the shards speak of different tensors.
    #[error("tensor `{name}`: the list of shards says {expected}, found {found}")]
    OtherShard {
        /// The tensor.
        name: String,
        /// Where the list has it.
        expected: String,
        /// Where it is.
        found: String,
    },
    /// Codes, scales and biases that do not fit each other.
    #[error("quantised tensor `{name}`: expected {expected}, found {found}")]
    Quantised {
        /// The tensor, by its container's name.
        name: String,
        /// What would fit.
        expected: String,
        /// What is there.
        found: String,
    },
    /// Tensors that the family has no use for: the model computes something else.
    #[error("{count} tensors are not part of this model, the first is `{name}`")]
    LeftOver {
        /// The first in name order.
        name: String,
        /// How many.
        count: usize,
    },
}

/// Most characters that an error repeats of a file.
const EXCERPT_CHARS_MAX: usize = 512;

impl WeightsError {
    /// The start of a text from a file, for an error.
    pub(crate) fn excerpt(text: &str) -> String {
        text.chars().take(EXCERPT_CHARS_MAX).collect()
    }

    /// `what` is no JSON of its kind.
    pub(crate) fn json(what: &'static str, error: &serde_json::Error) -> Self {
        Self::Json { what, reason: Self::excerpt(&error.to_string()) }
    }

    /// The same, as something inside the file at `path`; errors that name a file stay as they are.
    pub(crate) fn in_file(self, path: &Path) -> Self {
        match self {
            Self::Io { .. } | Self::InFile { .. } => self,
            source => Self::InFile { path: path.to_path_buf(), source: Box::new(source) },
        }
    }
}

impl From<WeightsError> for std::io::Error {
    fn from(error: WeightsError) -> Self {
        Self::other(error)
    }
}
