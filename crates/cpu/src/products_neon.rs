//! Dots by the matrix product of bytes: eight codes of two outputs with those of two vectors of
//! activations in one instruction. The two vectors are a row's planes, or those of two rows.

use std::arch::aarch64::*;
use std::arch::asm;

use crate::codes_neon::{Dots, FIELD, VECTOR, field};
use crate::layout::strip_values;

/// Values of a vector of activations that one instruction takes.
const EIGHT: usize = 2 * FIELD;

/// Sums of eight outputs with a pair of vectors: two outputs a vector of sums, each with both.
type Sums = [int32x4_t; 4];

/// The integer dots of `values` codes with every plane of R rows, whose planes lie `cols` apart.
///
/// # Safety
/// `codes` holds the codes and each row its bytes from `q` on, in every plane; the CPU has the
/// matrix product.
#[inline(always)]
pub(crate) unsafe fn products<const BITS: usize, const PLANES: usize, const R: usize>(
    codes: *const u8,
    values: usize,
    q: [*const i8; R],
    cols: usize,
) -> [[Dots; PLANES]; R] {
    let (width, pairs) = const { (strip_values(BITS), (PLANES * R).div_ceil(2)) };
    let mut vectors = [[q[0]; 2]; R];
    for (pair, vectors) in vectors[..pairs].iter_mut().enumerate() {
        *vectors = match PLANES {
            // An odd row goes beside itself.
            1 => [q[2 * pair], q[(2 * pair + 1).min(R - 1)]],
            _ => [q[pair], q[pair].wrapping_add(cols)],
        };
    }
    // SAFETY: NEON is part of the target; the caller's promise, 8 values at a time.
    unsafe {
        let mut sums = [[vdupq_n_s32(0); 4]; R];
        for strip in 0..values / width {
            let codes = codes.add(strip * width * BITS);
            let mut at = vectors;
            for at in at.iter_mut().flatten() {
                *at = at.wrapping_add(strip * width);
            }
            // Constants, so that each field has its own shifts.
            eight::<BITS, R>(codes, 0, pairs, &at, &mut sums);
            eight::<BITS, R>(codes, 1, pairs, &at, &mut sums);
            if width > VECTOR {
                eight::<BITS, R>(codes, 2, pairs, &at, &mut sums);
                eight::<BITS, R>(codes, 3, pairs, &at, &mut sums);
            }
        }
        let mut dots = [[[vdupq_n_s32(0); 2]; PLANES]; R];
        for (v, dots) in dots.iter_mut().flatten().enumerate() {
            let [a, b, c, d] = sums[v / 2];
            *dots = match v % 2 {
                0 => [vuzp1q_s32(a, b), vuzp1q_s32(c, d)],
                _ => [vuzp2q_s32(a, b), vuzp2q_s32(c, d)],
            };
        }
        dots
    }
}

/// Values 8 `some` to 8 `some` + 8 of a strip with the first `pairs` of all pairs of vectors.
///
/// # Safety
/// `codes` points to a strip that has them and each vector has them from `at` on; the CPU has the
/// matrix product.
#[inline(always)]
unsafe fn eight<const BITS: usize, const R: usize>(
    codes: *const u8,
    some: usize,
    pairs: usize,
    at: &[[*const i8; 2]; R],
    sums: &mut [Sums; R],
) {
    // SAFETY: NEON is part of the target; the caller's promise.
    unsafe {
        let mut outputs = [vdupq_n_s8(0); 4];
        for half in 0..2 {
            let first = vreinterpretq_s32_s8(field::<BITS>(codes, 2 * some, half));
            let second = vreinterpretq_s32_s8(field::<BITS>(codes, 2 * some + 1, half));
            outputs[2 * half] = vreinterpretq_s8_s32(vzip1q_s32(first, second));
            outputs[2 * half + 1] = vreinterpretq_s8_s32(vzip2q_s32(first, second));
        }
        for (sums, [upper, lower]) in sums.iter_mut().zip(at).take(pairs) {
            let upper = vld1_s8(upper.add(EIGHT * some));
            let x = vcombine_s8(upper, vld1_s8(lower.add(EIGHT * some)));
            for (sum, w) in sums.iter_mut().zip(outputs) {
                *sum = product(*sum, w, x);
            }
        }
    }
}

/// `sum` and the products of two outputs' eight bytes with two vectors': `[output][vector]`.
///
/// # Safety
/// The CPU has the matrix product.
#[inline(always)]
unsafe fn product(mut sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction reads and writes these registers alone; the CPU has it.
    unsafe {
        asm!(
            "smmla {sum:v}.4s, {w:v}.16b, {x:v}.16b",
            sum = inout(vreg) sum,
            w = in(vreg) w,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}
