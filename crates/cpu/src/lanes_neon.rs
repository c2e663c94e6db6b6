//! Eight f32 lanes in two NEON vectors. What [`crate::lanes`] must offer, and no more.
//!
//! NEON is part of every 64-bit ARM, so nothing here asks for a feature.

use std::arch::aarch64::*;
use std::arch::asm;

/// Eight f32.
pub(crate) type F32s = float32x4x2_t;
/// Eight i32.
pub(crate) type I32s = int32x4x2_t;
/// Lanes that hold.
pub(crate) type Mask = uint32x4x2_t;

/// Functions of whole vectors that are one instruction a half.
macro_rules! halves {
    ($($(#[$doc:meta])* $name:ident($($x:ident: $from:ty),*) -> $to:ident = $body:expr;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub(crate) fn $name($($x: $from),*) -> $to {
            #[allow(unused_variables, reason = "one body serves the other half")]
            let half = |$($x),*| {
                // SAFETY: NEON is part of the target.
                unsafe { $body }
            };
            halves!(@pair $to, half, $($x),*)
        }
    )*};
    (@pair F32s, $half:ident, $($x:ident),*) => {
        float32x4x2_t($half($($x.0),*), $half($($x.1),*))
    };
    (@pair I32s, $half:ident, $($x:ident),*) => {
        int32x4x2_t($half($($x.0),*), $half($($x.1),*))
    };
    (@pair Mask, $half:ident, $($x:ident),*) => {
        uint32x4x2_t($half($($x.0),*), $half($($x.1),*))
    };
}

halves! {
    add(a: F32s, b: F32s) -> F32s = vaddq_f32(a, b);
    sub(a: F32s, b: F32s) -> F32s = vsubq_f32(a, b);
    mul(a: F32s, b: F32s) -> F32s = vmulq_f32(a, b);
    div(a: F32s, b: F32s) -> F32s = vdivq_f32(a, b);
    /// `a b + c`, rounded once.
    fma(a: F32s, b: F32s, c: F32s) -> F32s = vfmaq_f32(c, a, b);
    /// The smaller; NaN where `x` is NaN.
    at_most(limit: F32s, x: F32s) -> F32s = vminq_f32(limit, x);
    /// The larger; `b` where `a` is NaN.
    larger(a: F32s, b: F32s) -> F32s = vbslq_f32(vcgtq_f32(a, b), a, b);
    negate(x: F32s) -> F32s = vnegq_f32(x);
    abs(x: F32s) -> F32s = vabsq_f32(x);

    /// Not `a < b`.
    not_below(a: F32s, b: F32s) -> Mask = vmvnq_u32(vcltq_f32(a, b));
    above(a: F32s, b: F32s) -> Mask = vcgtq_f32(a, b);
    /// `a` where the mask holds, else `b`.
    select(mask: Mask, a: F32s, b: F32s) -> F32s = vbslq_f32(mask, a, b);

    add_ints(a: I32s, b: I32s) -> I32s = vaddq_s32(a, b);
    sub_ints(a: I32s, b: I32s) -> I32s = vsubq_s32(a, b);
    and_ints(a: I32s, b: I32s) -> I32s = vandq_s32(a, b);
    bits(x: F32s) -> I32s = vreinterpretq_s32_f32(x);
    from_bits(x: I32s) -> F32s = vreinterpretq_f32_s32(x);
    /// Whole numbers in reach of an i32.
    to_ints(x: F32s) -> I32s = vcvtq_s32_f32(x);
    from_ints(x: I32s) -> F32s = vcvtq_f32_s32(x);
    /// Integers to where an f32 has its exponent.
    to_exponent(x: I32s) -> I32s = vshlq_n_s32::<23>(x);
    /// Back, with the sign.
    from_exponent(x: I32s) -> I32s = vshrq_n_s32::<23>(x);
}

/// Eight times +0.
#[inline(always)]
pub(crate) fn zero() -> F32s {
    splat(0.0)
}

/// Eight times `x`.
#[inline(always)]
pub(crate) fn splat(x: f32) -> F32s {
    // SAFETY: NEON is part of the target.
    let x = unsafe { vdupq_n_f32(x) };
    float32x4x2_t(x, x)
}

/// Eight times `x`.
#[inline(always)]
pub(crate) fn ints(x: i32) -> I32s {
    // SAFETY: NEON is part of the target.
    let x = unsafe { vdupq_n_s32(x) };
    int32x4x2_t(x, x)
}

/// `x` where the mask holds, else +0.
#[inline(always)]
pub(crate) fn kept(x: F32s, mask: Mask) -> F32s {
    // SAFETY: NEON is part of the target.
    let mask = unsafe { int32x4x2_t(vreinterpretq_s32_u32(mask.0), vreinterpretq_s32_u32(mask.1)) };
    from_bits(and_ints(bits(x), mask))
}

