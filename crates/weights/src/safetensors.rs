//! Safetensors: eight bytes of the header's length, a JSON header (`name: {dtype, shape,
//! data_offsets}`, offsets from the header's end), then the tensors' bytes. Format: the README of
//! huggingface/safetensors.
//!
//! The header's length is held against its limit and the file before it is read, and each tensor's
//! place against the file and its neighbours. Gaps are accepted; types that are not read here too,
//! as long as nobody asks for such a tensor.

use std::fmt;
use std::io::{self, Write};

use arith::format::Format;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::WeightsError;
use crate::file::Source;
use crate::gguf::limits::NAME_BYTES_MAX;
use crate::tensor::{Dtype, Piece};

/// Bytes of a header, as the format itself has it.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Tensors of a file.
pub const TENSORS_MAX: usize = 1 << 18;
/// Dims of a tensor.
pub const DIMS_MAX: usize = 8;
/// Bytes of the header's length.
const LENGTH_BYTES: u64 = 8;
/// The header's key that is no tensor.
const METADATA: &str = "__metadata__";
/// The types that are read, as an error message lists them.
pub const READ: &str = "F32, F16, BF16, or U32 with scales and biases";

/// A tensor as the header lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name.
    pub name: String,
    /// Type of the values, one that is not read perhaps.
    pub dtype: String,
    /// Dims, K (columns) last.
    pub shape: Vec<u64>,
    /// Where its bytes start in the file.
    pub at: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A parsed header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Tensors in the order of the file.
    pub entries: Vec<Entry>,
    /// What the file says of who wrote it, `pt` or `mlx`.
    pub format: Option<String>,
}

/// As it is stored.
struct Listed {
    entries: Vec<(String, Stored)>,
    format: Option<String>,
}

#[derive(Deserialize)]
struct Stored {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

#[derive(Deserialize)]
struct Metadata {
    format: Option<String>,
}

impl<'de> Deserialize<'de> for Listed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Listed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Listed, A::Error> {
                let mut listed = Listed { entries: Vec::new(), format: None };
                while let Some(name) = map.next_key::<String>()? {
                    if name == METADATA {
                        let metadata: Option<Metadata> = map.next_value()?;
                        listed.format = metadata.and_then(|m| m.format);
                    } else if listed.entries.len() == TENSORS_MAX {
                        map.next_value::<IgnoredAny>()?;
                        return Err(A::Error::custom(format!("more than {TENSORS_MAX} tensors")));
                    } else {
                        listed.entries.push((name, map.next_value()?));
                    }
                }
                Ok(listed)
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

impl Header {
    /// Reads a file's header.
    pub(crate) fn read(source: &Source) -> Result<Self, WeightsError> {
        let file_bytes = source.stamp().bytes;
        let truncated = |at, need, have| WeightsError::Truncated {
            what: "the safetensors header".to_owned(),
            at,
            need,
            have,
        };
        if file_bytes < LENGTH_BYTES {
            return Err(truncated(0, LENGTH_BYTES, file_bytes));
        }
        let mut length = [0; LENGTH_BYTES as usize];
        source.read(0, &mut length)?;
        let length = u64::from_le_bytes(length);
        if length > HEADER_BYTES_MAX {
            return Err(WeightsError::Limit {
                what: "the size of the safetensors header".to_owned(),
                limit: HEADER_BYTES_MAX,
                found: length,
            });
        }
        if length > file_bytes - LENGTH_BYTES {
            return Err(truncated(LENGTH_BYTES, length, file_bytes - LENGTH_BYTES));
        }
        let mut text = vec![0; length as usize];
        source.read(LENGTH_BYTES, &mut text)?;
        Self::parse(&text, LENGTH_BYTES + length, file_bytes)
    }

