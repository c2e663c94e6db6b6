//! What a rank says, kept in two files of bounded size.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Most bytes of each of the two files.
pub const JOURNAL_BYTES_MAX: u64 = 4 << 20;

/// `NAME.log`, and `NAME.log.1` with what came before it.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    bytes: u64,
    max: u64,
}

impl Journal {
    /// Goes on with the file at `path`.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_bounded(path, JOURNAL_BYTES_MAX)
    }

    fn open_bounded(path: &Path, max: u64) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { path: path.into(), file, bytes, max })
    }

    /// Adds a piece of at most the limit, in the next file where this one has no room.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        let piece = &piece[piece.len().saturating_sub(self.max as usize)..];
        if self.bytes + piece.len() as u64 > self.max {
            let before = self.path.with_added_extension("1");
            std::fs::rename(&self.path, before)?;
            self.file = OpenOptions::new().create(true).append(true).open(&self.path)?;
            self.bytes = 0;
        }
        self.file.write_all(piece)?;
        self.bytes += piece.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_rank_that_never_stops_talking_fills_two_files_and_no_more() {
        let folder = std::env::temp_dir().join(format!("baton-journal-{}", std::process::id()));
        let path = folder.join("a.log");
        let mut journal = Journal::open_bounded(&path, 1_000).unwrap();
        for at in 0..1_000 {
            journal.write(format!("line {at:04}\n").as_bytes()).unwrap();
            if at == 500 {
                journal = Journal::open_bounded(&path, 1_000).unwrap();
            }
        }
        journal.write(&[b'x'; 5_000]).unwrap();
        let sizes: Vec<u64> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|f| f.unwrap().metadata().unwrap().len())
            .collect();
        assert_eq!(sizes.len(), 2);
        assert!(sizes.iter().all(|bytes| (900..=1_000).contains(bytes)), "{sizes:?}");
        let before = std::fs::read_to_string(folder.join("a.log.1")).unwrap();
        assert!(before.ends_with("line 0999\n"), "{before}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
