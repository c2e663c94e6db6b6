//! The folder of units: `units`, each a file with its record; `parts`, what is on its way; and
//! `models`, a folder a model that [`weights::Checkpoint::open`] reads.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use weights::catalog::{FILE as CATALOG, Part, Unit};
use weights::unit::{self, MODELS, Record, UNITS};
use weights::{Catalog, Digest};

use crate::StoreError;
use crate::part::{self, Growing};

/// What is on its way.
const PARTS: &str = "parts";
/// Whose lock says that a process writes the store.
const LOCK: &str = "lock";
/// Most models that have a folder; the one that was made first goes.
pub const MODELS_MAX: usize = 64;

/// A folder of units with a limit. One process at a time has it; any number may read its models.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    bytes_max: u64,
    /// Units that must stay, and how often.
    held: Arc<Mutex<HashMap<Digest, usize>>>,
    /// Only one makes room, or a model's folder, at a time.
    room: Mutex<()>,
    _lock: File,
}

/// What a store has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Whole units.
    pub units: usize,
    /// Their bytes.
    pub unit_bytes: u64,
    /// Units on their way.
    pub parts: usize,
    /// Bytes that are set aside for them.
    pub part_bytes: u64,
}

/// Units that stay in the store while it lives. A process that has opened a model keeps its units
/// by itself.
#[derive(Debug)]
pub struct Hold {
    held: Arc<Mutex<HashMap<Digest, usize>>>,
    units: Vec<Digest>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = locked(&self.held);
        for unit in &self.units {
            if let Some(count) = held.get_mut(unit) {
                *count -= 1;
                if *count == 0 {
                    held.remove(unit);
                }
            }
        }
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// Opens the store at `root`, made where there is none, of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// [`StoreError::Busy`]; [`StoreError::Io`].
    pub fn open(root: &Path, bytes_max: u64) -> Result<Self, StoreError> {
        for folder in [UNITS, PARTS, MODELS] {
            let folder = root.join(folder);
            fs::create_dir_all(&folder).map_err(StoreError::io(&folder))?;
        }
        let at = root.join(LOCK);
        let lock = File::options().create(true).truncate(false).write(true).open(&at);
        let lock = lock.map_err(StoreError::io(&at))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                return Err(StoreError::Busy { root: root.to_path_buf() });
            }
            Err(fs::TryLockError::Error(error)) => return Err(StoreError::io(&at)(error)),
        }
        let root = root.to_path_buf();
        Ok(Self { root, bytes_max, held: Arc::default(), room: Mutex::default(), _lock: lock })
    }

    /// Its folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn unit_path(&self, digest: &Digest) -> PathBuf {
        unit::path(&self.root.join(UNITS), digest)
    }

    /// Whether the unit of that address is here, as it was when it was checked.
    pub fn has(&self, digest: &Digest) -> bool {
        let at = self.unit_path(digest);
        Record::beside(&at).is_some_and(|record| record.holds(&at))
    }

    /// The same; a file that was written since its check, or was never checked, is read again, and
    /// goes if it is not the unit.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn has_checked(&self, unit: &Unit) -> Result<bool, StoreError> {
        let digest = unit.digest();
        let at = self.unit_path(&digest);
        if self.has(&digest) {
            return Ok(true);
        }
        if !at.exists() {
            return Ok(false);
        }
        let sums = unit.sums();
        let wrong = unit::wrong(&at, &sums).map_err(StoreError::io(&at))?;
        if wrong.is_empty() {
            Record::write(&at, &sums).map_err(StoreError::io(&at))?;
            return Ok(true);
        }
        let pieces: Vec<&str> = wrong.iter().map(|&at| unit.pieces[at].name.as_str()).collect();
        tracing::warn!("{}: {} has changed in the store: again", unit.part, pieces.join(", "));
        self.remove(&at)?;
        Ok(false)
    }

    /// Which of the units are not here, after [`Store::has_checked`]; the others count as used now.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn missing(&self, catalog: &Catalog, wanted: &[usize]) -> Result<Vec<usize>, StoreError> {
        let mut missing = Vec::new();
        for &at in wanted {
            let unit = &catalog.units()[at];
            match self.has_checked(unit)? {
                true => self.touch(&unit.digest()),
                false => missing.push(at),
            }
        }
        Ok(missing)
    }

    /// Keeps units that are here or to come from being let go.
    pub fn hold(&self, catalog: &Catalog, wanted: &[usize]) -> Hold {
        let units: Vec<Digest> = wanted.iter().map(|&at| catalog.units()[at].digest()).collect();
        let mut held = locked(&self.held);
        units.iter().for_each(|unit| *held.entry(*unit).or_default() += 1);
        Hold { held: self.held.clone(), units }
    }

    /// What it has.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn usage(&self) -> Result<Usage, StoreError> {
        let mut usage = Usage::default();
        for (_, _, bytes) in list(&self.root.join(UNITS))? {
            usage.units += 1;
            usage.unit_bytes += bytes;
        }
        for (_, _, bytes) in list(&self.root.join(PARTS))? {
            usage.parts += 1;
            usage.part_bytes += bytes;
        }
        Ok(usage)
    }

    /// Makes room for the units `missing`, which are held: what is on its way to nobody goes first,
    /// then whole units, those first that were used last the longest ago.
    ///
    /// # Errors
    /// [`StoreError::Full`]; [`StoreError::Io`].
    pub fn make_room(&self, catalog: &Catalog, missing: &[usize]) -> Result<(), StoreError> {
        let _one = locked(&self.room);
        let wanted: HashSet<Digest> =
            missing.iter().map(|&at| catalog.units()[at].digest()).collect();
        let needed = catalog.bytes_of(missing);
        let parts = list(&self.root.join(PARTS))?;
        let units = list(&self.root.join(UNITS))?;
        // Their room is in what is needed.
        let others = parts.into_iter().filter(|(digest, ..)| !wanted.contains(digest));
        let mut let_go: Vec<(bool, SystemTime, PathBuf, u64)> = Vec::new();
        let mut used = 0;
        let held: HashSet<Digest> = locked(&self.held).keys().copied().collect();
        let whole = units.into_iter().map(|unit| (true, unit));
        for (is_whole, (digest, at, bytes)) in whole.chain(others.map(|part| (false, part))) {
            used += bytes;
            if !held.contains(&digest) {
                let_go.push((is_whole, last_use(&at, is_whole), at, bytes));
            }
        }
        let_go.sort();
        for (is_whole, _, at, bytes) in let_go {
            if used.saturating_add(needed) <= self.bytes_max {
                break;
            }
            let gone = if is_whole { self.let_go(&at)? } else { part::remove(&at)? };
            if gone {
                used -= bytes;
            }
        }
        match used.saturating_add(needed) <= self.bytes_max {
            true => Ok(()),
            false => Err(StoreError::Full { needed, used, limit: self.bytes_max }),
        }
    }

    /// Removes a unit unless somebody reads it.
    fn let_go(&self, at: &Path) -> Result<bool, StoreError> {
        let Ok(file) = File::open(at) else {
            return Ok(true);
        };
        if matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)) {
            return Ok(false);
        }
        self.remove(at)?;
        tracing::info!("let go of unit {}", at.file_name().unwrap_or_default().display());
        Ok(true)
    }

    /// Removes a unit. The record first: a unit without one is checked before it is used.
    fn remove(&self, at: &Path) -> Result<(), StoreError> {
        let _ = fs::remove_file(unit::record_path(at));
        match fs::remove_file(at) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(StoreError::io(at)(error))
            }
            _ => Ok(()),
        }
    }

    /// Marks a unit as used now, by its record's time of change.
    fn touch(&self, digest: &Digest) {
        let record = unit::record_path(&self.unit_path(digest));
        let file = File::options().write(true).open(record);
        // Where this fails the unit is only let go earlier.
        let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
    }

    /// What has come of a unit so far, to be added to.
    pub(crate) fn grow(&self, unit: &Unit) -> Result<Growing, StoreError> {
        let digest = unit.digest();
        Growing::open(&unit::path(&self.root.join(PARTS), &digest), unit.bytes())
    }

    /// Takes in a unit that is whole at `part` and was checked. It is on the disk before its record
    /// says so: after a loss of power a unit is whole or checked again.
    pub(crate) fn take_in(&self, unit: &Unit, part: &Path) -> Result<(), StoreError> {
        let at = self.unit_path(&unit.digest());
        let synced = File::open(part).and_then(|file| file.sync_data());
        synced.map_err(StoreError::io(part))?;
        fs::rename(part, &at).map_err(StoreError::io(&at))?;
        Record::write(&at, &unit.sums()).map_err(StoreError::io(&at))?;
        part::forget(part);
        Ok(())
    }

    /// Opens a unit for reading; it stays in the store as long as the file is open. None where it
    /// is not here.
    pub(crate) fn open_unit(&self, digest: &Digest) -> Option<File> {
        let at = self.unit_path(digest);
        let file = File::open(&at).ok()?;
        if matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock)) {
            return None;
        }
        self.has(digest).then_some(file)
    }

    /// A model's folder, made of its texts, which must be here: the path that
    /// [`weights::Checkpoint::open`] opens, with the layers that are here then.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn view(&self, catalog: &Catalog) -> Result<PathBuf, StoreError> {
        // Two links of one offer may come to this at once.
        let _one = locked(&self.room);
        let folder = unit::model_path(&self.root, &catalog.id());
        let opened = catalog.opened().map_or_else(|| folder.clone(), |name| folder.join(name));
        let listed = folder.join(CATALOG);
        if listed.exists() {
            return Ok(opened);
        }
        self.drop_old_models()?;
        fs::create_dir_all(&folder).map_err(StoreError::io(&folder))?;
        for unit in catalog.units() {
            let Part::Text(file) = unit.part else { continue };
            let (from, to) =
                (self.unit_path(&unit.digest()), folder.join(&catalog.files()[file as usize].name));
            let bytes = fs::read(&from).map_err(StoreError::io(&from))?;
            unit::replace(&to, &bytes).map_err(StoreError::io(&to))?;
        }
        // The catalog last: with it the folder is a model.
        let text = catalog.to_json();
        unit::replace(&listed, text.as_bytes()).map_err(StoreError::io(&listed))?;
        Ok(opened)
    }

    /// The catalog of a model that has a folder here.
    pub fn catalog(&self, id: &Digest) -> Option<Catalog> {
        let at = unit::model_path(&self.root, id).join(CATALOG);
        let catalog = Catalog::parse(&fs::read(at).ok()?).ok()?;
        (catalog.id() == *id).then_some(catalog)
    }

    fn drop_old_models(&self) -> Result<(), StoreError> {
        let at = self.root.join(MODELS);
        let mut models = Vec::new();
        for entry in fs::read_dir(&at).map_err(StoreError::io(&at))? {
            let path = entry.map_err(StoreError::io(&at))?.path();
            models.push((fs::metadata(&path).and_then(|info| info.modified()).ok(), path));
        }
        models.sort();
        let beyond = (models.len() + 1).saturating_sub(MODELS_MAX);
        for (_, path) in models.into_iter().take(beyond) {
            // A process that has it open keeps its files.
            fs::remove_dir_all(&path).map_err(StoreError::io(&path))?;
        }
        Ok(())
    }
}

/// When a unit or part was last used.
fn last_use(at: &Path, is_whole: bool) -> SystemTime {
    let record = if is_whole { unit::record_path(at) } else { at.to_path_buf() };
    let time = fs::metadata(record).and_then(|info| info.modified());
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The files of a folder that are named by an address: address, path, bytes.
fn list(folder: &Path) -> Result<Vec<(Digest, PathBuf, u64)>, StoreError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(StoreError::io(folder))? {
        let path = entry.map_err(StoreError::io(folder))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(digest) = name.and_then(unit::parse_name) else { continue };
        if let Ok(info) = fs::metadata(&path) {
            found.push((digest, path, info.len()));
        }
    }
    Ok(found)
}
