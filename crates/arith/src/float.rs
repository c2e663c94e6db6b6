//! Flushes, half-precision conversions and the tests for non-finite rows (section 0).

use crate::count;

/// The one NaN that a spoilt row is filled with.
pub const SPOILT: f32 = f32::from_bits(0x7fc0_0000);
const FLUSH_BELOW: f32 = f32::from_bits(0x2d80_0000); // 2^-36
const SCALE_BELOW: f32 = f32::from_bits(0x3080_0000); // 2^-30
const SPOILT_FROM: u32 = 0x5d80_0000; // bits of 2^60, the exponent test for "too large"

/// `a * b + c`, rounded once.
#[inline]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    count::note(a.mul_add(b, c))
}

/// Rounds to the nearest integer, ties to even; for magnitudes up to 2^22.
#[inline]
pub fn round_half_even(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0; // 1.5 * 2^23: the sum has no fraction bits left
    (x + MAGIC) - MAGIC
}

/// `z(x)`: +0 for magnitudes below 2^-36, else `x`. NaN stays.
#[inline]
pub fn flush(x: f32) -> f32 {
    if x.abs() < FLUSH_BELOW { 0.0 } else { x }
}

/// +0 for a weight scale or offset of magnitude below 2^-30, else `a`.
#[inline]
pub fn flush_scale(a: f32) -> f32 {
    if a.abs() < SCALE_BELOW { 0.0 } else { a }
}

/// Widens a binary16, exactly; zeros of both signs are +0.
pub fn f16_to_f32(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let exponent = u32::from(half >> 10) & 31;
    let mantissa = u32::from(half & 0x3ff);
    match exponent {
        0 if mantissa == 0 => 0.0,
        // 2^-24 a step.
        0 => f32::from_bits(sign | (mantissa as f32 * f32::from_bits(0x3380_0000)).to_bits()),
        31 => f32::from_bits(sign | 0x7f80_0000 | (mantissa << 13)),
        e => f32::from_bits(sign | ((e + 112) << 23) | (mantissa << 13)),
    }
}

/// Rounds to binary16: to nearest even, saturating at +-65504 (infinities too); results of
/// magnitude below 2^-14 (subnormals) become +0 and every NaN 0x7e00.
pub fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return 0x7e00;
    }
    // 65520, the midpoint of 65504 and the first value that binary16 lacks.
    if magnitude >= 0x477f_f000 {
        return sign | 0x7bff;
    }
    // 2^-14 - 2^-25, the midpoint of the largest subnormal and 2^-14: a tie goes to 2^-14.
    if magnitude < 0x387f_e000 {
        return 0;
    }
    if magnitude < 0x3880_0000 {
        return sign | 0x0400;
    }
    let even = (magnitude >> 13) & 1;
    let rounded = (magnitude + 0x0fff + even) >> 13;
    sign | (rounded - (112 << 10)) as u16
}

/// Whether a row holds a value that is not finite, or one of magnitude 2^60 or more: the ops that
/// quantise or normalise it, and the head, give [`SPOILT`] in every output instead.
pub fn is_spoilt(row: &[f32]) -> bool {
    // Signed, and a block without a way out: several at once by any processor.
    let spoilt = |x: &f32| (x.to_bits() & 0x7fff_ffff) as i32 >= SPOILT_FROM as i32;
    row.chunks(1024).any(|block| block.iter().fold(false, |any, x| any | spoilt(x)))
}

/// Widens a bfloat16.
pub fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}
