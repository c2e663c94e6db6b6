//! Activation rows as 8-bit integers with a scale a block of 32 (section 2, arith 2).

use crate::count;
use crate::float::{is_spoilt, round_half_even};

/// Values along K that share one scale.
pub const BLOCK_VALUES: usize = 32;
/// Largest magnitude of a quantised value.
pub const Q_MAX: i8 = 127;
/// A block whose largest magnitude is below 2^-30 quantises to zeros.
const AMAX_MIN: f32 = f32::from_bits(0x3080_0000);

/// A quantised row: `x_i` is about `q_i * d` with the `d` of block `i / 32`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct A8 {
    /// One integer a value, -127 ..= 127.
    pub q: Vec<i8>,
    /// One scale a block; +0 for a block of zeros.
    pub d: Vec<f32>,
}

/// Quantises one block (at most 32 finite values below 2^60) into `q` and gives its scale `d`.
///
/// `d = amax / 127`, `q_i = clamp(round_half_even(x_i * (127 / amax)))`.
pub fn quantise_block(x: &[f32], q: &mut [i8]) -> f32 {
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
        *q = round_half_even(x * inv).clamp(-top, top) as i8;
    }
    count::note(amax / top)
}

/// Quantises a row block by block; `None` for a spoilt row.
pub fn quantise(x: &[f32]) -> Option<A8> {
    if is_spoilt(x) {
        return None;
    }
    let mut q = vec![0; x.len()];
    let d = x
        .chunks(BLOCK_VALUES)
        .zip(q.chunks_mut(BLOCK_VALUES))
        .map(|(x, q)| quantise_block(x, q))
        .collect();
    Some(A8 { q, d })
}
