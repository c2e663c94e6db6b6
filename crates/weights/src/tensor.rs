//! What a tensor is and where its bytes lie.

use arith::format::Format;

use crate::WeightsError;
use crate::gguf::{Header, TensorEntry, types};

/// What a tensor is and where it lies. A vector is a matrix of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// GGUF's name.
    pub name: String,
    /// Storage of the values.
    pub format: Format,
    /// Outputs.
    pub rows: usize,
    /// Values along K.
    pub cols: usize,
    /// Bytes.
    pub bytes: usize,
    /// Where the bytes start in the file; `None` where the file was cut without them.
    pub offset: Option<u64>,
}

impl TensorInfo {
    /// A tensor by its dims (K first), placed nowhere.
    ///
    /// # Errors
    /// [`WeightsError::Dims`] where K is no multiple of the format's unit or the bytes can't be
    /// counted.
    pub(crate) fn new(name: &str, format: Format, dims: &[u64]) -> Result<Self, WeightsError> {
        let refused = |reason: String| WeightsError::Dims {
            name: name.to_owned(),
            dims: dims.to_vec(),
            reason,
        };
        let (unit_values, unit_bytes) = (format.unit_values() as u64, format.unit_bytes() as u64);
        let cols = dims[0];
        if !cols.is_multiple_of(unit_values) {
            let reason = format!("expected a multiple of {unit_values} for {format}");
            return Err(refused(reason));
        }
        let overflow = || refused("their bytes do not fit 64 bits".to_owned());
        let rows = dims[1..]
            .iter()
            .try_fold(1u64, |rows, &dim| rows.checked_mul(dim))
            .ok_or_else(overflow)?;
        let bytes = (cols / unit_values)
            .checked_mul(unit_bytes)
            .and_then(|row| row.checked_mul(rows))
            .ok_or_else(overflow)?;
        Ok(Self {
            name: name.to_owned(),
            format,
            rows: rows as usize,
            cols: cols as usize,
            bytes: bytes as usize,
            offset: None,
        })
    }

    /// Dtype and shape, as errors and fingerprints have them.
    pub fn kind(&self) -> String {
        format!("{} {}x{}", self.format, self.rows, self.cols)
    }

    /// The layer that it belongs to; `None` for the ends.
    pub fn layer(&self) -> Option<u32> {
        let rest = self.name.strip_prefix("blk.")?;
        rest.split_once('.')?.0.parse().ok()
    }
}

/// Places every tensor in the file, in name order; none outside, none over another.
pub(crate) fn place_all(header: &Header, file_bytes: u64) -> Result<Vec<TensorInfo>, WeightsError> {
    let mut tensors = header
        .tensors
        .iter()
        .map(|entry| place(entry, header.data_at, file_bytes))
        .collect::<Result<Vec<_>, _>>()?;
    tensors.sort_by_key(|t| t.offset);
    for pair in tensors.windows(2) {
        let (Some(first), Some(second)) = (pair[0].offset, pair[1].offset) else {
            continue;
        };
        if first + pair[0].bytes as u64 > second {
            return Err(WeightsError::Overlap {
                first: pair[0].name.clone(),
                second: pair[1].name.clone(),
                at: second,
            });
        }
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tensors)
}

fn place(entry: &TensorEntry, data_at: u64, file_bytes: u64) -> Result<TensorInfo, WeightsError> {
    let format = types::format(entry.kind).ok_or_else(|| WeightsError::UnsupportedType {
        name: entry.name.clone(),
        found: types::name(entry.kind),
        expected: types::READ,
    })?;
    let mut tensor = TensorInfo::new(&entry.name, format, &entry.dims)?;
    let bytes = tensor.bytes as u64;
    tensor.offset = data_at.checked_add(entry.offset);
    let end = tensor.offset.and_then(|offset| offset.checked_add(bytes));
    if end.is_some_and(|end| end <= file_bytes) {
        return Ok(tensor);
    }
    Err(WeightsError::Place {
        name: entry.name.clone(),
        at: entry.offset,
        bytes,
        reason: format!("end outside the file of {file_bytes} bytes (data at {data_at})"),
    })
}
