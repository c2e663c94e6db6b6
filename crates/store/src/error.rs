//! What can go wrong with a store and on the way to it.

use std::io;
use std::path::{Path, PathBuf};

use weights::WeightsError;

/// Why units are not where they should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file of the store can't be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Another process writes this store.
    #[error("the store {} is another process's: one at a time may write it", root.display())]
    Busy {
        /// Its folder.
        root: PathBuf,
    },
    /// The units don't fit, whatever is not in use let go.
    #[error(
        "the store is full: {needed} more bytes are needed, {used} of its {limit} are in use; \
         give it a higher limit"
    )]
    Full {
        /// Bytes of what is to come.
        needed: u64,
        /// Bytes that can't be let go.
        used: u64,
        /// Its limit.
        limit: u64,
    },
    /// A count beyond its limit.
    #[error("{what}: expected at most {limit}, found {found}")]
    Limit {
        /// What is counted.
        what: &'static str,
        /// The most.
        limit: usize,
        /// The count.
        found: usize,
    },
    /// A model or its catalog.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A link that could not be made, or broke.
    #[error("{peer}: {reason}")]
    Link {
        /// The other end.
        peer: String,
        /// What happened.
        reason: String,
    },
    /// A message that can't be.
    #[error("{peer}: {field}: expected {expected}, found {found}")]
    Message {
        /// Who sent it.
        peer: String,
        /// Of what.
        field: &'static str,
        /// What may be there.
        expected: String,
        /// What was there.
        found: String,
    },
    /// Nobody who can be reached gives what is left.
    #[error("{left} bytes are left ({first} first) and nobody gives them: {reasons}")]
    NoSource {
        /// Bytes.
        left: u64,
        /// The first unit that is not there.
        first: String,
        /// What became of each source.
        reasons: String,
    },
    /// No address of a machine got through.
    #[error("no address got through: {reasons}")]
    Unreached {
        /// What became of each.
        reasons: String,
    },
    /// A unit that came several times and was never what its address says.
    #[error(
        "{part}, `{piece}`: came {times} times and never with its SHA-256, from {peers}: \
         is the file there damaged?"
    )]
    Wrong {
        /// The unit.
        part: String,
        /// The first piece that is wrong.
        piece: String,
        /// How often.
        times: u32,
        /// Who gave it.
        peers: String,
    },
    /// A unit that nobody asks for, gets or checks any more: a bug of ours, which no wait mends.
    #[error(
        "{part}: it is not in the store, and nobody fetches or checks it: this is a bug; what came \
         stays for the next time"
    )]
    Lost {
        /// The unit.
        part: String,
    },
    /// The other end gave up.
    #[error("{peer} gave up: {reason}")]
    Refused {
        /// The other end.
        peer: String,
        /// What it says.
        reason: String,
    },
    /// It was asked to end.
    #[error("stopped before its end; what came stays for the next time")]
    Stopped,
}

impl StoreError {
    /// Of a file.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { path, source }
    }

    /// Whether it is of this machine, and no other source would help.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Full { .. } | Self::Weights(_) | Self::Wrong { .. })
    }
}
