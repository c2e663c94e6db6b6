//! Packed codes and scales of two panels at a time, sixteen outputs a vector.

use std::arch::x86_64::*;

use crate::layout::{Layout, Scales, planes, strip_values};

/// The same place in two panels, the second `gap` bytes on.
#[derive(Clone, Copy)]
pub(crate) struct Twin {
    pub(crate) at: *const u8,
    pub(crate) gap: usize,
}

impl Twin {
    /// `bytes` further on.
    ///
    /// # Safety
    /// Both panels reach so far.
    #[inline(always)]
    pub(crate) unsafe fn add(self, bytes: usize) -> Self {
        // SAFETY: the caller's promise.
        Self { at: unsafe { self.at.add(bytes) }, ..self }
    }

    /// Asks for `bytes` of both panels, `ahead` bytes on, which need not be there: into the second
    /// cache, since first ones of 32 KiB would throw them out again before they are read.
    #[inline(always)]
    pub(crate) fn prefetch(self, bytes: usize, ahead: usize) {
        for at in (0..bytes).step_by(64) {
            let at = self.at.wrapping_add(ahead + at);
            // SAFETY: a prefetch of any address is harmless.
            unsafe {
                _mm_prefetch::<_MM_HINT_T1>(at.cast());
                _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(self.gap).cast());
            }
        }
    }

    /// 32 bytes of each panel.
    ///
    /// # Safety
    /// Both must be readable.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn load(self) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            let low = _mm512_castsi256_si512(_mm256_loadu_si256(self.at.cast()));
            _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(self.at.add(self.gap).cast()))
        }
    }

    /// 16 bytes of each panel.
    ///
    /// # Safety
    /// Both must be readable.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn load_half(self) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe {
            let low = _mm256_castsi128_si256(_mm_loadu_si128(self.at.cast()));
            _mm256_inserti128_si256::<1>(low, _mm_loadu_si128(self.at.add(self.gap).cast()))
        }
    }
}

/// Codes `8 v .. 8 v + 8` of a strip of `BITS` bits: four vectors, each a pair of codes a 32-bit
/// lane and output.
///
/// # Safety
/// `strip` points to the codes of a strip; `v` is below an eighth of its values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn quad<const BITS: usize>(strip: Twin, v: usize) -> [__m512i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        if BITS == 4 {
            let x = strip.add(32 * v).load();
            let mask = _mm512_set1_epi16(15);
            return [
                _mm512_and_si512(x, mask),
                _mm512_and_si512(_mm512_srli_epi16::<4>(x), mask),
                _mm512_and_si512(_mm512_srli_epi16::<8>(x), mask),
                _mm512_srli_epi16::<12>(x),
            ];
        }
        let (even, odd) = (joined::<BITS>(strip, 2 * v), joined::<BITS>(strip, 2 * v + 1));
        let mask = _mm512_set1_epi16(0xff);
        [
            _mm512_and_si512(even, mask),
            _mm512_and_si512(odd, mask),
            _mm512_srli_epi16::<8>(even),
            _mm512_srli_epi16::<8>(odd),
        ]
    }
}

/// Nibbles `8 v .. 8 v + 8` of a strip where they lie: those of the second vector count 16 times,
/// those of the third 256 times.
///
/// # Safety
/// As [`quad`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn quad_unshifted(strip: Twin, v: usize) -> [__m512i; 4] {
    // SAFETY: the caller's promise.
    let x = unsafe { strip.add(32 * v).load() };
    [
        _mm512_and_si512(x, _mm512_set1_epi16(0x000f)),
        _mm512_and_si512(x, _mm512_set1_epi16(0x00f0)),
        _mm512_and_si512(x, _mm512_set1_epi16(0x0f00)),
        _mm512_srli_epi16::<12>(x),
    ]
}

/// Codes in bytes: field `i` of every byte of the lower plane under that of the upper.
///
/// # Safety
/// `strip` points to the codes of a strip, which has the field.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn joined<const BITS: usize>(strip: Twin, i: usize) -> __m512i {
    let (low, high) = const { planes(BITS) };
    // SAFETY: the planes of a strip follow each other.
    unsafe {
        let lower = fields(low, strip, i, 0);
        if high == 0 {
            return lower;
        }
        _mm512_or_si512(lower, fields(high, strip.add(strip_values(BITS) * low), i, low))
    }
}

/// Field `i` of every byte of a plane of `bits` bits, raised by `up` in its byte.
///
/// # Safety
/// `plane` has the field.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn fields(bits: usize, plane: Twin, i: usize, up: usize) -> __m512i {
    let (a_byte, mask) = (8 / bits, 0xff_u8 >> (8 - bits) << up);
    // SAFETY: the caller's promise.
    let x = unsafe { plane.add(32 * (i / a_byte)).load() };
    if bits == 8 {
        return x;
    }
    let from = i % a_byte * bits;
    let moved = if from < up {
        _mm512_sll_epi16(x, _mm_cvtsi32_si128((up - from) as i32))
    } else {
        _mm512_srl_epi16(x, _mm_cvtsi32_si128((from - up) as i32))
    };
    _mm512_and_si512(moved, _mm512_set1_epi8(mask as i8))
}

/// The unit's own scales and offsets, which factors multiply; zeros in formats without factors.
///
/// # Safety
/// `record` points to a record of `layout`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn heads(layout: Layout, record: Twin) -> [__m512; 2] {
    let mut heads = [_mm512_setzero_ps(); 2];
    if layout.scales == Scales::Factors {
        // SAFETY: the caller's promise.
        unsafe {
            heads[0] = _mm512_cvtph_ps(record.add(layout.head_at()).load_half());
            if layout.offsets {
                heads[1] = _mm512_cvtph_ps(record.add(layout.head_at() + 16).load_half());
            }
        }
    }
    heads
}

/// Sixteen scales or offsets of a block, `head` the unit's own.
///
/// # Safety
/// `at` points to them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn scales(scales: Scales, at: Twin, head: __m512) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        match scales {
            Scales::F16 => _mm512_cvtph_ps(at.load_half()),
            Scales::Bf16 => {
                let halves = _mm512_cvtepu16_epi32(at.load_half());
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
            }
            Scales::F32 => _mm512_castsi512_ps(at.load()),
            Scales::Factors => {
                let low = _mm_loadl_epi64(at.at.cast());
                let both = _mm_unpacklo_epi64(low, _mm_loadl_epi64(at.at.add(at.gap).cast()));
                _mm512_mul_ps(head, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(both)))
            }
        }
    }
}
