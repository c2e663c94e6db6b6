//! Attention kernels for AVX-512: sixteen keys a vector for the scores, sixteen dims a vector for
//! the values, and up to four queries at once, so that a vector of a tile is read once for all.
//!
//! Each query has sums of its own, taken in the order of the reference: company changes no bit.
#![allow(
    clippy::needless_range_loop,
    reason = "queries and vectors index several arrays at once, with constant bounds"
)]

use std::arch::x86_64::*;

use arith::base::TILE_KEYS;

use crate::attention::{Asked, PADDING, Sums, Tile, Weights};
use crate::vector_avx512::{exp, flush, sum};

/// Queries at once, at most: their sums, a tile's vectors and a broadcast fit the registers.
pub(crate) const QUERIES: usize = 4;
/// Lanes of a vector.
const LANES: usize = 16;
/// Vectors of a tile's keys.
const KEYS: usize = TILE_KEYS / LANES;
/// Vectors of dims at once, at most.
const DIMS: usize = 4;

/// What all queries of a tile share.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a> {
    /// Keys `[dim][64]`, values `[64][dims]`.
    pub(crate) tile: Tile<'a>,
    /// Where queries start in this.
    pub(crate) q: &'a [f32],
    /// Dims of a head.
    pub(crate) dim: usize,
    /// The same, padded to whole vectors.
    pub(crate) padded: usize,
    pub(crate) scale: f32,
    /// The tile begins a chunk.
    pub(crate) first: bool,
}

/// Adds a tile to the chunk of every query of `asked`.
///
/// # Safety
/// The CPU has the features; the tile has `dim` rows of 64 keys and, for the most keys that a query
/// sees, rows of `padded` values.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn attend_tile_f32_avx512(shared: Shared<'_>, asked: &[Asked], chunk: &mut Sums) {
    let mut rest = asked;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(rest.len().div_ceil(rest.len().div_ceil(QUERIES)));
        // SAFETY: passed on.
        unsafe {
            match shared.tile {
                Tile::F16(k, v) => {
                    assert!(k.len() >= shared.dim * TILE_KEYS);
                    by_count::<true>(shared, k.as_ptr().cast(), v.as_ptr().cast(), now, chunk);
                }
                Tile::F32(k, v) => {
                    assert!(k.len() >= shared.dim * TILE_KEYS);
                    by_count::<false>(shared, k.as_ptr().cast(), v.as_ptr().cast(), now, chunk);
                }
            }
        }
        rest = later;
    }
}

/// # Safety
/// As [`attend_tile_f32_avx512`], of at most [`QUERIES`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn by_count<const HALVES: bool>(
    shared: Shared<'_>,
    k: *const u8,
    v: *const u8,
    asked: &[Asked],
    chunk: &mut Sums,
) {
    // SAFETY: passed on.
    unsafe {
        match asked.len() {
            1 => attend::<HALVES, 1>(shared, k, v, asked, chunk),
            2 => attend::<HALVES, 2>(shared, k, v, asked, chunk),
            3 => attend::<HALVES, 3>(shared, k, v, asked, chunk),
            _ => attend::<HALVES, QUERIES>(shared, k, v, asked, chunk),
        }
    }
}

/// Sixteen values from the `at`th on.
///
/// # Safety
/// They must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn read<const HALVES: bool>(from: *const u8, at: usize) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        if HALVES {
            _mm512_cvtph_ps(_mm256_loadu_si256(from.cast::<u16>().add(at).cast()))
        } else {
            _mm512_loadu_ps(from.cast::<f32>().add(at))
        }
    }
}

