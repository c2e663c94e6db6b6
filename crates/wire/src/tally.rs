//! What a rank says of its work, for those who watch the ring at rank 0.

use arith::base::{Epoch, Rank};

use crate::bytes::Take;
use crate::error::WireError;

/// Bytes of a tally.
pub const TALLY_BYTES: usize = 48;

/// A rank's counts of the epoch, sent on by each rank up to rank 0. It is for the eye alone: no
/// byte of a reply and no decision of the ring follows from it, and one that is lost is made up for
/// by the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Who says it.
    pub origin: Rank,
    /// The shortest way to the rank after and back of late, in microseconds; 0 unknown.
    pub link_us: u32,
    /// The ring's life.
    pub epoch: Epoch,
    /// Rounds done.
    pub done: u64,
    /// Microseconds in which its device computed.
    pub computed_us: u64,
    /// Bytes written to the rank after.
    pub sent_bytes: u64,
    /// Bytes that the process has in memory; 0 unknown.
    pub memory_bytes: u64,
}

impl Tally {
    /// origin u32, link u32, epoch u64, done u64, computed u64, sent u64, memory u64.
    pub fn encode(&self) -> [u8; TALLY_BYTES] {
        let mut out = [0; TALLY_BYTES];
        out[0..4].copy_from_slice(&self.origin.0.to_le_bytes());
        out[4..8].copy_from_slice(&self.link_us.to_le_bytes());
        let words = [self.epoch.0, self.done, self.computed_us, self.sent_bytes, self.memory_bytes];
        for (at, word) in out[8..].chunks_exact_mut(8).zip(words) {
            at.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Reads a tally.
    ///
    /// # Errors
    /// `Truncated`, `Trailing`.
    pub fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let mut take = Take::new("tally", payload);
        let tally = Self {
            origin: Rank(take.u32("origin")?),
            link_us: take.u32("link_us")?,
            epoch: Epoch(take.u64("epoch")?),
            done: take.u64("done")?,
            computed_us: take.u64("computed_us")?,
            sent_bytes: take.u64("sent_bytes")?,
            memory_bytes: take.u64("memory_bytes")?,
        };
        take.end()?;
        Ok(tally)
    }
}
