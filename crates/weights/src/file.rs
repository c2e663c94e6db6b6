//! A file that is read at offsets.

use std::fs::{File, Metadata};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::WeightsError;
use crate::view::View;

/// An open file. Reads go through buffers of the caller: unlike a mapping, what was read once does
/// not stay in this process's memory, and a file that shrinks is an error, not a fault.
#[derive(Debug)]
pub(crate) struct Source {
    path: PathBuf,
    file: File,
    stamp: Stamp,
    /// Where its tensors are, if not in it.
    view: Option<View>,
}

/// What changes when a file is written: enough to know that digests of its bytes still hold.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub(crate) struct Stamp {
    /// Bytes.
    pub bytes: u64,
    /// Last write of the contents, nanoseconds since 1970.
    modified_ns: i128,
    /// Last change of contents or inode; programs that set the former can't set this one.
    changed_ns: i128,
}

impl Stamp {
    /// As the system has it.
    pub fn of(info: &Metadata) -> Self {
        let ns = |s: i64, ns: i64| i128::from(s) * 1_000_000_000 + i128::from(ns);
        Self {
            bytes: info.len(),
            modified_ns: ns(info.mtime(), info.mtime_nsec()),
            changed_ns: ns(info.ctime(), info.ctime_nsec()),
        }
    }
}

impl Source {
    /// Opens `path`, which must be a file with something in it.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let io = |source| WeightsError::Io { path: path.to_path_buf(), source };
        let file = File::open(path).map_err(io)?;
        let info = file.metadata().map_err(io)?;
        if !info.is_file() {
            let reason = "expected a file, found something else";
            return Err(io(io::Error::other(reason)));
        }
        if info.len() == 0 {
            return Err(io(io::Error::other("the file is empty")));
        }
        let (view, mut stamp) = (View::beside(path)?, Stamp::of(&info));
        if let Some(view) = &view {
            stamp.bytes = view.bytes();
        }
        Ok(Self { path: path.to_path_buf(), file, stamp, view })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// As it was when the file was opened.
    pub fn stamp(&self) -> &Stamp {
        &self.stamp
    }

    /// Whether nobody has written it since.
    pub fn is_unchanged(&self) -> bool {
        let now = self.file.metadata();
        now.is_ok_and(|info| Stamp::of(&info) == self.stamp)
    }

    /// Where its tensors are, if not in it.
    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    /// Bytes at its start that are in the file itself.
    pub fn head(&self) -> u64 {
        self.view.as_ref().map_or(self.stamp.bytes, View::head)
    }

    /// Whether `bytes` bytes at `at` are there.
    pub fn holds(&self, at: u64, bytes: u64) -> bool {
        let within = |end: u64| at.checked_add(bytes).is_some_and(|last| last <= end);
        within(self.head()) || self.view.as_ref().is_some_and(|view| view.holds(at, bytes))
    }

    /// Fills `out` from offset `at`.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<(), WeightsError> {
        let io = |source| WeightsError::Io { path: self.path.clone(), source };
        match &self.view {
            Some(view) if at >= view.head() => view.read(at, out).map_err(|(unit, source)| {
                let known = unit != Path::new("");
                if known { WeightsError::Io { path: unit, source } } else { io(source) }
            }),
            _ => self.file.read_exact_at(out, at).map_err(io),
        }
    }
}

/// Writes `path` so that it is there whole or as it was before: to a name of this process beside
/// it, then renamed.
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(format!(".part-{}", std::process::id()));
    let written = File::create(&part).and_then(|file| {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        write(&mut out)?;
        out.into_inner()?.sync_all()?;
        std::fs::rename(&part, path)
    });
    if written.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    written
}
