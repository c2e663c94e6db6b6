//! API keys: from a file that only its owner reads, or given; read again when the file changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use sha2::{Digest, Sha256};

/// Bytes of a key file.
const FILE_BYTES_MAX: u64 = 256 << 10;
/// Most keys.
const KEYS_MAX: usize = 1024;
/// Bytes of a key.
const KEY_BYTES_MIN: usize = 8;
const KEY_BYTES_MAX: usize = 512;
/// How often the file is looked at, at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Why keys are not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The file can't be read.
    #[error("the key file {0} can't be read: {1}")]
    Unreadable(PathBuf, std::io::Error),
    /// Others may read it.
    #[error("the key file {0} has mode {1:03o}, where only its owner may read: chmod 600 it")]
    Open(PathBuf, u32),
    /// Too long.
    #[error("the key file {0} has {1} bytes, more than the limit of {FILE_BYTES_MAX}")]
    Long(PathBuf, u64),
    /// A line, or a given key, that is none.
    #[error("{0}: expected KEY or NAME KEY, a key of {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes")]
    Line(String),
    /// None or too many.
    #[error("{0} has {1} keys, where 1 to {KEYS_MAX} are taken")]
    Count(String, usize),
}

/// One key: its name in metrics and logs, and its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    name: String,
    hash: [u8; 32],
}

/// The keys in force.
#[derive(Debug)]
pub struct Keys {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    keys: Vec<Key>,
    file: Option<(PathBuf, Stamp)>,
    looked: Instant,
}

/// What changes with a file.
type Stamp = (Option<SystemTime>, u64);

impl Keys {
    /// Keys as they stand in an environment variable: separated by commas or line feeds.
    ///
    /// # Errors
    /// [`KeyError::Line`] and [`KeyError::Count`].
    pub fn given(text: &str) -> Result<Self, KeyError> {
        let keys = read(&text.replace(',', "\n"), "the given keys")?;
        Ok(Self { state: Mutex::new(State { keys, file: None, looked: Instant::now() }) })
    }

    /// Keys of a file, one a line, `KEY` or `NAME KEY`; `#` begins a comment.
    ///
    /// # Errors
    /// All but none of [`KeyError`].
    pub fn from_file(path: &Path) -> Result<Self, KeyError> {
        let (keys, stamp) = load(path)?;
        let file = Some((path.to_owned(), stamp));
        Ok(Self { state: Mutex::new(State { keys, file, looked: Instant::now() }) })
    }

    /// The name of a key in force. Hashes are compared, so the time taken tells nothing of a key.
    pub fn name(&self, key: &str) -> Option<String> {
        let hash: [u8; 32] = Sha256::digest(key).into();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.look();
        state.keys.iter().find(|key| key.hash == hash).map(|key| key.name.clone())
    }
}

impl Keys {
    /// Reads the file now, whether it seems changed or not; one that is wrong changes nothing.
    pub fn read_again(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.looked = Instant::now();
        state.read();
    }
}

impl State {
    /// Reads a changed file again; one that is wrong changes nothing.
    fn look(&mut self) {
        let Some((path, stamp)) = &mut self.file else { return };
        if self.looked.elapsed() < LOOK_EVERY {
            return;
        }
        self.looked = Instant::now();
        if fs::metadata(&*path).is_ok_and(|metadata| stamp_of(&metadata) == *stamp) {
            return;
        }
        self.read();
    }

    fn read(&mut self) {
        let Some((path, stamp)) = &mut self.file else { return };
        match load(path) {
            Ok((keys, now)) => {
                tracing::info!("{} API keys from {}", keys.len(), path.display());
                self.keys = keys;
                *stamp = now;
            }
            Err(e) => tracing::warn!("the API keys stay as they were: {e}"),
        }
    }
}

fn stamp_of(metadata: &fs::Metadata) -> Stamp {
    (metadata.modified().ok(), metadata.len())
}

fn load(path: &Path) -> Result<(Vec<Key>, Stamp), KeyError> {
    let unreadable = |e| KeyError::Unreadable(path.to_owned(), e);
    let metadata = fs::metadata(path).map_err(unreadable)?;
    if metadata.len() > FILE_BYTES_MAX {
        return Err(KeyError::Long(path.to_owned(), metadata.len()));
    }
    #[cfg(unix)]
    {
        let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Open(path.to_owned(), mode));
        }
    }
    let text = fs::read_to_string(path).map_err(unreadable)?;
    Ok((read(&text, &path.display().to_string())?, stamp_of(&metadata)))
}

fn read(text: &str, place: &str) -> Result<Vec<Key>, KeyError> {
    let mut keys = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split('#').next().unwrap_or("").split_whitespace().collect();
        let (name, key) = match *words.as_slice() {
            [] => continue,
            [key] => (format!("key-{}", keys.len() + 1), key),
            [name, key] => (name.chars().take(64).collect(), key),
            _ => return Err(KeyError::Line(format!("{place}, line {}", n + 1))),
        };
        if !(KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&key.len()) {
            return Err(KeyError::Line(format!("{place}, line {}", n + 1)));
        }
        keys.push(Key { name, hash: Sha256::digest(key).into() });
    }
    match keys.len() {
        1..=KEYS_MAX => Ok(keys),
        count => Err(KeyError::Count(place.to_owned(), count)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn keys_are_known_by_name_and_others_are_not() {
        let keys = Keys::given("alice sk-alice-1,sk-anonymous").unwrap();
        assert_eq!(keys.name("sk-alice-1").as_deref(), Some("alice"));
        assert_eq!(keys.name("sk-anonymous").as_deref(), Some("key-2"));
        assert_eq!(keys.name("sk-alice-2"), None);
        assert_eq!(keys.name(""), None);
    }

    #[test]
    fn what_is_no_key_is_refused_by_its_line() {
        for wrong in ["", "short", "a b c-long-enough", &"k".repeat(KEY_BYTES_MAX + 1)] {
            assert!(Keys::given(wrong).is_err(), "{wrong}");
        }
        assert!(read(&"sk-longer-than-8\n".repeat(KEYS_MAX + 1), "x").is_err());
        let error = Keys::given("sk-fine-enough\nshort").unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_may_read_is_refused_and_a_changed_one_is_read_again() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("baton-keys-{}", std::process::id()));
        fs::write(&path, "a sk-first-key # hers\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(Keys::from_file(&path), Err(KeyError::Open(_, 0o644))));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let keys = Keys::from_file(&path).unwrap();
        assert!(keys.name("sk-first-key").is_some());
        fs::write(&path, "b sk-the-second-key\n").unwrap();
        let past = || keys.state.lock().unwrap().looked -= LOOK_EVERY;
        past();
        assert_eq!(keys.name("sk-the-second-key").as_deref(), Some("b"));
        assert_eq!(keys.name("sk-first-key"), None);
        fs::write(&path, "x").unwrap();
        past();
        assert!(keys.name("sk-the-second-key").is_some(), "a wrong file changes nothing");
        fs::remove_file(&path).unwrap();
    }
}
