//! Pieces: what a link between two members of a group carries. `docs/wire.md`, "Groups".
//!
//! A message is a kind, a number and bytes; it travels as pieces, each in a record of its own, so
//! that a receiver uses a piece before the next one is there.

use crate::bytes::Take;
use crate::error::{Fault, WireError};

/// The bytes "BATG".
const MAGIC: u32 = u32::from_le_bytes(*b"BATG");
/// Flag bit 0: more pieces of this message follow.
const MORE: u8 = 1;
/// Bytes before a piece's own.
pub const PIECE_HEADER_BYTES: usize = 16;
/// Most bytes of a piece, whole f32 values: with its header it fits one record.
pub const PIECE_BYTES_MAX: usize = 65_472;
/// Fewest and most members of a group.
pub const MEMBERS: std::ops::RangeInclusive<u32> = 2..=8;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The leader's call ([`crate::call::Call`]), by its number from 1.
    Call = 1,
    /// A member's values of one exchange, by its number from 1.
    Part = 2,
    /// The sender is alive: its number is that of the exchange between devices that it is at, 0
    /// where it is at none.
    Beat = 3,
    /// The group's epoch ends ([`crate::stop::Stop`], whose origin is a member).
    Stop = 4,
    /// A member's report ([`crate::call::Report`]) on the call of that number; 0 after a join.
    Report = 5,
}

/// One piece of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Of what.
    pub kind: Kind,
    /// Whether more follow.
    pub more: bool,
    /// The message's number; 0 for stops, and for beats at rest.
    pub number: u64,
    /// Its bytes, at most [`PIECE_BYTES_MAX`].
    pub payload: &'a [u8],
}

/// The bytes before a piece's own.
pub fn header(kind: Kind, more: bool, number: u64) -> [u8; PIECE_HEADER_BYTES] {
    let mut out = [0; PIECE_HEADER_BYTES];
    out[..4].copy_from_slice(&MAGIC.to_le_bytes());
    out[4] = kind as u8;
    out[5] = if more { MORE } else { 0 };
    out[8..].copy_from_slice(&number.to_le_bytes());
    out
}

impl<'a> Piece<'a> {
    /// The bytes before the piece's own.
    pub fn header(&self) -> [u8; PIECE_HEADER_BYTES] {
        header(self.kind, self.more, self.number)
    }

    /// Reads one piece, the body of a record.
    ///
    /// # Errors
    /// `Truncated`, `BadMagic`, `OtherKind`, `BadFlags`, `BadReserved`, `OutOfTurn` for a number
    /// that the kind does not have, `TooLarge`; `Truncated` also for a piece without bytes where
    /// more follow.
    pub fn decode(body: &'a [u8]) -> Result<Self, WireError> {
        let mut take = Take::new("piece", body);
        let magic = take.u32("magic")?;
        if magic != MAGIC {
            let (expected, found) = (format!("{MAGIC:#010x}"), format!("{magic:#010x}"));
            return Err(WireError::BadMagic(take.fault("magic", expected, found)));
        }
        let kind = match take.u8("kind")? {
            1 => Kind::Call,
            2 => Kind::Part,
            3 => Kind::Beat,
            4 => Kind::Stop,
            5 => Kind::Report,
            other => return Err(WireError::OtherKind(take.fault("kind", "1..5", other))),
        };
        let flags = take.u8("flags")?;
        let is_short = matches!(kind, Kind::Beat | Kind::Stop);
        if flags > MORE || (is_short && flags != 0) {
            let expected = if is_short { "0" } else { "0 or 1" };
            return Err(WireError::BadFlags(take.fault("flags", expected, flags)));
        }
        take.zeros::<2>("reserved")?;
        let number = take.u64("number")?;
        let is_numbered = match kind {
            Kind::Call | Kind::Part => number > 0,
            Kind::Stop => number == 0,
            Kind::Beat | Kind::Report => true,
        };
        if !is_numbered {
            let expected = if is_short { "0" } else { "1 or more" };
            return Err(WireError::OutOfTurn(take.fault("number", expected, number)));
        }
        take.at_most("bytes", PIECE_BYTES_MAX as u64, take.left() as u64)?;
        let payload = take.bytes("bytes", take.left())?;
        if flags == MORE && payload.is_empty() {
            return Err(WireError::Truncated(Fault::new("piece.bytes", "1 or more", 0)));
        }
        Ok(Self { kind, more: flags == MORE, number, payload })
    }

