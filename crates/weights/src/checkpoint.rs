//! An open checkpoint: its config, and its tensors by name.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arith::format::Matrix;
use sha2::{Digest as _, Sha256};

use crate::family::{self, Form, Reading};
use crate::file::Source;
use crate::folder::{self, Folder};
use crate::gguf::{Header, Metadata, limits};
use crate::manifest::Manifest;
use crate::reading::{self, Cut, Shape};
use crate::tensor::{self, Piece, TensorInfo};
use crate::view::View;
use crate::{Catalog, Config, Digest, WeightsError};

/// How much of a file is read for its header at first.
const HEADER_BYTES_FIRST: u64 = 1 << 20;
/// How much of a tensor is in memory at once while it is digested or copied.
const PIECE_BYTES: usize = 1 << 20;
/// Each byte of a made-up tensor: whatever its format, its values are small numbers.
const MADE_UP: u8 = 0x2c;

/// A checkpoint: a model's tensors, of which its files may hold a part.
#[derive(Debug)]
pub struct Checkpoint {
    /// A GGUF file or a folder.
    path: PathBuf,
    /// The files that hold tensors.
    files: Vec<Arc<Source>>,
    container: Container,
    config: Config,
    tensors: Vec<TensorInfo>,
    manifest: Option<Manifest>,
    /// Whether MLX's codes are read as f32 values.
    widened: bool,
    /// Whether tensors that are not here are read all the same.
    made_up: bool,
    /// Stored bytes that were read.
    read: Arc<AtomicU64>,
}

/// What holds the tensors, beside them.
#[derive(Debug)]
pub(crate) enum Container {
    /// One GGUF file.
    Gguf {
        metadata: Metadata,
        /// Where the header's pairs lie in the file.
        pairs: Range<usize>,
        /// Bytes that tensors are aligned to.
        alignment: u64,
    },
    /// A folder of safetensors files.
    Folder { form: Form },
}

