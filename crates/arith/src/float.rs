//! Flushes, half-precision conversions and the tests for non-finite rows (section 0).

/// The one NaN that a spoilt row is filled with.
pub const SPOILT: f32 = f32::from_bits(0x7fc0_0000);
const FLUSH_BELOW: f32 = f32::from_bits(0x2d80_0000); // 2^-36
const SCALE_BELOW: f32 = f32::from_bits(0x3080_0000); // 2^-30

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

/// Widens a binary16; magnitudes below 2^-14 (subnormals) become +0.
pub fn f16_to_f32(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let exponent = u32::from(half >> 10) & 31;
    let mantissa = u32::from(half & 0x3ff);
    match exponent {
        0 => 0.0,
        31 => f32::from_bits(sign | 0x7f80_0000 | (mantissa << 13)),
        e => f32::from_bits(sign | ((e + 112) << 23) | (mantissa << 13)),
    }
}

/// Widens a bfloat16.
pub fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}
