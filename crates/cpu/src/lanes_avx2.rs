//! Eight f32 lanes in one AVX2 vector. What [`crate::lanes`] must offer, and no more.

use std::arch::x86_64::*;

/// Eight f32.
pub(crate) type F32s = __m256;
/// Eight i32.
pub(crate) type I32s = __m256i;
/// Lanes that hold.
pub(crate) type Mask = __m256;

/// Functions of whole vectors that are one instruction.
macro_rules! one {
    ($($(#[$doc:meta])* $name:ident($($x:ident: $from:ty),*) -> $to:ty = $body:expr;)*) => {$(
        $(#[$doc])*
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        pub(crate) fn $name($($x: $from),*) -> $to {
            $body
        }
    )*};
}

one! {
    zero() -> F32s = _mm256_setzero_ps();
    splat(x: f32) -> F32s = _mm256_set1_ps(x);
    add(a: F32s, b: F32s) -> F32s = _mm256_add_ps(a, b);
    sub(a: F32s, b: F32s) -> F32s = _mm256_sub_ps(a, b);
    mul(a: F32s, b: F32s) -> F32s = _mm256_mul_ps(a, b);
    div(a: F32s, b: F32s) -> F32s = _mm256_div_ps(a, b);
    /// `a b + c`, rounded once.
    fma(a: F32s, b: F32s, c: F32s) -> F32s = _mm256_fmadd_ps(a, b, c);
    /// The smaller; NaN where `x` is NaN.
    at_most(limit: F32s, x: F32s) -> F32s = _mm256_min_ps(limit, x);
    /// The larger; `b` where `a` is NaN.
    larger(a: F32s, b: F32s) -> F32s = _mm256_max_ps(a, b);
    negate(x: F32s) -> F32s = _mm256_xor_ps(x, _mm256_set1_ps(-0.0));
    abs(x: F32s) -> F32s = _mm256_andnot_ps(_mm256_set1_ps(-0.0), x);

    /// Not `a < b`.
    not_below(a: F32s, b: F32s) -> Mask = _mm256_cmp_ps::<_CMP_NLT_UQ>(a, b);
    above(a: F32s, b: F32s) -> Mask = _mm256_cmp_ps::<_CMP_GT_OQ>(a, b);
    /// `x` where the mask holds, else +0.
    kept(x: F32s, mask: Mask) -> F32s = _mm256_and_ps(x, mask);
    /// `a` where the mask holds, else `b`.
    select(mask: Mask, a: F32s, b: F32s) -> F32s = _mm256_blendv_ps(b, a, mask);

    ints(x: i32) -> I32s = _mm256_set1_epi32(x);
    add_ints(a: I32s, b: I32s) -> I32s = _mm256_add_epi32(a, b);
    sub_ints(a: I32s, b: I32s) -> I32s = _mm256_sub_epi32(a, b);
    and_ints(a: I32s, b: I32s) -> I32s = _mm256_and_si256(a, b);
    bits(x: F32s) -> I32s = _mm256_castps_si256(x);
    from_bits(x: I32s) -> F32s = _mm256_castsi256_ps(x);
    /// Whole numbers in reach of an i32.
    to_ints(x: F32s) -> I32s = _mm256_cvtps_epi32(x);
    from_ints(x: I32s) -> F32s = _mm256_cvtepi32_ps(x);
    /// Integers to where an f32 has its exponent.
    to_exponent(x: I32s) -> I32s = _mm256_slli_epi32::<23>(x);
    /// Back, with the sign.
    from_exponent(x: I32s) -> I32s = _mm256_srai_epi32::<23>(x);
}

/// The first `n` lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn first(n: i32) -> Mask {
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lanes))
}

/// Folds by 4, 2 and 1.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn sum(x: F32s) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}

/// Eight f32 at `from`.
///
/// # Safety
/// They must be readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn load(from: *const f32) -> F32s {
    // SAFETY: the caller's promise.
    unsafe { _mm256_loadu_ps(from) }
}

/// # Safety
/// Eight f32 at `to` must be writable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn store(to: *mut f32, x: F32s) {
    // SAFETY: the caller's promise.
    unsafe { _mm256_storeu_ps(to, x) }
}

/// Eight f16 at `from`, widened.
///
/// # Safety
/// 16 bytes must be readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn load_halves(from: *const u8) -> F32s {
    // SAFETY: the caller's promise.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
}

/// Eight bf16 at `from`, widened.
///
/// # Safety
/// 16 bytes must be readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn load_brains(from: *const u8) -> F32s {
    // SAFETY: the caller's promise.
    let wide = unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())) };
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
}

/// Eight signed bytes at `from`, as f32.
///
/// # Safety
/// They must be readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn load_bytes(from: *const u8) -> F32s {
    // SAFETY: the caller's promise.
    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(unsafe { _mm_loadl_epi64(from.cast()) }))
}

/// [`arith::float::f32_to_f16`] a lane.
///
/// # Safety
/// Eight halves at `to` must be writable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn store_halves(to: *mut u16, x: F32s) {
    // Both give x where x is NaN.
    let x = _mm256_min_ps(_mm256_set1_ps(65504.0), x);
    let x = _mm256_max_ps(_mm256_set1_ps(-65504.0), x);
    let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x);
    let magnitude = _mm_and_si128(half, _mm_set1_epi16(0x7fff));
    let subnormal = _mm_cmpgt_epi16(_mm_set1_epi16(0x0400), magnitude);
    let nan = _mm_cmpgt_epi16(magnitude, _mm_set1_epi16(0x7c00));
    let half = _mm_andnot_si128(subnormal, half);
    let half = _mm_blendv_epi8(half, _mm_set1_epi16(0x7e00), nan);
    // SAFETY: the caller's promise.
    unsafe { _mm_storeu_si128(to.cast(), half) }
}

/// Asks memory for the line of `at`, which need not be there.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn prefetch(at: *const f32) {
    _mm_prefetch::<_MM_HINT_T0>(at.cast());
}