impl Checkpoint {
    /// Opens a model and checks everything but the values: config, tensor names, shapes, types and
    /// places. `path` is a GGUF file, or a folder with `config.json` and `model.safetensors` or
    /// shards and their index, or one of these files. With a manifest of this model beside its
    /// files, the manifest says what the model is and the files may hold a part.
    ///
    /// # Errors
    /// [`WeightsError::Io`] where a file or the manifest cannot be read, else
    /// [`WeightsError::InFile`] around the first thing that is wrong.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        match folder::folder_of(path) {
            Some(folder) => {
                let opened = Self::open_folder(&folder, path);
                opened.map_err(|source| source.in_file(&folder))
            }
            None => {
                let source = Arc::new(Source::open(path)?);
                let manifest = Manifest::beside(path)?;
                Self::open_gguf(source, manifest).map_err(|source| source.in_file(path))
            }
        }
    }

    /// As [`Checkpoint::open`], and MLX's codes are read as f32 values, `f32(code * scale) + bias`:
    /// what the arithmetic over codes is compared with.
    #[doc(hidden)]
    pub fn open_widened(path: &Path) -> Result<Self, WeightsError> {
        Ok(Self { widened: true, ..Self::open(path)? })
    }

    /// From now on tensors that are not here are read as made-up small numbers: for timings, in
    /// which values have no part.
    pub fn make_up(&mut self) {
        self.made_up = true;
    }

    fn open_gguf(source: Arc<Source>, manifest: Option<Manifest>) -> Result<Self, WeightsError> {
        let header = read_header(&source)?;
        let mut held = tensor::place_all(&header, source.stamp().bytes)?;
        let files = [source.clone()];
        let manifest = in_store(&files, &mut held, source.path())?.or(manifest);
        let mut tensors = whole(held, manifest.as_ref())?;
        let mut config = family::config_from_gguf(&header.metadata, &tensors)?;
        check(&mut config, &tensors, manifest.is_some())?;
        for tensor in &mut tensors {
            tensor.read_as(family::from_gguf(&config, &tensor.name))?;
        }
        Ok(Self {
            path: source.path().to_path_buf(),
            files: vec![source],
            container: Container::Gguf {
                metadata: header.metadata,
                pairs: header.pairs,
                alignment: header.alignment,
            },
            config,
            tensors,
            manifest,
            widened: false,
            made_up: false,
            read: Arc::default(),
        })
    }

    fn open_folder(path: &Path, asked: &Path) -> Result<Self, WeightsError> {
        let folder = Folder::open(path)?;
        folder.check_named(asked)?;
        let manifest = Manifest::beside(&path.join(folder::CONFIG))?;
        let config_at = path.join(folder::CONFIG);
        let config = family::config_from_json(&folder.json);
        let mut config = config.map_err(|error| error.in_file(&config_at))?;
        let (mut held, unknown) = folder.tensors(&config)?;
        let manifest = in_store(&folder.files, &mut held, &config_at)?.or(manifest);
        let tensors = whole(held, manifest.as_ref())?;
        check(&mut config, &tensors, manifest.is_some())?;
        if let Some(name) = unknown.first().cloned() {
            return Err(WeightsError::LeftOver { name, count: unknown.len() });
        }
        Ok(Self {
            path: path.to_path_buf(),
            files: folder.files,
            container: Container::Folder { form: folder.form },
            config,
            tensors,
            manifest,
            widened: false,
            made_up: false,
            read: Arc::default(),
        })
    }

    /// The GGUF file, or the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder, where the model is one.
    pub fn folder(&self) -> Option<&Path> {
        matches!(self.container, Container::Folder { .. }).then_some(&self.path)
    }

    /// The model's name: that of its file without the ending, or of its folder.
    pub fn name(&self) -> String {
        let name = match self.folder() {
            // Links stay as they are named, but `.` has no name.
            Some(path) if path.file_name().is_none() => {
                path.canonicalize().ok().and_then(|path| path.file_name().map(ToOwned::to_owned))
            }
            // It may hold dots.
            Some(path) => path.file_name().map(ToOwned::to_owned),
            None => self.path.file_stem().map(ToOwned::to_owned),
        };
        name.map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
    }

    /// The files that hold tensors, for those that outlive the checkpoint.
    pub(crate) fn files(&self) -> &[Arc<Source>] {
        &self.files
    }

    /// What holds the tensors.
    pub(crate) fn container(&self) -> &Container {
        &self.container
    }

    /// The units that its tensors lie in, for a model in a store.
    pub fn catalog(&self) -> Option<&Arc<Catalog>> {
        self.files.iter().find_map(|file| file.view()).map(View::catalog)
    }

    /// The digest of a tensor in a store whose unit is as it was when it was checked.
    pub(crate) fn vouched(&self, name: &str) -> Option<Digest> {
        self.files.iter().filter_map(|file| file.view()).find_map(|view| view.vouched(name))
    }

    /// What the checkpoint says of its model.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// All metadata of a GGUF file; a folder has none.
    pub fn metadata(&self) -> Option<&Metadata> {
        match &self.container {
            Container::Gguf { metadata, .. } => Some(metadata),
            Container::Folder { .. } => None,
        }
    }

    /// Every tensor of the model, in name order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The manifest beside the files.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref()
    }

    /// Whether the model has a tensor `name`.
    pub fn has(&self, name: &str) -> bool {
        self.info(name).is_ok()
    }

    /// What tensor `name` is.
    ///
    /// # Errors
    /// [`WeightsError::NoTensor`].
    pub fn info(&self, name: &str) -> Result<&TensorInfo, WeightsError> {
        match self.tensors.binary_search_by(|t| t.name.as_str().cmp(name)) {
            Ok(at) => Ok(&self.tensors[at]),
            Err(_) => Err(WeightsError::NoTensor { name: name.to_owned() }),
        }
    }

    /// What tensor `name` is, which the files hold.
    pub(crate) fn held(&self, name: &str) -> Result<&TensorInfo, WeightsError> {
        let info = self.info(name)?;
        if info.pieces.is_empty() {
            let (name, path) = (name.to_owned(), self.path.clone());
            return Err(WeightsError::NotHeld { name, path });
        }
        Ok(info)
    }

    /// Tensor `name`, ready for a layer program, read into `buffer`, which grows where it must.
    /// Values are in their stored form unless they mean something else there: then they are F32.
    ///
    /// # Errors
    /// [`WeightsError::NoTensor`]; [`WeightsError::NotHeld`] where the files were cut without it;
    /// [`WeightsError::Io`].
    pub fn read<'a>(
        &self,
        name: &str,
        buffer: &'a mut Vec<u8>,
    ) -> Result<Matrix<'a>, WeightsError> {
        let info = self.info(name)?;
        let shape = Shape::of(info, self.widened);
        if self.made_up && info.pieces.is_empty() {
            let bytes = sized(buffer, shape.bytes());
            bytes.fill(MADE_UP);
            return Ok(shape.over(bytes));
        }
        self.held(name)?;
        let bytes = sized(buffer, shape.bytes());
        reading::fill(&self.files, info, self.widened, bytes)?;
        self.read.fetch_add(info.bytes as u64, Ordering::Relaxed);
        Ok(shape.over(bytes))
    }

    /// A part of matrix `name`: its rows `rows`, run by run, and of each the values `cols` along K,
    /// whole units of its format. No other byte of it is read.
    ///
    /// # Errors
    /// As [`Checkpoint::read`].
    ///
    /// # Panics
    /// Where the matrix has no such part, and for tensors that are not read as they are stored.
    pub fn read_part<'a>(
        &self,
        name: &str,
        rows: &[Range<usize>],
        cols: Range<usize>,
        buffer: &'a mut Vec<u8>,
    ) -> Result<Matrix<'a>, WeightsError> {
        let info = self.held(name)?;
        assert!(info.reading == Reading::Plain, "{name} is no matrix");
        let unit = info.format.unit_values();
        let units = cols.start.is_multiple_of(unit) && cols.end.is_multiple_of(unit);
        let within = cols.end <= info.cols && rows.iter().all(|run| run.end <= info.rows);
        assert!(units && within, "{name} has no rows {rows:?} of {cols:?}");
        let cut = Cut { rows, cols };
        let whole = Shape::of(info, self.widened);
        let shape = Shape { rows: cut.count(), cols: cut.cols.len(), ..whole };
        let bytes = sized(buffer, shape.bytes());
        reading::fill_cut(&self.files, info, self.widened, &cut, bytes)?;
        let share = (shape.rows * shape.cols) as u128 * info.bytes as u128;
        let read = share / (info.rows * info.cols) as u128;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(shape.over(bytes))
    }

    /// Stored bytes that were read so far: for layers, digests and copies.
    pub fn bytes_read(&self) -> &Arc<AtomicU64> {
        &self.read
    }

    /// Whether the files hold layers `range`, and the ends where `ends`.
    ///
    /// # Errors
    /// [`WeightsError::NotHeld`] with the first tensor that it does not.
    pub fn check_held(&self, range: Range<u32>, ends: bool) -> Result<(), WeightsError> {
        let mut part = self.part(range, ends);
        part.try_for_each(|tensor| self.held(&tensor.name).map(|_| ()))
    }

    /// The tensors of the layers beyond the trunk (a draft head), in name order: no part of any
    /// range, but a cut with the ends has them.
    pub(crate) fn beyond(&self) -> impl Iterator<Item = &TensorInfo> {
        let layers = self.config.layers();
        self.tensors.iter().filter(move |t| t.layer().is_some_and(|layer| layer >= layers))
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

    /// SHA-256 of the stored bytes of tensor `name`; of codes, their scales and their biases in
    /// this order.
    ///
    /// # Errors
    /// As [`Checkpoint::read`].
    pub fn digest(&self, name: &str) -> Result<Digest, WeightsError> {
        let mut sum = Sha256::new();
        for piece in &self.held(name)?.pieces {
            pieces(&self.files[piece.file], piece.at, piece.bytes, |bytes| {
                sum.update(bytes);
                self.read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                Ok::<_, WeightsError>(())
            })?;
        }
        Ok(sum.finalize().into())
    }
}

