//! Codes and scales of stored blocks, packed here bit by bit.

use arith::float::f16_to_f32;
use arith::format::{Format, Mlx, Scales, read_block};

use super::Noise;

/// A little-endian stream of codes of `bits` bits each.
fn packed(codes: &[u8], bits: usize) -> Vec<u8> {
    let mut bytes = vec![0; codes.len() * bits / 8];
    for (i, code) in codes.iter().enumerate() {
        for b in 0..bits {
            bytes[(i * bits + b) / 8] |= (code >> b & 1) << ((i * bits + b) % 8);
        }
    }
    bytes
}

#[test]
fn mlx_codes_of_every_width_are_one_stream_of_bits() {
    for format in Format::mlx_all() {
        let Format::Mlx(Mlx { bits, group, scales }) = format else { unreachable!() };
        let top = u8::MAX >> (8 - bits);
        let mut noise = Noise(21);
        let random: Vec<u8> = (0..group).map(|_| noise.next() as u8 & top).collect();
        let one = |at: u8| (0..group).map(|i| if i == at { top } else { 0 }).collect::<Vec<_>>();
        for codes in (0..group).map(one).chain([random]) {
            // Scale -3, bias 0.75.
            let floats: &[u8] = match scales {
                Scales::F16 => &[0x00, 0xc2, 0x00, 0x3a],
                Scales::Bf16 => &[0x40, 0xc0, 0x40, 0x3f],
                Scales::F32 => &[0, 0, 0x40, 0xc0, 0, 0, 0x40, 0x3f],
            };
            let unit = [floats, &packed(&codes, bits.into())].concat();
            assert_eq!(unit.len(), format.unit_bytes(), "{format}");
            let mut w = vec![-1; group.into()];
            let affine = read_block(format, &unit, 0, &mut w);
            assert_eq!((affine.a, affine.c), (-3.0, Some(0.75)), "{format}");
            let codes: Vec<i16> = codes.into_iter().map(i16::from).collect();
            assert_eq!(w, codes, "{format}");
        }
    }
}

#[test]
fn scales_of_a_file_keep_their_subnormal_values_and_lose_those_below_the_rule() {
    for (half, want) in [(1_u16, 2.0_f64.powi(-24)), (0x03ff, 1023.0 * 2.0_f64.powi(-24))] {
        assert_eq!(f64::from(f16_to_f32(half)), want);
        assert_eq!(f64::from(f16_to_f32(half | 0x8000)), -want);
        let mut unit = [0x11; 34];
        unit[..2].copy_from_slice(&half.to_le_bytes());
        let affine = read_block(Format::Q8_0, &unit, 0, &mut [0; 32]);
        assert_eq!(f64::from(affine.a), want);
    }
    let wide = Format::Mlx(Mlx { bits: 2, group: 32, scales: Scales::F32 });
    let least = f32::from_bits(0x3080_0000); // 2^-30
    for (scale, want) in [(least, least), (least.next_down(), 0.0), (-least, -least)] {
        let unit = [&scale.to_le_bytes()[..], &(-scale).to_le_bytes(), &[0; 8]].concat();
        let affine = read_block(wide, &unit, 0, &mut [0; 32]);
        assert_eq!((affine.a, affine.c), (want, Some(-want)));
    }
}

#[test]
fn factors_of_k_quants_multiply_exactly() {
    for half in [1, 0x03ff, 0x0401, 0x3fff, 0xbfff] {
        let exact = f64::from(f16_to_f32(half));
        for factor in 0..64 {
            // Block 0 of a Q4_K unit: its factors are the low six bits of bytes 4 and 8.
            let mut unit = [0_u8; 144];
            unit[..2].copy_from_slice(&half.to_le_bytes());
            unit[2..4].copy_from_slice(&half.to_le_bytes());
            (unit[4], unit[8]) = (factor, factor);
            let affine = read_block(Format::Q4K, &unit, 0, &mut [0; 32]);
            assert_eq!(f64::from(affine.a), exact * f64::from(factor));
            assert_eq!(affine.c.map(f64::from), Some(0.0 - exact * f64::from(factor)));
        }
    }
}
