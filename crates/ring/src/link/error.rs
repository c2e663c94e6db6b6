//! Why a link, or the way to one, failed.

use arith::base::{Epoch, Rank};
use wire::WireError;

use crate::session::SessionError;

/// What ends an epoch's links or stands in the way of new ones. Names the rank at the other end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// This end closed the link.
    #[error("Closed: this rank closed the link")]
    Closed,
    /// The other end closed or reset the connection.
    #[error("LinkClosed: rank {rank}: {reason}")]
    LinkClosed {
        /// The rank at the other end.
        rank: Rank,
        /// How.
        reason: String,
    },
    /// No byte came for too long.
    #[error("RingSilent: rank {rank}: no byte for {silent_ms} ms")]
    RingSilent {
        /// The rank before.
        rank: Rank,
        /// Milliseconds without a byte.
        silent_ms: u64,
    },
    /// The rank after takes no bytes.
    #[error("SendStalled: rank {rank}: took no byte for {waited_ms} ms")]
    SendStalled {
        /// The rank after.
        rank: Rank,
        /// Milliseconds waited.
        waited_ms: u64,
    },
    /// The queue to the rank after stayed full.
    #[error("QueueFull: rank {rank}: no room for another frame within {waited_ms} ms")]
    QueueFull {
        /// The rank after.
        rank: Rank,
        /// Milliseconds waited.
        waited_ms: u64,
    },
    /// Bytes on the way back, which carries none.
    #[error("UnaskedBytes: rank {rank}: sent bytes against the ring's direction")]
    UnaskedBytes {
        /// The rank after.
        rank: Rank,
    },
    /// The handshake or a record was not what it must be.
    #[error("rank {rank}: {error}")]
    Session {
        /// The rank at the other end.
        rank: Rank,
        /// What is wrong.
        error: SessionError,
    },
    /// A refusal, or a frame that breaks the protocol; it names its rank.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The rank after could not be reached in time.
    #[error("Unreachable: rank {rank} at {address}: {reason}")]
    Unreachable {
        /// The rank after.
        rank: Rank,
        /// Where it should listen.
        address: String,
        /// The last attempt's failure.
        reason: String,
    },
    /// A link that nothing is known of.
    #[error("Unmeasured: {address}: {reason}; is a rank or `baton probe --answer` there?")]
    Unmeasured {
        /// Where somebody should listen.
        address: String,
        /// What went wrong.
        reason: String,
    },
    /// The rank before did not connect in time.
    #[error("NoNeighbour: rank {rank} did not connect within {waited_ms} ms: is it running?")]
    NoNeighbour {
        /// The rank before.
        rank: Rank,
        /// Milliseconds waited.
        waited_ms: u64,
    },
    /// The ring began a new life.
    #[error("Replaced: rank {rank} began epoch {:016x}", .epoch.0)]
    Replaced {
        /// The rank before.
        rank: Rank,
        /// The new epoch.
        epoch: Epoch,
    },
    /// An address that accepts from everywhere.
    #[error("WildcardListen: {address}: expected the address of one interface")]
    WildcardListen {
        /// The address.
        address: String,
    },
    /// A link off this machine without a key.
    #[error("KeylessAddress: {address}: without a key file only loopback addresses are allowed")]
    KeylessAddress {
        /// The address.
        address: String,
    },
    /// An address that can't be listened on.
    #[error("Listen: {address}: {reason}")]
    Listen {
        /// The address.
        address: String,
        /// What the system said.
        reason: String,
    },
    /// A configuration that no ring can have.
    #[error("BadRing: {0}")]
    BadRing(String),
    /// The system has no randomness, thread or event queue to give.
    #[error("no resource: {0}")]
    Random(String),
}

impl LinkError {
    /// The error's name.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Closed => "Closed",
            Self::LinkClosed { .. } => "LinkClosed",
            Self::RingSilent { .. } => "RingSilent",
            Self::SendStalled { .. } => "SendStalled",
            Self::QueueFull { .. } => "QueueFull",
            Self::UnaskedBytes { .. } => "UnaskedBytes",
            Self::Session { error, .. } => error.code(),
            Self::Wire(error) => error.code(),
            Self::Unreachable { .. } => "Unreachable",
            Self::Unmeasured { .. } => "Unmeasured",
            Self::NoNeighbour { .. } => "NoNeighbour",
            Self::Replaced { .. } => "Replaced",
            Self::WildcardListen { .. } => "WildcardListen",
            Self::KeylessAddress { .. } => "KeylessAddress",
            Self::Listen { .. } => "Listen",
            Self::BadRing(_) => "BadRing",
            Self::Random(_) => "Random",
        }
    }

    /// The rank at the other end, where there is one.
    pub fn rank(&self) -> Option<Rank> {
        match self {
            Self::LinkClosed { rank, .. }
            | Self::RingSilent { rank, .. }
            | Self::SendStalled { rank, .. }
            | Self::QueueFull { rank, .. }
            | Self::UnaskedBytes { rank }
            | Self::Session { rank, .. }
            | Self::Unreachable { rank, .. }
            | Self::NoNeighbour { rank, .. }
            | Self::Replaced { rank, .. } => Some(*rank),
            Self::Wire(error) => error.fault().rank,
            _ => None,
        }
    }
}
