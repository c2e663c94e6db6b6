//! A unit on its way: a file of its size with what has come, and beside it the numbers of the
//! chunks that are there. A number is written after its chunk, so what a process that was killed
//! has left is true; what a loss of power has made of it shows when the unit is checked.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use weights::unit;

use crate::StoreError;
use crate::message::CHUNK_BYTES;

/// The ending of the list's name.
const LIST: &str = "chunks";
/// Bytes of a chunk's number.
const NUMBER_BYTES: usize = 4;

/// A unit of which some is there.
#[derive(Debug)]
pub(crate) struct Growing {
    path: PathBuf,
    file: File,
    list: File,
    there: Vec<bool>,
    left: usize,
}

fn list_path(part: &Path) -> PathBuf {
    part.with_extension(LIST)
}

/// Offset and bytes of chunk `at` of a unit of `bytes`.
pub(crate) fn place(bytes: u64, at: usize) -> (u64, u64) {
    let from = at as u64 * CHUNK_BYTES;
    (from, CHUNK_BYTES.min(bytes - from))
}

/// Removes a part; true, for it is gone.
pub(crate) fn remove(part: &Path) -> Result<bool, StoreError> {
    forget(part);
    match fs::remove_file(part) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(StoreError::io(part)(error))
        }
        _ => Ok(true),
    }
}

/// Removes the list of a part that has become a unit.
pub(crate) fn forget(part: &Path) {
    let _ = fs::remove_file(list_path(part));
}

impl Growing {
    /// The part at `path` of a unit of `bytes`, from the start where there is none or another.
    pub fn open(path: &Path, bytes: u64) -> Result<Self, StoreError> {
        let chunks = bytes.div_ceil(CHUNK_BYTES) as usize;
        let listed = list_path(path);
        let is_ours = fs::metadata(path).is_ok_and(|info| info.len() == bytes);
        let mut there = vec![false; chunks];
        // A list has each number once, so a longer one is none.
        let small = |info: fs::Metadata| info.len() <= (chunks * NUMBER_BYTES) as u64;
        if is_ours && fs::metadata(&listed).is_ok_and(small) {
            for number in fs::read(&listed).unwrap_or_default().as_chunks().0 {
                if let Some(there) = there.get_mut(u32::from_le_bytes(*number) as usize) {
                    *there = true;
                }
            }
        }
        let open =
            |path: &Path| File::options().create(true).truncate(false).write(true).open(path);
        let file = open(path).map_err(StoreError::io(path))?;
        file.set_len(bytes).map_err(StoreError::io(path))?;
        let left = there.iter().filter(|there| !**there).count();
        let list = Self::write_list(&listed, &there)?;
        Ok(Self { path: path.to_path_buf(), file, list, there, left })
    }

    /// Writes the list anew, open to be added to.
    fn write_list(at: &Path, there: &[bool]) -> Result<File, StoreError> {
        let numbers = there.iter().enumerate().filter(|(_, there)| **there);
        let bytes: Vec<u8> = numbers.flat_map(|(at, _)| (at as u32).to_le_bytes()).collect();
        unit::replace(at, &bytes).map_err(StoreError::io(at))?;
        File::options().append(true).open(at).map_err(StoreError::io(at))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether chunk `at` is there.
    pub fn has(&self, at: usize) -> bool {
        self.there[at]
    }

    /// Its chunks.
    pub fn chunks(&self) -> usize {
        self.there.len()
    }

    /// Chunks that are not there.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Adds chunk `at`; false where it was there.
    pub fn add(&mut self, at: usize, bytes: &[u8]) -> Result<bool, StoreError> {
        if self.there[at] {
            return Ok(false);
        }
        let written = self.file.write_all_at(bytes, at as u64 * CHUNK_BYTES);
        written.map_err(StoreError::io(&self.path))?;
        let listed = self.list.write_all(&(at as u32).to_le_bytes());
        listed.map_err(StoreError::io(&self.path))?;
        self.there[at] = true;
        self.left -= 1;
        Ok(true)
    }

    /// Takes the chunks over bytes `from..end` out again; their numbers.
    pub fn clear(&mut self, from: u64, end: u64) -> Result<Vec<usize>, StoreError> {
        let chunks = from / CHUNK_BYTES..end.div_ceil(CHUNK_BYTES);
        let cleared: Vec<usize> =
            chunks.map(|at| at as usize).filter(|&at| self.there[at]).collect();
        cleared.iter().for_each(|&at| self.there[at] = false);
        self.left += cleared.len();
        self.list = Self::write_list(&list_path(&self.path), &self.there)?;
        Ok(cleared)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("baton-part-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_part_goes_on_where_it_was_left_and_a_list_that_cannot_be_starts_anew() {
        let folder = Folder::new("resume");
        let path = folder.0.join("unit");
        let bytes = 3 * CHUNK_BYTES + 5;
        let chunk = vec![7; CHUNK_BYTES as usize];
        let mut growing = Growing::open(&path, bytes).unwrap();
        assert_eq!((growing.chunks(), growing.left(), place(bytes, 3)), (4, 4, (3 << 20, 5)));
        assert!(growing.add(1, &chunk).unwrap() && growing.add(3, &[9; 5]).unwrap());
        assert!(!growing.add(1, &chunk).unwrap(), "twice");
        drop(growing);
        let mut growing = Growing::open(&path, bytes).unwrap();
        let there: Vec<bool> = (0..4).map(|at| growing.has(at)).collect();
        assert_eq!((there, growing.left()), (vec![false, true, false, true], 2));
        assert_eq!(growing.clear(3 * CHUNK_BYTES + 1, bytes).unwrap(), [3]);
        drop(growing);
        assert_eq!(Growing::open(&path, bytes).unwrap().left(), 3);
        assert_eq!(Growing::open(&path, bytes + 1).unwrap().left(), 4, "of another size");
        fs::write(list_path(&path), [0; 17]).unwrap();
        assert_eq!(Growing::open(&path, bytes + 1).unwrap().left(), 4, "a list that is too long");
    }
}
