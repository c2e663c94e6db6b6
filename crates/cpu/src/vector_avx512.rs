//! Small vector forms that the AVX-512 kernels share.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use arith::exp::{EXP, EXP_MAX, EXP_MIN, LN2_HI, LN2_LO, LOG2E};
use arith::float::SPOILT;
use arith::linear::{GROUPS, Groups};

use crate::pack::End;

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

/// [`arith::exp::silu`] a lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) fn silu(x: __m512) -> __m512 {
    let keep = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(EXP_MIN));
    let one = _mm512_set1_ps(1.0);
    let e = exp(_mm512_xor_ps(x, _mm512_set1_ps(-0.0)));
    let sigmoid = _mm512_div_ps(one, _mm512_add_ps(one, e));
    _mm512_maskz_mul_ps(keep, x, sigmoid)
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

/// The order in which the groups of a linear layer's slices are summed: [`arith::linear`]'s tree,
/// as steps over a stack of nodes that wait for their sisters.
///
/// A node that holds no slice is left out: adding its +0 changes no sum that is not flushed.
pub(crate) struct Steps {
    steps: [Step; GROUPS],
    count: usize,
}

/// A group that has slices.
#[derive(Clone, Default)]
pub(crate) struct Step {
    pub(crate) slices: Range<usize>,
    /// How many nodes of the stack take its sum, the last one first.
    pub(crate) joins: usize,
}

impl Steps {
    /// Of groups that have a slice at least.
    pub(crate) fn of(groups: &Groups) -> Self {
        let mut all = Self { steps: Default::default(), count: 0 };
        let (mut waiting, mut held) = ([0; GROUPS], 0);
        for group in (0..GROUPS).filter(|&group| !groups.slices(group).is_empty()) {
            let next = (group + 1..GROUPS).find(|&next| !groups.slices(next).is_empty());
            let (mut first, mut joins) = (group, 0);
            // The smallest node above both is done once no later group is below it.
            while held > 0
                && next.is_none_or(|next| {
                    let level = (waiting[held - 1] ^ group).ilog2() + 1;
                    next >> level != group >> level
                })
            {
                held -= 1;
                first = waiting[held];
                joins += 1;
            }
            waiting[held] = first;
            held += 1;
            all.steps[all.count] = Step { slices: groups.slices(group), joins };
            all.count += 1;
        }
        all
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Step> {
        self.steps[..self.count].iter()
    }
}

/// The nodes of N vectors of sums that wait; after the last step the root alone.
pub(crate) struct Tree<const N: usize> {
    waiting: [MaybeUninit<[__m512; N]>; NODES],
    held: usize,
}

/// Nodes that wait at once, at most: one a level, and the one that comes.
pub(crate) const NODES: usize = GROUPS.ilog2() as usize + 1;

impl<const N: usize> Tree<N> {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self { waiting: [const { MaybeUninit::uninit() }; NODES], held: 0 }
    }

    /// Takes the sums of a step.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    pub(crate) fn take(&mut self, step: &Step, mut sums: [__m512; N]) {
        for _ in 0..step.joins {
            self.held -= 1;
            // SAFETY: nodes below `held` were written.
            let sister = unsafe { self.waiting[self.held].assume_init_ref() };
            for (sum, sister) in sums.iter_mut().zip(sister) {
                *sum = _mm512_add_ps(*sister, *sum);
            }
        }
        self.waiting[self.held].write(sums);
        self.held += 1;
    }

    /// The whole sums, once all steps are taken.
    #[inline(always)]
    pub(crate) fn root(&self) -> &[__m512; N] {
        assert!(self.held == 1);
        // SAFETY: nodes below `held` were written.
        unsafe { self.waiting[0].assume_init_ref() }
    }
}

/// Sixteen sums, ended so, to as many outputs as `out` has.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) fn store(sum: __m512, end: End, out: &mut [f32]) {
    let sum = match end {
        End::Spoilt => _mm512_set1_ps(SPOILT),
        End::Root => flush(sum),
        End::Node => sum,
    };
    let lanes = u16::MAX.unbounded_shr(16 - out.len() as u32);
    // SAFETY: the mask holds for no more lanes than `out` has.
    unsafe { _mm512_mask_storeu_ps(out.as_mut_ptr(), lanes, sum) };
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

