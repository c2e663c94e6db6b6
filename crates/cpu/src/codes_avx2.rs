//! Packed codes in vectors: what the kernels over block formats unpack.

use std::arch::x86_64::*;

use crate::layout::{planes, strip_values};

/// Values of a [`quad`].
pub(crate) const QUAD: usize = 8;

/// Codes `8 v .. 8 v + 8` of a strip of `BITS` bits: four vectors, each a pair of codes a 32-bit
/// lane and output.
///
/// # Safety
/// `strip` points to the codes of a strip; `v` is below an eighth of its values.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn quad<const BITS: usize>(strip: *const u8, v: usize) -> [__m256i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        if BITS == 4 {
            let x = _mm256_loadu_si256(strip.add(32 * v).cast());
            let mask = _mm256_set1_epi16(15);
            return [
                _mm256_and_si256(x, mask),
                _mm256_and_si256(_mm256_srli_epi16::<4>(x), mask),
                _mm256_and_si256(_mm256_srli_epi16::<8>(x), mask),
                _mm256_srli_epi16::<12>(x),
            ];
        }
        let (even, odd) = (joined::<BITS>(strip, 2 * v), joined::<BITS>(strip, 2 * v + 1));
        let mask = _mm256_set1_epi16(0xff);
        [
            _mm256_and_si256(even, mask),
            _mm256_and_si256(odd, mask),
            _mm256_srli_epi16::<8>(even),
            _mm256_srli_epi16::<8>(odd),
        ]
    }
}

/// Codes in bytes: field `i` of every byte of the lower plane under that of the upper.
///
/// # Safety
/// `strip` points to the codes of a strip, which has the field.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn joined<const BITS: usize>(strip: *const u8, i: usize) -> __m256i {
    let (low, high) = const { planes(BITS) };
    // SAFETY: the planes of a strip follow each other.
    unsafe {
        let lower = fields(low, strip, i, 0);
        if high == 0 {
            return lower;
        }
        _mm256_or_si256(lower, fields(high, strip.add(strip_values(BITS) * low), i, low))
    }
}

/// Field `i` of every byte of a plane of `bits` bits, raised by `up` in its byte.
///
/// # Safety
/// `plane` has the field.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fields(bits: usize, plane: *const u8, i: usize, up: usize) -> __m256i {
    let (a_byte, mask) = (8 / bits, 0xff_u8 >> (8 - bits) << up);
    // SAFETY: the caller's promise.
    let x = unsafe { _mm256_loadu_si256(plane.add(32 * (i / a_byte)).cast()) };
    if bits == 8 {
        return x;
    }
    let from = i % a_byte * bits;
    let moved = if from < up {
        _mm256_sll_epi16(x, _mm_cvtsi32_si128((up - from) as i32))
    } else {
        _mm256_srl_epi16(x, _mm_cvtsi32_si128((from - up) as i32))
    };
    _mm256_and_si256(moved, _mm256_set1_epi8(mask as i8))
}
