//! Activation rows as 16-bit integers with a scale a slice (section 2).

use crate::base::SLICE_VALUES;
use crate::count;
use crate::float::{is_spoilt, round_half_even};

/// Largest magnitude of a quantised value: `256 * 127 + 127`, so that both bytes of
/// `q = 256 * hi + lo` are signed bytes.
pub const Q_MAX: i16 = 32639;
/// A slice whose largest magnitude is below 2^-30 quantises to zeros.
const AMAX_MIN: f32 = f32::from_bits(0x3080_0000);

/// A quantised row: `x_i` is about `q_i * d` with the `d` of slice `i / 256`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct A16 {
    /// One integer a value, -32639 ..= 32639.
    pub q: Vec<i16>,
    /// One scale a slice; +0 for a slice of zeros.
    pub d: Vec<f32>,
}

/// Quantises one slice (at most 256 finite values below 2^60) into `q` and gives its scale `d`.
///
/// `d = amax / 32639`, `q_i = clamp(round_half_even(x_i * (32639 / amax)))`.
pub fn quantise_slice(x: &[f32], q: &mut [i16]) -> f32 {
    assert_eq!(x.len(), q.len());
    let amax = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    if amax < AMAX_MIN {
        q.fill(0);
        return 0.0;
    }
    let top = f32::from(Q_MAX);
    let inv = count::note(top / amax);
    for (q, x) in q.iter_mut().zip(x) {
        // A subnormal product rounds to 0 at once, so it is not counted.
        *q = round_half_even(x * inv).clamp(-top, top) as i16;
    }
    count::note(amax / top)
}

/// Quantises a row slice by slice; `None` for a spoilt row.
pub fn quantise(x: &[f32]) -> Option<A16> {
    if is_spoilt(x) {
        return None;
    }
    let mut q = vec![0; x.len()];
    let d = x
        .chunks(SLICE_VALUES)
        .zip(q.chunks_mut(SLICE_VALUES))
        .map(|(x, q)| quantise_slice(x, q))
        .collect();
    Some(A16 { q, d })
}
