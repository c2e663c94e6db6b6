//! What a tensor is and where its bytes lie.

use std::fmt;

use arith::format::Format;

use crate::WeightsError;
use crate::family::Reading;
use crate::gguf::{Header, TensorEntry, types};

/// What a tensor is, as its container stores it, and where it lies. A vector is a matrix of one
/// row; what [`crate::Checkpoint::read`] makes of it may have another format and shape.
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
    /// Bytes, of all its pieces.
    pub bytes: usize,
    /// How the values become those that a layer program uses.
    pub(crate) reading: Reading,
    /// What the container has of it, in the order of its digest; none where it was cut without.
    pub(crate) pieces: Vec<Piece>,
}

/// A run of bytes in a file. MLX keeps the codes, scales and biases of one tensor in three.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The container's name.
    pub name: String,
    pub dtype: Dtype,
    /// Dims in the container's own order.
    pub dims: Vec<u64>,
    /// Which file of the checkpoint.
    pub file: usize,
    /// Where it starts in the file.
    pub at: u64,
    pub bytes: usize,
}

/// What a piece holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dtype {
    /// Values of a format.
    Values(Format),
    /// 32-bit words of codes.
    Words,
}

impl Dtype {
    /// Bytes a value, of a block format a unit.
    pub fn width(self) -> u64 {
        match self {
            Self::Values(format) => format.unit_bytes() as u64,
            Self::Words => 4,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Values(format) => format.fmt(f),
            Self::Words => f.pad("U32"),
        }
    }
}

impl TensorInfo {
    /// A tensor by its dims (K first), placed nowhere.
    ///
    /// # Errors
    /// [`WeightsError::Dims`] where there are none or a size is 0, K is no multiple of the format's
    /// unit or the bytes can't be counted.
    pub(crate) fn new(name: &str, format: Format, dims: &[u64]) -> Result<Self, WeightsError> {
        let refused = |reason: String| WeightsError::Dims {
            name: name.to_owned(),
            dims: dims.to_vec(),
            reason,
        };
        let (unit_values, unit_bytes) = (format.unit_values() as u64, format.unit_bytes() as u64);
        let Some(&cols) = dims.first().filter(|_| !dims.contains(&0)) else {
            return Err(refused("expected at least one dim, and none of size 0".to_owned()));
        };
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
            reading: Reading::Plain,
            pieces: Vec::new(),
        })
    }

    /// Sets how it is read.
    ///
    /// # Errors
    /// [`WeightsError::UnsupportedType`] for a block format that would have to be changed.
    pub(crate) fn read_as(&mut self, reading: Reading) -> Result<(), WeightsError> {
        if reading != Reading::Plain && !self.format.is_float() {
            return Err(WeightsError::UnsupportedType {
                name: self.name.clone(),
                found: self.format.to_string(),
                expected: "F32, F16 or BF16: no blocks here",
            });
        }
        self.reading = reading;
        Ok(())
    }

    /// Where its first byte is in its file; `None` where the file was cut without it.
    pub fn offset(&self) -> Option<u64> {
        self.pieces.first().map(|piece| piece.at)
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
    tensors.sort_by_key(TensorInfo::offset);
    for pair in tensors.windows(2) {
        let (Some(first), Some(second)) = (pair[0].offset(), pair[1].offset()) else {
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
    let at = data_at.checked_add(entry.offset);
    let end = at.and_then(|at| at.checked_add(tensor.bytes as u64));
    let (Some(at), true) = (at, end.is_some_and(|end| end <= file_bytes)) else {
        return Err(WeightsError::Place {
            name: entry.name.clone(),
            at: entry.offset,
            bytes: tensor.bytes as u64,
            reason: format!("end outside the file of {file_bytes} bytes (data at {data_at})"),
        });
    };
    tensor.pieces.push(Piece {
        name: entry.name.clone(),
        dtype: Dtype::Values(format),
        dims: entry.dims.clone(),
        file: 0,
        at,
        bytes: tensor.bytes,
    });
    Ok(tensor)
}
