//! Small vector forms that the AVX2 kernels share: flush, folds, exp and its kin.

use std::arch::x86_64::*;

use arith::exp::{EXP, EXP_MAX, EXP_MIN, LN2_HI, LN2_LO, LOG1P, LOG2E};

/// Magnitudes below this (2^-36) flush to +0.
const FLUSH_BELOW: f32 = f32::from_bits(0x2d80_0000);
/// 1.5 * 2^23: adding it leaves no fraction bits.
const ROUND: f32 = 12_582_912.0;

/// [`arith::float::flush`] a lane; NaN stays.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn flush(x: __m256) -> __m256 {
    let magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0), x);
    let keep = _mm256_cmp_ps::<_CMP_NLT_UQ>(magnitude, _mm256_set1_ps(FLUSH_BELOW));
    _mm256_and_ps(x, keep)
}

/// [`arith::exp::exp`] a lane, by the same steps.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn exp(x: __m256) -> __m256 {
    let keep = _mm256_cmp_ps::<_CMP_NLT_UQ>(x, _mm256_set1_ps(EXP_MIN));
    // min(60, x) gives x where x is NaN.
    let x = _mm256_min_ps(_mm256_set1_ps(EXP_MAX), x);
    let round = _mm256_set1_ps(ROUND);
    let n = _mm256_add_ps(_mm256_mul_ps(x, _mm256_set1_ps(LOG2E)), round);
    let n = _mm256_sub_ps(n, round);
    let r = _mm256_fmadd_ps(n, _mm256_set1_ps(-LN2_HI), x);
    let r = _mm256_fmadd_ps(n, _mm256_set1_ps(-LN2_LO), r);
    let mut sum = _mm256_set1_ps(EXP[6]);
    for i in (0..6).rev() {
        sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(EXP[i]));
    }
    let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    let power = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased));
    _mm256_and_ps(_mm256_mul_ps(sum, power), keep)
}

/// [`arith::exp::log1p`] a lane, by the same steps.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn log1p(x: __m256) -> __m256 {
    let one = _mm256_set1_ps(1.0);
    let stays = _mm256_cmp_ps::<_CMP_NLT_UQ>(x, _mm256_set1_ps(f32::INFINITY));
    let three_quarters = _mm256_castps_si256(_mm256_set1_ps(0.75));
    let i = _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(one, x)), three_quarters);
    let i = _mm256_andnot_si256(_mm256_set1_epi32(0x007f_ffff), i);
    let k = _mm256_cvtepi32_ps(_mm256_srai_epi32::<23>(i));
    let s = _mm256_castsi256_ps(_mm256_sub_epi32(_mm256_castps_si256(one), i));
    let f = _mm256_fmadd_ps(x, s, _mm256_sub_ps(s, one));
    let mut sum = _mm256_set1_ps(LOG1P[8]);
    for i in (0..8).rev() {
        sum = _mm256_fmadd_ps(sum, f, _mm256_set1_ps(LOG1P[i]));
    }
    let y = _mm256_fmadd_ps(_mm256_mul_ps(f, f), sum, f);
    _mm256_blendv_ps(_mm256_fmadd_ps(k, _mm256_set1_ps(LN2_HI), y), x, stays)
}

/// [`arith::exp::sigmoid`] a lane.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn sigmoid(x: __m256) -> __m256 {
    let one = _mm256_set1_ps(1.0);
    let e = exp(negate(x));
    _mm256_div_ps(one, _mm256_add_ps(one, e))
}

/// [`arith::exp::silu`] a lane.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn silu(x: __m256) -> __m256 {
    let keep = _mm256_cmp_ps::<_CMP_NLT_UQ>(x, _mm256_set1_ps(EXP_MIN));
    _mm256_and_ps(_mm256_mul_ps(x, sigmoid(x)), keep)
}

/// [`arith::exp::softplus`] a lane.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn softplus(x: __m256) -> __m256 {
    let stays = _mm256_cmp_ps::<_CMP_GT_OQ>(x, _mm256_set1_ps(20.0));
    _mm256_blendv_ps(log1p(exp(x)), x, stays)
}

/// `-x` a lane.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn negate(x: __m256) -> __m256 {
    _mm256_xor_ps(x, _mm256_set1_ps(-0.0))
}

/// [`arith::norm::fold`] of 32 lanes in four vectors.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn fold(lanes: [__m256; 4]) -> f32 {
    let eight = _mm256_add_ps(_mm256_add_ps(lanes[0], lanes[2]), _mm256_add_ps(lanes[1], lanes[3]));
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}

/// The largest lane; NaN lanes are passed over.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn largest(x: __m256) -> f32 {
    let mut lanes = [0.0; 8];
    // SAFETY: eight floats are eight lanes.
    unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), x) };
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// Eight f16 at `from`, widened..
///
/// # Safety
/// 16 bytes must be readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn load_halves(from: *const u8) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
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

    fn check(vector: impl Fn(__m256) -> __m256, scalar: fn(f32) -> f32) {
        for x in inputs() {
            let mut found = [0.0_f32; 8];
            // SAFETY: eight floats are eight lanes; the callers tested for the features.
            unsafe {
                _mm256_storeu_ps(found.as_mut_ptr(), vector(_mm256_loadu_ps(x.as_ptr())));
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
            let found =
                unsafe { fold([0, 8, 16, 24].map(|at| _mm256_loadu_ps(lanes.as_ptr().add(at)))) };
            assert_eq!(found.to_bits(), arith::norm::fold(lanes).to_bits());
        }
    }
}
