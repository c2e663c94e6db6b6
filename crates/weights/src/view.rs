//! A file whose head is there and whose tensors lie in units: as much of it as a store holds.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::catalog::{self, Catalog, Part, Run};
use crate::{Digest, WeightsError, folder, unit};

/// A file of a catalog, in the folder of its model.
#[derive(Debug)]
pub(crate) struct View {
    catalog: Arc<Catalog>,
    bytes: u64,
    head: u64,
    /// By their place in the file.
    extents: Vec<Extent>,
    /// The units that have bytes of the file; none where they are not there.
    units: Vec<Option<Opened>>,
}

/// Bytes of the file that lie together in a unit.
#[derive(Clone, Copy, Debug)]
struct Extent {
    at: u64,
    bytes: u64,
    /// Number of the unit.
    unit: usize,
    /// Where they start in it.
    from: u64,
}

/// An open unit. Its lock keeps it in the store, whoever else runs.
#[derive(Debug)]
struct Opened {
    path: PathBuf,
    file: File,
}

impl View {
    /// Of the file at `path`, if a catalog that lists it lies beside it.
    pub fn beside(path: &Path) -> Result<Option<Self>, WeightsError> {
        let at = path.with_file_name(catalog::FILE);
        let Some(text) = folder::read(&at, catalog::BYTES_MAX as u64)? else {
            return Ok(None);
        };
        let catalog = Catalog::parse(&text).map_err(|error| error.in_file(&at))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some(number) = catalog.files().iter().position(|file| file.name == name) else {
            return Ok(None);
        };
        // The model's folder lies in that of models, beside which the units lie.
        let folder = path.parent().unwrap_or(Path::new("."));
        let root = folder.join("..").join("..");
        Ok(Some(Self::of(Arc::new(catalog), number, &root.join(unit::UNITS))))
    }

    fn of(catalog: Arc<Catalog>, number: usize, units: &Path) -> Self {
        let mut extents = Vec::new();
        for (unit, listed) in catalog.units().iter().enumerate() {
            if matches!(listed.part, Part::Text(_)) {
                continue;
            }
            let mut from = 0;
            for &Run(file, at, bytes) in listed.pieces.iter().flat_map(|piece| &piece.runs) {
                if file as usize == number {
                    extents.push(Extent { at, bytes, unit, from });
                }
                from += bytes;
            }
        }
        extents.sort_by_key(|extent| extent.at);
        let mut opened: Vec<Option<Opened>> = Vec::new();
        opened.resize_with(catalog.units().len(), || None);
        for extent in &extents {
            let listed = &catalog.units()[extent.unit];
            if opened[extent.unit].is_none() {
                opened[extent.unit] = Opened::at(unit::path(units, &listed.digest()));
            }
        }
        let file = &catalog.files()[number];
        let (bytes, head) = (file.bytes, file.head);
        Self { catalog, bytes, head, extents, units: opened }
    }

    /// What lists it.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Bytes of the whole file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that the file itself has.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// The extent that has `bytes` bytes at `at`.
    fn extent(&self, at: u64, bytes: u64) -> Option<&Extent> {
        let after = self.extents.partition_point(|extent| extent.at <= at);
        let extent = self.extents.get(after.checked_sub(1)?)?;
        (at + bytes <= extent.at + extent.bytes).then_some(extent)
    }

    /// Whether `bytes` bytes at `at` are there.
    pub fn holds(&self, at: u64, bytes: u64) -> bool {
        self.extent(at, bytes).is_some_and(|extent| self.units[extent.unit].is_some())
    }

    /// Fills `out` from offset `at`, past the head.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<(), (PathBuf, io::Error)> {
        let missing = |what: String| (PathBuf::new(), io::Error::other(what));
        let bytes = out.len() as u64;
        let extent = self
            .extent(at, bytes)
            .ok_or_else(|| missing(format!("{bytes} bytes at {at} are of no unit")))?;
        let listed = &self.catalog.units()[extent.unit];
        let Some(unit) = &self.units[extent.unit] else {
            let digest = unit::name(&listed.digest());
            return Err(missing(format!("{} (unit {digest}) is not in the store", listed.part)));
        };
        let read = unit.file.read_exact_at(out, extent.from + (at - extent.at));
        read.map_err(|error| (unit.path.clone(), error))
    }

    /// The digest of tensor `name`, where its unit is as it was when it was checked.
    pub fn vouched(&self, name: &str) -> Option<Digest> {
        let units = self.catalog.units().iter().zip(&self.units);
        let (piece, opened) = units
            .filter(|(unit, _)| !matches!(unit.part, Part::Text(_)))
            .find_map(|(unit, opened)| {
                let piece = unit.pieces.iter().find(|piece| piece.name == name)?;
                Some((piece, opened.as_ref()?))
            })?;
        let record = unit::Record::beside(&opened.path)?;
        record.holds(&opened.path).then_some(piece.sha256)
    }
}

impl Opened {
    /// None where it isn't there or about to go.
    fn at(path: PathBuf) -> Option<Self> {
        let file = File::open(&path).ok()?;
        match file.try_lock_shared() {
            Err(std::fs::TryLockError::WouldBlock) => None,
            // Where a file system has no locks, an open file outlives its name all the same.
            Ok(()) | Err(std::fs::TryLockError::Error(_)) => Some(Self { path, file }),
        }
    }
}
