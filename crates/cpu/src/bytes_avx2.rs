//! Dots of 8-bit codes and activations: four values a 32-bit lane and output.
//!
//! `vpmaddubsw` adds the products of unsigned and signed bytes in pairs, to 16 bits that saturate.
//! Codes of up to six bits stay far below, so that a few of them are added before they widen; those
//! of eight are taken less 128 and give their sign to the activations.

use std::arch::x86_64::*;

/// Fields that 16-bit lanes can add without overflow: `2 * 127 * (2^bits - 1)` a field.
pub(crate) const fn fields_a_sum(bits: usize) -> usize {
    32767 / (254 * ((1 << bits) - 1))
}

/// Codes of 8 bits less this are signed bytes.
pub(crate) const MIDDLE: i16 = 128;

/// What stands for 0 in the codes that [`pairs`] takes, `zero` that of the format.
pub(crate) const fn zero_of(bits: usize, zero: i16) -> i32 {
    (if bits == 8 { zero - MIDDLE } else { zero }) as i32
}

/// Codes as [`pairs`] wants them.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn taken<const BITS: usize>(codes: __m256i) -> __m256i {
    if BITS == 8 { _mm256_xor_si256(codes, _mm256_set1_epi8(i8::MIN)) } else { codes }
}

/// Four activations from `q` on, in every lane.
///
/// # Safety
/// They must be readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn four(q: *const i8) -> __m256i {
    // SAFETY: the caller's promise.
    _mm256_set1_epi32(unsafe { q.cast::<i32>().read_unaligned() })
}

/// Pairs of products of one field, in 16 bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn pairs<const BITS: usize>(w: __m256i, x: __m256i) -> __m256i {
    if BITS == 8 {
        // At most 2 * 128 * 127 = 32512; -127 ..= 127 has every value's negative.
        _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
    } else {
        _mm256_maddubs_epi16(w, x)
    }
}

/// Pairs of 16 bits added to 32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn widened(pairs: __m256i) -> __m256i {
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
}

/// `dot - zero * sum`, the sum in every lane.
///
/// # Safety
/// `sum` must be readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn centred(dot: __m256i, zero: i32, sum: *const i32) -> __m256i {
    if zero == 0 {
        return dot;
    }
    // SAFETY: the caller's promise.
    let sum = _mm256_set1_epi32(unsafe { *sum });
    _mm256_sub_epi32(dot, _mm256_mullo_epi32(sum, _mm256_set1_epi32(zero)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_fields_stay_in_16_bits() {
        for bits in [2, 3, 4, 5, 6] {
            let fields = fields_a_sum(bits);
            assert!(fields >= 2 && fields * 2 * 127 * ((1 << bits) - 1) <= i16::MAX as usize);
        }
        assert_eq!([4, 5, 6].map(fields_a_sum), [8, 4, 2]);
    }
}