/// One tile for N queries.
///
/// # Safety
/// As [`attend_tile_f32_avx512`].
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn attend<const HALVES: bool, const N: usize>(
    shared: Shared<'_>,
    k: *const u8,
    v: *const u8,
    asked: &[Asked],
    chunk: &mut Sums,
) {
    assert!(asked.len() == N);
    let Shared { q, dim, padded, scale, first, .. } = shared;
    let mut queries = [q.as_ptr(); N];
    let mut visible = [0; N];
    let mut at = [0; N];
    for i in 0..N {
        queries[i] = q[asked[i].q..][..dim].as_ptr();
        visible[i] = asked[i].visible;
        at[i] = asked[i].sum;
        assert!((1..=TILE_KEYS).contains(&visible[i]) && (at[i] + 1) * padded <= chunk.o.len());
    }
    let most = visible.iter().copied().max().unwrap_or(0);
    // SAFETY: `dim` values of each query and as many rows of keys.
    let s = unsafe {
        if most > TILE_KEYS / 2 {
            scores::<HALVES, N, KEYS>(&queries, dim, k)
        } else {
            scores::<HALVES, N, { KEYS / 2 }>(&queries, dim, k)
        }
    };
    let mut p = [[0.0; TILE_KEYS]; N];
    let mut next = [Weights::default(); N];
    for i in 0..N {
        next[i] = softmax(s[i], visible[i], scale, &mut p[i]);
    }
    let factors = if first {
        for i in 0..N {
            chunk.weights[at[i]] = next[i];
        }
        None
    } else {
        Some(merge(&next, &at, &mut chunk.weights))
    };
    let mut from = 0;
    while from < padded {
        // SAFETY: rows of `padded` values for all visible keys, and as many sums of each query.
        unsafe {
            let o = Out { o: chunk.o.as_mut_ptr().add(from), padded, at: &at, factors: &factors };
            let v = v.add(from * if HALVES { 2 } else { 4 });
            from += if padded - from >= DIMS * LANES {
                values::<HALVES, N, DIMS>(&p, &visible, v, o)
            } else {
                values::<HALVES, N, 1>(&p, &visible, v, o)
            };
        }
    }
}

/// Unscaled scores of the first 16 J keys, the others +0: sequential fma over the dims.
///
/// # Safety
/// Each query has `dim` values, and there are as many rows of 64 keys.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn scores<const HALVES: bool, const N: usize, const J: usize>(
    queries: &[*const f32; N],
    dim: usize,
    k: *const u8,
) -> [[__m512; KEYS]; N] {
    let zero = _mm512_setzero_ps();
    let mut s = [[zero; J]; N];
    for d in 0..dim {
        // SAFETY: the caller's promise.
        unsafe {
            let mut keys = [zero; J];
            for j in 0..J {
                keys[j] = read::<HALVES>(k, d * TILE_KEYS + LANES * j);
            }
            for i in 0..N {
                let x = _mm512_set1_ps(*queries[i].add(d));
                for j in 0..J {
                    s[i][j] = _mm512_fmadd_ps(x, keys[j], s[i][j]);
                }
            }
        }
    }
    let mut all = [[zero; KEYS]; N];
    for i in 0..N {
        all[i][..J].copy_from_slice(&s[i]);
    }
    all
}

/// `p_k = exp(s_k * scale - m)`, +0 where not visible; gives `m` and the sum of all `p_k`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn softmax(mut s: [__m512; KEYS], visible: usize, scale: f32, p: &mut [f32; TILE_KEYS]) -> Weights {
    let seen = u64::MAX >> (TILE_KEYS - visible);
    let mask = |j: usize| (seen >> (LANES * j)) as __mmask16;
    let scale = _mm512_set1_ps(scale);
    let mut most = _mm512_set1_ps(f32::NEG_INFINITY);
    for j in 0..KEYS {
        s[j] = _mm512_mul_ps(s[j], scale);
        // A NaN score gives way to what is there.
        most = _mm512_mask_max_ps(most, mask(j), s[j], most);
    }
    let m = _mm512_reduce_max_ps(most);
    for j in 0..KEYS {
        s[j] = _mm512_maskz_mov_ps(mask(j), exp(_mm512_sub_ps(s[j], _mm512_set1_ps(m))));
        // SAFETY: 16 of 64 values.
        unsafe { _mm512_storeu_ps(p.as_mut_ptr().add(LANES * j), s[j]) };
    }
    // 32 lanes, folded by 16.
    let low = _mm512_add_ps(s[0], s[2]);
    let high = _mm512_add_ps(s[1], s[3]);
    Weights { m, l: sum(_mm512_add_ps(low, high)) }
}