/// The first `bytes` bytes of a buffer, which grows where it must.
fn sized(buffer: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    if buffer.len() < bytes {
        // Exactly, and nothing of the old contents is moved.
        buffer.clear();
        buffer.reserve_exact(bytes);
        buffer.resize(bytes, 0);
    }
    &mut buffer[..bytes]
}

/// Of a model in a store: takes away the places of tensors whose units are not there, and gives the
/// manifest that its catalog is.
fn in_store(
    files: &[Arc<Source>],
    held: &mut [TensorInfo],
    named: &Path,
) -> Result<Option<Manifest>, WeightsError> {
    let Some(view) = files.iter().find_map(|file| file.view()) else {
        return Ok(None);
    };
    let name = named.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let manifest = Manifest::of_catalog(name, held, view.catalog())?;
    for tensor in held {
        let there = |piece: &Piece| files[piece.file].holds(piece.at, piece.bytes as u64);
        if !tensor.pieces.iter().all(there) {
            tensor.pieces.clear();
        }
    }
    Ok(Some(manifest))
}

/// The whole model's tensors, those of `held` placed where they are.
fn whole(
    held: Vec<TensorInfo>,
    manifest: Option<&Manifest>,
) -> Result<Vec<TensorInfo>, WeightsError> {
    match manifest {
        Some(manifest) => manifest.whole(held),
        None => Ok(held),
    }
}

/// Settles the config by the tensors and checks that they are the model's.
fn check(config: &mut Config, tensors: &[TensorInfo], manifest: bool) -> Result<(), WeightsError> {
    family::settle(config, tensors);
    family::check_tensors(config, tensors).map_err(|error| match error {
        WeightsError::MissingTensor { .. } if !manifest => {
            WeightsError::NoManifest { source: Box::new(error) }
        }
        error => error,
    })
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
    let most = source.head().min(limits::HEADER_BYTES_MAX) as usize;
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
