//! Packed codes and scales in vectors: what the kernels over block formats unpack.

use std::arch::x86_64::*;

use crate::layout::{Layout, Scales, planes, strip_values};
use crate::vector_avx2::load_halves;

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
    let (low, high) = const { planes(BITS) };
    // SAFETY: the planes of a strip follow each other.
    unsafe {
        let lower = plane(low, strip, v);
        if high == 0 {
            return lower;
        }
        let upper = plane(high, strip.add(strip_values(BITS) * low), v);
        let join = |i: usize| {
            let raised = if low == 4 {
                _mm256_slli_epi16::<4>(upper[i])
            } else {
                _mm256_slli_epi16::<2>(upper[i])
            };
            _mm256_or_si256(lower[i], raised)
        };
        [join(0), join(1), join(2), join(3)]
    }
}

/// The fields of one plane of `bits` bits that belong to a [`quad`].
///
/// # Safety
/// As [`quad`], for the plane.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn plane(bits: usize, plane: *const u8, v: usize) -> [__m256i; 4] {
    // SAFETY: a vector holds as many quads as a 16-bit lane has four fields.
    let load = |i: usize| unsafe { _mm256_loadu_si256(plane.add(32 * i).cast()) };
    let moved = |x: __m256i, by: usize| _mm256_srl_epi16(x, _mm_cvtsi32_si128(by as i32));
    let field = |mask: i16, x: __m256i| _mm256_and_si256(x, _mm256_set1_epi16(mask));
    match bits {
        8 => {
            let (x, y) = (load(2 * v), load(2 * v + 1));
            [field(0xff, x), _mm256_srli_epi16::<8>(x), field(0xff, y), _mm256_srli_epi16::<8>(y)]
        }
        4 => {
            let x = load(v);
            [
                field(15, x),
                field(15, _mm256_srli_epi16::<4>(x)),
                field(15, _mm256_srli_epi16::<8>(x)),
                _mm256_srli_epi16::<12>(x),
            ]
        }
        2 => {
            let x = moved(load(v / 2), v % 2 * 8);
            [
                field(3, x),
                field(3, _mm256_srli_epi16::<2>(x)),
                field(3, _mm256_srli_epi16::<4>(x)),
                field(3, _mm256_srli_epi16::<6>(x)),
            ]
        }
        _ => {
            let x = moved(load(0), v * 4);
            [
                field(1, x),
                field(1, _mm256_srli_epi16::<1>(x)),
                field(1, _mm256_srli_epi16::<2>(x)),
                field(1, _mm256_srli_epi16::<3>(x)),
            ]
        }
    }
}

/// The unit's own scales and offsets, which factors multiply; zeros in formats without factors.
///
/// # Safety
/// `record` points to a record of `layout`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn heads(layout: Layout, record: *const u8) -> [__m256; 2] {
    let mut heads = [_mm256_setzero_ps(); 2];
    if layout.scales == Scales::Factors {
        // SAFETY: the caller's promise.
        unsafe {
            heads[0] = load_halves(record.add(layout.head_at()));
            if layout.offsets {
                heads[1] = load_halves(record.add(layout.head_at() + 16));
            }
        }
    }
    heads
}

/// Eight scales or offsets of a block, `head` the unit's own.
///
/// # Safety
/// `at` points to them.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn scales(scales: Scales, at: *const u8, head: __m256) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        match scales {
            Scales::F16 => load_halves(at),
            Scales::Bf16 => {
                let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
            }
            Scales::F32 => _mm256_loadu_ps(at.cast()),
            Scales::Factors => {
                let factors = _mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast()));
                _mm256_mul_ps(head, _mm256_cvtepi32_ps(factors))
            }
        }
    }
}
