//! Small vector forms that the AVX-512 kernels share.

use std::arch::x86_64::*;

use arith::exp::{EXP, EXP_MAX, EXP_MIN, LN2_HI, LN2_LO, LOG2E};
use arith::float::SPOILT;

use crate::pack::LANES;

/// Magnitudes below this (2^-36) flush to +0.
const FLUSH_BELOW: f32 = f32::from_bits(0x2d80_0000);
/// 1.5 * 2^23: adding it leaves no fraction bits.
const ROUND: f32 = 12_582_912.0;

/// [`arith::float::flush`] a lane; NaN stays.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) fn flush(x: __m512) -> __m512 {
    let keep = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(_mm512_abs_ps(x), _mm512_set1_ps(FLUSH_BELOW));
    _mm512_maskz_mov_ps(keep, x)
}

/// [`arith::exp::exp`] a lane, by the same steps.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) fn exp(x: __m512) -> __m512 {
    let keep = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(EXP_MIN));
    // min(60, x) gives x where x is NaN.
    let x = _mm512_min_ps(_mm512_set1_ps(EXP_MAX), x);
    let round = _mm512_set1_ps(ROUND);
    let n = _mm512_add_ps(_mm512_mul_ps(x, _mm512_set1_ps(LOG2E)), round);
    let n = _mm512_sub_ps(n, round);
    let r = _mm512_fmadd_ps(n, _mm512_set1_ps(-LN2_HI), x);
    let r = _mm512_fmadd_ps(n, _mm512_set1_ps(-LN2_LO), r);
    let mut sum = _mm512_set1_ps(EXP[6]);
    for i in (0..6).rev() {
        sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(EXP[i]));
    }
    // Where it counts the power of two is normal, and so is the product: it is exact.
    _mm512_maskz_scalef_ps(keep, sum, n)
}

/// Folds by 8, 4, 2 and 1.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) fn sum(x: __m512) -> f32 {
    let eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}

/// The tree over the groups of N vectors of sums, built as they come in order.
///
/// A node that holds no slice is left out: adding its +0 changes no sum that is not flushed.
pub(crate) struct Tree<const N: usize> {
    /// By level, a node that waits for its sister.
    waiting: [[__m512; N]; 3],
    /// Whether one waits.
    filled: [bool; 3],
    pub(crate) root: [__m512; N],
}

impl<const N: usize> Tree<N> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    pub(crate) fn new() -> Self {
        let zero = [_mm512_setzero_ps(); N];
        Self { waiting: [zero; 3], filled: [false; 3], root: zero }
    }

    /// Takes the sums of group `group`, `None` where it has no slices.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    pub(crate) fn take(&mut self, group: usize, mut sums: Option<[__m512; N]>) {
        for (level, (waiting, filled)) in self.waiting.iter_mut().zip(&mut self.filled).enumerate()
        {
            if group >> level & 1 == 0 {
                *filled = sums.is_some();
                if let Some(sums) = sums {
                    *waiting = sums;
                }
                return;
            }
            match &mut sums {
                Some(sums) if *filled => {
                    for (sum, sister) in sums.iter_mut().zip(waiting) {
                        *sum = _mm512_add_ps(*sister, *sum);
                    }
                }
                None if *filled => sums = Some(*waiting),
                _ => {}
            }
        }
        if let Some(sums) = sums {
            self.root = sums;
        }
    }
}

/// Sixteen sums, flushed, to two panels of at most eight outputs each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) fn store(sum: __m512, spoilt: bool, outs: [&mut [f32]; 2]) {
    let mut lanes = [SPOILT; 2 * LANES];
    if !spoilt {
        // SAFETY: sixteen floats are sixteen lanes.
        unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), flush(sum)) };
    }
    for (out, lanes) in outs.into_iter().zip(lanes.as_chunks::<LANES>().0) {
        let len = out.len();
        out.copy_from_slice(&lanes[..len]);
    }
}

/// `acc` plus the dot of the two pairs of a lane, in one instruction: the compiler takes the
/// intrinsic apart into a product and a sum.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) fn dot_pairs(mut acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
    // SAFETY: touches its registers alone, and the CPU has VNNI.
    unsafe {
        std::arch::asm!(
            "vpdpwssd {acc}, {w}, {x}",
            acc = inout(zmm_reg) acc,
            w = in(zmm_reg) w,
            x = in(zmm_reg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn sixteen_lanes_give_the_bits_of_the_reference() {
        if Level::avx512().is_err() {
            return;
        }
        let edges = [0.0, EXP_MIN, EXP_MAX, 88.0, f32::INFINITY, f32::NAN];
        let near = edges.into_iter().flat_map(|e: f32| {
            (-4..4).flat_map(move |i| [e, -e].map(|e| e.to_bits().wrapping_add_signed(i)))
        });
        let bits: Vec<u32> = (0..u32::MAX / 997).map(|i| i * 997).chain(near).collect();
        for bits in bits.as_chunks::<16>().0.iter().chain(bits.as_rchunks::<16>().1) {
            let (x, mut found) = (bits.map(f32::from_bits), [0.0_f32; 16]);
            // SAFETY: the CPU has the features; sixteen floats are sixteen lanes.
            let folded = unsafe {
                let all = _mm512_loadu_ps(x.as_ptr());
                _mm512_storeu_ps(found.as_mut_ptr(), exp(all));
                sum(all)
            };
            for (x, found) in x.into_iter().zip(found) {
                let expected = arith::exp::exp(x);
                let same = found.to_bits() == expected.to_bits();
                assert!(same || found.is_nan() && expected.is_nan(), "{x:e}: {found:e}");
            }
            let mut lanes = [0.0; arith::norm::LANES];
            lanes[..16].copy_from_slice(&x);
            let expected = arith::norm::fold(lanes);
            assert!(folded.to_bits() == expected.to_bits() || folded.is_nan() && expected.is_nan());
        }
    }
}
