//! A file mapped for reading.

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

use crate::WeightsError;

/// Maps all of `path`, which must not be empty.
pub(crate) fn map(path: &Path) -> Result<Mmap, WeightsError> {
    let io = |source| WeightsError::Io {
        path: path.to_path_buf(),
        source,
    };
    let file = File::open(path).map_err(io)?;
    let info = file.metadata().map_err(io)?;
    if !info.is_file() {
        return Err(io(std::io::Error::other(
            "expected a file, found something else",
        )));
    }
    if info.len() == 0 {
        return Err(io(std::io::Error::other("the file is empty")));
    }
    // SAFETY: the mapping is read-only and private to this process. Another process that writes
    // the file can change the bytes seen, and one that shortens it makes a read fault; checkpoints
    // are not edited in place, and no reference to the bytes assumes more than plain initialised
    // `u8`s.
    unsafe { Mmap::map(&file) }.map_err(io)
}
