//! RMSNorm and the 32 strided lanes that it shares with attention (section 4).

use crate::count::note;
use crate::float::{SPOILT, flush, fma, is_spoilt};

/// Lanes of a strided sum.
pub const LANES: usize = 32;

/// Folds 32 lanes to one value: `lane_j += lane_{j + w}` for w = 16, 8, 4, 2, 1.
pub fn fold(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for j in 0..width {
            lanes[j] = note(lanes[j] + lanes[j + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// `y_i = (x_i * r) * w_i` with `r = 1 / sqrt(fma(sum of squares, f32(1/n), eps))`; the squares in
/// 32 strided lanes by fma, folded. Outputs are flushed; a spoilt row gives [`SPOILT`].
pub fn rms_norm(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), w.len());
    assert_eq!(x.len(), out.len());
    if is_spoilt(x) {
        return out.fill(SPOILT);
    }
    normed(x, w, eps, out);
    out.iter_mut().for_each(|y| *y = flush(*y));
}

/// The norm of a sound row before the flush: `(x_i * r) * w_i`.
pub(crate) fn normed(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    let mut lanes = [0.0; LANES];
    for (i, &x) in x.iter().enumerate() {
        lanes[i % LANES] = fma(x, x, lanes[i % LANES]);
    }
    let mean = fma(fold(lanes), 1.0 / x.len() as f32, eps);
    let r = note(1.0 / note(mean.sqrt()));
    for ((out, x), w) in out.iter_mut().zip(x).zip(w) {
        *out = note(x * r) * w;
    }
}
