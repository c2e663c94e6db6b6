//! How the values of a block format lie in a packed panel.
//!
//! A panel of eight outputs is a run of records, one a unit along K: the unit's blocks, then, in
//! formats whose blocks have factors, the eight f16 scales (and eight minima) that these multiply.
//! A block is its codes, eight scales or factors and, where the format has them, eight offsets or
//! their factors, which are the minima's negated.
//!
//! Codes lie in **strips** of 32 values (16 for codes of 6 bits), a strip in two **planes**: the
//! lower 8, 4 or 2 bits of every code, then the 1 or 2 bits above them. A plane of `b` bits is a
//! run of vectors of 16-bit lanes, two a 32-bit lane and output, its bytes cut into fields of `b`
//! bits. Of lane `2 j + p`, field `i`, counted on from vector to vector, holds in byte `h` value
//! `8 (i / 2) + 4 h + 2 (i mod 2) + p` of output `j`. So a shift and a mask join the planes of two
//! codes a lane, or give the pairs of values that `vpmaddwd` wants. No bit of a code is padding.
//!
//! Codes are unsigned: the format's zero point is taken off the integer dot, times the sum of the
//! block's activations.

use arith::float::{bf16_to_f32, f16_to_f32};
use arith::format::{Format, Mlx, Scales as Stored};

use crate::pack::LANES;

/// Shortest block of any format.
pub(crate) const BLOCK_MIN: usize = 16;
/// Longest block of any format.
pub(crate) const BLOCK_MAX: usize = 128;
/// Bytes of a vector of the widest kernels, one pair of values a 32-bit lane and output.
const VECTOR_BYTES: usize = 4 * LANES;
/// Bytes of eight f16.
const HALVES_BYTES: usize = 2 * LANES;

/// How scales and offsets lie in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scales {
    F16,
    Bf16,
    F32,
    /// Signed bytes, to multiply with the f16 at the end of the unit; the product is exact.
    Factors,
}

/// The packed form of a block format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bits a code: 2, 3, 4, 5, 6 or 8.
    pub(crate) bits: usize,
    /// The code that stands for 0.
    pub(crate) zero: i16,
    /// Values of a block.
    pub(crate) block: usize,
    /// Blocks of a unit.
    pub(crate) blocks: usize,
    pub(crate) scales: Scales,
    /// Whether blocks have offsets.
    pub(crate) offsets: bool,
}

/// Values of a strip of codes of `bits` bits: what fills whole vectors in every plane.
pub(crate) const fn strip_values(bits: usize) -> usize {
    if bits == 6 { 16 } else { 32 }
}

/// Bits of the lower and of the upper plane.
pub(crate) const fn planes(bits: usize) -> (usize, usize) {
    let low = match bits {
        8 => 8,
        4..8 => 4,
        _ => 2,
    };
    (low, bits - low)
}

impl Layout {
    /// The layout of `format`.
    ///
    /// # Panics
    /// For float formats, which have no blocks.
    pub(crate) const fn of(format: Format) -> Self {
        let (bits, zero, scales) = match format {
            Format::Q4_0 => (4, 8, Scales::F16),
            Format::Q4_1 => (4, 0, Scales::F16),
            Format::Q5_0 => (5, 16, Scales::F16),
            Format::Q5_1 => (5, 0, Scales::F16),
            Format::Q8_0 => (8, 128, Scales::F16),
            Format::Q4K => (4, 0, Scales::Factors),
            Format::Q5K => (5, 0, Scales::Factors),
            Format::Q6K => (6, 32, Scales::Factors),
            Format::Mlx(Mlx { bits, scales, .. }) => {
                let scales = match scales {
                    Stored::F16 => Scales::F16,
                    Stored::Bf16 => Scales::Bf16,
                    Stored::F32 => Scales::F32,
                };
                (bits as usize, 0, scales)
            }
            Format::F32 | Format::F16 | Format::Bf16 => panic!("floats have no blocks"),
        };
        let (block, blocks) = match format {
            Format::Q4K | Format::Q5K => (32, 8),
            Format::Q6K => (16, 16),
            Format::Mlx(mlx) => (mlx.group as usize, 1),
            _ => (32, 1),
        };
        let offsets = zero == 0;
        Self { bits, zero, block, blocks, scales, offsets }
    }

