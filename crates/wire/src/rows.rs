//! A hop's rows: raw values, bit for bit, in plan order.

use crate::error::{Fault, WireError};

/// The rows' bytes: f32 little-endian.
pub fn encode(values: &[f32]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_into(values, &mut out);
    out
}

/// Like [`encode`], into a buffer that is used again.
pub fn encode_into(values: &[f32], out: &mut Vec<u8>) {
    out.resize(4 * values.len(), 0);
    write(values, out);
}

/// Like [`encode`], over what is in `out`: four bytes a value.
pub fn write(values: &[f32], out: &mut [u8]) {
    assert_eq!(out.len(), 4 * values.len(), "four bytes a value");
    let (places, _) = out.as_chunks_mut::<4>();
    for (place, value) in places.iter_mut().zip(values) {
        *place = value.to_le_bytes();
    }
}

/// `rows * width` values.
///
/// # Errors
/// `OtherRows` for any other number of bytes.
pub fn decode(payload: &[u8], rows: usize, width: usize) -> Result<Vec<f32>, WireError> {
    let mut out = Vec::new();
    decode_into(payload, rows, width, &mut out)?;
    Ok(out)
}

/// Like [`decode`], into a buffer that is used again.
///
/// # Errors
/// `OtherRows` for any other number of bytes; `out` is then unchanged.
pub fn decode_into(
    payload: &[u8],
    rows: usize,
    width: usize,
    out: &mut Vec<f32>,
) -> Result<(), WireError> {
    let bytes = rows.checked_mul(width).and_then(|values| values.checked_mul(4));
    if bytes != Some(payload.len()) {
        return Err(other(rows, width, payload.len()));
    }
    let (values, _) = payload.as_chunks::<4>();
    out.clear();
    out.extend(values.iter().map(|&value| f32::from_le_bytes(value)));
    Ok(())
}

/// Other bytes than those of `rows` rows.
pub(crate) fn other(rows: usize, width: usize, bytes: usize) -> WireError {
    let expected = format!("{rows} rows of {width} f32");
    WireError::OtherRows(Fault::new("rows.payload", expected, format!("{bytes} bytes")))
}

/// Values of bytes that come in pieces, wherever these are cut.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    pub(crate) values: Vec<f32>,
    /// Of a value whose last bytes are still to come.
    begun: [u8; 4],
    begun_bytes: usize,
}

impl Gather {
    /// Over what is in `values`.
    pub(crate) fn new(mut values: Vec<f32>) -> Self {
        values.clear();
        Self { values, ..Self::default() }
    }

    /// Bytes that have come.
    pub(crate) fn bytes(&self) -> usize {
        4 * self.values.len() + self.begun_bytes
    }

    /// Takes the next bytes.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) {
        if self.begun_bytes > 0 {
            let count = bytes.len().min(4 - self.begun_bytes);
            let (now, later) = bytes.split_at(count);
            self.begun[self.begun_bytes..][..count].copy_from_slice(now);
            self.begun_bytes += count;
            bytes = later;
            if self.begun_bytes < 4 {
                return;
            }
            self.values.push(f32::from_le_bytes(self.begun));
        }
        let (values, rest) = bytes.as_chunks::<4>();
        self.values.extend(values.iter().map(|&value| f32::from_le_bytes(value)));
        self.begun[..rest.len()].copy_from_slice(rest);
        self.begun_bytes = rest.len();
    }
}
