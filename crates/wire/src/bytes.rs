//! Bounded reading and plain writing of little-endian fields.

use crate::error::{Fault, WireError};
use crate::limit;

/// The bytes of the message prefix: "TFSP".
const PREFIX_MAGIC: u32 = 0x5053_4654;
/// Bytes of the message prefix.
pub(crate) const PREFIX_BYTES: usize = 8;

/// Reads fields off the front of a payload; errors name `what.field`.
pub(crate) struct Take<'a> {
    what: &'static str,
    bytes: &'a [u8],
}

impl<'a> Take<'a> {
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, bytes }
    }

    /// Bytes not yet read.
    pub(crate) fn left(&self) -> usize {
        self.bytes.len()
    }

    /// A fault of one of this message's fields.
    pub(crate) fn fault(
        &self,
        field: &str,
        expected: impl std::fmt::Display,
        found: impl std::fmt::Display,
    ) -> Box<Fault> {
        Fault::new(format!("{}.{field}", self.what), expected, found)
    }

    pub(crate) fn bytes(&mut self, field: &str, count: usize) -> Result<&'a [u8], WireError> {
        self.fits(field, count)?;
        let (head, tail) = self.bytes.split_at(count);
        self.bytes = tail;
        Ok(head)
    }

    /// Refuses a count of bytes that the payload can't hold, before anything is allocated.
    pub(crate) fn fits(&self, field: &str, count: usize) -> Result<(), WireError> {
        if count > self.left() {
            let expected = format!("{count} more bytes");
            return Err(WireError::Truncated(self.fault(field, expected, self.left())));
        }
        Ok(())
    }

    pub(crate) fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N], WireError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(field, N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self, field: &str) -> Result<u8, WireError> {
        self.array(field).map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self, field: &str) -> Result<u16, WireError> {
        self.array(field).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self, field: &str) -> Result<u32, WireError> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, field: &str) -> Result<u64, WireError> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// Reserved bytes: all zero.
    pub(crate) fn zeros<const N: usize>(&mut self, field: &str) -> Result<(), WireError> {
        let found: [u8; N] = self.array(field)?;
        if found != [0; N] {
            return Err(WireError::BadReserved(self.fault(field, 0, format!("{found:?}"))));
        }
        Ok(())
    }

    /// A u16 length, at most `max`, then that much UTF-8.
    pub(crate) fn text(&mut self, field: &str, max: usize) -> Result<&'a str, WireError> {
        let count = usize::from(self.u16(field)?);
        self.at_most(field, max as u64, count as u64)?;
        let bytes = self.bytes(field, count)?;
        self.utf8(field, bytes)
    }

    pub(crate) fn utf8(&self, field: &str, bytes: &'a [u8]) -> Result<&'a str, WireError> {
        std::str::from_utf8(bytes).map_err(|e| {
            let found = format!("a bad byte at {}", e.valid_up_to());
            WireError::BadText(self.fault(field, "UTF-8", found))
        })
    }

    pub(crate) fn at_most(&self, field: &str, max: u64, found: u64) -> Result<(), WireError> {
        if found > max {
            let expected = format!("at most {max}");
            return Err(WireError::TooLarge(self.fault(field, expected, found)));
        }
        Ok(())
    }

    /// Nothing may be left.
    pub(crate) fn end(self) -> Result<(), WireError> {
        if self.left() > 0 {
            let found = format!("{} more bytes", self.left());
            return Err(WireError::Trailing(self.fault("payload", "its end", found)));
        }
        Ok(())
    }
}

/// Which message a prefixed payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    Describe = 1,
    Ready = 2,
    Plan = 3,
    Agree = 4,
    Fields = 5,
    Berths = 6,
}

impl Tag {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Describe => "describe",
            Self::Ready => "ready",
            Self::Plan => "plan",
            Self::Agree => "agree",
            Self::Fields => "fields",
            Self::Berths => "berths",
        }
    }
}

/// Writes the 8-byte prefix: magic u32, version u16, message u8, reserved u8.
pub(crate) fn put_prefix(out: &mut Vec<u8>, tag: Tag) {
    out.extend(PREFIX_MAGIC.to_le_bytes());
    out.extend(limit::VERSION.to_le_bytes());
    out.extend([tag as u8, 0]);
}

/// Reads the prefix and says which message follows.
pub(crate) fn take_prefix(take: &mut Take<'_>) -> Result<Tag, WireError> {
    let magic = take.u32("magic")?;
    if magic != PREFIX_MAGIC {
        let found = format!("{magic:#010x}");
        let expected = format!("{PREFIX_MAGIC:#010x}");
        return Err(WireError::BadMagic(take.fault("magic", expected, found)));
    }
    let version = take.u16("version")?;
    if version != limit::VERSION {
        return Err(WireError::OtherVersion(take.fault("version", limit::VERSION, version)));
    }
    let tag = match take.u8("message")? {
        1 => Tag::Describe,
        2 => Tag::Ready,
        3 => Tag::Plan,
        4 => Tag::Agree,
        5 => Tag::Fields,
        6 => Tag::Berths,
        other => {
            return Err(WireError::OtherMessage(take.fault("message", "1..6", other)));
        }
    };
    take.zeros::<1>("reserved")?;
    Ok(tag)
}

/// Writes a u16 length and the text; an error past `max`.
pub(crate) fn put_text(
    out: &mut Vec<u8>,
    field: &str,
    text: &str,
    max: usize,
) -> Result<(), WireError> {
    debug_assert!(max <= usize::from(u16::MAX));
    let Ok(count) = u16::try_from(text.len()) else {
        return Err(too_long(field, max, text.len()));
    };
    if text.len() > max {
        return Err(too_long(field, max, text.len()));
    }
    out.extend(count.to_le_bytes());
    out.extend(text.as_bytes());
    Ok(())
}

fn too_long(field: &str, max: usize, found: usize) -> WireError {
    WireError::TooLarge(Fault::new(field, format!("at most {max}"), found))
}

/// A rank below a world of 1..64.
pub(crate) fn check_rank(field: &str, rank: u32, world: u32) -> Result<(), WireError> {
    if world == 0 || world > arith::base::WORLD_MAX {
        let expected = format!("a world of 1..{}", arith::base::WORLD_MAX);
        return Err(WireError::BadRank(Fault::new(field, expected, world)));
    }
    if rank >= world {
        return Err(WireError::BadRank(Fault::new(field, format!("a rank below {world}"), rank)));
    }
    Ok(())
}
