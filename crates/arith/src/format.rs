//! Storage formats of matrices and what each means: `W = a * w + c` a block, or a plain float.
//!
//! A stored row is a run of **units**; a unit holds one or more **blocks**, each with a scale and
//! perhaps an offset of its own. K-quants have units of 256 values; elsewhere a unit is a block.

use std::fmt;
use std::str::FromStr;

use crate::float;

/// How the values of a matrix are stored. Each block format maps to integers `w`, a scale `a` and,
/// where it has one, an offset `c` a block (`docs/arithmetic.md`, section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
    /// Blocks of 32: f16 scale, 16 bytes of nibbles; w = nibble - 8.
    Q4_0,
    /// Blocks of 32: f16 scale, f16 minimum, 16 bytes of nibbles; w = nibble, c = minimum.
    Q4_1,
    /// Blocks of 32: f16 scale, 32 fifth bits, 16 bytes of nibbles; w = code - 16.
    Q5_0,
    /// Blocks of 32: f16 scale, f16 minimum, 32 fifth bits, 16 bytes of nibbles; w = code.
    Q5_1,
    /// Blocks of 32: f16 scale, 32 signed bytes.
    Q8_0,
    /// Units of 256, blocks of 32: f16 scale and minimum a unit, 6-bit factors of both a block,
    /// nibbles; a = scale * factor, c = -(minimum * factor).
    Q4K,
    /// As [`Format::Q4K`] with a fifth bit a code.
    Q5K,
    /// Units of 256, blocks of 16: f16 scale a unit, a signed byte of factor a block, 6-bit codes;
    /// w = code - 32, a = scale * factor.
    Q6K,
    /// MLX's affine quantisation.
    Mlx(Mlx),
}

/// MLX's affine quantisation: w = code, a = scale, c = bias. Files keep codes, scales and biases
/// in three tensors; here a block is its scale, its bias and its `group` codes, which are one
/// little-endian stream of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mlx {
    /// Bits a code: 2, 3, 4, 5, 6 or 8.
    pub bits: u8,
    /// Values a block: 32, 64 or 128.
    pub group: u8,
    /// How scales and biases are stored.
    pub scales: Scales,
}

/// How an MLX checkpoint stores its scales and biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scales {
    /// IEEE binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
    /// IEEE binary32.
    F32,
}

impl Mlx {
    /// Widths of a code that MLX writes.
    pub const BITS: [u8; 6] = [2, 3, 4, 5, 6, 8];
    /// Values of a block that MLX writes.
    pub const GROUPS: [u8; 3] = [32, 64, 128];

    /// Whether MLX writes such a format.
    pub fn is_known(self) -> bool {
        Self::BITS.contains(&self.bits) && Self::GROUPS.contains(&self.group)
    }
}

impl Scales {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::F16, Self::Bf16, Self::F32];

    /// Stored bytes of a scale.
    pub fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }

    /// The float format that stores scales so.
    pub fn format(self) -> Format {
        match self {
            Self::F16 => Format::F16,
            Self::Bf16 => Format::Bf16,
            Self::F32 => Format::F32,
        }
    }
}

/// Scale and offset of one block; `c` is `None` where the format has no offsets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine {
    /// Scale; +0 where its magnitude is below 2^-30.
    pub a: f32,
    /// Offset, by the same rule.
    pub c: Option<f32>,
}

/// Formats without parameters by their names in files, logs and errors.
const NAMES: [(Format, &str); 11] = [
    (Format::F32, "F32"),
    (Format::F16, "F16"),
    (Format::Bf16, "BF16"),
    (Format::Q4_0, "Q4_0"),
    (Format::Q4_1, "Q4_1"),
    (Format::Q5_0, "Q5_0"),
    (Format::Q5_1, "Q5_1"),
    (Format::Q8_0, "Q8_0"),
    (Format::Q4K, "Q4_K"),
    (Format::Q5K, "Q5_K"),
    (Format::Q6K, "Q6_K"),
];

/// `Q4_K`, or for MLX bits, group and scales: `MLX4/64/BF16`.
impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Mlx(Mlx { bits, group, scales }) = self {
            return write!(f, "MLX{bits}/{group}/{}", scales.format());
        }
        let (_, name) = NAMES.iter().find(|(format, _)| format == self).expect("one name each");
        f.pad(name)
    }
}

/// A text that names no format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownFormat;

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        if let Some((format, _)) = NAMES.iter().find(|(_, known)| *known == name) {
            return Ok(*format);
        }
        Self::mlx_all().find(|format| format.to_string() == name).ok_or(UnknownFormat)
    }
}

impl Format {
    /// Every format without parameters.
    pub fn plain_all() -> impl Iterator<Item = Self> {
        NAMES.into_iter().map(|(format, _)| format)
    }

