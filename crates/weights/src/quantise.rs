//! A plain quantiser, for making small checkpoints: nearest codes, no search.

use arith::float::{f16_to_f32, f32_to_f16};
use arith::format::Format;

/// Stores `values` in `format`.
///
/// # Panics
/// Where `values` is no multiple of the format's block.
pub fn quantise(format: Format, values: &[f32]) -> Vec<u8> {
    assert!(values.len().is_multiple_of(format.unit_values()), "{} values", values.len());
    let mut out = Vec::with_capacity(values.len() / format.unit_values() * format.unit_bytes());
    for block in values.chunks_exact(format.block_values()) {
        match format {
            Format::F32 => out.extend(block[0].to_le_bytes()),
            Format::F16 => out.extend(f32_to_f16(block[0]).to_le_bytes()),
            Format::Bf16 => out.extend(bf16(block[0]).to_le_bytes()),
            Format::Q4_0 => {
                let peak = block.iter().fold(0f32, |m, x| if x.abs() > m.abs() { *x } else { m });
                let scale = scale(&mut out, peak / -8.0);
                nibbles(&mut out, block, |x| (x * scale + 8.0).round().clamp(0.0, 15.0) as u8);
            }
            Format::Q4_1 => {
                let min = block.iter().copied().fold(f32::INFINITY, f32::min);
                let max = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let scale = scale(&mut out, (max - min) / 15.0);
                let half = f32_to_f16(min);
                let min = f16_to_f32(half);
                out.extend(half.to_le_bytes());
                nibbles(&mut out, block, |x| ((x - min) * scale).round().clamp(0.0, 15.0) as u8);
            }
            Format::Q8_0 => {
                let peak = block.iter().fold(0f32, |m, x| m.max(x.abs()));
                let scale = scale(&mut out, peak / 127.0);
                out.extend(block.iter().map(|x| (x * scale).round() as i8 as u8));
            }
            _ => panic!("no quantiser to {format}"),
        }
    }
    out
}

/// Writes `a` as f16 and gives the inverse of what was written, 0 for a zero scale.
fn scale(out: &mut Vec<u8>, a: f32) -> f32 {
    let half = f32_to_f16(a);
    out.extend(half.to_le_bytes());
    let stored = f16_to_f32(half);
    if stored == 0.0 { 0.0 } else { 1.0 / stored }
}

/// Writes a block of 32 nibbles: value i in the low half of byte i, value i + 16 in its high half.
fn nibbles(out: &mut Vec<u8>, block: &[f32], code: impl Fn(f32) -> u8) {
    let (low, high) = block.split_at(16);
    out.extend(low.iter().zip(high).map(|(&low, &high)| code(low) | (code(high) << 4)));
}

/// Rounds to bfloat16, nearest even; finite values only.
fn bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use arith::format::{read_block, read_float};

    use super::*;

    #[test]
    fn what_is_stored_reads_back_within_half_a_step() {
        let values: Vec<f32> = (0..64).map(|i| ((i * 37 % 64) as f32 - 31.0) / 29.0).collect();
        for (format, step) in [
            (Format::F32, 0.0),
            (Format::F16, 0.001),
            (Format::Bf16, 0.01),
            (Format::Q4_0, 0.15),
            (Format::Q4_1, 0.08),
            (Format::Q8_0, 0.006),
        ] {
            let bytes = quantise(format, &values);
            let mut worst = 0f32;
            for (i, x) in values.iter().enumerate() {
                let read = if format.is_float() {
                    read_float(format, &bytes, i)
                } else {
                    let mut w = [0; 32];
                    let block = &bytes[i / 32 * format.unit_bytes()..];
                    let affine = read_block(format, block, 0, &mut w);
                    affine.a * f32::from(w[i % 32]) + affine.c.unwrap_or(0.0)
                };
                worst = worst.max((read - x).abs());
            }
            assert!(worst <= step, "{}: {worst}", format);
        }
    }
}
