//! Bounded reads from a byte slice.

use super::limits;
use crate::WeightsError;

/// A position in the header's bytes.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Starts at the first of `bytes`, and will read no further than the header limit.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn at(&self) -> u64 {
        self.at as u64
    }

    /// Bytes not read yet.
    pub(super) fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `count` bytes.
    pub(super) fn take(&mut self, count: u64, what: &str) -> Result<&'a [u8], WeightsError> {
        let end = self.at().saturating_add(count);
        if end > limits::HEADER_BYTES_MAX {
            return Err(WeightsError::Limit {
                what: format!("the header's size at {what}"),
                limit: limits::HEADER_BYTES_MAX,
                found: end,
            });
        }
        if count > self.left() {
            return Err(WeightsError::Truncated {
                what: what.to_owned(),
                at: self.at(),
                need: count,
                have: self.left(),
            });
        }
        let start = self.at;
        self.at += count as usize;
        Ok(&self.bytes[start..self.at])
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], WeightsError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, WeightsError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, WeightsError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A `u64` count of things that take `bytes_min` bytes each, within `limit` and within the
    /// bytes left.
    pub(super) fn count(
        &mut self,
        what: &str,
        limit: u64,
        bytes_min: u64,
    ) -> Result<u64, WeightsError> {
        let at = self.at();
        let found = self.u64(what)?;
        if found > limit {
            return Err(WeightsError::Limit { what: what.to_owned(), limit, found });
        }
        let need = found * bytes_min;
        if need > self.left() {
            let have = self.left();
            return Err(WeightsError::Truncated { what: what.to_owned(), at, need, have });
        }
        Ok(found)
    }

    /// A string of at most `limit` bytes; `what` names it in errors.
    pub(super) fn string(&mut self, what: &str, limit: u64) -> Result<&'a str, WeightsError> {
        let found = self.u64(what)?;
        if found > limit {
            let what = format!("the length of {what}");
            return Err(WeightsError::Limit { what, limit, found });
        }
        std::str::from_utf8(self.take(found, what)?)
            .map_err(|_| WeightsError::NotUtf8 { what: what.to_owned() })
    }
}
