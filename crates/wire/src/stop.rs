//! The stop that every rank hears, with one reason.

use arith::base::Rank;

use crate::bytes::Take;
use crate::error::WireError;
use crate::limit::REASON_BYTES_MAX;

/// The ring stops and goes to waiting; the link stays whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Who stopped it; the rank before it passes the stop on no further.
    pub origin: Rank,
    /// Why, for people and logs.
    pub reason: String,
}

impl Stop {
    /// origin u32, then the reason; a longer reason is cut to 4 KiB between two characters.
    pub fn encode(&self) -> Vec<u8> {
        let reason = &self.reason[..self.reason.floor_char_boundary(REASON_BYTES_MAX)];
        let mut out = Vec::with_capacity(4 + reason.len());
        out.extend(self.origin.0.to_le_bytes());
        out.extend(reason.as_bytes());
        out
    }

    /// Reads a stop.
    ///
    /// # Errors
    /// `Truncated`, `TooLarge`, `BadText`.
    pub fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let mut take = Take::new("stop", payload);
        let origin = Rank(take.u32("origin")?);
        take.at_most("reason", REASON_BYTES_MAX as u64, take.left() as u64)?;
        let bytes = take.bytes("reason", take.left())?;
        let reason = take.utf8("reason", bytes)?.to_owned();
        Ok(Self { origin, reason })
    }
}
