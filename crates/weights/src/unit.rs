//! A unit as a file, and the record of its last check beside it.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::file::{self, Stamp};
use crate::{Digest, digest};

/// The folder of units, beside the one of models.
pub const UNITS: &str = "units";
/// The folder that has a folder a model: the heads of its files and its catalog.
pub const MODELS: &str = "models";
/// The ending of a record's name.
const RECORD: &str = "checked";
/// Most bytes of a record: a piece takes some 80.
const RECORD_BYTES_MAX: u64 = 32 << 20;
/// How much of a unit is in memory at once while it is digested.
const STEP_BYTES: usize = 256 << 10;

/// What was found when a unit was checked: it holds as long as nobody has written the file since.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Record {
    stamp: Stamp,
    /// Bytes and SHA-256, in hexadecimal, of the unit's pieces.
    pieces: Vec<(u64, String)>,
}

/// The place of a unit in the folder of units.
pub fn path(units: &Path, digest: &Digest) -> PathBuf {
    units.join(digest::hex(digest))
}

/// The place of a model's folder under the root of a store.
pub fn model_path(root: &Path, id: &Digest) -> PathBuf {
    root.join(MODELS).join(digest::hex(id))
}

/// The place of a unit's record.
pub fn record_path(unit: &Path) -> PathBuf {
    unit.with_extension(RECORD)
}

/// An address from a unit's name.
pub fn parse_name(name: &str) -> Option<Digest> {
    digest::parse_hex(name)
}

/// An address in hexadecimal.
pub fn name(digest: &Digest) -> String {
    digest::hex(digest)
}

impl Record {
    /// That of the unit at `unit`, if there is one that can be read.
    pub fn beside(unit: &Path) -> Option<Self> {
        let mut text = Vec::new();
        let file = File::open(record_path(unit)).ok()?;
        file.take(RECORD_BYTES_MAX).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Whether the unit at `unit` is as it was.
    pub fn holds(&self, unit: &Path) -> bool {
        std::fs::metadata(unit).is_ok_and(|info| Stamp::of(&info) == self.stamp)
    }

    /// Bytes and SHA-256 of the pieces; `None` for a record that is damaged.
    pub fn sums(&self) -> Option<Vec<(u64, Digest)>> {
        let sum = |(bytes, hex): &(u64, String)| Some((*bytes, digest::parse_hex(hex)?));
        self.pieces.iter().map(sum).collect()
    }

    /// Writes that of a unit whose pieces were just found to have `sums`.
    ///
    /// # Errors
    /// The system's.
    pub fn write(unit: &Path, sums: &[(u64, Digest)]) -> io::Result<()> {
        let stamp = Stamp::of(&std::fs::metadata(unit)?);
        let pieces = sums.iter().map(|(bytes, sum)| (*bytes, digest::hex(sum))).collect();
        let text = serde_json::to_vec(&Self { stamp, pieces })?;
        file::replace(&record_path(unit), |out| out.write_all(&text))
    }
}

/// The address of pieces with `sums`.
pub fn address(sums: &[(u64, Digest)]) -> Digest {
    let mut sum = Sha256::new();
    sums.iter().for_each(|(_, piece)| sum.update(piece));
    sum.finalize().into()
}

/// Reads the unit at `unit`; the numbers of the pieces that are not what `sums` say.
///
/// # Errors
/// The system's; a file of another size has all its pieces wrong instead.
pub fn wrong(unit: &Path, sums: &[(u64, Digest)]) -> io::Result<Vec<usize>> {
    let mut file = File::open(unit)?;
    let expected = sums.iter().fold(0u64, |all, (bytes, _)| all.saturating_add(*bytes));
    if file.metadata()?.len() != expected {
        return Ok((0..sums.len()).collect());
    }
    let mut buffer = vec![0; STEP_BYTES];
    let mut found = Vec::new();
    for (at, (bytes, sum)) in sums.iter().enumerate() {
        let (mut left, mut hash) = (*bytes, Sha256::new());
        while left > 0 {
            let step = &mut buffer[..left.min(STEP_BYTES as u64) as usize];
            file.read_exact(step)?;
            hash.update(&*step);
            left -= step.len() as u64;
        }
        if Digest::from(hash.finalize()) != *sum {
            found.push(at);
        }
    }
    Ok(found)
}

/// Writes `path` so that it is there whole or as it was before.
///
/// # Errors
/// The system's.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    file::replace(path, |out| out.write_all(bytes))
}
