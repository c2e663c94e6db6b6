//! Gated DeltaNet (section 6): causal convolution, gates, delta rule and gated norm of one row.

use crate::count::note;
use crate::exp::{exp, sigmoid, silu, softplus};
use crate::float::{SPOILT, flush, fma, is_spoilt};
use crate::norm::{self, LANES, fold};

/// What the L2 norm of queries and keys adds to the sum of squares.
pub const L2_EPS: f32 = 1e-6;
/// Strided lanes of a sum over the dims of a key.
pub const KEY_LANES: usize = 4;

/// Which key head a value head goes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeadOrder {
    /// `h / (values / keys)`: Hugging Face and MLX weights.
    Grouped,
    /// `h % keys`: GGUF weights, whose value heads are re-ordered.
    Tiled,
}

/// Shape of a layer. A row of channels is queries `[keys, key_dim]`, keys `[keys, key_dim]`, then
/// values `[values, value_dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gdn {
    /// Query and key heads.
    pub keys: usize,
    /// Value heads, a multiple of `keys`.
    pub values: usize,
    /// Values of a key head; a multiple of four.
    pub key_dim: usize,
    /// Values of a value head.
    pub value_dim: usize,
    /// Taps of the convolution, at least 2.
    pub taps: usize,
    /// Which key head a value head goes with.
    pub order: HeadOrder,
}

impl Gdn {
    /// Values of all query heads, and of all key heads.
    pub fn key_width(&self) -> usize {
        self.keys * self.key_dim
    }

    /// Values of all value heads.
    pub fn value_width(&self) -> usize {
        self.values * self.value_dim
    }

    /// Channels of the convolution.
    pub fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Values of the state S, `[values, key_dim, value_dim]`.
    pub fn state_values(&self) -> usize {
        self.values * self.key_dim * self.value_dim
    }

    /// Values of the convolution's tail, `[taps - 1, channels]`, oldest row first.
    pub fn tail_values(&self) -> usize {
        (self.taps - 1) * self.channels()
    }

    /// The key head of value head `value`.
    pub fn key_of(&self, value: usize) -> usize {
        match self.order {
            HeadOrder::Grouped => value / (self.values / self.keys),
            HeadOrder::Tiled => value % self.keys,
        }
    }
}

/// The convolution of one row: `out_c = silu(sum_j taps[j][c] * rows[j][c])`, the taps added oldest
/// first by fma from +0; then the L2 norm of every query and key head, and the scale of the
/// queries. `rows` are the inputs of this row and of the `taps - 1` before it, oldest first; `taps`
/// is `[taps, channels]`, oldest first. Flushed.
pub fn convolve(shape: &Gdn, taps: &[f32], rows: &[&[f32]], out: &mut [f32]) {
    let channels = shape.channels();
    assert!(rows.len() == shape.taps && taps.len() == shape.taps * channels);
    for (c, out) in out.iter_mut().enumerate() {
        let each = rows.iter().zip(taps.chunks_exact(channels));
        *out = flush(silu(each.fold(0.0, |sum, (row, taps)| fma(taps[c], row[c], sum))));
    }
    let scale = query_scale(shape.key_dim);
    let (queries, rest) = out.split_at_mut(shape.key_width());
    for head in queries.chunks_exact_mut(shape.key_dim) {
        l2_norm(head, Some(scale));
    }
    for head in rest[..shape.key_width()].chunks_exact_mut(shape.key_dim) {
        l2_norm(head, None);
    }
}

/// `f32(1 / sqrt(key_dim))`, computed in f64.
pub fn query_scale(key_dim: usize) -> f32 {
    (1.0 / libm::sqrt(key_dim as f64)) as f32
}

/// `x = x * r`, r = 1 / sqrt(sum of squares + [`L2_EPS`]), the squares in 32 strided lanes by fma,
/// folded; then `x * scale` where one is given. Flushed once; a spoilt head gives [`SPOILT`].
pub fn l2_norm(x: &mut [f32], scale: Option<f32>) {
    if is_spoilt(x) {
        return x.fill(SPOILT);
    }
    let mut lanes = [0.0; LANES];
    for (i, &x) in x.iter().enumerate() {
        lanes[i % LANES] = fma(x, x, lanes[i % LANES]);
    }
    let r = note(1.0 / note(note(fold(lanes) + L2_EPS).sqrt()));
    for x in x {
        *x = flush(match scale {
            Some(scale) => note(*x * r) * scale,
            None => *x * r,
        });
    }
}

/// How much a value head's state keeps: `exp(-(amplitude * softplus(a + dt_bias)))`, flushed.
/// `amplitude` is exp(A_log), taken at load in f64 and rounded.
pub fn decay(a: f32, dt_bias: f32, amplitude: f32) -> f32 {
    flush(exp(-note(amplitude * softplus(note(a + dt_bias)))))
}

/// How much of a row a value head takes: `sigmoid(b)`, flushed.
pub fn beta(b: f32) -> f32 {
    flush(sigmoid(b))
}

/// The gates of one row and value head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gates {
    /// [`beta`].
    pub beta: f32,
    /// [`decay`].
    pub decay: f32,
}

/// One row through one value head. `state` is `[key_dim, value_dim]`.
///
/// ```text
/// S = z(S * decay);  m_v = sum_k S[k][v] key[k];  delta_v = z(beta * (value_v - m_v))
/// S = z(fma(key[k], delta_v, S[k][v]));  out_v = z(sum_k S[k][v] query[k])
/// ```
///
/// Both sums take the dims of the key in four strided lanes by fma from +0, folded 2, 1.
pub fn step(
    state: &mut [f32],
    query: &[f32],
    key: &[f32],
    value: &[f32],
    gates: Gates,
    out: &mut [f32],
) {
    let width = value.len();
    assert!(state.len() == key.len() * width && query.len() == key.len() && out.len() == width);
    state.iter_mut().for_each(|s| *s = flush(*s * gates.decay));
    for v in 0..width {
        let m = over_keys(state, key, width, v);
        let delta = flush(gates.beta * note(value[v] - m));
        for (k, &key) in key.iter().enumerate() {
            let s = &mut state[k * width + v];
            *s = flush(key.mul_add(delta, *s));
        }
        out[v] = flush(over_keys(state, query, width, v));
    }
}

/// `sum_k state[k][v] * x[k]` in four strided lanes.
fn over_keys(state: &[f32], x: &[f32], width: usize, v: usize) -> f32 {
    let mut lanes = [0.0; KEY_LANES];
    for (k, &x) in x.iter().enumerate() {
        lanes[k % KEY_LANES] = fma(state[k * width + v], x, lanes[k % KEY_LANES]);
    }
    let [a, b] = [note(lanes[0] + lanes[2]), note(lanes[1] + lanes[3])];
    note(a + b)
}

/// `y_i = ((x_i * r) * w_i) * silu(z_i)`, r as in [`norm::rms_norm`]; flushed, and a spoilt head
/// gives [`SPOILT`].
pub fn gated_norm(x: &mut [f32], w: &[f32], z: &[f32], eps: f32) {
    if is_spoilt(x) {
        return x.fill(SPOILT);
    }
    let mut normed = vec![0.0; x.len()];
    norm::normed(x, w, eps, &mut normed);
    for ((x, n), &z) in x.iter_mut().zip(normed).zip(z) {
        *x = flush(note(n) * silu(z));
    }
}
