//! Why a group can't be, or is no more.

use ring::link::LinkError;
use ring::session::SessionError;
use stage::ExchangeError;
use wire::WireError;

/// What stands in the way of a group, always with the member it happened on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// A configuration that no group can have.
    #[error("BadGroup: {0}")]
    BadGroup(String),
    /// An address that must not or can't be used.
    #[error(transparent)]
    Address(#[from] LinkError),
    /// Another model, layout or setting, another group, or not its turn.
    #[error("member {member}: {error}")]
    Refused {
        /// The member at the other end.
        member: usize,
        /// Which field, what was expected and what was found.
        error: WireError,
    },
    /// The handshake was not what it must be.
    #[error("member {member}: {error}")]
    Session {
        /// The member at the other end.
        member: usize,
        /// What is wrong.
        error: SessionError,
    },
    /// A member's address does not answer.
    #[error("Unreachable: member {member} at {address}: {reason}")]
    Unreachable {
        /// The member.
        member: usize,
        /// Where it should listen.
        address: String,
        /// The last attempt's failure.
        reason: String,
    },
    /// Members that did not connect in time.
    #[error("NotJoined: member {member} did not connect within {waited_ms} ms: {hint}")]
    NotJoined {
        /// The first that is missing.
        member: usize,
        /// Milliseconds waited.
        waited_ms: u64,
        /// What its door refused last, or what to look at.
        hint: String,
    },
    /// A member that is gone, silent, out of step or has failed.
    #[error("ShardLost: {0}")]
    Lost(#[from] ExchangeError),
    /// This member's process ends.
    #[error("shutting down")]
    Shutdown,
    /// The system has no thread or randomness to give.
    #[error("no resource: {0}")]
    Resource(String),
}

impl ShardError {
    /// As the loss of a member, which is what a stage can say.
    pub fn lost(self) -> ExchangeError {
        let reason = self.to_string();
        let member = match self {
            Self::Lost(lost) => return lost,
            Self::Refused { member, .. }
            | Self::Session { member, .. }
            | Self::Unreachable { member, .. }
            | Self::NotJoined { member, .. } => member,
            _ => 0,
        };
        ExchangeError { member, reason }
    }
}
