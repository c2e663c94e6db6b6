//! The reference against two others: exact rationals (by bytes) and plain f64 (by tolerance); and
//! the stored codes against streams of bits written apart.
#![allow(clippy::unwrap_used, reason = "tests")]

extern crate baton_arith as arith;

mod codes;
mod fidelity;
mod golden;
mod shares;

use arith::format::{Format, Mlx, Scales};

/// splitmix64, the source of inputs here and in `golden/arith/make.py`.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Evenly in [-1, 1), a multiple of 2^-23.
    fn unit(&mut self) -> f32 {
        ((self.next() >> 40) as f32 - 8_388_608.0) / 8_388_608.0
    }

    fn units(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }

    /// A stored row of a block format with scales and offsets of 2^-7 to 2^-2.
    fn row_bytes(&mut self, format: Format, cols: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..cols / format.unit_values() {
            let end = bytes.len() + format.unit_bytes();
            if format == Format::Q6K {
                bytes.extend((bytes.len()..end - 2).map(|_| self.next() as u8));
            }
            (0..1 + usize::from(format.has_offset())).for_each(|_| self.scale(format, &mut bytes));
            bytes.extend((bytes.len()..end).map(|_| self.next() as u8));
        }
        bytes
    }

    fn scale(&mut self, format: Format, bytes: &mut Vec<u8>) {
        let x = self.next();
        let half = (x & 0x83ff) as u16 | ((8 + (x >> 16) % 6) << 10) as u16;
        let wide = arith::float::f16_to_f32(half).to_le_bytes();
        match format {
            Format::Mlx(Mlx { scales: Scales::F32, .. }) => bytes.extend(wide),
            Format::Mlx(Mlx { scales: Scales::Bf16, .. }) => bytes.extend(&wide[2..]),
            _ => bytes.extend(half.to_le_bytes()),
        }
    }
}
