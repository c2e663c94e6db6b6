//! What a link can carry: asked after a measurer's handshake, a record a message.

use crate::bytes::Take;
use crate::error::WireError;
use crate::limit::MEASURE_BYTES_MAX;

/// Bytes of a message.
pub const MEASURE_BYTES: usize = 16;
const MAGIC: u32 = u32::from_le_bytes(*b"BATM");

/// A message of a measurement. The measurer asks, the acceptor answers each before the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Send this back: a round trip, by its number.
    Echo(u64),
    /// So many bytes follow, in full records; say how long they took.
    Take(u64),
    /// Send so many bytes, in full records.
    Give(u64),
    /// The answer to a take: microseconds from it to the last byte.
    Took(u64),
}

impl Measure {
    /// magic u32, kind u8, three reserved bytes, value u64.
    pub fn encode(&self) -> [u8; MEASURE_BYTES] {
        let (kind, value) = match *self {
            Self::Echo(number) => (1, number),
            Self::Take(bytes) => (2, bytes),
            Self::Give(bytes) => (3, bytes),
            Self::Took(us) => (4, us),
        };
        let mut out = [0; MEASURE_BYTES];
        out[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4] = kind;
        out[8..16].copy_from_slice(&value.to_le_bytes());
        out
    }

    /// Reads a message.
    ///
    /// # Errors
    /// `Truncated`, `Trailing`, `BadMagic`, `OtherKind`, `BadReserved`, `TooLarge`, and `BadValue`
    /// for no bytes.
    pub fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let mut take = Take::new("measure", payload);
        let magic = take.u32("magic")?;
        if magic != MAGIC {
            let found = format!("{magic:#010x}");
            return Err(WireError::BadMagic(take.fault("magic", "the bytes BATM", found)));
        }
        let kind = take.u8("kind")?;
        take.zeros::<3>("reserved")?;
        let value = take.u64("value")?;
        if matches!(kind, 2 | 3) {
            take.at_most("value", MEASURE_BYTES_MAX, value)?;
            if value == 0 {
                return Err(WireError::BadValue(take.fault("value", "1 byte or more", value)));
            }
        }
        let message = match kind {
            1 => Self::Echo(value),
            2 => Self::Take(value),
            3 => Self::Give(value),
            4 => Self::Took(value),
            other => return Err(WireError::OtherKind(take.fault("kind", "1..4", other))),
        };
        take.end()?;
        Ok(message)
    }
}
