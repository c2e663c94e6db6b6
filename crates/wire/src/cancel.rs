//! The cancel that overtakes plans and rows.

use arith::base::{Epoch, Rank, StreamId};

use crate::bytes::Take;
use crate::error::WireError;

/// Bytes of a cancel.
pub const CANCEL_BYTES: usize = 16;

/// Somebody gave the stream up: stages skip its rows in rounds still queued. The plan's own cancel
/// stays the authority on state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancel {
    /// Who sent it first; the rank before it drops it.
    pub origin: Rank,
    /// The stream.
    pub stream: StreamId,
    /// The ring's life.
    pub epoch: Epoch,
}

impl Cancel {
    /// origin u32, stream u32, epoch u64.
    pub fn encode(&self) -> [u8; CANCEL_BYTES] {
        let mut out = [0; CANCEL_BYTES];
        out[0..4].copy_from_slice(&self.origin.0.to_le_bytes());
        out[4..8].copy_from_slice(&self.stream.0.to_le_bytes());
        out[8..16].copy_from_slice(&self.epoch.0.to_le_bytes());
        out
    }

    /// Reads a cancel.
    ///
    /// # Errors
    /// `Truncated`, `Trailing`.
    pub fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let mut take = Take::new("cancel", payload);
        let cancel = Self {
            origin: Rank(take.u32("origin")?),
            stream: StreamId(take.u32("stream")?),
            epoch: Epoch(take.u64("epoch")?),
        };
        take.end()?;
        Ok(cancel)
    }
}
