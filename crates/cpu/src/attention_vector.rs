//! Attention kernels: eight keys a vector for the scores, eight dims a vector for the values.

use arith::base::TILE_KEYS;

use crate::attention::{PADDING, Tile, Weights};
use crate::attention_scalar;
use crate::lanes::*;
use crate::vector::{exp, flush, fold, largest};

/// Vectors of a tile's keys.
const KEYS: usize = TILE_KEYS / 8;
/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// [`arith::float::f32_to_f16`] of every value.
///
/// # Safety
/// The CPU has the features of [`crate::lanes`].
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
pub(crate) unsafe fn narrow_f32_f16_vector(from: &[f32], to: &mut [u16]) {
    let (eights, tail) = from.as_chunks::<8>();
    let (to, to_tail) = to[..from.len()].as_chunks_mut::<8>();
    for (x, to) in eights.iter().zip(to) {
        // SAFETY: eight values each.
        unsafe {
            store_halves(to.as_mut_ptr(), load(x.as_ptr()));
        }
    }
    for (to, &x) in to_tail.iter_mut().zip(tail) {
        *to = arith::float::f32_to_f16(x);
    }
}

/// Eight halves a step, the rest one by one.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
fn widen(from: &[u16], to: &mut [f32]) {
    let (eights, tail) = from.as_chunks::<8>();
    let (to, to_tail) = to[..from.len()].as_chunks_mut::<8>();
    for (from, to) in eights.iter().zip(to) {
        // SAFETY: eight values each.
        unsafe { store(to.as_mut_ptr(), load_halves(from.as_ptr().cast())) };
    }
    for (to, &x) in to_tail.iter_mut().zip(tail) {
        *to = arith::float::f16_to_f32(x);
    }
}

/// Widens a tile: keys `[dim][64]`, values `[64][padded dim]`.
///
/// # Safety
/// The CPU has the features of [`crate::lanes`].
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
pub(crate) unsafe fn widen_tile_vector(tile: Tile<'_>, dim: usize, k: &mut [f32], v: &mut [f32]) {
    match tile {
        Tile::F16(keys, values) => {
            let padded = dim.next_multiple_of(PADDING);
            widen(keys, k);
            for (v, values) in v.chunks_exact_mut(padded).zip(values.chunks_exact(dim)) {
                widen(values, v);
            }
        }
        Tile::F32(..) => attention_scalar::widen_tile_scalar(tile, dim, k, v),
    }
}

/// Asks memory for some values.
///
/// # Safety
/// The CPU has the features of [`crate::lanes`].
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
pub(crate) unsafe fn prefetch_vector<T>(values: &[T]) {
    for line in values.chunks(LINE_BYTES / size_of::<T>()) {
        prefetch(line.as_ptr().cast());
    }
}

/// [`arith::attention::Partial::tile`] over a widened tile; `o` is padded to whole vectors.
///
/// # Safety
/// The CPU has the features of [`crate::lanes`].
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
pub(crate) unsafe fn attend_tile_f32_vector(
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
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
unsafe fn scores<const N: usize>(q: &[f32], k: *const f32) -> [F32s; KEYS] {
    let mut s = [zero(); N];
    for (d, &q) in q.iter().enumerate() {
        let q = splat(q);
        for (i, s) in s.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let k = unsafe { load(k.add(d * TILE_KEYS + 8 * i)) };
            *s = fma(q, k, *s);
        }
    }
    std::array::from_fn(|i| if i < N { s[i] } else { zero() })
}

/// `p_k = exp(s_k * scale - m)`, +0 where not visible.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
fn softmax(mut s: [F32s; KEYS], visible: usize, scale: f32) -> ([f32; TILE_KEYS], Weights) {
    let scale = splat(scale);
    let least = splat(f32::NEG_INFINITY);
    let mut seen = [first(0); KEYS];
    let mut most = least;
    for (i, s) in s.iter_mut().enumerate() {
        seen[i] = first(visible as i32 - 8 * i as i32);
        *s = mul(*s, scale);
        // A NaN score gives way to what is there.
        most = larger(select(seen[i], *s, least), most);
    }
    let m = largest(most);
    let mut p = [0.0; TILE_KEYS];
    for (i, s) in s.iter_mut().enumerate() {
        *s = kept(exp(sub(*s, splat(m))), seen[i]);
        // SAFETY: 8 of 64 values.
        unsafe { store(p.as_mut_ptr().add(8 * i), *s) };
    }
    let lanes = std::array::from_fn(|j| add(s[j], s[j + KEYS / 2]));
    (p, Weights { m, l: fold(lanes) })
}

/// N vectors of the weighted values from dim `from` on: sequential fma over the visible keys,
/// flushed. Gives the dims done.
///
/// # Safety
/// `v` has `visible` rows of `o.len()` values, and `o` 8 N values from `from` on.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
unsafe fn values<const N: usize>(
    p: &[f32; TILE_KEYS],
    visible: usize,
    v: &[f32],
    from: usize,
    o: &mut [f32],
) -> usize {
    let mut sums = [zero(); N];
    for (key, &p) in p[..visible].iter().enumerate() {
        let p = splat(p);
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let v = unsafe { load(v.as_ptr().add(key * o.len() + from + 8 * i)) };
            *sum = fma(p, v, *sum);
        }
    }
    for (i, &sum) in sums.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { store(o.as_mut_ptr().add(from + 8 * i), flush(sum)) };
    }
    8 * N
}

/// `o1 = fma(o1, f1, o2 * f2)`.
///
/// # Safety
/// The CPU has the features of [`crate::lanes`].
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
pub(crate) unsafe fn merge_f32_vector(o1: &mut [f32], f1: f32, o2: &[f32], f2: f32) {
    attention_scalar::merge_f32(o1, f1, o2, f2);
}