    /// The pieces of a message; one without bytes for an empty one.
    pub fn cut(kind: Kind, number: u64, payload: &'a [u8]) -> impl Iterator<Item = Piece<'a>> {
        let count = payload.len().div_ceil(PIECE_BYTES_MAX).max(1);
        (0..count).map(move |at| {
            let first = at * PIECE_BYTES_MAX;
            let end = payload.len().min(first + PIECE_BYTES_MAX);
            Piece { kind, more: at + 1 < count, number, payload: &payload[first..end] }
        })
    }
}

/// Joins the pieces of calls and reports.
#[derive(Debug, Default)]
pub struct Joiner {
    at_work: Option<(Kind, u64)>,
    payload: Vec<u8>,
}

impl Joiner {
    /// Takes the next piece; the whole message once its last one is there. `bytes_max` bounds a
    /// message of several pieces.
    ///
    /// # Errors
    /// `OutOfTurn` for another message between pieces, `TooLarge`.
    pub fn push(
        &mut self,
        piece: &Piece<'_>,
        bytes_max: usize,
    ) -> Result<Option<Vec<u8>>, WireError> {
        let key = (piece.kind, piece.number);
        let at_work = *self.at_work.get_or_insert(key);
        if at_work != key {
            let [expected, found] = [at_work, key].map(|(kind, n)| format!("{kind:?} {n}"));
            return Err(WireError::OutOfTurn(Fault::new("piece.number", expected, found)));
        }
        let bytes = self.payload.len() + piece.payload.len();
        if bytes > bytes_max.max(PIECE_BYTES_MAX) {
            let expected = format!("at most {bytes_max}");
            return Err(WireError::TooLarge(Fault::new("piece.bytes", expected, bytes)));
        }
        self.payload.extend_from_slice(piece.payload);
        if piece.more {
            return Ok(None);
        }
        self.at_work = None;
        Ok(Some(std::mem::take(&mut self.payload)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_message_of_any_size_joins_from_its_pieces() {
        for bytes in [0, 1, PIECE_BYTES_MAX, PIECE_BYTES_MAX + 1, 3 * PIECE_BYTES_MAX] {
            let payload: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
            let mut joiner = Joiner::default();
            let mut whole = None;
            for piece in Piece::cut(Kind::Call, 7, &payload) {
                assert!(whole.is_none(), "nothing after the last piece");
                let body = [&piece.header()[..], piece.payload].concat();
                whole = joiner.push(&Piece::decode(&body).unwrap(), bytes).unwrap();
            }
            assert_eq!(whole, Some(payload));
        }
    }

    #[test]
    fn a_message_past_its_limit_or_between_pieces_is_refused() {
        let payload = vec![0; 2 * PIECE_BYTES_MAX];
        let mut joiner = Joiner::default();
        let pieces: Vec<_> = Piece::cut(Kind::Call, 1, &payload).collect();
        assert_eq!(joiner.push(&pieces[0], PIECE_BYTES_MAX), Ok(None));
        let error = joiner.push(&pieces[1], 2 * PIECE_BYTES_MAX - 1).unwrap_err();
        assert_eq!(error.code(), "TooLarge");
        let other = Piece { number: 2, ..pieces[1] };
        assert_eq!(joiner.push(&other, usize::MAX).unwrap_err().code(), "OutOfTurn");
    }
}
