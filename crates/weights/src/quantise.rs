//! A plain quantiser, for making small checkpoints: nearest codes, no search.

use arith::float::{bf16_to_f32, f16_to_f32, f32_to_f16};
use arith::format::{Format, Mlx, Scales};

/// Stores `values` in `format`.
///
/// # Panics
/// Where `values` is no multiple of the format's unit.
pub fn quantise(format: Format, values: &[f32]) -> Vec<u8> {
    assert!(values.len().is_multiple_of(format.unit_values()), "{} values", values.len());
    let mut out = Vec::with_capacity(values.len() / format.unit_values() * format.unit_bytes());
    for unit in values.chunks_exact(format.unit_values()) {
        match format {
            Format::F32 => out.extend(unit[0].to_le_bytes()),
            Format::F16 => out.extend(f32_to_f16(unit[0]).to_le_bytes()),
            Format::Bf16 => out.extend(bf16(unit[0]).to_le_bytes()),
            Format::Q4_0 => centred(&mut out, unit, 8),
            Format::Q4_1 => between(&mut out, unit, 15),
            Format::Q5_0 => centred(&mut out, unit, 16),
            Format::Q5_1 => between(&mut out, unit, 31),
            Format::Q8_0 => {
                let scale = inverse(half(&mut out, peak(unit).abs() / 127.0));
                out.extend(unit.iter().map(|x| (x * scale).round() as i8 as u8));
            }
            Format::Q4K => k_quant(&mut out, unit, 15),
            Format::Q5K => k_quant(&mut out, unit, 31),
            Format::Q6K => q6_k(&mut out, unit),
            Format::Mlx(mlx) => affine(&mut out, mlx, unit),
        }
    }
    out
}

/// The value of greatest magnitude.
fn peak(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most: f32, x| if x.abs() > most.abs() { *x } else { most })
}

fn edges(values: &[f32]) -> (f32, f32) {
    let min = values.iter().copied().fold(f32::INFINITY, f32::min);
    (min, values.iter().copied().fold(f32::NEG_INFINITY, f32::max))
}

/// 1 / x, 0 for a zero.
fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// Writes `x` as f16 and gives what was written.
fn half(out: &mut Vec<u8>, x: f32) -> f32 {
    let half = f32_to_f16(x);
    out.extend(half.to_le_bytes());
    f16_to_f32(half)
}

fn code(x: f32, most: u8) -> u8 {
    x.round().clamp(0.0, f32::from(most)) as u8
}

/// Q4_0 and Q5_0: codes around `zero`, the peak at code 0.
fn centred(out: &mut Vec<u8>, block: &[f32], zero: u8) {
    let scale = inverse(half(out, peak(block) / -f32::from(zero)));
    packed(out, block, 2 * zero - 1, |x| x * scale + f32::from(zero));
}

/// Q4_1 and Q5_1: codes from the least value on.
fn between(out: &mut Vec<u8>, block: &[f32], most: u8) {
    let (min, max) = edges(block);
    let scale = inverse(half(out, (max - min) / f32::from(most)));
    let min = half(out, min);
    packed(out, block, most, |x| (x - min) * scale);
}

/// Writes a block of 32 codes: the fifth bits where codes have five, then nibbles, value i in the
/// low half of byte i and value i + 16 in its high half.
fn packed(out: &mut Vec<u8>, block: &[f32], most: u8, place: impl Fn(f32) -> f32) {
    let codes: [u8; 32] = std::array::from_fn(|i| code(place(block[i]), most));
    if most > 15 {
        let fifth = codes.iter().enumerate();
        let fifth = fifth.fold(0, |word: u32, (i, code)| word | u32::from(code >> 4) << i);
        out.extend(fifth.to_le_bytes());
    }
    out.extend((0..16).map(|i| codes[i] & 15 | codes[i + 16] << 4));
}

/// Q4_K and Q5_K: a scale and a minimum a block of 32, both as 6-bit factors of the unit's.
fn k_quant(out: &mut Vec<u8>, unit: &[f32], most: u8) {
    let blocks = || unit.chunks_exact(32);
    let minimum = |block: &[f32]| -edges(block).0.min(0.0);
    let scale = |block: &[f32]| (edges(block).1.max(0.0) + minimum(block)) / f32::from(most);
    let most_of = |of: &dyn Fn(&[f32]) -> f32| blocks().map(of).fold(0.0, f32::max) / 63.0;
    let (d, d_min) = (half(out, most_of(&scale)), half(out, most_of(&minimum)));
    let factors = |of: &dyn Fn(&[f32]) -> f32, d| -> Vec<u8> {
        blocks().map(|block| code(of(block) * inverse(d), 63)).collect()
    };
    let (scales, minima) = (factors(&scale, d), factors(&minimum, d_min));
    // The first four blocks' factors whole, the others' low halves in four more bytes and their
    // high bits above the first four's.
    out.extend((0..4).map(|i| scales[i] | scales[i + 4] >> 4 << 6));
    out.extend((0..4).map(|i| minima[i] | minima[i + 4] >> 4 << 6));
    out.extend((4..8).map(|i| scales[i] & 15 | minima[i] << 4));
    let codes = |b: usize, i: usize| {
        let (a, c) = (d * f32::from(scales[b]), d_min * f32::from(minima[b]));
        code((unit[32 * b + i] + c) * inverse(a), most)
    };
    let codes: Vec<[u8; 32]> = (0..8).map(|b| std::array::from_fn(|i| codes(b, i))).collect();
    if most > 15 {
        out.extend((0..32).map(|i| (0..8).fold(0, |byte, b| byte | codes[b][i] >> 4 << b)));
    }
    for pair in codes.chunks_exact(2) {
        out.extend((0..32).map(|i| pair[0][i] & 15 | pair[1][i] << 4));
    }
}

