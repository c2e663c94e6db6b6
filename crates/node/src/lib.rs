//! Which machines there are, and which of them runs which rank: a head that serves, an agent on
//! every machine.
//!
//! [`Head`] and [`Agent`] are cores without I/O: what happens goes in with the time since some
//! start, what to do comes out. Nothing here reads a wall clock, so a clock that jumps moves
//! nothing. They speak in [`message`]s over a [`channel`], an authenticated session as the ring's.
//! Whoever drives them owns the sockets, the processes and the plan.
//!
//! A head makes a claim on each agent with a [`Ballot`]. The highest ballot that an agent has heard
//! is its head; an older one is refused, and the ranks that it started end. So a head that was
//! started again takes its nodes over, and one that was cut off for a while finds out and ends.
#![forbid(unsafe_code)]

pub mod agent;
pub mod channel;
mod error;
pub mod file;
pub mod head;
pub mod journal;
pub mod mdns;
pub mod membership;
pub mod message;

pub use agent::Agent;
pub use error::NodeError;
pub use head::Head;
pub use message::Ballot;

use std::time::Duration;

/// Time since some start; only differences count.
pub type Now = Duration;

/// A random number, never 0: of a head or of an agent's life.
///
/// # Errors
/// `Random`.
pub fn draw() -> Result<u64, NodeError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| NodeError::Random(error.to_string()))?;
    Ok(u64::from_le_bytes(bytes).max(1))
}

/// The most nodes of a head, as many as a placement looks at with the head's own machine.
pub const NODES_MAX: usize = 7;
