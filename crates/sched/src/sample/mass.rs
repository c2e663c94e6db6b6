//! The softmax's sum over a whole row, several terms at once and to a known error.

use std::f64::consts::{LN_2, LOG2_E};

/// Sums that grow beside each other.
const LANES: usize = 8;
/// Least power of two that is told from 0.
const POWER_MIN: f64 = -1000.0;
/// Relative error of [`power`], which its test holds.
const POWER_ERROR: f64 = 2e-11;

/// The sum of `exp(x / t - top / t)` over the row; `top` is its largest value, `t` above 0.
pub(super) fn sum(logits: &[f32], top: f32, t: f64) -> f64 {
    let (top, scale) = (f64::from(top), LOG2_E / t);
    let term = |x: f32| power((f64::from(x) - top) * scale);
    let mut sums = [0.0; LANES];
    let (blocks, rest) = logits.as_chunks::<LANES>();
    for block in blocks {
        for (sum, &x) in sums.iter_mut().zip(block) {
            *sum += term(x);
        }
    }
    rest.iter().map(|&x| term(x)).chain(sums).sum()
}

/// Relative error of a term of [`sum`] to `libm::exp` of the difference of the rounded quotients,
/// which may be off by the size of either.
pub(super) fn error(top: f32, t: f64) -> f64 {
    POWER_ERROR + 4.0 * f64::EPSILON * (f64::from(top).abs() / t - POWER_MIN)
}

/// 2 to the power of `y`, which is not above 0: a polynomial around the nearest integer, and that
/// integer as an exponent. No branch and no call, so that a compiler takes several at once.
#[inline]
fn power(y: f64) -> f64 {
    /// The sum has no fraction bits left, and the integer in its lowest bits.
    const MAGIC: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
    /// `1 / n!`, the highest first.
    const TERMS: [f64; 10] = [
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ];
    let y = if y > POWER_MIN { y } else { POWER_MIN };
    let nearest = y + MAGIC;
    let rest = (y - (nearest - MAGIC)) * LN_2;
    let value = TERMS[1..].iter().fold(TERMS[0], |value, term| value * rest + term);
    value * f64::from_bits(nearest.to_bits().wrapping_add(1023) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_is_within_its_error() {
        let mut worst: f64 = 0.0;
        for n in 0..2_000_000 {
            let y = f64::from(n) * -3.7e-5;
            let exact = libm::exp2(y);
            worst = worst.max((power(y) - exact).abs() / exact);
        }
        assert!(worst < POWER_ERROR, "{worst:e}");
        assert!(worst > POWER_ERROR / 10.0, "the bound is of another polynomial: {worst:e}");
        assert_eq!([power(0.0), power(-1.0), power(-999.0)], [1.0, 0.5, 2f64.powi(-999)]);
        assert!(power(f64::NEG_INFINITY) < 1e-300);
    }

    #[test]
    fn a_sum_is_within_its_error_of_the_plain_one() {
        for (size, spread, t) in [(5, 1.0, 1.0), (5_000, 30.0, 0.7), (70_003, 9.0, 1.3)] {
            let logits: Vec<f32> =
                (0..size).map(|id| (id * 37 % 1009) as f32 / 1009.0 * spread - 3.0).collect();
            let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let scaled = |x: f32| f64::from(x) / t;
            let plain: f64 = logits.iter().map(|&x| libm::exp(scaled(x) - scaled(top))).sum();
            let found = sum(&logits, top, t);
            let most = plain * (error(top, t) + 4.0 * size as f64 * f64::EPSILON);
            assert!((found - plain).abs() <= most, "{found} for {plain}");
        }
    }
}