    /// Parses a header's `text` in a file of `file_bytes` whose tensors start at `data_at`.
    ///
    /// # Errors
    /// The first thing that is malformed, beyond its limit, outside the file or over another.
    pub fn parse(text: &[u8], data_at: u64, file_bytes: u64) -> Result<Self, WeightsError> {
        let listed: Listed = serde_json::from_slice(text)
            .map_err(|error| WeightsError::json("the safetensors header", &error))?;
        let place = |(name, stored)| place(name, stored, data_at, file_bytes);
        let mut entries = listed.entries.into_iter().map(place).collect::<Result<Vec<_>, _>>()?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = entries.windows(2).find(|pair| pair[0].name == pair[1].name) {
            let name = pair[0].name.clone();
            return Err(WeightsError::Duplicate { what: "tensor", name });
        }
        entries.sort_by_key(|entry| (entry.at, entry.bytes));
        if let Some([first, second]) =
            entries.array_windows::<2>().find(|[first, second]| first.at + first.bytes > second.at)
        {
            return Err(WeightsError::Overlap {
                first: first.name.clone(),
                second: second.name.clone(),
                at: second.at,
            });
        }
        Ok(Self { entries, format: listed.format })
    }
}

fn place(
    name: String,
    stored: Stored,
    data_at: u64,
    file_bytes: u64,
) -> Result<Entry, WeightsError> {
    let limit = |what: String, limit: usize, found: usize| match found > limit {
        true => Err(WeightsError::Limit { what, limit: limit as u64, found: found as u64 }),
        false => Ok(()),
    };
    limit("a tensor name's size".to_owned(), NAME_BYTES_MAX as usize, name.len())?;
    limit(format!("the dim count of tensor `{name}`"), DIMS_MAX, stored.shape.len())?;
    let [from, to] = stored.data_offsets;
    let outside =
        |bytes, reason| Err(WeightsError::Place { name: name.clone(), at: from, bytes, reason });
    let Some(bytes) = to.checked_sub(from) else {
        return outside(0, format!("end at {to}, before they start"));
    };
    if data_at.checked_add(to).is_none_or(|end| end > file_bytes) {
        let reason = format!("end outside the file of {file_bytes} bytes (data at {data_at})");
        return outside(bytes, reason);
    }
    let values = stored.shape.iter().try_fold(1u64, |all, &dim| all.checked_mul(dim));
    if let Some(width) = width(&stored.dtype) {
        let expected = values.and_then(|values| values.checked_mul(width));
        if expected != Some(bytes) {
            let (dtype, shape) = (&stored.dtype, &stored.shape);
            return outside(bytes, format!("are not those of {dtype} {shape:?}"));
        }
    }
    let Stored { dtype, shape, .. } = stored;
    Ok(Entry { name, dtype, shape, at: data_at + from, bytes })
}

/// Bytes of a value of the types that are read.
fn width(dtype: &str) -> Option<u64> {
    self::dtype(dtype).map(Dtype::width)
}

/// The type of that name, where it is read.
pub(crate) fn dtype(name: &str) -> Option<Dtype> {
    match name {
        "F32" => Some(Dtype::Values(Format::F32)),
        "F16" => Some(Dtype::Values(Format::F16)),
        "BF16" => Some(Dtype::Values(Format::Bf16)),
        "U32" => Some(Dtype::Words),
        _ => None,
    }
}

/// The start of a file: its length and a header over tensors that follow each other. Padded so
/// that they start at a multiple of 8.
pub(crate) fn write_header<'a>(
    out: &mut dyn Write,
    format: &str,
    tensors: impl Iterator<Item = &'a Piece>,
) -> io::Result<()> {
    let mut header = serde_json::Map::new();
    header.insert(METADATA.to_owned(), serde_json::json!({ "format": format }));
    let mut at = 0;
    for Piece { name, dtype, dims, bytes, .. } in tensors {
        let entry = serde_json::json!({
            "dtype": dtype.to_string(), "shape": dims, "data_offsets": [at, at + bytes]
        });
        header.insert(name.clone(), entry);
        at += bytes;
    }
    let mut text = serde_json::to_vec(&header)?;
    text.resize(text.len().next_multiple_of(8), b' ');
    out.write_all(&(text.len() as u64).to_le_bytes())?;
    out.write_all(&text)
}
