//! Packed codes as bytes in NEON vectors, and their dots with the bytes of activations.

use std::arch::aarch64::*;
use std::arch::asm;

use crate::layout::{planes, strip_values};

/// Values of a field: four bytes a 32-bit lane and output.
pub(crate) const FIELD: usize = 4;
/// Bytes of a vector.
pub(crate) const VECTOR: usize = 16;

/// Dots of eight outputs.
pub(crate) type Dots = [int32x4_t; 2];

/// Bytes are multiplied by what every NEON has.
pub(crate) const PLAIN: usize = 0;
/// By the dot product, which the CPU must have.
pub(crate) const DOT: usize = 1;
/// By the matrix product, or where a vector is alone the dot product; the CPU must have both.
pub(crate) const MATRIX: usize = 2;

/// Field `i` of a strip, of outputs 0 .. 4 or, with `half` 1, 4 .. 8: the codes of four values a
/// lane, in the order of [`place`](crate::quantise_a8::place). Codes of 8 bits have 128 taken off.
///
/// # Safety
/// `strip` points to the codes of a strip, which has the field.
#[inline(always)]
pub(crate) unsafe fn field<const BITS: usize>(
    strip: *const u8,
    i: usize,
    half: usize,
) -> int8x16_t {
    let (low, high) = const { planes(BITS) };
    // SAFETY: NEON is part of the target; the planes of a strip follow each other.
    unsafe {
        let codes = bits(low, strip, i, half);
        let codes = match (BITS, high) {
            (8, _) => veorq_u8(codes, vdupq_n_u8(0x80)),
            (_, 0) => codes,
            _ => {
                let upper = bits(high, strip.add(strip_values(BITS) * low), i, half);
                if low == 4 { vsliq_n_u8::<4>(codes, upper) } else { vsliq_n_u8::<2>(codes, upper) }
            }
        };
        vreinterpretq_s8_u8(codes)
    }
}

/// Field `i` of every byte of a plane of `bits` bits.
///
/// # Safety
/// `plane` has the field.
#[inline(always)]
unsafe fn bits(bits: usize, plane: *const u8, i: usize, half: usize) -> uint8x16_t {
    let a_byte = 8 / bits;
    // SAFETY: NEON is part of the target; the caller's promise.
    unsafe {
        let x = vld1q_u8(plane.add(2 * VECTOR * (i / a_byte) + VECTOR * half));
        let from = i % a_byte * bits;
        let x = match from {
            0 => x,
            1 => vshrq_n_u8::<1>(x),
            2 => vshrq_n_u8::<2>(x),
            3 => vshrq_n_u8::<3>(x),
            4 => vshrq_n_u8::<4>(x),
            5 => vshrq_n_u8::<5>(x),
            6 => vshrq_n_u8::<6>(x),
            _ => vshrq_n_u8::<7>(x),
        };
        if from + bits == 8 { x } else { vandq_u8(x, vdupq_n_u8(0xff >> (8 - bits))) }
    }
}

/// `sum` and, a 32-bit lane, the products of the four bytes of `w` there with those of `x` in lane
/// `I`, in one instruction unless `HOW` is [`PLAIN`].
#[inline(always)]
pub(crate) unsafe fn dot<const I: usize, const HOW: usize>(
    sum: int32x4_t,
    w: int8x16_t,
    x: int8x16_t,
) -> int32x4_t {
    // SAFETY: NEON is part of the target; the dot product is the caller's promise. The instruction
    // reads and writes these registers alone. Products are at most 2^14.
    unsafe {
        if HOW != PLAIN {
            let mut sum = sum;
            asm!(
                "sdot {sum:v}.4s, {w:v}.16b, {x:v}.4b[{i}]",
                sum = inout(vreg) sum,
                w = in(vreg) w,
                x = in(vreg) x,
                i = const I,
                options(pure, nomem, nostack, preserves_flags),
            );
            return sum;
        }
        let x = match I {
            0 => vdupq_laneq_s32::<0>(vreinterpretq_s32_s8(x)),
            1 => vdupq_laneq_s32::<1>(vreinterpretq_s32_s8(x)),
            2 => vdupq_laneq_s32::<2>(vreinterpretq_s32_s8(x)),
            _ => vdupq_laneq_s32::<3>(vreinterpretq_s32_s8(x)),
        };
        let x = vreinterpretq_s8_s32(x);
        let low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
        let high = vmull_high_s8(w, x);
        vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)))
    }
}