    /// Every format that MLX writes.
    pub fn mlx_all() -> impl Iterator<Item = Self> {
        Mlx::BITS.into_iter().flat_map(|bits| {
            Mlx::GROUPS.into_iter().flat_map(move |group| {
                Scales::ALL.map(|scales| Self::Mlx(Mlx { bits, group, scales }))
            })
        })
    }

    /// Whether linear layers over this format take section 3's float path.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// Values a block (1 for floats).
    pub fn block_values(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q6K => 16,
            Self::Mlx(mlx) => mlx.group.into(),
            _ => 32,
        }
    }

    /// Values a unit; a row's length is a multiple of it.
    pub fn unit_values(self) -> usize {
        match self {
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
            _ => self.block_values(),
        }
    }

    /// Stored bytes a unit.
    pub fn unit_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Mlx(Mlx { bits, group, scales }) => {
                2 * scales.bytes() + usize::from(group) * usize::from(bits) / 8
            }
        }
    }

    /// Blocks a unit.
    pub fn unit_blocks(self) -> usize {
        self.unit_values() / self.block_values()
    }

    /// Whether blocks carry an offset `c`.
    pub fn has_offset(self) -> bool {
        matches!(self, Self::Q4_1 | Self::Q5_1 | Self::Q4K | Self::Q5K | Self::Mlx(_))
    }
}

/// A matrix `[rows, cols]` (outputs, K) in its stored form; row-major, `bytes` borrowed from
/// their reader. `cols` is a multiple of the format's unit.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Storage of the values.
    pub format: Format,
    /// Outputs.
    pub rows: usize,
    /// Values along K.
    pub cols: usize,
    /// Stored form, `rows * cols / unit_values * unit_bytes` long.
    pub bytes: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// Bytes of one stored row.
    pub fn row_bytes(&self) -> usize {
        self.cols / self.format.unit_values() * self.format.unit_bytes()
    }

    /// The stored bytes of row `row`.
    pub fn row(&self, row: usize) -> &'a [u8] {
        let n = self.row_bytes();
        &self.bytes[row * n..(row + 1) * n]
    }

    /// Reads block `block` of the stored row `row`, counted from its start; see [`read_block`].
    pub fn read_block(&self, row: &[u8], block: usize, w: &mut [i16]) -> Affine {
        let (blocks, bytes) = (self.format.unit_blocks(), self.format.unit_bytes());
        let at = block / blocks * bytes;
        read_block(self.format, &row[at..at + bytes], block % blocks, w)
    }
}

/// Reads block `block` of a stored unit: its integers into `w` (`block_values` long), its scale
/// and offset as the result.
///
/// # Panics
/// For float formats, and where `unit` or `w` is too short.
pub fn read_block(format: Format, unit: &[u8], block: usize, w: &mut [i16]) -> Affine {
    let (a, c) = match format {
        Format::Q4_0 => (nibbles(unit, 2, None, 8, w), None),
        Format::Q4_1 => (nibbles(unit, 4, None, 0, w), Some(half(unit, 2))),
        Format::Q5_0 => (nibbles(unit, 6, Some(2), 16, w), None),
        Format::Q5_1 => (nibbles(unit, 8, Some(4), 0, w), Some(half(unit, 2))),
        Format::Q8_0 => {
            w.iter_mut().zip(&unit[2..34]).for_each(|(w, &code)| *w = i16::from(code as i8));
            (half(unit, 0), None)
        }
        Format::Q4K => k_quant(unit, block, None, w),
        Format::Q5K => k_quant(unit, block, Some(16), w),
        Format::Q6K => q6_k(unit, block, w),
        Format::Mlx(mlx) => affine(mlx, unit, w),
        Format::F32 | Format::F16 | Format::Bf16 => panic!("{format} has no blocks"),
    };
    Affine { a: float::flush_scale(a), c: c.map(float::flush_scale) }
}