    /// Values of a unit.
    pub(crate) const fn unit_values(&self) -> usize {
        self.block * self.blocks
    }

    /// Bytes of the codes of a block.
    pub(crate) const fn codes_bytes(&self) -> usize {
        self.block * self.bits * LANES / 8
    }

    /// Bytes of the scales of a block, or of its offsets.
    pub(crate) const fn scales_bytes(&self) -> usize {
        match self.scales {
            Scales::F16 | Scales::Bf16 => HALVES_BYTES,
            Scales::F32 => 2 * HALVES_BYTES,
            Scales::Factors => LANES,
        }
    }

    /// Scales a lane of a block: its scale and perhaps its offset.
    const fn parts(&self) -> usize {
        1 + self.offsets as usize
    }

    /// Bytes of a block in its record.
    pub(crate) const fn block_bytes(&self) -> usize {
        self.codes_bytes() + self.parts() * self.scales_bytes()
    }

    /// Where in a record the unit's own scales are, if it has some.
    pub(crate) const fn head_at(&self) -> usize {
        self.blocks * self.block_bytes()
    }

    /// Bytes of the record of a unit.
    pub(crate) const fn record_bytes(&self) -> usize {
        let head = match self.scales {
            Scales::Factors => self.parts() * HALVES_BYTES,
            _ => 0,
        };
        self.head_at() + head
    }

    /// Where the codes of a block are.
    pub(crate) fn places(&self) -> Places {
        let strip = strip_values(self.bits);
        let (low, high) = planes(self.bits);
        let place = |k: usize, plane: usize, bits: usize| {
            let (fields, pair) = (8 / bits, k % strip / 2);
            let (field, byte) = (pair / 4 * 2 + pair % 2, pair % 4 / 2);
            let start = k / strip * strip * self.bits + plane;
            Place {
                byte: start + field / fields * VECTOR_BYTES + 2 * (k % 2) + byte,
                shift: field % fields * bits,
                mask: 0xff >> (8 - bits),
            }
        };
        let mut all = Places { raise: low % 8, places: [[Place::default(); 2]; BLOCK_MAX] };
        for (k, [lower, upper]) in all.places[..self.block].iter_mut().enumerate() {
            *lower = place(k, 0, low);
            if high > 0 {
                *upper = place(k, strip * low, high);
            }
        }
        all
    }

    /// Scale and offset (+0 where the format has none) of block `block` of a record.
    #[inline(always)]
    pub(crate) fn affine(&self, record: &[u8], block: usize, lane: usize) -> (f32, f32) {
        let part = |part: usize| {
            let width = self.scales_bytes() / LANES;
            let at = block * self.block_bytes() + self.codes_bytes() + part * self.scales_bytes();
            let at = at + width * lane;
            let half = |at: usize| u16::from_le_bytes([record[at], record[at + 1]]);
            match self.scales {
                Scales::F16 => f16_to_f32(half(at)),
                Scales::Bf16 => bf16_to_f32(half(at)),
                Scales::F32 => f32::from_bits(u32::from(half(at + 2)) << 16 | u32::from(half(at))),
                Scales::Factors => {
                    let head = half(self.head_at() + part * HALVES_BYTES + 2 * lane);
                    f16_to_f32(head) * f32::from(record[at] as i8)
                }
            }
        };
        (part(0), if self.offsets { part(1) } else { 0.0 })
    }

    /// Sets the scales of block `block` that [`Layout::affine`] reads, `x` one of its parts and
    /// `head` the f16 at the end of the unit that divides it, in formats with factors.
    pub(crate) fn put_scale(
        &self,
        record: &mut [u8],
        (block, part, lane): (usize, usize, usize),
        x: f32,
        head: u16,
    ) {
        let width = self.scales_bytes() / LANES;
        let at = block * self.block_bytes() + self.codes_bytes() + part * self.scales_bytes();
        let at = at + width * lane;
        let to = &mut record[at..at + width];
        match self.scales {
            Scales::F16 => to.copy_from_slice(&exact_half(x).to_le_bytes()),
            Scales::Bf16 => to.copy_from_slice(&((x.to_bits() >> 16) as u16).to_le_bytes()),
            Scales::F32 => to.copy_from_slice(&x.to_le_bytes()),
            Scales::Factors => {
                // 11 bits by 7: the product was exact, and so is the quotient. 0 / 0 gives 0.
                to[0] = (x / f16_to_f32(head)) as i8 as u8;
                let at = self.head_at() + part * HALVES_BYTES + 2 * lane;
                record[at..at + 2].copy_from_slice(&head.to_le_bytes());
            }
        }
    }
}

