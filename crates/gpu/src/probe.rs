//! The start-up probe: which forms make a device compute arith 1, and whether they do.

use std::sync::Arc;

use arith::exp::{exp, log1p};
use arith::float::{f16_to_f32, f32_to_f16, flush, fma};
use arith::sample::mix;

use crate::buffer::Buffer;
use crate::built::Kernel;
use crate::device::Device;
use crate::error::GpuError;
use crate::forms::{Fma, Forms, Unit};

/// Cases of a rule.
const CASES: usize = 512;

/// A rule of docs/arithmetic.md that kernels build on; numbered as in kernels/probe.wgsl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Fma,
    Division,
    Reciprocal,
    Root,
    Contraction,
    Flush,
    Halves,
    Rounding16,
    Rounding,
    Exp,
    Log1p,
    Dots,
    Integers,
    Sums,
}

const RULES: [Rule; 14] = [
    Rule::Fma,
    Rule::Division,
    Rule::Reciprocal,
    Rule::Root,
    Rule::Contraction,
    Rule::Flush,
    Rule::Halves,
    Rule::Rounding16,
    Rule::Rounding,
    Rule::Exp,
    Rule::Log1p,
    Rule::Dots,
    Rule::Integers,
    Rule::Sums,
];

impl Rule {
    fn name(self) -> &'static str {
        match self {
            Self::Fma => "fma",
            Self::Division => "division",
            Self::Reciprocal => "reciprocals",
            Self::Root => "roots",
            Self::Contraction => "contraction",
            Self::Flush => "subnormals",
            Self::Halves => "halves",
            Self::Rounding16 => "rounding to halves",
            Self::Rounding => "rounding to integers",
            Self::Exp => "exp",
            Self::Log1p => "log1p",
            Self::Dots => "byte dots",
            Self::Integers => "integers",
            Self::Sums => "sums and products",
        }
    }

    /// What the reference makes of operands.
    fn expected(self, [a, b, c]: [u32; 3]) -> f32 {
        let [x, y, w] = [a, b, c].map(f32::from_bits);
        match self {
            Self::Fma => fma(x, y, w),
            Self::Division => x / y,
            Self::Reciprocal => 1.0 / x,
            Self::Root => x.sqrt(),
            Self::Contraction => x * y + w,
            Self::Flush => flush(x),
            Self::Halves => f16_to_f32(a as u16),
            Self::Rounding16 => f32::from(f32_to_f16(x)),
            Self::Rounding => (x * y).round_ties_even(),
            Self::Exp => exp(x),
            Self::Log1p => log1p(x),
            Self::Dots => (256 * dot(a, b) + dot(a, c)) as f32,
            Self::Integers => (x.round_ties_even() as i32 + b as i32) as f32,
            Self::Sums => (x + y) * w,
        }
    }

    /// Operands `i` of [`CASES`].
    fn operands(self, i: usize) -> [u32; 3] {
        let draw = |salt: u64| mix((self as u64) << 40 | (i as u64) << 8 | salt);
        // A value of magnitude 2^low .. 2^high.
        let value = |salt: u64, low: i32, high: i32| {
            let bits = draw(salt);
            let exponent = low + (bits >> 32) as i32 % (high - low).max(1).abs();
            let exponent = exponent.clamp(low, high);
            let sign = (bits as u32 & 1) << 31;
            sign | ((exponent + 127) as u32) << 23 | (bits as u32 >> 9)
        };
        let positive = |salt, low, high| value(salt, low, high) & 0x7fff_ffff;
        match self {
            Self::Fma | Self::Contraction => {
                let (a, b) = (value(1, -12, 12), value(2, -12, 12));
                let product = f32::from_bits(a) * f32::from_bits(b);
                // Sums that cancel, ties that something far below breaks, and plain ones.
                let c = match i % 4 {
                    0 => (-product).to_bits(),
                    1 => (product * f32::from_bits(0x3380_0000)).to_bits(),
                    2 => ((product.to_bits() >> 23) + 24 - (draw(3) % 3) as u32) << 23,
                    _ => value(4, -24, 24),
                };
                [a, b, c]
            }
            Self::Division => match i % 3 {
                0 => [positive(1, -30, 60), 32639.0_f32.to_bits(), 0],
                1 => [32639.0_f32.to_bits(), positive(1, -30, 59), 0],
                _ => [positive(1, -20, 20), positive(2, -20, 20), 0],
            },
            Self::Reciprocal => [positive(1, -30, 60), 0, 0],
            Self::Root => [positive(1, -40, 100), 0, 0],
            Self::Flush => [value(1, -42, -30), 0, 0],
            Self::Halves => {
                [draw(1) as u32 & if i.is_multiple_of(3) { 0x83ff } else { 0xfbff }, 0, 0]
            }
            Self::Rounding16 => [value(1, -26, 17), 0, 0],
            Self::Rounding => match i % 2 {
                // A slice's first value and a tie.
                0 => [((draw(1) % 65_000) as f32 - 32_499.5).to_bits(), 1.0_f32.to_bits(), 0],
                _ => [value(1, -3, 7), value(2, -3, 7), 0],
            },
            Self::Exp => [value(1, -30, 6), 0, 0],
            Self::Log1p => [positive(1, -38, 60), 0, 0],
            Self::Dots => [draw(1) as u32, draw(2) as u32, draw(3) as u32],
            Self::Integers => [value(1, -2, 22), 1, 0],
            Self::Sums => [value(1, -12, 12), value(2, -12, 12), value(3, -12, 12)],
        }
    }
}