/// Q6_K: a scale a block of 16 as a signed factor of the unit's. In each half of the unit, value i
/// of the four quarters shares a byte of high pairs, and two quarters a byte of low nibbles.
fn q6_k(out: &mut Vec<u8>, unit: &[f32]) {
    let scales: Vec<f32> = unit.chunks_exact(16).map(|block| peak(block) / -32.0).collect();
    let d = f16_to_f32(f32_to_f16(peak(&scales).abs() / 127.0));
    let factors: Vec<i8> = scales.iter().map(|scale| (scale * inverse(d)).round() as i8).collect();
    let codes: Vec<u8> = (0..256)
        .map(|i| code(unit[i] * inverse(d * f32::from(factors[i / 16])) + 32.0, 63))
        .collect();
    let parts = || codes.chunks_exact(128);
    out.extend(parts().flat_map(|p| (0..64).map(|i| p[i] & 15 | p[i + 64] << 4)));
    out.extend(parts().flat_map(|p| {
        (0..32).map(|i| (0..4).fold(0, |byte, q| byte | p[32 * q + i] >> 4 << (2 * q)))
    }));
    out.extend(factors.iter().map(|factor| *factor as u8));
    half(out, d);
}

/// MLX: scale, bias, then codes as one stream of bits. The edge of greater magnitude is the bias,
/// so that a scale is negative where that is the greatest value.
fn affine(out: &mut Vec<u8>, mlx: Mlx, block: &[f32]) {
    let (min, max) = edges(block);
    let most = ((1_u16 << mlx.bits) - 1) as u8;
    let (from, to) = if min.abs() > max.abs() { (min, max) } else { (max, min) };
    let scale = stored(out, mlx.scales, (to - from) / f32::from(most));
    let bias = stored(out, mlx.scales, from);
    let (mut word, mut bits) = (0_u16, 0);
    for x in block {
        word |= u16::from(code((x - bias) * inverse(scale), most)) << bits;
        bits += mlx.bits;
        if bits >= 8 {
            out.push(word as u8);
            (word, bits) = (word >> 8, bits - 8);
        }
    }
}

/// Writes `x` as a scale and gives what was written.
fn stored(out: &mut Vec<u8>, scales: Scales, x: f32) -> f32 {
    match scales {
        Scales::F16 => half(out, x),
        Scales::Bf16 => {
            out.extend(bf16(x).to_le_bytes());
            bf16_to_f32(bf16(x))
        }
        Scales::F32 => {
            out.extend(x.to_le_bytes());
            x
        }
    }
}

/// Rounds to bfloat16, nearest even; finite values only.
fn bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use arith::format::{Matrix, read_row};

    use super::*;

    /// The worst distance of `values` stored in `format`.
    fn worst(format: Format, values: &[f32]) -> f32 {
        let bytes = quantise(format, values);
        let matrix = Matrix { format, rows: 1, cols: values.len(), bytes: &bytes };
        assert_eq!(bytes.len(), matrix.row_bytes(), "{format}");
        let mut read = vec![0.0; values.len()];
        read_row(&matrix, 0, &mut read);
        read.iter().zip(values).fold(0.0, |worst, (a, b)| worst.max((a - b).abs()))
    }

    /// 512 values of -1.07..1.1 in no order, each block of another size.
    fn values() -> Vec<f32> {
        let size = |i: usize| 0.3 + 0.1 * (i / 64) as f32;
        (0..512).map(|i| ((i * 37 % 64) as f32 - 31.0) / 29.0 * size(i)).collect()
    }

    #[test]
    fn what_is_stored_reads_back_within_half_a_step() {
        for (format, most) in [
            (Format::F32, 0.0),
            (Format::F16, 0.001),
            (Format::Bf16, 0.01),
            (Format::Q4_0, 0.15),
            (Format::Q4_1, 0.08),
            (Format::Q5_0, 0.075),
            (Format::Q5_1, 0.04),
            (Format::Q8_0, 0.006),
            (Format::Q4K, 0.1),
            (Format::Q5K, 0.06),
            (Format::Q6K, 0.04),
        ] {
            let worst = worst(format, &values());
            assert!(worst <= most, "{format}: {worst}");
            // A zero scale, and values of one sign only.
            assert_eq!(self::worst(format, &[0.0; 256]), 0.0, "{format}");
            let positive: Vec<f32> = values().iter().map(|x| x.abs() + 0.1).collect();
            let worst = self::worst(format, &positive);
            assert!(worst <= most, "{format}, one sign: {worst}");
        }
    }

    #[test]
    fn mlx_codes_read_back_within_a_step_of_their_width() {
        for format in Format::mlx_all() {
            let Format::Mlx(mlx) = format else { panic!("{format}") };
            let step = 2.2 / ((1_u16 << mlx.bits) - 1) as f32;
            let rounding = if mlx.scales == Scales::Bf16 { 0.01 } else { 0.002 };
            let worst = worst(format, &values());
            assert!(worst <= step / 2.0 + rounding, "{format}: {worst}");
        }
    }
}
