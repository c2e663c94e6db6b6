//! The header: metadata and where each tensor lies.

use std::collections::BTreeSet;
use std::ops::Range;

use super::cursor::Cursor;
use super::{Metadata, Value, limits};
use crate::WeightsError;

const MAGIC: &[u8; 4] = b"GGUF";
/// Where a file does not say: bytes that tensors are aligned to.
pub const ALIGNMENT_DEFAULT: u64 = 32;

/// A tensor as the header lists it; its type may be one that is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Name.
    pub name: String,
    /// Dims as stored, K (columns) first, each at least 1.
    pub dims: Vec<u64>,
    /// ggml's type number.
    pub kind: u32,
    /// Offset from the start of the tensor data.
    pub offset: u64,
}

/// A parsed header.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// 2 or 3.
    pub version: u32,
    /// Metadata.
    pub metadata: Metadata,
    /// Where the metadata lies in the file.
    pub pairs: Range<usize>,
    /// Tensors in the order of the file.
    pub tensors: Vec<TensorEntry>,
    /// Offset of the tensor data in the file, aligned.
    pub data_at: u64,
    /// Bytes that tensors are aligned to, a power of two.
    pub alignment: u64,
}

impl Header {
    /// Parses the start of a file; `bytes` may reach beyond the header.
    ///
    /// # Errors
    /// The first thing that is malformed, beyond its limit or cut off.
    pub fn parse(bytes: &[u8]) -> Result<Self, WeightsError> {
        let mut cursor = Cursor::new(bytes);
        let magic = cursor.take(4, "the magic")?;
        if magic != MAGIC {
            let found = magic.escape_ascii().to_string();
            return Err(WeightsError::NotGguf { found });
        }
        let version = cursor.u32("the version")?;
        if !matches!(version, 2 | 3) {
            return Err(WeightsError::Version { found: version });
        }
        // The smallest tensor info: name length, dim count, type, offset. The smallest pair: key
        // length, type, one byte. Both counts come first, so they are held to the bytes together.
        let tensors = cursor.count("the tensor count", limits::TENSORS_MAX, 24)?;
        let keys = cursor.count("the metadata key count", limits::KEYS_MAX, 13)?;
        let start = cursor.at() as usize;
        let metadata = read_metadata(&mut cursor, keys)?;
        let pairs = start..cursor.at() as usize;
        let alignment = alignment(&metadata)?;
        let tensors = read_tensors(&mut cursor, tensors, alignment)?;
        let data_at = cursor.at().next_multiple_of(alignment);
        Ok(Self { version, metadata, pairs, tensors, data_at, alignment })
    }
}

fn read_metadata(cursor: &mut Cursor<'_>, keys: u64) -> Result<Metadata, WeightsError> {
    let mut metadata = Metadata::default();
    for index in 0..keys {
        let key = cursor.string(&format!("metadata key {index}"), limits::NAME_BYTES_MAX)?;
        let kind = cursor.u32(&format!("the type of `{key}`"))?;
        let value = Value::read(cursor, key, kind)?;
        if !metadata.insert(key, value) {
            return Err(WeightsError::Duplicate { what: "metadata key", name: key.to_owned() });
        }
    }
    Ok(metadata)
}

fn alignment(metadata: &Metadata) -> Result<u64, WeightsError> {
    let key = "general.alignment";
    let Some(found) = metadata.u32(key)?.map(u64::from) else {
        return Ok(ALIGNMENT_DEFAULT);
    };
    if !found.is_power_of_two() || found > limits::ALIGNMENT_MAX {
        return Err(WeightsError::KeyValue {
            key: key.to_owned(),
            expected: format!("a power of two up to {}", limits::ALIGNMENT_MAX),
            found: found.to_string(),
        });
    }
    Ok(found)
}

fn read_tensors(
    cursor: &mut Cursor<'_>,
    count: u64,
    alignment: u64,
) -> Result<Vec<TensorEntry>, WeightsError> {
    let mut tensors = Vec::with_capacity(count as usize);
    let mut names = BTreeSet::new();
    for index in 0..count {
        let name = cursor.string(&format!("the name of tensor {index}"), limits::NAME_BYTES_MAX)?;
        if !names.insert(name) {
            return Err(WeightsError::Duplicate { what: "tensor", name: name.to_owned() });
        }
        tensors.push(read_tensor(cursor, name, alignment)?);
    }
    Ok(tensors)
}

fn read_tensor(
    cursor: &mut Cursor<'_>,
    name: &str,
    alignment: u64,
) -> Result<TensorEntry, WeightsError> {
    let what = format!("the info of tensor `{name}`");
    let count = cursor.u32(&what)?;
    if count > limits::DIMS_MAX {
        return Err(WeightsError::Limit {
            what: format!("the dim count of tensor `{name}`"),
            limit: u64::from(limits::DIMS_MAX),
            found: u64::from(count),
        });
    }
    let mut dims = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let dim = cursor.u64(&what)?;
        if dim > limits::DIM_MAX {
            return Err(WeightsError::Limit {
                what: format!("a dim of tensor `{name}`"),
                limit: limits::DIM_MAX,
                found: dim,
            });
        }
        dims.push(dim);
    }
    if dims.is_empty() || dims.contains(&0) {
        let reason = "expected one to four dims of at least 1".to_owned();
        return Err(WeightsError::Dims { name: name.to_owned(), dims, reason });
    }
    let kind = cursor.u32(&what)?;
    let offset = cursor.u64(&what)?;
    if !offset.is_multiple_of(alignment) {
        return Err(WeightsError::Place {
            name: name.to_owned(),
            at: offset,
            bytes: 0,
            reason: format!("are not aligned to {alignment}"),
        });
    }
    Ok(TensorEntry { name: name.to_owned(), dims, kind, offset })
}
