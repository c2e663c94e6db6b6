//! Linear layers of arith 2 as a given [`Defect`] has them.

use std::ops::Range;

use arith::a8::{A8, BLOCK_VALUES, Q_MAX, quantise_block};
use arith::base::SLICE_VALUES;
use arith::format::Matrix;

use super::Defect;
use super::planted::{misread, multiply_add};

/// A row in 8 bits.
pub(super) fn quantise(defect: Defect, x: &[f32]) -> A8 {
    let mut all = A8::default();
    for x in x.chunks(BLOCK_VALUES) {
        let mut q = vec![0; x.len()];
        let d = quantise_block(x, &mut q);
        if defect == Defect::TieAway && d > 0.0 {
            let amax = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            let inv = f32::from(Q_MAX) / amax;
            q = x.iter().map(|x| (x * inv).round() as i8).collect();
        }
        all.q.extend(q);
        all.d.push(d);
    }
    all
}

/// Some values of a row that a block of weights and one of activations share.
struct Piece<'a> {
    dot: i32,
    q: &'a [i8],
    /// Activations of the whole weight block.
    block: &'a [i8],
    /// Whether it is the first of its weight block.
    first: bool,
    a: f32,
    c: Option<f32>,
    d: f32,
}

/// A group's sum after one more slice.
pub(super) fn add_slice(
    defect: Defect,
    m: &Matrix<'_>,
    n: usize,
    values: Range<usize>,
    x: &A8,
    g: f32,
) -> f32 {
    let width = m.format.block_values();
    let slice = values.start / SLICE_VALUES * (SLICE_VALUES / BLOCK_VALUES);
    let mut w = vec![0; width];
    let (mut acc, mut apart, mut held) = (0.0, 0.0, 0);
    for from in values.step_by(width) {
        let mut affine = m.read_block(m.row(n), from / width, &mut w);
        misread(defect, m, n, from / width, &mut w, &mut affine);
        for (piece, w) in w.chunks(BLOCK_VALUES).enumerate() {
            let at = from + piece * BLOCK_VALUES;
            let q = &x.q[at..at + w.len()];
            let mut dot: i32 = w.iter().zip(q).map(|(&w, &q)| i32::from(w) * i32::from(q)).sum();
            if defect == Defect::PairedBlocks && width == 16 {
                dot += std::mem::take(&mut held);
                if from % 32 == 0 {
                    held = dot;
                    continue;
                }
            }
            let d = match defect {
                Defect::FirstScale => x.d[slice],
                Defect::SliceScale => 1.0,
                _ => x.d[at / BLOCK_VALUES],
            };
            let block = &x.q[from..from + width];
            let piece = Piece { dot, q, block, first: piece == 0, a: affine.a, c: affine.c, d };
            (acc, apart) = add_piece(defect, &piece, acc, apart);
        }
    }
    let sum = acc + apart;
    if defect == Defect::SliceScale { multiply_add(defect, sum, x.d[slice], g) } else { g + sum }
}

/// The two fmas of one piece.
fn add_piece(defect: Defect, piece: &Piece<'_>, acc: f32, apart: f32) -> (f32, f32) {
    let &Piece { dot, q, block, first, a, c, d } = piece;
    let term = |x: i32, scale: f32, acc: f32| match defect {
        Defect::UnroundedScale => (x as f32 * scale).mul_add(d, acc),
        _ => multiply_add(defect, x as f32, scale * d, acc),
    };
    let acc = term(dot, a, acc);
    let Some(c) = c else {
        return (acc, apart);
    };
    let sum = |q: &[i8]| q.iter().map(|&q| i32::from(q)).sum();
    let sum = match (defect, first) {
        (Defect::WideSums, true) => sum(block),
        (Defect::WideSums, false) => 0,
        _ => sum(q),
    };
    match defect {
        Defect::OffsetsApart => (acc, term(sum, c, apart)),
        _ => (term(sum, c, acc), apart),
    }
}
