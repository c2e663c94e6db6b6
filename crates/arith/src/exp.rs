//! exp, log1p, sigmoid, silu and softplus in f32 (section 5). Every step is a correctly rounded
//! operation, so a vector form gives the same bits when it takes the same steps.

use crate::count::note;
use crate::float::{fma, round_half_even};

/// Below this `exp` gives +0.
pub const EXP_MIN: f32 = -40.0;
/// Above this `exp` gives its value here.
pub const EXP_MAX: f32 = 60.0;
/// f32(log2 e).
pub const LOG2E: f32 = f32::from_bits(0x3fb8_aa3b);
/// f32(ln 2); `x - n * LN2_HI` is exact where `exp` uses it.
pub const LN2_HI: f32 = f32::from_bits(0x3f31_7218);
/// f32(ln 2 - LN2_HI).
pub const LN2_LO: f32 = f32::from_bits(0xb102_e308);

/// `exp r` for |r| <= ln 2 / 2 as `sum c_i r^i`, lowest degree first; minimax for the relative
/// error, `c_0 = c_1 = 1` held.
pub const EXP: [f32; 7] = [
    1.0,
    1.0,
    f32::from_bits(0x3eff_fffe),
    f32::from_bits(0x3e2a_aa49),
    f32::from_bits(0x3d2a_ac57),
    f32::from_bits(0x3c09_1cc0),
    f32::from_bits(0x3ab5_27b9),
];

/// `log1p f = f + f^2 * (sum c_i f^i)` for f in [-0.25, 0.5], lowest degree first.
pub const LOG1P: [f32; 9] = [
    f32::from_bits(0xbf00_0000),
    f32::from_bits(0x3eaa_aad2),
    f32::from_bits(0xbe80_0023),
    f32::from_bits(0x3e4c_b4bd),
    f32::from_bits(0xbe2a_7714),
    f32::from_bits(0x3e14_41df),
    f32::from_bits(0xbe06_cca1),
    f32::from_bits(0x3dd6_6b94),
    f32::from_bits(0xbd38_d103),
];

