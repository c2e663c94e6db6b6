//! Rotary position embedding (section 4).

use crate::count::note;
use crate::float::flush;

/// Which dims of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// (2i, 2i+1): llama weights in GGUF order.
    Adjacent,
    /// (i, i + R/2) inside the first R dims.
    Halves,
}

impl Pairing {
    /// The two dims of pair `i` of `dims / 2`.
    pub fn dims(self, i: usize, dims: usize) -> (usize, usize) {
        match self {
            Self::Adjacent => (2 * i, 2 * i + 1),
            Self::Halves => (i, i + dims / 2),
        }
    }
}

/// Cosines and sines of the rows of one round, `[rows, dims / 2]` each; the same for every layer
/// that shares theta and R.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RopeRows {
    /// Rotated dims of a head, R; even.
    pub dims: usize,
    /// `rows * dims / 2` cosines.
    pub cos: Vec<f32>,
    /// As many sines.
    pub sin: Vec<f32>,
}

impl RopeRows {
    /// Angles `position * theta^(-2i / R)` in f64, cosine and sine rounded to f32 once.
    pub fn new(theta: f64, dims: usize, positions: &[u32]) -> Self {
        assert!(dims.is_multiple_of(2));
        let rates: Vec<f64> =
            (0..dims / 2).map(|i| libm::pow(theta, -((2 * i) as f64) / dims as f64)).collect();
        let angles = positions.iter().flat_map(|&p| rates.iter().map(move |r| f64::from(p) * r));
        let (cos, sin) = angles.map(|a| (libm::cos(a) as f32, libm::sin(a) as f32)).unzip();
        Self { dims, cos, sin }
    }

    /// Rows that the table holds.
    pub fn rows(&self) -> usize {
        (2 * self.cos.len()).checked_div(self.dims).unwrap_or(0)
    }
}

/// Rotates the first R dims of each of `heads` heads of `dim` values in place, by row `row` of the
/// table: `a' = fma(a, cos, -(b * sin))`, `b' = fma(b, cos, a * sin)`, flushed.
pub fn rotate(
    x_row: &mut [f32],
    heads: usize,
    dim: usize,
    pairing: Pairing,
    rope: &RopeRows,
    row: usize,
) {
    let pairs = rope.dims / 2;
    assert_eq!(x_row.len(), heads * dim);
    assert!(rope.dims <= dim);
    for head in x_row.chunks_exact_mut(dim) {
        for i in 0..pairs {
            let (cos, sin) = (rope.cos[row * pairs + i], rope.sin[row * pairs + i]);
            let (at, bt) = pairing.dims(i, rope.dims);
            let (a, b) = (head[at], head[bt]);
            head[at] = flush(a.mul_add(cos, -note(b * sin)));
            head[bt] = flush(b.mul_add(cos, note(a * sin)));
        }
    }
}
