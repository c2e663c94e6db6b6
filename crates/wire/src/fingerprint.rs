//! The canonical, field-named list behind a fingerprint.

use std::collections::BTreeMap;
use std::fmt;

use sha2::{Digest as _, Sha256};

use crate::bytes::{Take, put_text};
use crate::error::{Fault, WireError};
use crate::limit::{FIELDS_BYTES_MAX, NAME_BYTES_MAX, VALUE_BYTES_MAX};

/// Sets this digest apart from every other use of SHA-256.
const LABEL: &[u8] = b"baton fingerprint 1\n";

/// Everything that must be equal on both ends of a link, by name: versions, config, tensors' names,
/// dtypes and shapes, layout, dtypes, settings. Kept in ascending order of the names' bytes, so
/// that the order of insertion never matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    fields: BTreeMap<String, String>,
    /// Bytes that the encoding takes after its count.
    bytes: usize,
}

/// A field in which two lists differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The field.
    pub name: String,
    /// This list's value; `None` where it has no such field.
    pub ours: Option<String>,
    /// The other list's.
    pub theirs: Option<String>,
}

impl Fields {
    /// No fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a field.
    ///
    /// # Errors
    /// `BadOrder` for a name that is there already, `TooLarge` past 256 bytes of name, 4 KiB of
    /// value or 1 MiB in all, `BadValue` for an empty name.
    pub fn put(
        &mut self,
        name: impl Into<String>,
        value: impl fmt::Display,
    ) -> Result<(), WireError> {
        let (name, value) = (name.into(), value.to_string());
        if name.is_empty() {
            return Err(WireError::BadValue(Fault::new("fields.name", "a name", "none")));
        }
        let bytes = self.bytes + 4 + name.len() + value.len();
        let sizes = [
            (name.len(), NAME_BYTES_MAX),
            (value.len(), VALUE_BYTES_MAX),
            (4 + bytes, FIELDS_BYTES_MAX),
        ];
        for (found, max) in sizes {
            if found > max {
                let field = format!("fields.{}", name.get(..64).unwrap_or(&name));
                let expected = format!("at most {max} bytes");
                return Err(WireError::TooLarge(Fault::new(field, expected, found)));
            }
        }
        if self.fields.contains_key(&name) {
            return Err(WireError::BadOrder(Fault::new("fields.name", "a new name", name)));
        }
        self.bytes = bytes;
        self.fields.insert(name, value);
        Ok(())
    }

    /// A field's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    /// Names and values, by ascending name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// SHA-256 over a label and the encoding, whose lengths make it unambiguous.
    pub fn digest(&self) -> [u8; 32] {
        let mut encoded = Vec::with_capacity(4 + self.bytes);
        self.put_into(&mut encoded);
        Sha256::new().chain_update(LABEL).chain_update(encoded).finalize().into()
    }

    /// The first field, by name, in which the lists differ.
    pub fn first_difference(&self, other: &Self) -> Option<Difference> {
        let (mut ours, mut theirs) = (self.iter().peekable(), other.iter().peekable());
        loop {
            let (a, b) = (ours.peek().copied(), theirs.peek().copied());
            let (name, a, b) = match (a, b) {
                (None, None) => return None,
                (Some(a), Some(b)) if a == b => {
                    ours.next();
                    theirs.next();
                    continue;
                }
                (Some(a), Some(b)) if a.0 == b.0 => (a.0, Some(a.1), Some(b.1)),
                (Some(a), Some(b)) if a.0 < b.0 => (a.0, Some(a.1), None),
                (Some(a), None) => (a.0, Some(a.1), None),
                (_, Some(b)) => (b.0, None, Some(b.1)),
            };
            return Some(Difference {
                name: name.into(),
                ours: a.map(Into::into),
                theirs: b.map(Into::into),
            });
        }
    }

    /// count u32, then for each field name and value, each a u16 length and its bytes.
    pub(crate) fn put_into(&self, out: &mut Vec<u8>) {
        out.extend((self.fields.len() as u32).to_le_bytes());
        for (name, value) in &self.fields {
            for text in [name, value] {
                let put = put_text(out, "fields", text, VALUE_BYTES_MAX);
                assert!(put.is_ok(), "put() has bounded every text");
            }
        }
    }