/// Where bits of a code of output 0 are; those of the next output lie four bytes on. No bits where
/// the mask is 0.
#[derive(Clone, Copy, Default)]
struct Place {
    byte: usize,
    shift: usize,
    mask: u8,
}

/// Where the codes of a block are, value by value: lower bits, upper bits.
pub(crate) struct Places {
    /// Shift of the upper bits in a code.
    raise: usize,
    places: [[Place; 2]; BLOCK_MAX],
}

impl Places {
    /// The code of value `k` of output `lane`.
    #[inline(always)]
    pub(crate) fn get(&self, codes: &[u8], k: usize, lane: usize) -> i16 {
        let [low, high] = self.places[k].map(|at| codes[at.byte + 4 * lane] >> at.shift & at.mask);
        i16::from(low | high << self.raise)
    }

    /// Sets what [`Places::get`] reads; `codes` must be zero there.
    #[inline(always)]
    pub(crate) fn put(&self, codes: &mut [u8], k: usize, lane: usize, code: u8) {
        let [low, high] = self.places[k];
        codes[low.byte + 4 * lane] |= (code & low.mask) << low.shift;
        codes[high.byte + 4 * lane] |= (code >> self.raise & high.mask) << high.shift;
    }
}

/// The f16 bits of a value that an f16 holds exactly.
fn exact_half(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let mantissa = (bits >> 13 & 0x3ff) as u16;
    match bits >> 23 & 255 {
        0 => 0,
        255 => sign | 0x7c00 | mantissa,
        // Subnormal there: 2^-24 a step.
        e @ 103..=112 => sign | ((bits & 0x7f_ffff | 0x80_0000) >> (126 - e)) as u16,
        e => sign | ((e - 112) as u16) << 10 | mantissa,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_that_an_f16_holds_keeps_its_bits() {
        for half in 0..=u16::MAX {
            let expected = if half == 0x8000 { 0 } else { half };
            assert_eq!(exact_half(f16_to_f32(half)), expected, "{half:#06x}");
        }
    }

    #[test]
    fn packed_formats_take_no_more_room_than_their_files_but_for_k_quants() {
        for format in Format::plain_all().chain(Format::mlx_all()).filter(|f| !f.is_float()) {
            let layout = Layout::of(format);
            assert_eq!(layout.unit_values(), format.unit_values(), "{format}");
            assert_eq!(layout.block, format.block_values(), "{format}");
            assert_eq!(layout.offsets, format.has_offset(), "{format}");
            assert!(layout.block.is_multiple_of(strip_values(layout.bits)), "{format}");
            let spare = match format {
                // Factors of 8 bits for 6.
                Format::Q4K | Format::Q5K => 4,
                _ => 0,
            };
            assert_eq!(layout.record_bytes(), LANES * (format.unit_bytes() + spare), "{format}");
        }
    }

    #[test]
    fn every_code_has_bits_of_its_own() {
        for format in Format::plain_all().chain(Format::mlx_all()).filter(|f| !f.is_float()) {
            let layout = Layout::of(format);
            let places = layout.places();
            let mut taken = vec![0_u8; layout.codes_bytes()];
            for (k, lane) in (0..layout.block).flat_map(|k| (0..LANES).map(move |j| (k, j))) {
                let mut own = vec![0; layout.codes_bytes()];
                let code = 0xff >> (8 - layout.bits);
                places.put(&mut own, k, lane, code);
                assert_eq!(places.get(&own, k, lane), i16::from(code), "{format}");
                for (taken, own) in taken.iter_mut().zip(own) {
                    assert_eq!(*taken & own, 0, "{format}, value {k} of output {lane}");
                    *taken |= own;
                }
            }
            assert!(taken.iter().all(|&bits| bits == 0xff), "{format}");
        }
    }
}