/// The first `n` lanes.
#[inline(always)]
pub(crate) fn first(n: i32) -> Mask {
    const LANES: [i32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
    // SAFETY: NEON is part of the target; four of eight values each.
    unsafe {
        let (low, high) = (vld1q_s32(LANES.as_ptr()), vld1q_s32(LANES.as_ptr().add(4)));
        let n = vdupq_n_s32(n);
        uint32x4x2_t(vcgtq_s32(n, low), vcgtq_s32(n, high))
    }
}

/// Folds by 4, 2 and 1.
#[inline(always)]
pub(crate) fn sum(x: F32s) -> f32 {
    // SAFETY: NEON is part of the target.
    unsafe {
        let four = vaddq_f32(x.0, x.1);
        let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
        vpadds_f32(two)
    }
}

/// Eight f32 at `from`.
///
/// # Safety
/// They must be readable.
#[inline(always)]
pub(crate) unsafe fn load(from: *const f32) -> F32s {
    // SAFETY: the caller's promise.
    unsafe { float32x4x2_t(vld1q_f32(from), vld1q_f32(from.add(4))) }
}

/// # Safety
/// Eight f32 at `to` must be writable.
#[inline(always)]
pub(crate) unsafe fn store(to: *mut f32, x: F32s) {
    // SAFETY: the caller's promise.
    unsafe {
        vst1q_f32(to, x.0);
        vst1q_f32(to.add(4), x.1);
    }
}

/// Eight 16-bit values at `from`.
///
/// # Safety
/// They must be readable.
#[inline(always)]
unsafe fn load_u16(from: *const u8) -> (uint16x4_t, uint16x4_t) {
    // SAFETY: the caller's promise; a vector of bytes may lie anywhere.
    unsafe {
        let x = vreinterpretq_u16_u8(vld1q_u8(from));
        (vget_low_u16(x), vget_high_u16(x))
    }
}

/// Eight f16 at `from`, widened.
///
/// # Safety
/// 16 bytes must be readable.
#[inline(always)]
pub(crate) unsafe fn load_halves(from: *const u8) -> F32s {
    // SAFETY: the caller's promise.
    unsafe {
        let (low, high) = load_u16(from);
        let wide = |x| vcvt_f32_f16(vreinterpret_f16_u16(x));
        float32x4x2_t(wide(low), wide(high))
    }
}

/// Eight bf16 at `from`, widened.
///
/// # Safety
/// 16 bytes must be readable.
#[inline(always)]
pub(crate) unsafe fn load_brains(from: *const u8) -> F32s {
    // SAFETY: the caller's promise.
    unsafe {
        let (low, high) = load_u16(from);
        let wide = |x| vreinterpretq_f32_u32(vshll_n_u16::<16>(x));
        float32x4x2_t(wide(low), wide(high))
    }
}

/// Eight signed bytes at `from`, as f32.
///
/// # Safety
/// They must be readable.
#[inline(always)]
pub(crate) unsafe fn load_bytes(from: *const u8) -> F32s {
    // SAFETY: NEON is part of the target; the caller's promise.
    unsafe {
        let wide = vmovl_s8(vld1_s8(from.cast()));
        let (low, high) = (vmovl_s16(vget_low_s16(wide)), vmovl_high_s16(wide));
        from_ints(int32x4x2_t(low, high))
    }
}

/// [`arith::float::f32_to_f16`] a lane.
///
/// # Safety
/// Eight halves at `to` must be writable.
#[inline(always)]
pub(crate) unsafe fn store_halves(to: *mut u16, x: F32s) {
    // SAFETY: NEON is part of the target; the caller's promise.
    unsafe {
        let narrow = |x: float32x4_t| {
            // Both give NaN where x is NaN.
            let x = vmaxq_f32(vdupq_n_f32(-65504.0), vminq_f32(vdupq_n_f32(65504.0), x));
            vreinterpret_u16_f16(vcvt_f16_f32(x))
        };
        let half = vcombine_u16(narrow(x.0), narrow(x.1));
        let magnitude = vandq_u16(half, vdupq_n_u16(0x7fff));
        let normal = vcgeq_u16(magnitude, vdupq_n_u16(0x0400));
        let nan = vcgtq_u16(magnitude, vdupq_n_u16(0x7c00));
        let half = vandq_u16(half, normal);
        vst1q_u16(to, vbslq_u16(nan, vdupq_n_u16(0x7e00), half));
    }
}

/// Asks memory for the line of `at`, which need not be there.
#[inline(always)]
pub(crate) fn prefetch(at: *const f32) {
    // SAFETY: a prefetch reads nothing that the program could see.
    unsafe {
        asm!(
            "prfm pldl1keep, [{at}]",
            at = in(reg) at,
            options(nostack, preserves_flags, readonly),
        );
    }
}