/// Adds `next` to the weights of the chunk; gives the factors of the chunk's values and the tile's,
/// a lane a query.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn merge<const N: usize>(
    next: &[Weights; N],
    at: &[usize; N],
    chunk: &mut [Weights],
) -> [[f32; LANES]; 2] {
    let (mut m, mut m1, mut m2) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    for i in 0..N {
        (m1[i], m2[i]) = (chunk[at[i]].m, next[i].m);
        m[i] = m1[i].max(m2[i]);
    }
    let mut factors = [[0.0; LANES]; 2];
    for (m1, factors) in [m1, m2].iter().zip(&mut factors) {
        // SAFETY: sixteen floats are sixteen lanes.
        unsafe {
            let x = _mm512_sub_ps(_mm512_loadu_ps(m1.as_ptr()), _mm512_loadu_ps(m.as_ptr()));
            _mm512_storeu_ps(factors.as_mut_ptr(), exp(x));
        }
    }
    for i in 0..N {
        let l = chunk[at[i]].l.mul_add(factors[0][i], next[i].l * factors[1][i]);
        chunk[at[i]] = Weights { m: m[i], l };
    }
    factors
}

/// Where weighted values go.
struct Out<'a, const N: usize> {
    /// The first dim of sum 0, sums `padded` apart.
    o: *mut f32,
    padded: usize,
    at: &'a [usize; N],
    /// The factors of what is there and of what comes, unless nothing is there.
    factors: &'a Option<[[f32; LANES]; 2]>,
}

/// W vectors of the weighted values of each query, sequential fma over its visible keys, flushed,
/// merged into its chunk. Gives the dims done.
///
/// # Safety
/// `v` has rows, `padded` apart, of 16 W values for all visible keys, and `o` as many of each sum.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn values<const HALVES: bool, const N: usize, const W: usize>(
    p: &[[f32; TILE_KEYS]; N],
    visible: &[usize; N],
    v: *const u8,
    out: Out<'_, N>,
) -> usize {
    let least = visible.iter().copied().min().unwrap_or(0);
    let mut o = [[_mm512_setzero_ps(); W]; N];
    // SAFETY: the caller's promise; keys are below 64.
    unsafe {
        for key in 0..least {
            let mut values = [_mm512_setzero_ps(); W];
            for w in 0..W {
                values[w] = read::<HALVES>(v, key * out.padded + LANES * w);
            }
            for i in 0..N {
                let x = _mm512_set1_ps(*p[i].as_ptr().add(key));
                for w in 0..W {
                    o[i][w] = _mm512_fmadd_ps(x, values[w], o[i][w]);
                }
            }
        }
        // What a later row alone sees may be no number.
        for i in 0..N {
            for key in least..visible[i] {
                let x = _mm512_set1_ps(*p[i].as_ptr().add(key));
                for w in 0..W {
                    let value = read::<HALVES>(v, key * out.padded + LANES * w);
                    o[i][w] = _mm512_fmadd_ps(x, value, o[i][w]);
                }
            }
        }
        for i in 0..N {
            for w in 0..W {
                let at = out.o.add(out.at[i] * out.padded + LANES * w);
                let mut sum = flush(o[i][w]);
                if let Some([f1, f2]) = out.factors {
                    let part = _mm512_mul_ps(sum, _mm512_set1_ps(f2[i]));
                    sum = _mm512_fmadd_ps(_mm512_loadu_ps(at), _mm512_set1_ps(f1[i]), part);
                }
                _mm512_storeu_ps(at, sum);
            }
        }
    }
    W * LANES
}

const _: () = assert!(PADDING == LANES && KEYS == 4);
