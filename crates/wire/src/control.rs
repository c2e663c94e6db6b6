//! Control messages, which flow round the ring at boot.

use arith::base::Rank;

use crate::bytes::{Tag, Take, put_prefix, take_prefix};
use crate::error::WireError;
use crate::limit::{CONTROL_BYTES_MAX, DEPTH_MAX, OFFER_BYTES};

pub use crate::describe::{Describe, Shapes};
pub use crate::fingerprint::Fields;

/// Rank 0's word to all, before KV is allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agree {
    /// The smallest shapes of all ranks.
    pub shapes: Shapes,
    /// Most rounds in flight, 1..64.
    pub depth: u32,
    /// Settings by name.
    pub settings: Fields,
}

/// The rank has loaded, is warm and can run the agreed shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The rank.
    pub rank: Rank,
}

/// By what the rank before finds a rank's berths; its device's own words.
pub type Offer = [u8; OFFER_BYTES];

/// A rank has berths on its device: room for rows, to which the device of the rank before may write
/// by itself. Goes round to that rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Berths {
    /// The rank; not 0, to which no rows of whole rounds go.
    pub rank: Rank,
    /// Where they are.
    pub offer: Offer,
}

/// A control frame's payload.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Message {
    /// A rank describes itself.
    Describe(Describe),
    /// Rank 0 tells what was agreed.
    Agree(Agree),
    /// A rank is ready.
    Ready(Ready),
    /// A fingerprint's fields, exchanged when digests differ.
    Fields(Fields),
    /// A rank has berths.
    Berths(Berths),
}

impl Message {
    /// The payload, prefix included.
    ///
    /// # Errors
    /// Those that [`Message::decode`] would raise at the other end.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        let mut out = Vec::new();
        match self {
            Self::Describe(describe) => return describe.encode(),
            Self::Agree(agree) => {
                put_prefix(&mut out, Tag::Agree);
                agree.shapes.put_into(&mut out);
                out.extend(agree.depth.to_le_bytes());
                agree.settings.put_into(&mut out);
                Self::decode(&out)?;
            }
            Self::Ready(ready) => {
                put_prefix(&mut out, Tag::Ready);
                out.extend(ready.rank.0.to_le_bytes());
                Self::decode(&out)?;
            }
            Self::Fields(fields) => {
                put_prefix(&mut out, Tag::Fields);
                fields.put_into(&mut out);
            }
            Self::Berths(berths) => {
                put_prefix(&mut out, Tag::Berths);
                out.extend(berths.rank.0.to_le_bytes());
                out.extend(berths.offer);
                Self::decode(&out)?;
            }
        }
        Ok(out)
    }

    /// Reads a control frame's payload.
    ///
    /// # Errors
    /// The prefix's, `OtherMessage` for a plan, and those of each message.
    pub fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let mut take = Take::new("control", payload);
        take.at_most("payload", CONTROL_BYTES_MAX as u64, payload.len() as u64)?;
        let tag = take_prefix(&mut take)?;
        let rest = &payload[payload.len() - take.left()..];
        let mut take = Take::new(tag.name(), rest);
        let message = match tag {
            Tag::Describe => return Describe::take_from(take).map(Self::Describe),
            Tag::Agree => Self::Agree(Agree::take_from(&mut take)?),
            Tag::Ready => Self::Ready(Ready::take_from(&mut take)?),
            Tag::Fields => Self::Fields(Fields::take_from(&mut take)?),
            Tag::Berths => Self::Berths(Berths::take_from(&mut take)?),
            Tag::Plan => {
                let fault = take.fault("message", "a control message", "a plan");
                return Err(WireError::OtherMessage(fault));
            }
        };
        take.end()?;
        Ok(message)
    }

    /// The message's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Describe(_) => "describe",
            Self::Agree(_) => "agree",
            Self::Ready(_) => "ready",
            Self::Fields(_) => "fields",
            Self::Berths(_) => "berths",
        }
    }
}

impl Agree {
    fn take_from(take: &mut Take<'_>) -> Result<Self, WireError> {
        let shapes = Shapes::take_from(take)?;
        let depth = take.u32("depth")?;
        if !(1..=DEPTH_MAX).contains(&depth) {
            let expected = format!("1..{DEPTH_MAX}");
            return Err(WireError::BadValue(take.fault("depth", expected, depth)));
        }
        Ok(Self { shapes, depth, settings: Fields::take_from(take)? })
    }
}

impl Berths {
    fn take_from(take: &mut Take<'_>) -> Result<Self, WireError> {
        let rank = take.u32("rank")?;
        if !(1..arith::base::WORLD_MAX).contains(&rank) {
            let expected = format!("1..{}", arith::base::WORLD_MAX);
            return Err(WireError::BadRank(take.fault("rank", expected, rank)));
        }
        Ok(Self { rank: Rank(rank), offer: take.array("offer")? })
    }
}

impl Ready {
    fn take_from(take: &mut Take<'_>) -> Result<Self, WireError> {
        let rank = take.u32("rank")?;
        if rank >= arith::base::WORLD_MAX {
            let expected = format!("below {}", arith::base::WORLD_MAX);
            return Err(WireError::BadRank(take.fault("rank", expected, rank)));
        }
        Ok(Self { rank: Rank(rank) })
    }
}