/// The integer at `x` in every lane, by a load: the compiler would rather work on it first in a
/// register of another kind.
///
/// # Safety
/// It must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn everywhere(x: *const i32) -> __m512i {
    let all: __m512i;
    // SAFETY: reads four bytes, the caller's promise.
    unsafe {
        std::arch::asm!(
            "vpbroadcastd {all}, dword ptr [{x}]",
            all = out(zmm_reg) all,
            x = in(reg) x,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    all
}

/// `acc = fma(f32(dot), a * d, acc)` for two vectors, with the `d` at its address in every lane.
/// One block of instructions: left alone, the compiler loads those of all rows first, and spills.
///
/// # Safety
/// `d` must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn scale_twice(
    [first, second]: [&mut __m512; 2],
    dots: [__m512i; 2],
    a: [__m512; 2],
    d: *const f32,
) {
    let (x, y): (__m512, __m512);
    // SAFETY: reads four bytes, the caller's promise.
    unsafe {
        std::arch::asm!(
            "vbroadcastss {y}, dword ptr [{d}]",
            "vmulps {x}, {a0}, {y}",
            "vmulps {y}, {a1}, {y}",
            "vcvtdq2ps {dot0}, {dot0}",
            "vcvtdq2ps {dot1}, {dot1}",
            "vfmadd231ps {first}, {dot0}, {x}",
            "vfmadd231ps {second}, {dot1}, {y}",
            x = out(zmm_reg) x,
            y = out(zmm_reg) y,
            d = in(reg) d,
            a0 = in(zmm_reg) a[0],
            a1 = in(zmm_reg) a[1],
            dot0 = inout(zmm_reg) dots[0] => _,
            dot1 = inout(zmm_reg) dots[1] => _,
            first = inout(zmm_reg) *first,
            second = inout(zmm_reg) *second,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    let _: (__m512, __m512) = (x, y);
}

/// Broadcasts of four bytes of up to three rows, and their dots with two vectors each, added to
/// their sums. One block of instructions: left alone, the compiler loads many broadcasts ahead and
/// spills the sums, and works out every address by itself.
macro_rules! some_rows {
    (
        $dot:ident, $dots:ident, $w:ident, $from:ident, $step:ident,
        $(($r:expr, $a:ident, $b:ident, $at:literal)),+
    ) => {{
        let q: __m512i;
        std::arch::asm!(
            $(
                concat!("vpbroadcastd {q}, dword ptr [{x}", $at, "]"),
                $dot!($a, "{w0}"),
                $dot!($b, "{w1}"),
            )+
            // Named wherever no row is a step away, too.
            "/* {n} */",
            q = out(zmm_reg) q,
            x = in(reg) $from,
            n = in(reg) $step,
            w0 = in(zmm_reg) $w[0],
            w1 = in(zmm_reg) $w[1],
            $(
                $a = inout(zmm_reg) $dots[0][$r],
                $b = inout(zmm_reg) $dots[1][$r],
            )+
            options(pure, readonly, nostack, preserves_flags)
        );
        let _: __m512i = q;
    }};
}

macro_rules! dot_rows {
    ($(#[$doc:meta])* $name:ident, $dot:ident, $q:ty) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// Four bytes of each row from `x` on must be readable.
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
        pub(crate) unsafe fn $name<const R: usize>(
            dots: &mut [[__m512i; R]; 2],
            w: [__m512i; 2],
            x: *const $q,
            stride: usize,
        ) {
            let step = stride * size_of::<$q>();
            let y = x.wrapping_add(3 * stride);
            // SAFETY: reads four bytes a row, and the CPU has VNNI.
            unsafe {
                match R {
                    1 => some_rows!($dot, dots, w, x, step, (0, a, b, "")),
                    2 => some_rows!($dot, dots, w, x, step, (0, a, b, ""), (1, c, d, " + {n}")),
                    _ => some_rows!($dot, dots, w, x, step,
                        (0, a, b, ""), (1, c, d, " + {n}"), (2, e, f, " + 2*{n}")),
                }
                match R {
                    ..=3 => {}
                    4 => some_rows!($dot, dots, w, y, step, (3, a, b, "")),
                    5 => some_rows!($dot, dots, w, y, step, (3, a, b, ""), (4, c, d, " + {n}")),
                    6 => some_rows!($dot, dots, w, y, step,
                        (3, a, b, ""), (4, c, d, " + {n}"), (5, e, f, " + 2*{n}")),
                    _ => unreachable!("{R} rows"),
                }
            }
        }
    };
}

/// Pairs of 16-bit integers.
macro_rules! pairs {
    ($sum:ident, $w:literal) => {
        concat!("vpdpwssd {", stringify!($sum), "}, ", $w, ", {q}")
    };
}

/// Unsigned weights, signed rows.
macro_rules! codes {
    ($sum:ident, $w:literal) => {
        concat!("vpdpbusd {", stringify!($sum), "}, ", $w, ", {q}")
    };
}

/// Signed weights, unsigned rows.
macro_rules! biased {
    ($sum:ident, $w:literal) => {
        concat!("vpdpbusd {", stringify!($sum), "}, {q}, ", $w)
    };
}

dot_rows! {
    /// Adds the dots of two vectors of pairs with a pair of 16-bit integers to the sums of R rows,
    /// at most six, each `stride` integers after the one before.
    dot_pairs_rows, pairs, i16
}

dot_rows! {
    /// Adds the dots of two vectors of unsigned bytes with four signed ones to the sums of R rows,
    /// at most six, each `stride` integers after the one before.
    dot_codes_rows, codes, u8
}

dot_rows! {
    /// Adds the dots of two vectors of signed bytes with four unsigned ones to the sums of R rows,
    /// at most six, each `stride` integers after the one before.
    dot_biased_rows, biased, u8
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
            let (x, mut exps, mut silus) = (bits.map(f32::from_bits), [0.0_f32; 16], [0.0; 16]);
            // SAFETY: the CPU has the features; sixteen floats are sixteen lanes.
            let folded = unsafe {
                let all = _mm512_loadu_ps(x.as_ptr());
                _mm512_storeu_ps(exps.as_mut_ptr(), exp(all));
                _mm512_storeu_ps(silus.as_mut_ptr(), silu(all));
                sum(all)
            };
            for (x, found) in x.into_iter().zip(exps.into_iter().zip(silus)) {
                let expected = (arith::exp::exp(x), arith::exp::silu(x));
                for (found, expected) in [(found.0, expected.0), (found.1, expected.1)] {
                    let same = found.to_bits() == expected.to_bits();
                    assert!(same || found.is_nan() && expected.is_nan(), "{x:e}: {found:e}");
                }
            }
            let mut lanes = [0.0; arith::norm::LANES];
            lanes[..16].copy_from_slice(&x);
            let expected = arith::norm::fold(lanes);
            assert!(folded.to_bits() == expected.to_bits() || folded.is_nan() && expected.is_nan());
        }
    }
}
