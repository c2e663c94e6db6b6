//! The sign of life between neighbours.

use arith::base::{Epoch, Rank, Round};

use crate::bytes::Take;
use crate::error::WireError;

/// Bytes of a beat.
pub const BEAT_BYTES: usize = 32;

/// Sent by a rank's I/O side to its neighbour when it has sent nothing for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    /// The sender.
    pub rank: Rank,
    /// The ring's life.
    pub epoch: Epoch,
    /// The round at work; 0 when idle.
    pub round: Round,
    /// Rounds done in this epoch.
    pub done: u64,
}

impl Beat {
    /// rank u32, reserved u32, epoch u64, round u64, done u64.
    pub fn encode(&self) -> [u8; BEAT_BYTES] {
        let mut out = [0; BEAT_BYTES];
        out[0..4].copy_from_slice(&self.rank.0.to_le_bytes());
        out[8..16].copy_from_slice(&self.epoch.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.round.0.to_le_bytes());
        out[24..32].copy_from_slice(&self.done.to_le_bytes());
        out
    }

    /// Reads a beat.
    ///
    /// # Errors
    /// `Truncated`, `Trailing`, `BadReserved`.
    pub fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let mut take = Take::new("beat", payload);
        let rank = Rank(take.u32("rank")?);
        take.zeros::<4>("reserved")?;
        let beat = Self {
            rank,
            epoch: Epoch(take.u64("epoch")?),
            round: Round(take.u64("round")?),
            done: take.u64("done")?,
        };
        take.end()?;
        Ok(beat)
    }
}
