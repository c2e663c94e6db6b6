//! Attention kernels: eight keys a vector for the scores, eight dims a vector for the values.

use std::arch::x86_64::*;

use arith::base::TILE_KEYS;

use crate::attention::{Tile, Weights};
use crate::attention_scalar;
use crate::vector_avx2::{exp, flush, fold, largest, load_halves};

/// Vectors of a tile's keys.
const KEYS: usize = TILE_KEYS / 8;

/// [`arith::float::f32_to_f16`] of every value.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn narrow_f32_f16_avx2(from: &[f32], to: &mut [u16]) {
    let (eights, tail) = from.as_chunks::<8>();
    let (to, to_tail) = to[..from.len()].as_chunks_mut::<8>();
    for (x, to) in eights.iter().zip(to) {
        // SAFETY: eight values each.
        unsafe {
            let x = _mm256_loadu_ps(x.as_ptr());
            // Both give x where x is NaN.
            let x = _mm256_min_ps(_mm256_set1_ps(65504.0), x);
            let x = _mm256_max_ps(_mm256_set1_ps(-65504.0), x);
            let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x);
            let magnitude = _mm_and_si128(half, _mm_set1_epi16(0x7fff));
            let subnormal = _mm_cmpgt_epi16(_mm_set1_epi16(0x0400), magnitude);
            let nan = _mm_cmpgt_epi16(magnitude, _mm_set1_epi16(0x7c00));
            let half = _mm_andnot_si128(subnormal, half);
            let half = _mm_blendv_epi8(half, _mm_set1_epi16(0x7e00), nan);
            _mm_storeu_si128(to.as_mut_ptr().cast(), half);
        }
    }
    for (to, &x) in to_tail.iter_mut().zip(tail) {
        *to = arith::float::f32_to_f16(x);
    }
}

/// Eight halves a step, the rest one by one.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen(from: &[u16], to: &mut [f32]) {
    let (eights, tail) = from.as_chunks::<8>();
    let (to, to_tail) = to[..from.len()].as_chunks_mut::<8>();
    for (from, to) in eights.iter().zip(to) {
        // SAFETY: eight values each.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), load_halves(from.as_ptr().cast())) };
    }
    for (to, &x) in to_tail.iter_mut().zip(tail) {
        *to = arith::float::f16_to_f32(x);
    }
}

/// Widens a tile: keys `[dim][64]`, values `[64][dim padded to 8]`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn widen_tile_avx2(tile: Tile<'_>, dim: usize, k: &mut [f32], v: &mut [f32]) {
    match tile {
        Tile::F16(keys, values) => {
            let padded = dim.next_multiple_of(8);
            widen(keys, k);
            for (v, values) in v.chunks_exact_mut(padded).zip(values.chunks_exact(dim)) {
                widen(values, v);
            }
        }
        Tile::F32(..) => attention_scalar::widen_tile_scalar(tile, dim, k, v),
    }
}

/// [`arith::attention::Partial::tile`] over a widened tile; `o` is padded to whole vectors.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn attend_tile_f32_avx2(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    visible: usize,
    scale: f32,
    o: &mut [f32],
) -> Weights {
    assert!((1..=TILE_KEYS).contains(&visible));
    assert!(k.len() >= q.len() * TILE_KEYS && v.len() >= visible * o.len());
    // SAFETY: the scores read `q.len()` rows of 64 keys.
    let scores = unsafe {
        if visible > TILE_KEYS / 2 {
            scores::<KEYS>(q, k.as_ptr())
        } else {
            scores::<{ KEYS / 2 }>(q, k.as_ptr())
        }
    };
    let (p, weights) = softmax(scores, visible, scale);
    let mut from = 0;
    while from < o.len() {
        let rest = (o.len() - from) / 8;
        // SAFETY: `visible` rows of `o.len()` values, of which N vectors from `from` on.
        unsafe {
            from += match rest {
                0 => unreachable!("o is padded to whole vectors"),
                1..4 => values::<1>(&p, visible, v, from, o),
                4..8 => values::<4>(&p, visible, v, from, o),
                _ => values::<8>(&p, visible, v, from, o),
            };
        }
    }
    weights
}

/// Unscaled scores of the first 8 N keys, the others +0: sequential fma over the dims.
///
/// # Safety
/// `k` has `q.len()` rows of 64 keys.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scores<const N: usize>(q: &[f32], k: *const f32) -> [__m256; KEYS] {
    let mut s = [_mm256_setzero_ps(); N];
    for (d, &q) in q.iter().enumerate() {
        let q = _mm256_set1_ps(q);
        for (i, s) in s.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let k = unsafe { _mm256_loadu_ps(k.add(d * TILE_KEYS + 8 * i)) };
            *s = _mm256_fmadd_ps(q, k, *s);
        }
    }
    std::array::from_fn(|i| if i < N { s[i] } else { _mm256_setzero_ps() })
}

/// `p_k = exp(s_k * scale - m)`, +0 where not visible.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn softmax(mut s: [__m256; KEYS], visible: usize, scale: f32) -> ([f32; TILE_KEYS], Weights) {
    let scale = _mm256_set1_ps(scale);
    let first = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let least = _mm256_set1_ps(f32::NEG_INFINITY);
    let mut seen = [least; KEYS];
    let mut most = least;
    for (i, s) in s.iter_mut().enumerate() {
        let left = _mm256_set1_epi32(visible as i32 - 8 * i as i32);
        seen[i] = _mm256_castsi256_ps(_mm256_cmpgt_epi32(left, first));
        *s = _mm256_mul_ps(*s, scale);
        // A NaN score gives way to what is there.
        most = _mm256_max_ps(_mm256_blendv_ps(least, *s, seen[i]), most);
    }
    let m = largest(most);
    let mut p = [0.0; TILE_KEYS];
    for (i, s) in s.iter_mut().enumerate() {
        *s = _mm256_and_ps(exp(_mm256_sub_ps(*s, _mm256_set1_ps(m))), seen[i]);
        // SAFETY: 8 of 64 values.
        unsafe { _mm256_storeu_ps(p.as_mut_ptr().add(8 * i), *s) };
    }
    let lanes = std::array::from_fn(|j| _mm256_add_ps(s[j], s[j + KEYS / 2]));
    (p, Weights { m, l: fold(lanes) })
}

/// N vectors of the weighted values from dim `from` on: sequential fma over the visible keys,
/// flushed. Gives the dims done.
///
/// # Safety
/// `v` has `visible` rows of `o.len()` values, and `o` 8 N values from `from` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn values<const N: usize>(
    p: &[f32; TILE_KEYS],
    visible: usize,
    v: &[f32],
    from: usize,
    o: &mut [f32],
) -> usize {
    let mut sums = [_mm256_setzero_ps(); N];
    for (key, &p) in p[..visible].iter().enumerate() {
        let p = _mm256_set1_ps(p);
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let v = unsafe { _mm256_loadu_ps(v.as_ptr().add(key * o.len() + from + 8 * i)) };
            *sum = _mm256_fmadd_ps(p, v, *sum);
        }
    }
    for (i, &sum) in sums.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_ps(o.as_mut_ptr().add(from + 8 * i), flush(sum)) };
    }
    8 * N
}

/// `o1 = fma(o1, f1, o2 * f2)`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn merge_f32_avx2(o1: &mut [f32], f1: f32, o2: &[f32], f2: f32) {
    attention_scalar::merge_f32(o1, f1, o2, f2);
}
