//! Small vector forms that the AVX-512 kernels share.

use std::arch::x86_64::*;

use arith::float::SPOILT;

use crate::pack::LANES;

/// Magnitudes below this (2^-36) flush to +0.
const FLUSH_BELOW: f32 = f32::from_bits(0x2d80_0000);

/// [`arith::float::flush`] a lane; NaN stays.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) fn flush(x: __m512) -> __m512 {
    let keep = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(_mm512_abs_ps(x), _mm512_set1_ps(FLUSH_BELOW));
    _mm512_maskz_mov_ps(keep, x)
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
