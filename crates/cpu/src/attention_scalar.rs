//! Scalar twins of the attention kernels.

use arith::base::TILE_KEYS;
use arith::exp::exp;
use arith::float::{f16_to_f32, flush};
use arith::norm::{LANES, fold};

use crate::attention::{PADDING, Tile, Weights};

/// Widens a tile: keys `[dim][64]`, values `[64][padded dim]`.
pub(crate) fn widen_tile_scalar(tile: Tile<'_>, dim: usize, k: &mut [f32], v: &mut [f32]) {
    let padded = dim.next_multiple_of(PADDING);
    match tile {
        Tile::F16(keys, values) => {
            for (k, &x) in k.iter_mut().zip(keys) {
                *k = f16_to_f32(x);
            }
            for (v, values) in v.chunks_exact_mut(padded).zip(values.chunks_exact(dim)) {
                for (v, &x) in v.iter_mut().zip(values) {
                    *v = f16_to_f32(x);
                }
            }
        }
        Tile::F32(keys, values) => {
            k[..keys.len()].copy_from_slice(keys);
            for (v, values) in v.chunks_exact_mut(padded).zip(values.chunks_exact(dim)) {
                v[..dim].copy_from_slice(values);
            }
        }
    }
}

/// [`arith::attention::Partial::tile`] over a widened tile.
pub(crate) fn attend_tile_f32_scalar(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    visible: usize,
    scale: f32,
    o: &mut [f32],
) -> Weights {
    let mut p = [0.0_f32; TILE_KEYS];
    for (q, k) in q.iter().zip(k.chunks_exact(TILE_KEYS)) {
        for (p, k) in p.iter_mut().zip(k) {
            *p = q.mul_add(*k, *p);
        }
    }
    let seen = &mut p[..visible];
    seen.iter_mut().for_each(|p| *p *= scale);
    let m = seen.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    seen.iter_mut().for_each(|p| *p = exp(*p - m));
    p[visible..].fill(0.0);
    let mut lanes = [0.0; LANES];
    for (j, lane) in lanes.iter_mut().enumerate() {
        *lane = (0.0 + p[j]) + p[j + LANES];
    }
    o.fill(0.0);
    for (p, v) in p[..visible].iter().zip(v.chunks_exact(o.len())) {
        for (o, v) in o.iter_mut().zip(v) {
            *o = p.mul_add(*v, *o);
        }
    }
    o.iter_mut().for_each(|o| *o = flush(*o));
    Weights { m, l: fold(lanes) }
}

/// `o1 = fma(o1, f1, o2 * f2)`.
#[inline(always)]
pub(crate) fn merge_f32(o1: &mut [f32], f1: f32, o2: &[f32], f2: f32) {
    for (o1, o2) in o1.iter_mut().zip(o2) {
        *o1 = o1.mul_add(f1, o2 * f2);
    }
}
