//! Where a rank's neighbours come from: sockets, or memory in one process.

use arith::base::Epoch;

use crate::link::{LinkError, Neighbours};
use crate::memory;

/// Makes the links of one epoch after another.
pub trait Join: Send {
    /// Both neighbours, connected and authenticated. Rank 0 names the new epoch; others wait for
    /// it without limit.
    ///
    /// # Errors
    /// What stands in the way; the caller tries again.
    fn join(&mut self, epoch: Option<Epoch>) -> Result<Neighbours, LinkError>;
}

/// World 1: rank 0 is its own neighbour, in memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Join for Alone {
    fn join(&mut self, epoch: Option<Epoch>) -> Result<Neighbours, LinkError> {
        let mut ring = memory::ring(1, epoch.unwrap_or_default());
        Ok(ring.remove(0))
    }
}
