//! What keeps nodes apart.

use std::path::PathBuf;

use ring::key::KeyError;
use ring::link::LinkError;
use ring::session::SessionError;
use wire::WireError;

/// Why a channel, a message or a file of nodes is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// No connection, or one that ended.
    #[error("{address}: {reason}")]
    Unreachable {
        /// Where to.
        address: String,
        /// What the system said.
        reason: String,
    },
    /// A handshake or record of somebody without the key, or of another session.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Not this protocol.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// An address that this key must not use.
    #[error(transparent)]
    Address(#[from] LinkError),
    /// The key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A port of this protocol's, but no agent's.
    #[error("OtherPort: {address} is no node's: expected {expected}, found {found}")]
    OtherPort {
        /// Where.
        address: String,
        /// This end's.
        expected: &'static str,
        /// The other end's.
        found: String,
    },
    /// A message that is none of the protocol's.
    #[error("BadMessage: {0}")]
    BadMessage(String),
    /// A message that no record holds.
    #[error("MessageTooLong: {bytes} bytes, at most {max}")]
    MessageTooLong {
        /// Its bytes.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The system has no randomness to give.
    #[error("no random bytes: {0}")]
    Random(String),
    /// A file of nodes that can't be read.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what was expected.
        reason: String,
    },
}
