//! Tiled attention over a paged cache (section 4).

use crate::base::{CHUNK_KEYS, TILE_KEYS};
use crate::count::note;
use crate::exp::exp;
use crate::float::{f16_to_f32, f32_to_f16, flush, fma};
use crate::norm::{LANES, fold};

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// binary16, rounded to nearest even, saturating (the default).
    #[default]
    F16,
    /// binary32; another fingerprint.
    F32,
}

impl KvDtype {
    /// The name in flags, messages and the fingerprint.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
        }
    }

    /// The value that every row reads back, rows of the same round included.
    pub fn round(self, x: f32) -> f32 {
        match self {
            Self::F16 => f16_to_f32(f32_to_f16(x)),
            Self::F32 => x,
        }
    }

    /// Bytes a value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// The heads of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads, a multiple of `kv`.
    pub query: usize,
    /// Key/value heads.
    pub kv: usize,
    /// Values a head.
    pub dim: usize,
}

/// Attention over some keys, not yet divided: the largest score, the sum of the weights and the
/// weighted sum of the values.
#[derive(Clone, Debug, PartialEq)]
pub struct Partial {
    /// Largest score.
    pub m: f32,
    /// Sum of `exp(s - m)`.
    pub l: f32,
    /// Sum of `exp(s - m) * v`, one a dim.
    pub o: Vec<f32>,
}

impl Partial {
    /// One tile: `k` and `v` hold its visible keys, 1 ..= 64 rows of `q.len()` values.
    ///
    /// `s_k` is a sequential fma over the dims, times `scale`; `p_k = exp(s_k - m)`, +0 for keys
    /// that are not visible; `l` the p's in 32 strided lanes, folded; `o_d` a sequential fma over
    /// the keys, flushed.
    pub fn tile(q: &[f32], k: &[f32], v: &[f32], scale: f32) -> Self {
        let dim = q.len();
        let visible = k.len() / dim;
        assert!((1..=TILE_KEYS).contains(&visible) && k.len() == v.len());
        let mut p = [0.0; TILE_KEYS];
        for (p, k) in p.iter_mut().zip(k.chunks_exact(dim)) {
            *p = note(q.iter().zip(k).fold(0.0, |s, (&q, &k)| fma(q, k, s)) * scale);
        }
        let m = p[..visible].iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for p in &mut p[..visible] {
            *p = exp(note(*p - m));
        }
        let mut lanes = [0.0; LANES];
        for (i, p) in p.iter().enumerate() {
            lanes[i % LANES] += p;
        }
        let mut o = vec![0.0; dim];
        for (&p, v) in p.iter().zip(v.chunks_exact(dim)) {
            for (o, &v) in o.iter_mut().zip(v) {
                *o = fma(p, v, *o);
            }
        }
        o.iter_mut().for_each(|o| *o = flush(*o));
        Self { m, l: fold(lanes), o }
    }

    /// Adds the keys of `next`, which follow these: `m' = max(m1, m2)`, `f1 = exp(m1 - m')`,
    /// `f2 = exp(m2 - m')`, `l' = fma(l1, f1, l2 * f2)`, `o' = fma(o1, f1, o2 * f2)`.
    pub fn merge(&mut self, next: &Self) {
        let m = self.m.max(next.m);
        let f1 = exp(note(self.m - m));
        let f2 = exp(note(next.m - m));
        self.m = m;
        self.l = fma(self.l, f1, note(next.l * f2));
        for (o1, o2) in self.o.iter_mut().zip(&next.o) {
            *o1 = fma(*o1, f1, note(o2 * f2));
        }
    }

    /// `o * (1 / l)`, flushed.
    pub fn finish(&self, out: &mut [f32]) {
        let r = note(1.0 / self.l);
        for (out, o) in out.iter_mut().zip(&self.o) {
            *out = flush(o * r);
        }
    }
}

/// `f32(1 / sqrt(dim))`, computed in f64.
pub fn scale(dim: usize) -> f32 {
    (1.0 / libm::sqrt(dim as f64)) as f32
}

/// Attention of one query head over keys and values `[visible, dim]` from position 0, as stored
/// (rounded): tiles of 64 keys by absolute position, merged in key order inside chunks of 512,
/// chunks merged in key order.
pub fn attend(q_head: &[f32], k: &[f32], v: &[f32], dim: usize, out: &mut [f32]) {
    assert!(q_head.len() == dim && out.len() == dim && !k.is_empty());
    let scale = scale(dim);
    let chunk = |k: &[f32], v: &[f32]| {
        let tiles = k.chunks(TILE_KEYS * dim).zip(v.chunks(TILE_KEYS * dim));
        merged(tiles.map(|(k, v)| Partial::tile(q_head, k, v, scale)))
    };
    let chunks = k.chunks(CHUNK_KEYS * dim).zip(v.chunks(CHUNK_KEYS * dim));
    merged(chunks.map(|(k, v)| chunk(k, v))).finish(out);
}

/// Merges partials in order; the first initialises.
fn merged(mut parts: impl Iterator<Item = Partial>) -> Partial {
    let Some(mut all) = parts.next() else { panic!("attention over no keys") };
    parts.for_each(|part| all.merge(&part));
    all
}
