//! SHA-256 of tensors, read once and remembered between starts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::file::{self, Stamp};
use crate::{Checkpoint, WeightsError};

/// A SHA-256.
pub type Digest = [u8; 32];

/// Most threads that digest at once; more only wait for the disk.
const THREADS_MAX: usize = 8;
/// Most bytes of a file of kept digests.
const KEPT_BYTES_MAX: u64 = 32 << 20;

/// SHA-256 of tensors' stored bytes, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Digests(BTreeMap<String, Digest>);

impl Digests {
    /// Those of the tensors `names`: from the folder `cache` where it has them for this file as it
    /// is now, else from the bytes, and then kept there. A cache that can't be read or written
    /// costs time only.
    ///
    /// # Errors
    /// As [`Checkpoint::digest`].
    pub fn of(
        checkpoint: &Checkpoint,
        names: &[&str],
        cache: Option<&Path>,
    ) -> Result<Self, WeightsError> {
        // A store keeps its own records, unit by unit.
        let cache = cache.filter(|_| checkpoint.catalog().is_none());
        let kept = cache.and_then(|folder| Kept::at(checkpoint, folder));
        let mut known = kept.as_ref().map(Kept::load).unwrap_or_default();
        let vouched = |&name: &&str| Some((name.to_owned(), checkpoint.vouched(name)?));
        known.extend(names.iter().filter_map(vouched));
        let unknown: Vec<&str> =
            names.iter().copied().filter(|name| !known.contains_key(*name)).collect();
        let read = digest_all(checkpoint, unknown)?;
        if let Some(kept) = kept.filter(|_| !read.is_empty()) {
            // Others may have added theirs meanwhile.
            let mut all = kept.load();
            all.extend(read.clone());
            kept.store(all);
        }
        known.extend(read);
        let wanted = names.iter().filter_map(|&name| known.remove_entry(name));
        Ok(Self(wanted.collect()))
    }

    /// Of tensor `name`.
    pub fn get(&self, name: &str) -> Option<Digest> {
        self.0.get(name).copied()
    }

    /// Adds one; false, and nothing changed, where the name is there already.
    pub(crate) fn insert(&mut self, name: &str, digest: Digest) -> bool {
        let new = !self.0.contains_key(name);
        if new {
            self.0.insert(name.to_owned(), digest);
        }
        new
    }

    /// SHA-256 over the digests of `names`, in their order.
    ///
    /// # Errors
    /// [`WeightsError::NoTensor`].
    pub fn over<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<Digest, WeightsError> {
        let mut sum = Sha256::new();
        for name in names {
            let digest =
                self.get(name).ok_or_else(|| WeightsError::NoTensor { name: name.to_owned() })?;
            sum.update(digest);
        }
        Ok(sum.finalize().into())
    }
}

/// Digests of tensors from their bytes, several at once.
fn digest_all(
    checkpoint: &Checkpoint,
    mut names: Vec<&str>,
) -> Result<BTreeMap<String, Digest>, WeightsError> {
    // The large ones first, so that none is left alone at the end.
    names.sort_by_key(|name| std::cmp::Reverse(checkpoint.info(name).map_or(0, |t| t.bytes)));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(THREADS_MAX).min(names.len());
    let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || -> Result<(), WeightsError> {
        while let Some(&name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            let digest = checkpoint.digest(name)?;
            let mut done = done.lock().unwrap_or_else(|e| e.into_inner());
            done.insert(name.to_owned(), digest);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        workers.into_iter().fold(own, |all, worker| match worker.join() {
            Ok(result) => all.and(result),
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    Ok(done.into_inner().unwrap_or_else(|e| e.into_inner()))
}

/// Where the digests of one checkpoint are kept.
struct Kept<'a> {
    checkpoint: &'a Checkpoint,
    path: PathBuf,
    at: PathBuf,
}

/// As they are stored.
#[derive(Deserialize, Serialize)]
struct Stored {
    path: PathBuf,
    stamps: Vec<Stamp>,
    tensors: BTreeMap<String, String>,
}

impl<'a> Kept<'a> {
    fn at(checkpoint: &'a Checkpoint, cache: &Path) -> Option<Self> {
        let path = checkpoint.path().canonicalize().ok()?;
        let name = hex(&Sha256::digest(path.as_os_str().as_encoded_bytes()).into());
        let at = cache.join("digests").join(name + ".json");
        Some(Self { checkpoint, path, at })
    }

    /// Of the checkpoint's files, when they were opened.
    fn stamps(&self) -> Vec<Stamp> {
        self.checkpoint.files().iter().map(|file| file.stamp().clone()).collect()
    }

    /// What is kept and still holds.
    fn load(&self) -> BTreeMap<String, Digest> {
        let small = std::fs::metadata(&self.at).is_ok_and(|info| info.len() <= KEPT_BYTES_MAX);
        let text = small.then(|| std::fs::read(&self.at).ok()).flatten();
        let stored = text.and_then(|text| serde_json::from_slice::<Stored>(&text).ok());
        let stored =
            stored.filter(|stored| stored.path == self.path && stored.stamps == self.stamps());
        let tensors = stored.map(|stored| stored.tensors).unwrap_or_default();
        let pairs = tensors.into_iter();
        pairs.filter_map(|(name, digest)| Some((name, parse_hex(&digest)?))).collect()
    }

    fn store(&self, digests: BTreeMap<String, Digest>) {
        if !self.checkpoint.files().iter().all(|file| file.is_unchanged()) {
            return;
        }
        let tensors = digests.into_iter().map(|(name, digest)| (name, hex(&digest)));
        let stored =
            Stored { path: self.path.clone(), stamps: self.stamps(), tensors: tensors.collect() };
        let folder = self.at.parent().map(std::fs::create_dir_all);
        if let (Some(Ok(())), Ok(text)) = (folder, serde_json::to_vec(&stored)) {
            let _ = file::replace(&self.at, |out| out.write_all(&text));
        }
    }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(digest: &Digest) -> String {
    digest.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// What [`hex`] wrote.
pub(crate) fn parse_hex(text: &str) -> Option<Digest> {
    let mut digest = [0; 32];
    if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(digest)
}
