//! Storage formats of matrices and what each means: `W = a * w + c` a block, or a plain float.

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
    /// Blocks of 32: f16 scale, 32 signed bytes.
    Q8_0,
}

/// Scale and offset of one block; `c` is `None` where the format has no offsets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine {
    /// Scale; +0 where its stored magnitude is below 2^-30.
    pub a: f32,
    /// Offset, by the same rule.
    pub c: Option<f32>,
}

impl Format {
    /// The name that files, logs and errors use.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q8_0 => "Q8_0",
        }
    }

    /// Whether linear layers over this format take section 3's float path.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// Values a block (1 for floats).
    pub fn block_values(self) -> usize {
        if self.is_float() { 1 } else { 32 }
    }

    /// Stored bytes a block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q8_0 => 34,
        }
    }

    /// Whether blocks carry an offset `c`.
    pub fn has_offset(self) -> bool {
        matches!(self, Self::Q4_1)
    }
}

/// A matrix `[rows, cols]` (outputs, K) in its stored form; row-major, `bytes` borrowed from
/// their reader. `cols` is a multiple of the format's block.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Storage of the values.
    pub format: Format,
    /// Outputs.
    pub rows: usize,
    /// Values along K.
    pub cols: usize,
    /// Stored form, `rows * cols / block_values * block_bytes` long.
    pub bytes: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// Bytes of one stored row.
    pub fn row_bytes(&self) -> usize {
        self.cols / self.format.block_values() * self.format.block_bytes()
    }

    /// The stored bytes of row `row`.
    pub fn row(&self, row: usize) -> &'a [u8] {
        let n = self.row_bytes();
        &self.bytes[row * n..(row + 1) * n]
    }
}

/// Reads one stored block of a block format: its integers into `w` (`block_values` long), its
/// scale and offset as the result.
pub fn read_block(format: Format, bytes: &[u8], w: &mut [i16]) -> Affine {
    let f16 = |at: usize| {
        float::flush_scale(float::f16_to_f32(u16::from_le_bytes([bytes[at], bytes[at + 1]])))
    };
    let nibbles = |from: usize, shift: i16, w: &mut [i16]| {
        for i in 0..16 {
            let byte = bytes[from + i];
            w[i] = i16::from(byte & 15) - shift;
            w[i + 16] = i16::from(byte >> 4) - shift;
        }
    };
    match format {
        Format::Q4_0 => {
            nibbles(2, 8, w);
            Affine { a: f16(0), c: None }
        }
        Format::Q4_1 => {
            nibbles(4, 0, w);
            Affine { a: f16(0), c: Some(f16(2)) }
        }
        Format::Q8_0 => {
            for i in 0..32 {
                w[i] = i16::from(bytes[2 + i] as i8);
            }
            Affine { a: f16(0), c: None }
        }
        Format::F32 | Format::F16 | Format::Bf16 => panic!("{} has no blocks", format.name()),
    }
}

/// Reads value `index` of a row stored in a float format, flushed by the rule for float weights.
pub fn read_float(format: Format, row: &[u8], index: usize) -> f32 {
    let half = |at: usize| u16::from_le_bytes([row[at], row[at + 1]]);
    float::flush(match format {
        Format::F32 => {
            let at = 4 * index;
            f32::from_le_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]])
        }
        Format::F16 => float::f16_to_f32(half(2 * index)),
        Format::Bf16 => float::bf16_to_f32(half(2 * index)),
        Format::Q4_0 | Format::Q4_1 | Format::Q8_0 => panic!("{} is no float", format.name()),
    })
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
    let blocks = stored.chunks_exact(format.block_bytes());
    for (out, block) in out.chunks_exact_mut(width).zip(blocks) {
        let affine = read_block(format, block, &mut w);
        for (out, &w) in out.iter_mut().zip(&w) {
            *out = float::flush(f32::from(w).mul_add(affine.a, affine.c.unwrap_or(0.0)));
        }
    }
}
