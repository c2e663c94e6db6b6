//! Rows and weights that the suite feeds: the same on every machine.

use arith::base::SLICE_VALUES;
use arith::format::Format;
use arith::sample::mix;

/// What output buffers hold before a call; rows past the call's count must still hold it.
pub(super) const POISON: f32 = 12345.678;

/// A stream of numbers (splitmix64).
pub(super) struct Noise(u64);

impl Noise {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// 0 .. `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Evenly in [-1, 1).
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    /// About normal, deviation about 1.
    pub fn normal(&mut self) -> f32 {
        (0..3).map(|_| self.unit()).sum()
    }

    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }

    /// Either sign, magnitude 2^low .. 2^high, its logarithm spread evenly.
    pub fn spread(&mut self, low: i32, high: i32) -> f32 {
        let exponent = low + self.below((high - low) as usize) as i32;
        let scale = f32::from_bits(((exponent + 127) as u32) << 23);
        let x = self.unit();
        x.signum() * (1.0 + x.abs()) * scale
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// What a row of a pool is like. A pool cycles through them, so that every batch mixes kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    /// 2^-36 to 2^20.
    Spread,
    /// Normal with one value of 3,000.
    Outlier,
    /// Normal with one NaN.
    Nan,
    /// 2^-40 to 2^-26.
    Tiny,
    /// Values that quantise exactly between two integers.
    Ties,
    Zero,
    /// 2^40 to just below 2^60.
    Huge,
    /// Normal with one value of 2^60.
    TooLarge,
    /// Every other slice zero or too small to quantise.
    EmptySlices,
    /// Normal with one infinity.
    Infinite,
}

const KINDS: [Kind; 11] = [
    Kind::Normal,
    Kind::Spread,
    Kind::Outlier,
    Kind::Nan,
    Kind::Tiny,
    Kind::Ties,
    Kind::Zero,
    Kind::Huge,
    Kind::TooLarge,
    Kind::EmptySlices,
    Kind::Infinite,
];

/// `rows` rows of `width` values, of every kind in turn.
pub(super) fn pool(noise: &mut Noise, rows: usize, width: usize) -> Vec<f32> {
    (0..rows).flat_map(|r| row(noise, KINDS[r % KINDS.len()], width)).collect()
}

/// Two pools whose kinds are out of step, so that kinds meet.
pub(super) fn pools(seed: u64, rows: usize, width: usize) -> [Vec<f32>; 2] {
    let mut noise = Noise::new(seed);
    let first = pool(&mut noise, rows, width);
    [first, pool(&mut noise, rows + 4, width).split_off(4 * width)]
}

/// A row of one kind.
pub(super) fn row(noise: &mut Noise, kind: Kind, width: usize) -> Vec<f32> {
    let mut row: Vec<f32> = (0..width).map(|i| value(noise, kind, i)).collect();
    let at = noise.below(width);
    match kind {
        Kind::Outlier => row[at] = 3000.0,
        Kind::Nan => row[at] = f32::NAN,
        Kind::TooLarge => row[at] = f32::from_bits(0x5d80_0000),
        Kind::Infinite => row[at] = f32::NEG_INFINITY,
        _ => {}
    }
    row
}

fn value(noise: &mut Noise, kind: Kind, i: usize) -> f32 {
    match kind {
        Kind::Spread => noise.spread(-36, 20),
        Kind::Tiny => noise.spread(-40, -26),
        Kind::Zero => 0.0,
        Kind::Huge => noise.spread(40, 60),
        // The first value makes the scale of its slice 2^-10.
        Kind::Ties if i.is_multiple_of(SLICE_VALUES) => 32639.0 / 1024.0,
        Kind::Ties => (noise.below(65000) as f32 - 32500.0 + 0.5) / 1024.0,
        Kind::EmptySlices if (i / SLICE_VALUES).is_multiple_of(2) => noise.spread(-38, -31),
        _ => noise.normal(),
    }
}

/// A binary16 that a file may hold as a scale: mostly normal, some zero, some subnormal.
fn half(noise: &mut Noise, exponent: i32) -> u16 {
    let sign = (noise.next() as u16) & 0x8000;
    let mantissa = (noise.next() as u16) & 0x3ff;
    match noise.below(24) {
        0 => sign,
        1 => sign | mantissa,
        _ => sign | ((exponent + 15) as u16) << 10 | mantissa,
    }
}

/// The stored bytes of a `[rows, cols]` matrix. Each row has its own magnitude, from 2^-14 to 2^2,
/// so that tiny inputs reach the flush of outputs.
pub(super) fn matrix(noise: &mut Noise, format: Format, rows: usize, cols: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..rows {
        let exponent = noise.below(15) as i32 - 13;
        for _ in 0..cols / format.unit_values() {
            unit(noise, format, exponent, &mut bytes);
        }
    }
    bytes
}

fn unit(noise: &mut Noise, format: Format, exponent: i32, bytes: &mut Vec<u8>) {
    let end = bytes.len() + format.unit_bytes();
    let (scales, stored) = match format {
        Format::F32 | Format::F16 | Format::Bf16 => (1, format),
        Format::Mlx(mlx) => (2, mlx.scales.format()),
        Format::Q6K => (0, Format::F16),
        _ => (1 + usize::from(format.has_offset()), Format::F16),
    };
    (0..scales).for_each(|_| float(noise, stored, exponent, bytes));
    if format == Format::Q6K {
        bytes.extend((bytes.len()..end - 2).map(|_| noise.next() as u8));
        // Its scale comes last.
        float(noise, stored, exponent, bytes);
    }
    bytes.extend((bytes.len()..end).map(|_| noise.next() as u8));
}

/// A weight or a scale in a float format.
fn float(noise: &mut Noise, format: Format, exponent: i32, bytes: &mut Vec<u8>) {
    if format == Format::F16 {
        return bytes.extend(half(noise, exponent).to_le_bytes());
    }
    let value = match noise.below(24) {
        0 => noise.spread(-50, -34), // some below the flush of float weights
        _ => noise.spread(exponent - 1, exponent + 1),
    };
    match format {
        Format::Bf16 => bytes.extend(((value.to_bits() >> 16) as u16).to_le_bytes()),
        _ => bytes.extend(value.to_le_bytes()),
    }
}