    pub(crate) fn take_from(take: &mut Take<'_>) -> Result<Self, WireError> {
        let count = take.u32("count")?;
        take.at_most("bytes", FIELDS_BYTES_MAX as u64, 4 + take.left() as u64)?;
        take.fits("count", (count as usize).saturating_mul(4))?;
        let mut fields = Self::new();
        let mut last = "";
        for _ in 0..count {
            let name = take.text("name", NAME_BYTES_MAX)?;
            let value = take.text("value", VALUE_BYTES_MAX)?;
            if name <= last {
                let expected = format!("a name after {last:?}");
                let fault = take.fault("name", expected, format!("{name:?}"));
                return Err(WireError::BadOrder(fault));
            }
            last = name;
            fields.put(name, value)?;
        }
        Ok(fields)
    }
}

impl Difference {
    /// The difference as an error about `rank`, the other end.
    pub fn error(&self, rank: arith::base::Rank) -> WireError {
        let show = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".into());
        let fault = Fault::new(&self.name, show(&self.ours), show(&self.theirs));
        WireError::OtherFingerprint(fault).at(rank)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::hello::hex;

    fn fields(pairs: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::new();
        for (name, value) in pairs {
            fields.put(*name, value).unwrap();
        }
        fields
    }

    #[test]
    fn the_order_of_insertion_changes_nothing() {
        let one = fields(&[("kv", "f16"), ("arith", "1")]);
        let other = fields(&[("arith", "1"), ("kv", "f16")]);
        assert_eq!(one.digest(), other.digest());
        assert_eq!(one.first_difference(&other), None);
    }

    #[test]
    fn the_digest_is_the_documented_one() {
        // printf 'baton fingerprint 1\n\1\0\0\0\2\0kv\3\0f16' | sha256sum
        let digest = hex(&fields(&[("kv", "f16")]).digest());
        assert_eq!(digest, "d05497bb5e29e05b1d2be57df97f32361e1ae16e2f0743ab59e5d02f29395e26");
    }

    #[test]
    fn moving_a_byte_between_name_and_value_changes_the_digest() {
        let digests = [
            fields(&[("ab", "c")]).digest(),
            fields(&[("a", "bc")]).digest(),
            fields(&[("a", "b"), ("c", "")]).digest(),
            fields(&[]).digest(),
        ];
        for (at, digest) in digests.iter().enumerate() {
            assert!(!digests[..at].contains(digest));
        }
    }

    #[test]
    fn the_first_difference_names_the_field_and_both_values() {
        let ours = fields(&[("arith", "1"), ("kv", "f16"), ("layout", "0:30")]);
        let theirs = fields(&[("arith", "1"), ("kv", "f32"), ("layout", "0:15,15:30")]);
        let error = ours.first_difference(&theirs).unwrap().error(arith::base::Rank(2));
        assert_eq!(error.to_string(), "OtherFingerprint: rank 2: kv: expected f16, found f32");
        let fewer = fields(&[("arith", "1"), ("layout", "0:30")]);
        let error = ours.first_difference(&fewer).unwrap().error(arith::base::Rank(2));
        assert_eq!(error.to_string(), "OtherFingerprint: rank 2: kv: expected f16, found nothing");
        let back = fewer.first_difference(&ours).unwrap();
        assert_eq!((back.ours, back.theirs.as_deref()), (None, Some("f16")));
    }

    #[test]
    fn a_list_is_bounded_in_every_direction() {
        let mut fields = Fields::new();
        let code = |result: Result<(), WireError>| result.unwrap_err().code();
        assert_eq!(code(fields.put("", 1)), "BadValue");
        assert_eq!(code(fields.put("n".repeat(257), 1)), "TooLarge");
        assert_eq!(code(fields.put("n", "v".repeat(4097))), "TooLarge");
        fields.put("n", 1).unwrap();
        assert_eq!(code(fields.put("n", 1)), "BadOrder");
        let value = "v".repeat(4096);
        let full = (0..1000).find_map(|at| fields.put(format!("{at:04}"), &value).err());
        assert_eq!(full.unwrap().code(), "TooLarge");
        let message = crate::control::Message::Fields(fields.clone());
        let bytes = message.encode().unwrap();
        assert!(bytes.len() <= crate::limit::CONTROL_BYTES_MAX);
        assert_eq!(crate::control::Message::decode(&bytes), Ok(message));
    }
}