/// `2^n` for -126 <= n <= 127, built from its exponent bits.
#[inline]
fn exp2i(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

/// Horner by fma, highest degree first.
#[inline]
fn horner(coefficients: &[f32], x: f32) -> f32 {
    let (last, rest) = coefficients.split_last().unwrap_or((&0.0, &[]));
    rest.iter().rev().fold(*last, |sum, &c| fma(sum, x, c))
}

/// e^x: +0 below -40, the value at 60 above 60, NaN for NaN, exactly 1 for zeros of both signs;
/// at most 2 ulp from the true value in between.
///
/// `n = round_half_even(x * LOG2E)`, `r = fma(n, -LN2_LO, fma(n, -LN2_HI, x))`, the polynomial
/// [`EXP`] by Horner, times `2^n`.
#[inline]
pub fn exp(x: f32) -> f32 {
    if x < EXP_MIN {
        return 0.0;
    }
    let x = if x > EXP_MAX { EXP_MAX } else { x };
    // A subnormal product rounds to 0 at once, so it is not counted.
    let n = round_half_even(x * LOG2E);
    let r = fma(n, -LN2_LO, fma(n, -LN2_HI, x));
    note(horner(&EXP, r) * exp2i(n as i32))
}

/// ln(1 + x) for -1 < x < 2^126, at most 2 ulp from the true value; NaN and +infinity stay.
///
/// `i` = bits of `1 + x` less those of 0.75, lower 23 bits cleared, as a signed integer; k = i /
/// 2^23, s = 2^-k, so that `f = fma(x, s, s - 1)` is in [-0.25, 0.5] and 1 + x = 2^k (1 + f);
/// `fma(k, LN2_HI, fma(f * f, P(f), f))` with the polynomial [`LOG1P`] by Horner.
#[inline]
pub fn log1p(x: f32) -> f32 {
    if x.is_nan() || x == f32::INFINITY {
        return x;
    }
    const ONE: i32 = 0x3f80_0000;
    const THREE_QUARTERS: i32 = 0x3f40_0000;
    let i = ((1.0 + x).to_bits() as i32).wrapping_sub(THREE_QUARTERS) & !0x007f_ffff;
    let k = (i >> 23) as f32;
    let s = f32::from_bits(ONE.wrapping_sub(i) as u32);
    let f = fma(x, s, s - 1.0);
    fma(k, LN2_HI, fma(note(f * f), horner(&LOG1P, f), f))
}

/// `1 / (1 + exp(-x))`.
#[inline]
pub fn sigmoid(x: f32) -> f32 {
    note(1.0 / (1.0 + exp(-x)))
}

/// `x * sigmoid(x)`; +0 below -40.
#[inline]
pub fn silu(x: f32) -> f32 {
    if x < EXP_MIN { 0.0 } else { note(x * sigmoid(x)) }
}

/// `log1p(exp(x))`; x itself above 20.
#[inline]
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { log1p(exp(x)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance in units of the last place of the true value.
    fn ulps(got: f32, want: f64) -> f64 {
        let exponent = libm::ilogb(want).max(-126);
        (f64::from(got) - want).abs() / libm::scalbn(1.0, exponent - 23)
    }

    /// Largest distance over every `step`-th f32 of magnitude 2^-40 and more in [lo, hi].
    fn worst(lo: f32, hi: f32, step: usize, got: fn(f32) -> f32, want: fn(f64) -> f64) -> f64 {
        let least = 0x2b80_0000u32; // 2^-40
        let side = |end: f32, sign: f32| {
            let end = (end * sign).max(0.0).to_bits();
            (least..=end).step_by(step).map(move |b| sign * f32::from_bits(b))
        };
        side(lo, -1.0)
            .chain(side(hi, 1.0))
            .chain([lo, hi])
            .map(|x| ulps(got(x), want(f64::from(x))))
            .fold(0.0, f64::max)
    }

    #[test]
    fn exp_and_log1p_stay_within_two_ulp() {
        let e = worst(-40.0, 60.0, 1009, exp, libm::exp);
        assert!(e <= 1.0, "exp: {e} ulp");
        let e = worst(-0.99, 1e26, 2003, log1p, libm::log1p);
        assert!(e <= 2.0, "log1p: {e} ulp");
    }

    #[test]
    #[ignore = "a minute; run by hand with --ignored --nocapture after a change of the functions"]
    fn every_value_of_the_domain_stays_in_bounds() {
        let worst_exp = worst(-40.0, 60.0, 1, exp, libm::exp);
        let worst_log1p = worst(-0.99, 1e26, 1, log1p, libm::log1p);
        println!("exp {worst_exp:.3} ulp, log1p {worst_log1p:.3} ulp");
        assert!(worst_exp <= 1.0 && worst_log1p <= 2.0);
    }

    #[test]
    fn the_functions_built_on_them_stay_within_four_ulp() {
        fn sigmoid64(x: f64) -> f64 {
            1.0 / (1.0 + libm::exp(-x))
        }
        for (name, got, want) in [
            ("sigmoid", sigmoid as fn(f32) -> f32, sigmoid64 as fn(f64) -> f64),
            ("silu", silu, |x| x * sigmoid64(x)),
            ("softplus", softplus, |x| libm::log1p(libm::exp(x))),
        ] {
            let e = worst(-40.0, 40.0, 2003, got, want);
            println!("{name} {e:.3} ulp");
            assert!(e <= 4.0, "{name}: {e} ulp");
        }
    }

    #[test]
    fn the_edges_of_the_domains_are_exact() {
        assert_eq!(exp(0.0).to_bits(), 1.0f32.to_bits());
        assert_eq!(exp(-0.0).to_bits(), 1.0f32.to_bits());
        assert_eq!(exp(-40.000_004).to_bits(), 0);
        assert!(exp(-40.0) > 0.0);
        assert_eq!(exp(f32::INFINITY), exp(60.0));
        assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0);
        assert!(exp(f32::NAN).is_nan() && silu(f32::NAN).is_nan() && softplus(f32::NAN).is_nan());
        assert_eq!(silu(-41.0).to_bits(), 0);
        assert_eq!(softplus(21.0), 21.0);
        assert_eq!(log1p(0.0), 0.0);
        assert_eq!(log1p(f32::INFINITY), f32::INFINITY);
    }
}
