//! The ring's shared secret: read, made, and never shown.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use zeroize::{Zeroize, Zeroizing};

/// Fewest bytes of a secret.
pub const SECRET_BYTES_MIN: usize = 16;
/// Most bytes of a secret.
pub const SECRET_BYTES_MAX: usize = 4096;
/// Bytes of a generated secret.
pub const SECRET_BYTES: usize = 32;

/// Why a secret was refused. No message ever carries a byte of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Others than the owner may read or write the file.
    #[error("SecretFileMode: {path}: mode {mode:04o}, expected no access for group and others")]
    SecretFileMode {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The path is not a regular file.
    #[error("SecretFileKind: {path}: expected a regular file")]
    SecretFileKind {
        /// The path.
        path: PathBuf,
    },
    /// Fewer than [`SECRET_BYTES_MIN`] bytes.
    #[error("SecretTooShort: expected at least {SECRET_BYTES_MIN} bytes, found {bytes}")]
    SecretTooShort {
        /// Bytes found.
        bytes: usize,
    },
    /// More than [`SECRET_BYTES_MAX`] bytes.
    #[error("SecretTooLong: expected at most {SECRET_BYTES_MAX} bytes, found more")]
    SecretTooLong,
    /// The file could not be read or made.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The system has no randomness to give.
    #[error("no random bytes: {0}")]
    Random(String),
}

/// SHA-256 of a secret: the pre-shared key of every link of a ring. Wiped when dropped.
#[derive(Clone)]
pub struct Key {
    bytes: [u8; 32],
    loopback: bool,
}

impl Key {
    /// Reads a secret file of 16 B .. 4 KiB that its owner alone can read.
    ///
    /// # Errors
    /// `SecretFileMode`, `SecretFileKind`, `SecretTooShort`, `SecretTooLong`, or the system's.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let io = |source| KeyError::Io { path: path.into(), source };
        let file = open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        if !meta.is_file() {
            return Err(KeyError::SecretFileKind { path: path.into() });
        }
        check_mode(path, &meta)?;
        // One byte past the limit tells "too long" from "just long enough"; the capacity is set
        // beforehand so that no reallocation leaves a copy behind.
        let limit = SECRET_BYTES_MAX + 1;
        let mut secret = Zeroizing::new(Vec::with_capacity(limit + 1));
        file.take(limit as u64).read_to_end(&mut secret).map_err(io)?;
        Self::from_bytes(&secret)
    }

    /// The key of a secret that came another way, such as an inherited pipe.
    ///
    /// # Errors
    /// `SecretTooShort`, `SecretTooLong`.
    pub fn from_bytes(secret: &[u8]) -> Result<Self, KeyError> {
        if secret.len() < SECRET_BYTES_MIN {
            return Err(KeyError::SecretTooShort { bytes: secret.len() });
        }
        if secret.len() > SECRET_BYTES_MAX {
            return Err(KeyError::SecretTooLong);
        }
        let bytes = Sha256::digest(secret).into();
        Ok(Self { bytes, loopback: false })
    }

    /// Makes a secret file: 32 random bytes, readable by the owner only. Never overwrites.
    ///
    /// # Errors
    /// The system's, also when `path` exists.
    pub fn generate_file(path: &Path) -> Result<(), KeyError> {
        let io = |source| KeyError::Io { path: path.into(), source };
        let secret = generate_secret()?;
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path).map_err(io)?;
        file.write_all(secret.as_ref()).and_then(|()| file.sync_all()).map_err(io)
    }

    /// 32 zero bytes: no secret at all. Links that use it stay on loopback.
    pub fn loopback() -> Self {
        Self { bytes: [0; 32], loopback: true }
    }

    /// Whether this is [`Key::loopback`].
    pub fn is_loopback(&self) -> bool {
        self.loopback
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.bytes
    }
}

/// 32 random bytes, to be handed to local ranks and to [`Key::from_bytes`].
///
/// # Errors
/// `Random` when the system has none.
pub fn generate_secret() -> Result<Zeroizing<[u8; SECRET_BYTES]>, KeyError> {
    let mut secret = Zeroizing::new([0; SECRET_BYTES]);
    getrandom::fill(secret.as_mut()).map_err(|e| KeyError::Random(e.to_string()))?;
    Ok(secret)
}

/// Opens without waiting, so that a FIFO in the file's place cannot hang the caller.
fn open(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    options.open(path)
}

#[cfg(unix)]
fn check_mode(path: &Path, meta: &std::fs::Metadata) -> Result<(), KeyError> {
    let mode = std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o7777;
    if mode & 0o077 != 0 {
        return Err(KeyError::SecretFileMode { path: path.into(), mode });
    }
    Ok(())
}

#[cfg(not(unix))]
fn check_mode(_: &Path, _: &std::fs::Metadata) -> Result<(), KeyError> {
    Ok(())
}

impl Drop for Key {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.loopback { "Key(loopback)" } else { "Key(..)" })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("baton-key-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
        fn file(&self, bytes: usize, mode: u32) -> PathBuf {
            let path = self.0.join(format!("{bytes}-{mode:o}"));
            std::fs::write(&path, vec![7; bytes]).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_of_16_to_4096_bytes_is_a_secret() {
        let folder = Folder::new("sizes");
        let load = |bytes| Key::load(&folder.file(bytes, 0o600));
        assert!(matches!(load(15), Err(KeyError::SecretTooShort { bytes: 15 })));
        assert_eq!(load(16).unwrap().bytes(), Key::from_bytes(&[7; 16]).unwrap().bytes());
        assert!(load(4096).is_ok());
        assert!(matches!(load(4097), Err(KeyError::SecretTooLong)));
        assert!(matches!(Key::from_bytes(&[0; 4097]), Err(KeyError::SecretTooLong)));
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let folder = Folder::new("modes");
        for mode in [0o640, 0o604, 0o620, 0o601, 0o610] {
            let refused = Key::load(&folder.file(32, mode));
            assert!(
                matches!(refused, Err(KeyError::SecretFileMode { mode: m, .. }) if m == mode),
                "{mode:o}: {refused:?}"
            );
        }
        assert!(Key::load(&folder.file(32, 0o400)).is_ok());
        assert!(matches!(Key::load(&folder.0), Err(KeyError::SecretFileKind { .. })));
    }

    #[test]
    fn a_generated_file_is_private_random_and_never_overwritten() {
        let folder = Folder::new("new");
        let (a, b) = (folder.0.join("a"), folder.0.join("b"));
        Key::generate_file(&a).unwrap();
        Key::generate_file(&b).unwrap();
        assert_eq!(std::fs::metadata(&a).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read(&a).unwrap().len(), SECRET_BYTES);
        assert_ne!(Key::load(&a).unwrap().bytes(), Key::load(&b).unwrap().bytes());
        let before = std::fs::read(&a).unwrap();
        assert!(matches!(Key::generate_file(&a), Err(KeyError::Io { .. })));
        assert_eq!(std::fs::read(&a).unwrap(), before);
    }

    #[test]
    fn the_key_is_the_digest_and_debug_hides_it() {
        let key = Key::from_bytes(b"sixteen bytes ok").unwrap();
        let digest: [u8; 32] = Sha256::digest(b"sixteen bytes ok").into();
        assert_eq!(key.bytes(), &digest);
        assert_eq!(format!("{key:?}"), "Key(..)");
        assert!(Key::loopback().is_loopback());
    }
}