/// The binary16 at byte `at`.
fn half(bytes: &[u8], at: usize) -> f32 {
    float::f16_to_f32(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

/// The codes of a block of 32: nibbles from byte `from` on (value i low in byte i, value i + 16
/// high in it), their fifth bits in the word at `fifth`, less `zero`. Gives the scale.
fn nibbles(unit: &[u8], from: usize, fifth: Option<usize>, zero: i16, w: &mut [i16]) -> f32 {
    let word = |at: usize| u32::from_le_bytes([unit[at], unit[at + 1], unit[at + 2], unit[at + 3]]);
    let fifth = fifth.map_or(0, word);
    for i in 0..16 {
        let byte = unit[from + i];
        let high = |bit: usize| (fifth >> bit & 1) as i16 * 16;
        w[i] = i16::from(byte & 15) + high(i) - zero;
        w[i + 16] = i16::from(byte >> 4) + high(i + 16) - zero;
    }
    half(unit, 0)
}

/// Block `block` of eight of a Q4_K or Q5_K unit: scale, minimum, 12 bytes of 6-bit factors, for
/// Q5_K the fifth bits (bit `block` of byte i is value i's) from byte `fifth` on, then nibbles, 32
/// bytes a pair of blocks.
fn k_quant(unit: &[u8], block: usize, fifth: Option<usize>, w: &mut [i16]) -> (f32, Option<f32>) {
    let factors = &unit[4..16];
    let (scale, minimum) = if block < 4 {
        (factors[block] & 63, factors[block + 4] & 63)
    } else {
        let low = factors[block + 4];
        (low & 15 | factors[block - 4] >> 6 << 4, low >> 4 | factors[block] >> 6 << 4)
    };
    let codes = fifth.map_or(16, |at| at + 32) + block / 2 * 32;
    for i in 0..32 {
        let high = fifth.map_or(0, |at| unit[at + i] >> block & 1);
        let nibble = unit[codes + i] >> (block % 2 * 4) & 15;
        w[i] = i16::from(nibble | high << 4);
    }
    let offset = -(half(unit, 2) * f32::from(minimum));
    (half(unit, 0) * f32::from(scale), Some(offset))
}

/// Block `block` of sixteen of a Q6_K unit: 128 bytes of low nibbles, 64 of high pairs of bits, 16
/// factors, the scale. Each half of the unit has four quarters of 32 values, which share bytes.
fn q6_k(unit: &[u8], block: usize, w: &mut [i16]) -> (f32, Option<f32>) {
    let (part, quarter, from) = (block / 8, block % 8 / 2, block % 2 * 16);
    let low = 64 * part + quarter % 2 * 32 + from;
    let high = 128 + 32 * part + from;
    for i in 0..16 {
        let nibble = unit[low + i] >> (quarter / 2 * 4) & 15;
        let pair = unit[high + i] >> (2 * quarter) & 3;
        w[i] = i16::from(nibble | pair << 4) - 32;
    }
    (half(unit, 208) * f32::from(unit[192 + block] as i8), None)
}

fn affine(mlx: Mlx, unit: &[u8], w: &mut [i16]) -> (f32, Option<f32>) {
    let bytes = mlx.scales.bytes();
    let (format, codes) = (mlx.scales.format(), &unit[2 * bytes..]);
    let (bits, mask) = (usize::from(mlx.bits), (1_u16 << mlx.bits) - 1);
    for (i, w) in w[..mlx.group.into()].iter_mut().enumerate() {
        let (byte, shift) = (i * bits / 8, i * bits % 8);
        let next = codes.get(byte + 1).copied().unwrap_or(0);
        *w = (u16::from_le_bytes([codes[byte], next]) >> shift & mask) as i16;
    }
    (widen(format, unit, 0), Some(widen(format, unit, 1)))
}

/// Value `index` of a row of floats, exactly.
fn widen(format: Format, row: &[u8], index: usize) -> f32 {
    match format {
        Format::F32 => {
            let at = 4 * index;
            f32::from_le_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]])
        }
        Format::F16 => half(row, 2 * index),
        Format::Bf16 => {
            float::bf16_to_f32(u16::from_le_bytes([row[2 * index], row[2 * index + 1]]))
        }
        _ => panic!("{format} is no float"),
    }
}

/// Reads value `index` of a row stored in a float format, flushed by the rule for float weights.
pub fn read_float(format: Format, row: &[u8], index: usize) -> f32 {
    float::flush(widen(format, row, index))
}

/// Reads row `row` as values, as embeddings need it: `W_i = fma(f32(w_i), a, c)` for block formats
/// (`c` = +0 without offsets), flushed.
pub fn read_row(matrix: &Matrix<'_>, row: usize, out: &mut [f32]) {
    assert_eq!(out.len(), matrix.cols);
    let (format, stored) = (matrix.format, matrix.row(row));
    if format.is_float() {
        for (i, out) in out.iter_mut().enumerate() {
            *out = read_float(format, stored, i);
        }
        return;
    }
    let width = format.block_values();
    let mut w = vec![0; width];
    for (block, out) in out.chunks_exact_mut(width).enumerate() {
        let affine = matrix.read_block(stored, block, &mut w);
        for (out, &w) in out.iter_mut().zip(&w) {
            *out = float::flush(f32::from(w).mul_add(affine.a, affine.c.unwrap_or(0.0)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_back_to_its_format() {
        let all: Vec<Format> = Format::plain_all().chain(Format::mlx_all()).collect();
        assert_eq!(all.len(), 11 + 6 * 3 * 3);
        for format in all {
            assert_eq!(format.to_string().parse(), Ok(format));
            assert!(format.unit_values().is_multiple_of(format.block_values()));
        }
        assert_eq!("MLX7/64/BF16".parse::<Format>(), Err(UnknownFormat));
        let mlx = Mlx { bits: 4, group: 64, scales: Scales::Bf16 };
        assert_eq!(Format::Mlx(mlx).to_string(), "MLX4/64/BF16");
    }
}