/// The sum of products of four signed bytes.
fn dot(a: u32, b: u32) -> i32 {
    let bytes = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
    bytes.map(|(a, b)| i32::from(a as i8) * i32::from(b as i8)).sum()
}

/// A rule that a device breaks, with the operands that show it.
struct Broken {
    rule: Rule,
    case: String,
}

/// Runs every case with the device's forms and gives the rules that it breaks.
fn broken(device: &Arc<Device>) -> Result<Vec<Broken>, GpuError> {
    let kernel = Kernel::new(Unit::Probe, "probe");
    device.try_kernel(&kernel)?;
    let all: Vec<(Rule, [u32; 3])> = RULES
        .into_iter()
        .flat_map(|rule| (0..CASES).map(move |i| (rule, rule.operands(i))))
        .collect();
    let words: Vec<u32> =
        all.iter().flat_map(|(rule, [a, b, c])| [*rule as u32, *a, *b, *c]).collect();
    let room = |what: &str, words: usize| {
        Buffer::new(device, what, words as u128 * 4).map_err(|error| GpuError::Memory {
            ordinal: device.ordinal(),
            words: error.to_string(),
        })
    };
    let (cases, out) = (room("the probe's cases", words.len())?, room("the probe", all.len())?);
    cases.upload(0, &words);
    let params = [all.len() as u32, 1.0_f32.to_bits()];
    let grid = [all.len().div_ceil(64) as u32, 1, 1];
    device.launch(&kernel, &[(0, &out), (1, &cases)], &params, grid);
    let mut got = vec![0.0; all.len()];
    out.download(0, &mut got);
    let mut broken: Vec<Broken> = Vec::new();
    for ((rule, operands), got) in all.into_iter().zip(got) {
        let want = rule.expected(operands);
        let same = want.to_bits() == got.to_bits() || (want.is_nan() && got.is_nan());
        if !same && broken.iter().all(|broken| broken.rule != rule) {
            let [a, b, c] = operands;
            let case = format!(
                "of {a:#010x}, {b:#010x}, {c:#010x} expected {:#010x}, found {:#010x}",
                want.to_bits(),
                got.to_bits()
            );
            broken.push(Broken { rule, case });
        }
    }
    Ok(broken)
}

/// What a device computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Arith 1, in these forms.
    One(Forms),
    /// A function of its own: the rule that it breaks, and the operands that show it.
    Own {
        /// The rule's name.
        rule: &'static str,
        /// The case.
        case: String,
    },
}

/// Chooses a device's forms by what it does by itself, and says what it computes with them.
///
/// # Errors
/// A driver that refuses the probe.
pub(crate) fn probe(device: &mut Arc<Device>) -> Result<Verdict, GpuError> {
    let breaks = |broken: &[Broken], rule| broken.iter().any(|broken| broken.rule == rule);
    let by_itself = broken(device)?;
    let fma = match breaks(&by_itself, Rule::Fma) {
        false => Fma::Device,
        true if device.has_f64() => Fma::Wide,
        true => Fma::Whole,
    };
    let mut forms = Forms {
        fma,
        over_corrected: breaks(&by_itself, Rule::Division),
        inverse_corrected: breaks(&by_itself, Rule::Reciprocal),
        root_corrected: breaks(&by_itself, Rule::Root),
        products_kept: breaks(&by_itself, Rule::Contraction),
    };
    set(device, forms);
    let mut left = broken(device)?;
    if breaks(&left, Rule::Fma) && forms.fma == Fma::Wide {
        forms.fma = Fma::Whole;
        set(device, forms);
        left = broken(device)?;
    }
    Ok(match left.into_iter().next() {
        None => Verdict::One(forms),
        Some(Broken { rule, case }) => Verdict::Own { rule: rule.name(), case },
    })
}

fn set(device: &mut Arc<Device>, forms: Forms) {
    match Arc::get_mut(device) {
        Some(device) => device.take_forms(forms),
        None => unreachable!("the probe's buffers are gone"),
    }
}

/// Whether a device computes arith 1 in given forms.
pub(crate) fn holds(device: &mut Arc<Device>, forms: Forms) -> Result<Verdict, GpuError> {
    set(device, forms);
    Ok(match broken(device)?.into_iter().next() {
        None => Verdict::One(forms),
        Some(Broken { rule, case }) => Verdict::Own { rule: rule.name(), case },
    })
}
