//! Small forms over eight lanes that kernels share: flush, folds, exp and its kin.

use arith::exp::{EXP, EXP_MAX, EXP_MIN, LN2_HI, LN2_LO, LOG1P, LOG2E};
use arith::float::SPOILT;
use arith::linear::GROUPS;

use crate::pack::End;

use crate::lanes::*;
use crate::pack::LANES;

/// Magnitudes below this (2^-36) flush to +0.
const FLUSH_BELOW: f32 = f32::from_bits(0x2d80_0000);
/// 1.5 * 2^23: adding it leaves no fraction bits.
const ROUND: f32 = 12_582_912.0;

/// [`arith::float::flush`] a lane; NaN stays.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
pub(crate) fn flush(x: F32s) -> F32s {
    let keep = not_below(abs(x), splat(FLUSH_BELOW));
    kept(x, keep)
}

/// [`arith::exp::exp`] a lane, by the same steps.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
pub(crate) fn exp(x: F32s) -> F32s {
    let keep = not_below(x, splat(EXP_MIN));
    // min(60, x) gives x where x is NaN.
    let x = at_most(splat(EXP_MAX), x);
    let round = splat(ROUND);
    let n = add(mul(x, splat(LOG2E)), round);
    let n = sub(n, round);
    let r = fma(n, splat(-LN2_HI), x);
    let r = fma(n, splat(-LN2_LO), r);
    let mut sum = splat(EXP[6]);
    for i in (0..6).rev() {
        sum = fma(sum, r, splat(EXP[i]));
    }
    let power = from_bits(to_exponent(add_ints(to_ints(n), ints(127))));
    kept(mul(sum, power), keep)
}

/// [`arith::exp::log1p`] a lane, by the same steps.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
pub(crate) fn log1p(x: F32s) -> F32s {
    let one = splat(1.0);
    let stays = not_below(x, splat(f32::INFINITY));
    let i = sub_ints(bits(add(one, x)), bits(splat(0.75)));
    let i = and_ints(i, ints(!0x007f_ffff));
    let k = from_ints(from_exponent(i));
    let s = from_bits(sub_ints(bits(one), i));
    let f = fma(x, s, sub(s, one));
    let mut sum = splat(LOG1P[8]);
    for i in (0..8).rev() {
        sum = fma(sum, f, splat(LOG1P[i]));
    }
    let y = fma(mul(f, f), sum, f);
    select(stays, x, fma(k, splat(LN2_HI), y))
}

/// [`arith::exp::sigmoid`] a lane.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
pub(crate) fn sigmoid(x: F32s) -> F32s {
    let one = splat(1.0);
    let e = exp(negate(x));
    div(one, add(one, e))
}

/// [`arith::exp::silu`] a lane.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
pub(crate) fn silu(x: F32s) -> F32s {
    let keep = not_below(x, splat(EXP_MIN));
    kept(mul(x, sigmoid(x)), keep)
}

/// [`arith::exp::softplus`] a lane.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
pub(crate) fn softplus(x: F32s) -> F32s {
    let stays = above(x, splat(20.0));
    select(stays, x, log1p(exp(x)))
}

/// [`arith::norm::fold`] of 32 lanes in four vectors.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
pub(crate) fn fold(lanes: [F32s; 4]) -> f32 {
    sum(add(add(lanes[0], lanes[2]), add(lanes[1], lanes[3])))
}

/// The largest lane; NaN lanes are passed over.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
pub(crate) fn largest(x: F32s) -> f32 {
    let mut lanes = [0.0; 8];
    // SAFETY: eight floats are eight lanes.
    unsafe { store(lanes.as_mut_ptr(), x) };
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// The tree over the groups of a linear layer's outputs, ended so, to as many as `out` has.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
pub(crate) fn put_groups(g: [F32s; GROUPS], end: End, out: &mut [f32]) {
    if end == End::Spoilt {
        return out.fill(SPOILT);
    }
    let low = add(add(g[0], g[1]), add(g[2], g[3]));
    let high = add(add(g[4], g[5]), add(g[6], g[7]));
    let sum = add(low, high);
    let sums = if end == End::Node { sum } else { flush(sum) };
    let mut lanes = [0.0; LANES];
    // SAFETY: eight floats are eight lanes.
    unsafe { store(lanes.as_mut_ptr(), sums) };
    let len = out.len();
    out.copy_from_slice(&lanes[..len]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    /// Every 997th f32 and those around the edges of the functions' domains, in eights.
    fn inputs() -> Vec<[f32; 8]> {
        let edges = [0.0, FLUSH_BELOW, EXP_MIN, EXP_MAX, 20.0, 88.0, -88.0, f32::INFINITY];
        let near = edges.into_iter().flat_map(|e: f32| {
            (-4..4).flat_map(move |i| [e, -e].map(|e| e.to_bits().wrapping_add_signed(i)))
        });
        let bits: Vec<u32> = (0..u32::MAX / 997).map(|i| i * 997).chain(near).collect();
        let eight = |bits: &[u32; 8]| bits.map(f32::from_bits);
        bits.as_chunks().0.iter().chain(bits.as_rchunks().1).map(eight).collect()
    }

    fn check(vector: impl Fn(F32s) -> F32s, scalar: fn(f32) -> f32) {
        for x in inputs() {
            let mut found = [0.0_f32; 8];
            // SAFETY: eight floats are eight lanes; the callers tested for the features.
            unsafe {
                store(found.as_mut_ptr(), vector(load(x.as_ptr())));
            }
            for (x, found) in x.into_iter().zip(found) {
                let expected = scalar(x);
                let same = found.to_bits() == expected.to_bits();
                assert!(same || found.is_nan() && expected.is_nan(), "{x:e}: {found:e}");
            }
        }
    }

    #[test]
    fn vectors_give_the_bits_of_the_reference() {
        if Level::vector().is_ok() {
            // SAFETY: the CPU has the features.
            unsafe {
                check(|x| flush(x), arith::float::flush);
                check(|x| exp(x), arith::exp::exp);
                check(|x| log1p(x), arith::exp::log1p);
                check(|x| sigmoid(x), arith::exp::sigmoid);
                check(|x| silu(x), arith::exp::silu);
                check(|x| softplus(x), arith::exp::softplus);
            }
        }
    }

    #[test]
    fn a_fold_adds_in_the_order_of_the_reference() {
        let lanes: [f32; 32] = std::array::from_fn(|i| (i as f32 + 0.3).powi(5));
        if Level::vector().is_ok() {
            // SAFETY: the CPU has the features; 8 of 32 lanes each.
            let found = unsafe { fold([0, 8, 16, 24].map(|at| load(lanes.as_ptr().add(at)))) };
            assert_eq!(found.to_bits(), arith::norm::fold(lanes).to_bits());
        }
    }
}
