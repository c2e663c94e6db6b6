//! Metadata values by key.

use std::collections::BTreeMap;

use super::cursor::Cursor;
use super::limits;
use crate::WeightsError;

/// One metadata value. Integers are widened, the type found is not kept.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// u8, u16, u32 or u64.
    Unsigned(u64),
    /// i8, i16, i32 or i64.
    Signed(i64),
    /// f32 or f64.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A text.
    String(String),
    /// Values of one type.
    Array(Array),
}

/// Values of one type, kept compact: a number stays in its stored form until asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Numbers or truth values of the metadata type `kind` (0..=7, 10..=12), little-endian.
    Numbers {
        /// GGUF's number of the metadata type.
        kind: u32,
        /// The stored values.
        bytes: Vec<u8>,
    },
    /// Texts.
    Strings(Vec<String>),
    /// Arrays.
    Arrays(Vec<Array>),
}

const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// Bytes of one number of metadata type `kind`; `None` for strings, arrays and unknown types.
fn number_bytes(kind: u32) -> Option<usize> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// The number of type `kind` in `bytes`, which are [`number_bytes`] long.
fn number(kind: u32, bytes: &[u8]) -> Value {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(wide);
    match kind {
        1 => Value::Signed(i64::from(bits as u8 as i8)),
        3 => Value::Signed(i64::from(bits as u16 as i16)),
        5 => Value::Signed(i64::from(bits as u32 as i32)),
        11 => Value::Signed(bits as i64),
        6 => Value::Float(f64::from(f32::from_bits(bits as u32))),
        12 => Value::Float(f64::from_bits(bits)),
        7 => Value::Bool(bits != 0),
        _ => Value::Unsigned(bits),
    }
}

impl Value {
    /// The type, as errors name it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unsigned(_) => "an unsigned integer",
            Self::Signed(_) => "a signed integer",
            Self::Float(_) => "a float",
            Self::Bool(_) => "a bool",
            Self::String(_) => "a string",
            Self::Array(Array::Numbers { .. }) => "an array of numbers",
            Self::Array(Array::Strings(_)) => "an array of strings",
            Self::Array(Array::Arrays(_)) => "an array of arrays",
        }
    }

    /// Reads one value of type `kind`; `key` names it in errors.
    pub(super) fn read(
        cursor: &mut Cursor<'_>,
        key: &str,
        kind: u32,
    ) -> Result<Self, WeightsError> {
        let what = format!("the value of `{key}`");
        Ok(match (kind, number_bytes(kind)) {
            (_, Some(bytes)) => number(kind, cursor.take(bytes as u64, &what)?),
            (STRING, _) => Self::String(cursor.string(&what, limits::STRING_BYTES_MAX)?.to_owned()),
            (ARRAY, _) => Self::Array(Array::read(cursor, key, 1)?),
            _ => {
                return Err(WeightsError::ValueType { key: key.to_owned(), found: kind });
            }
        })
    }
}

impl Array {
    /// Items.
    pub fn len(&self) -> usize {
        match self {
            Self::Numbers { kind, bytes } => bytes.len() / number_bytes(*kind).unwrap_or(1),
            Self::Strings(items) => items.len(),
            Self::Arrays(items) => items.len(),
        }
    }

    /// Whether there is no item.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn read(cursor: &mut Cursor<'_>, key: &str, depth: u32) -> Result<Self, WeightsError> {
        let what = format!("the array of `{key}`");
        if depth > limits::NESTING_MAX {
            return Err(WeightsError::Limit {
                what: format!("the nesting of `{key}`"),
                limit: u64::from(limits::NESTING_MAX),
                found: u64::from(depth),
            });
        }
        let kind = cursor.u32(&what)?;
        // A string costs at least its length field, an array its type and count.
        let bytes_min = match kind {
            STRING => 8,
            ARRAY => 12,
            _ => number_bytes(kind)
                .ok_or_else(|| WeightsError::ValueType { key: key.to_owned(), found: kind })?
                as u64,
        };
        let items = cursor.count(
            &format!("the item count of `{key}`"),
            limits::ARRAY_ITEMS_MAX,
            bytes_min,
        )?;
        Ok(match kind {
            STRING => {
                let mut out = Vec::with_capacity(items as usize);
                for _ in 0..items {
                    out.push(cursor.string(&what, limits::STRING_BYTES_MAX)?.to_owned());
                }
                Self::Strings(out)
            }
            ARRAY => {
                let mut out = Vec::with_capacity(items as usize);
                for _ in 0..items {
                    out.push(Self::read(cursor, key, depth + 1)?);
                }
                Self::Arrays(out)
            }
            _ => Self::Numbers { kind, bytes: cursor.take(items * bytes_min, &what)?.to_vec() },
        })
    }
}

/// All metadata of a file, by key. A getter gives `Ok(None)` where the key is absent and an error
/// where it holds another type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    values: BTreeMap<String, Value>,
}

impl Metadata {
    /// Adds a pair; false, and nothing changed, where the key is there already.
    pub(super) fn insert(&mut self, key: &str, value: Value) -> bool {
        if self.values.contains_key(key) {
            return false;
        }
        self.values.insert(key.to_owned(), value);
        true
    }

    /// The keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        get: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, WeightsError> {
        let Some(value) = self.values.get(key) else {
            return Ok(None);
        };
        get(value).map(Some).ok_or_else(|| WeightsError::KeyType {
            key: key.to_owned(),
            expected,
            found: value.kind(),
        })
    }

    /// A text.
    pub fn str(&self, key: &str) -> Result<Option<&str>, WeightsError> {
        self.typed(key, "a string", |v| match v {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// An integer of any stored width that fits.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, WeightsError> {
        self.typed(key, "an unsigned integer below 2^32", |v| match v {
            Value::Unsigned(n) => u32::try_from(*n).ok(),
            Value::Signed(n) => u32::try_from(*n).ok(),
            _ => None,
        })
    }

    /// A float, rounded to f32 where it is stored wider.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, WeightsError> {
        Ok(self.f64(key)?.map(|x| x as f32))
    }

    /// A float.
    pub fn f64(&self, key: &str) -> Result<Option<f64>, WeightsError> {
        self.typed(key, "a float", |v| match v {
            Value::Float(x) => Some(*x),
            _ => None,
        })
    }

    /// A truth value.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, WeightsError> {
        self.typed(key, "a bool", |v| match v {
            Value::Bool(b) => Some(*b),
            _ => None,
        })
    }

    /// An array of texts.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>, WeightsError> {
        self.typed(key, "an array of strings", |v| match v {
            Value::Array(Array::Strings(items)) => Some(items.as_slice()),
            _ => None,
        })
    }

    /// An array of integers of any stored width that fit; truth values are 0 and 1.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, WeightsError> {
        self.typed(key, "an array of integers that fit 32 bits", |v| match v {
            Value::Array(Array::Numbers { kind, bytes }) => bytes
                .chunks_exact(number_bytes(*kind)?)
                .map(|item| match number(*kind, item) {
                    Value::Unsigned(n) => i32::try_from(n).ok(),
                    Value::Signed(n) => i32::try_from(n).ok(),
                    Value::Bool(b) => Some(i32::from(b)),
                    _ => None,
                })
                .collect(),
            _ => None,
        })
    }
}
