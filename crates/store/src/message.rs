//! Messages between stores: eight bytes (kind, three zeros, u32 bytes), then the payload; all
//! integers little-endian. Each begins a record of the link.

use weights::{Digest, catalog};

/// Bytes before a payload.
pub const HEAD_BYTES: usize = 8;
/// Bytes of a chunk, but for a unit's last: what is asked for at once.
pub const CHUNK_BYTES: u64 = 1 << 20;
/// Most units of a query.
pub const QUERY_UNITS_MAX: usize = 4_096;
/// Most bytes of what an end says of how it went.
pub const DONE_BYTES_MAX: usize = 4_096;
/// Bytes of an address.
const DIGEST_BYTES: usize = 32;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From a giver, first: a model's address and the layers that the other end should take.
    Offer = 1,
    /// From a taker: the address of a catalog.
    AskCatalog = 2,
    /// From a giver: a catalog; empty where it has none of that address.
    Catalog = 3,
    /// From a taker: addresses of units.
    Query = 4,
    /// From a giver: a byte for each, 1 where it has the unit.
    Holds = 5,
    /// From a taker: address, offset and bytes of a chunk.
    Ask = 6,
    /// From a giver: the bytes of the first chunk that was asked for and not given.
    Chunk = 7,
    /// From a giver, instead: it no longer has the unit.
    Lacks = 8,
    /// From a taker, to a giver that offered: bytes of all and of what is missing.
    Total = 9,
    /// From a taker, to a giver that offered: 0 or 1 for well or not, then words.
    Done = 10,
}

impl Kind {
    /// By its number.
    pub fn of(number: u8) -> Option<Self> {
        use Kind::{Ask, AskCatalog, Catalog, Chunk, Done, Holds, Lacks, Offer, Query, Total};
        let all = [Offer, AskCatalog, Catalog, Query, Holds, Ask, Chunk, Lacks, Total, Done];
        all.into_iter().find(|kind| *kind as u8 == number)
    }

    /// Fewest and most bytes of its payload.
    pub fn bytes(self) -> (usize, usize) {
        match self {
            Self::Offer | Self::Ask => (44, 44),
            Self::AskCatalog => (DIGEST_BYTES, DIGEST_BYTES),
            Self::Catalog => (0, catalog::BYTES_MAX),
            Self::Query => (DIGEST_BYTES, QUERY_UNITS_MAX * DIGEST_BYTES),
            Self::Holds => (1, QUERY_UNITS_MAX),
            Self::Chunk => (1, CHUNK_BYTES as usize),
            Self::Lacks => (0, 0),
            Self::Total => (16, 16),
            Self::Done => (1, DONE_BYTES_MAX),
        }
    }
}

/// What a giver offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Offer {
    /// The model's address.
    pub id: Digest,
    /// Layers, half-open.
    pub layers: (u32, u32),
    /// Whether the ends too.
    pub ends: bool,
}

impl Offer {
    /// As a payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.id.to_vec();
        out.extend(self.layers.0.to_le_bytes());
        out.extend(self.layers.1.to_le_bytes());
        out.extend([u8::from(self.ends), 0, 0, 0]);
        out
    }

    /// From a payload; `None` where it is none.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let (id, rest) = payload.split_first_chunk()?;
        let (first, rest) = rest.split_first_chunk()?;
        let (end, rest) = rest.split_first_chunk()?;
        let ends = match rest {
            [ends @ (0 | 1), 0, 0, 0] => *ends == 1,
            _ => return None,
        };
        let layers = (u32::from_le_bytes(*first), u32::from_le_bytes(*end));
        Some(Self { id: *id, layers, ends })
    }
}

/// A chunk that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The unit's address.
    pub unit: Digest,
    /// First byte.
    pub at: u64,
    /// Bytes, 1 to [`CHUNK_BYTES`].
    pub bytes: u32,
}

impl Ask {
    /// As a payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.unit.to_vec();
        out.extend(self.at.to_le_bytes());
        out.extend(self.bytes.to_le_bytes());
        out
    }

    /// From a payload; `None` where it is none.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let (unit, rest) = payload.split_first_chunk()?;
        let (at, rest) = rest.split_first_chunk()?;
        let bytes = u32::from_le_bytes(rest.try_into().ok()?);
        let fits = (1..=CHUNK_BYTES).contains(&u64::from(bytes));
        fits.then(|| Self { unit: *unit, at: u64::from_le_bytes(*at), bytes })
    }
}

/// Two counts as a payload.
pub(crate) fn encode_total(all: u64, missing: u64) -> [u8; 16] {
    let mut out = [0; 16];
    out[..8].copy_from_slice(&all.to_le_bytes());
    out[8..].copy_from_slice(&missing.to_le_bytes());
    out
}

/// The counts of [`encode_total`].
pub(crate) fn decode_total(payload: &[u8]) -> Option<(u64, u64)> {
    let (all, missing) = payload.split_first_chunk()?;
    Some((u64::from_le_bytes(*all), u64::from_le_bytes(missing.try_into().ok()?)))
}

/// How it went, as a payload.
pub(crate) fn encode_done(went: Result<&str, &str>) -> Vec<u8> {
    let (code, text) = match went {
        Ok(text) => (0, text),
        Err(text) => (1, text),
    };
    let mut end = text.len().min(DONE_BYTES_MAX - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    [&[code], &text.as_bytes()[..end]].concat()
}

/// What [`encode_done`] was given; `None` where it is none.
pub(crate) fn decode_done(payload: &[u8]) -> Option<Result<String, String>> {
    let (code, text) = payload.split_first()?;
    let text = std::str::from_utf8(text).ok()?.to_owned();
    match code {
        0 => Some(Ok(text)),
        1 => Some(Err(text)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_taken_only_as_they_are_made() {
        let offer = Offer { id: [7; 32], layers: (3, 9), ends: true };
        assert_eq!(Offer::decode(&offer.encode()), Some(offer));
        let ask = Ask { unit: [9; 32], at: 1 << 40, bytes: CHUNK_BYTES as u32 };
        assert_eq!(Ask::decode(&ask.encode()), Some(ask));
        for bytes in [0, CHUNK_BYTES as u32 + 1] {
            assert_eq!(Ask::decode(&Ask { bytes, ..ask }.encode()), None, "{bytes}");
        }
        let mut odd = offer.encode();
        odd[40] = 2;
        assert_eq!(Offer::decode(&odd), None);
        assert_eq!(Offer::decode(&offer.encode()[1..]), None);
        assert_eq!(decode_total(&encode_total(5, 4)), Some((5, 4)));
        for went in [Ok("there"), Err("é".repeat(DONE_BYTES_MAX).as_str())] {
            let payload = encode_done(went);
            assert!(payload.len() <= DONE_BYTES_MAX);
            let heard = decode_done(&payload);
            assert_eq!(heard.map(|heard| heard.is_ok()), Some(went.is_ok()));
        }
    }

    #[test]
    fn kinds_have_the_numbers_that_they_are_sent_by() {
        for number in 0..=u8::MAX {
            let kind = Kind::of(number);
            assert_eq!(kind.is_some(), (1..=10).contains(&number));
            assert!(
                kind.is_none_or(|kind| kind as u8 == number && kind.bytes().0 <= kind.bytes().1)
            );
        }
    }
}
