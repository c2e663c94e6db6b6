//! What ends an epoch of the ring, always with the rank it happened on.

use std::time::Duration;

use arith::base::{Rank, Round};
use stage::StageError;
use wire::WireError;

use crate::link::LinkError;
use crate::step::Action;

/// Why a boot, a round or an epoch ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// A link closed, fell silent or refused.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A message that breaks the protocol.
    #[error("rank {from}: {error}")]
    Wire {
        /// The rank whose message it is.
        from: Rank,
        /// What is wrong with it.
        error: WireError,
    },
    /// A refusal at boot, which names its rank itself.
    #[error(transparent)]
    Refused(#[from] WireError),
    /// This rank's stage could not do the round.
    #[error("rank {rank}: {error}")]
    Stage {
        /// The rank.
        rank: Rank,
        /// The stage's reason.
        error: StageError,
    },
    /// Another rank stopped the ring.
    #[error("{reason}")]
    Stopped {
        /// Who stopped it.
        origin: Rank,
        /// Its reason, which names it.
        reason: String,
    },
    /// A rank said nothing at boot.
    #[error("rank {rank} sent no {what} within {} s: is it running?", .waited.as_secs())]
    BootTimeout {
        /// The rank that is missing.
        rank: Rank,
        /// What it owed.
        what: &'static str,
        /// How long rank 0 waited.
        waited: Duration,
    },
    /// A round did not come back.
    #[error("StageStalled: round {round} did not come back within {} s", .waited.as_secs())]
    StageStalled {
        /// The round.
        round: Round,
        /// How long rank 0 waited.
        waited: Duration,
    },
    /// Frames out of order.
    #[error("OutOfTurn: expected {expected}, found {found}")]
    OutOfTurn {
        /// What was due.
        expected: String,
        /// What came.
        found: String,
    },
    /// The canary's bytes differ from its reference.
    #[error(
        "OtherCanary: expected {expected} (from {from}), found {found}: the ring does not compute \
         this model's bytes"
    )]
    OtherCanary {
        /// Reference hash.
        expected: String,
        /// Where the reference comes from: a file, or another flight.
        from: String,
        /// The ring's.
        found: String,
    },
    /// The system gave no random bytes.
    #[error("no random bytes for the epoch: {0}")]
    Random(String),
    /// The canary could not be run at all.
    #[error("the canary failed: {0}")]
    CanaryRefused(String),
    /// Rank 0 goes over to another layout.
    #[error("the layers are laid out anew")]
    Replanned,
    /// Whoever runs this rank asked it to end.
    #[error("shutting down")]
    Shutdown,
}

impl RingError {
    /// Whether a rank ended the ring because it was asked to, and not because something broke.
    pub(crate) fn is_shutdown(&self) -> bool {
        match self {
            Self::Shutdown => true,
            Self::Stopped { reason, .. } => reason.ends_with(&Self::Shutdown.to_string()),
            _ => false,
        }
    }

    /// How `rank` ends the epoch: it tells every rank why, unless they know, and closes both links.
    pub(crate) fn tell(&self, rank: Rank) -> Action {
        match self {
            Self::Stopped { .. } => Action::Close,
            Self::Stage { .. } | Self::Link(_) => Action::Stop(rank, self.to_string()),
            _ => Action::Stop(rank, format!("rank {rank}: {self}")),
        }
    }
}
