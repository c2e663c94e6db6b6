//! rms_norm, rope, silu_mul, gate and add, and how ops that take rows one by one are called.

use arith::exp::{EXP_MAX, EXP_MIN, sigmoid, silu};
use arith::float::flush;
use arith::format::{Format, Matrix, read_float};
use arith::rope::{Pairing, RopeRows, rotate};

use super::input::{self, Noise, POISON};
use super::{Checks, batches};
use crate::Backend;

const ODD_WIDTHS: [usize; 6] = [1, 5, 31, 32, 33, 67];

pub(super) fn run<B: Backend>(checks: &mut Checks<'_, B>) {
    norms(checks);
    ropes(checks);
    elementwise(checks);
    dense_silu(checks);
}

/// Rows of the pool in batch order.
pub(super) fn gather(pool: &[f32], width: usize, batch: &[usize]) -> Vec<f32> {
    batch.iter().flat_map(|&p| &pool[p * width..(p + 1) * width]).copied().collect()
}

/// A buffer of two rows more than the largest batch, full of poison.
pub(super) fn poisoned<B: Backend>(
    checks: &mut Checks<'_, B>,
    case: &str,
    width: usize,
) -> Option<B::Rows> {
    let rows = checks.level.pool_rows() + 2;
    let made = checks.backend.rows(rows, width);
    let mut buffer = checks.made(case, made)?;
    checks.backend.upload(&vec![POISON; rows * width], &mut buffer);
    Some(buffer)
}

/// The batch's rows and the two after them.
pub(super) fn read_back<B: Backend>(
    checks: &Checks<'_, B>,
    from: &B::Rows,
    rows: usize,
    width: usize,
) -> Vec<f32> {
    let mut got = vec![0.0; (rows + 2) * width];
    checks.backend.download(from, 0, &mut got);
    got
}

/// A buffer of an op that takes rows one by one.
pub(super) struct Operand<'a> {
    /// `[pool rows, width]`; empty for one that holds nothing but poison before the call.
    pub pool: &'a [f32],
    pub width: usize,
    /// Values that stand alone: a row, or a head of it.
    pub part: usize,
}

impl<'a> Operand<'a> {
    pub fn new(pool: &'a [f32], width: usize) -> Self {
        Self { pool, width, part: width }
    }

    pub fn poison(width: usize) -> Self {
        Self::new(&[], width)
    }

    /// The same, of rows whose parts of `part` values stand alone.
    pub fn in_parts(self, part: usize) -> Self {
        Self { part, ..self }
    }
}

/// Calls an op with some batches of the pool. The op is given the buffer of the first operand,
/// which it writes, those of the others, and the batch.
pub(super) fn sweep<B: Backend>(
    checks: &mut Checks<'_, B>,
    case: &str,
    batches: &[Vec<usize>],
    operands: &[Operand<'_>],
    want: &[f32],
    op: impl Fn(&B, &mut B::Rows, &[B::Rows], &[usize]),
) {
    for batch in batches {
        if checks.over() {
            return;
        }
        let mut buffers = Vec::new();
        for &Operand { pool, width, .. } in operands {
            let Some(mut buffer) = poisoned(checks, case, width) else {
                return;
            };
            if !pool.is_empty() {
                checks.backend.upload(&gather(pool, width, batch), &mut buffer);
            }
            buffers.push(buffer);
        }
        let (out, others) = buffers.split_first_mut().expect("an op has operands");
        op(checks.backend, out, others, batch);
        let Operand { width, part, .. } = operands[0];
        let got = read_back(checks, out, batch.len(), width);
        let parts = width / part;
        let batch: Vec<_> = batch.iter().flat_map(|p| p * parts..(p + 1) * parts).collect();
        checks.compare(case, part, want, &batch, &got);
    }
}

/// A vector of weights: as the backend holds it, and its values.
pub(super) fn weights<B: Backend>(
    checks: &mut Checks<'_, B>,
    case: &str,
    format: Format,
    bytes: &[u8],
) -> Option<(B::Vector, Vec<f32>)> {
    let cols = bytes.len() / format.unit_bytes();
    let made = checks.backend.vector(&Matrix { format, rows: 1, cols, bytes });
    let values = (0..cols).map(|i| read_float(format, bytes, i)).collect();
    Some((checks.made(case, made)?, values))
}

fn norms<B: Backend>(checks: &mut Checks<'_, B>) {
    let wide: &[usize] = checks.level.pick(&[64, 576], &[64, 256, 576, 1536, 2048, 5120]);
    for (i, &width) in ODD_WIDTHS.iter().chain(wide).enumerate() {
        let format = [Format::F32, Format::F16, Format::Bf16][i % 3];
        let eps = [1e-5, 1e-6][i % 2];
        norm(checks, width, format, eps);
    }
}

fn norm<B: Backend>(checks: &mut Checks<'_, B>, width: usize, format: Format, eps: f32) {
    if checks.over() {
        return;
    }
    let case = format!("rms_norm [{width}], weights {}, eps {eps:e}", format);
    let mut noise = Noise::new(width as u64);
    let pool = input::pool(&mut noise, checks.level.pool_rows(), width);
    let bytes = input::matrix(&mut noise, format, 1, width);
    let Some((vector, w)) = weights(checks, &case, format, &bytes) else {
        return;
    };
    let mut want = vec![0.0; pool.len()];
    checks.reference(&case, || {
        for (x, y) in pool.chunks_exact(width).zip(want.chunks_exact_mut(width)) {
            arith::norm::rms_norm(x, &w, eps, y);
        }
    });
    let operands = [Operand::poison(width), Operand::new(&pool, width)];
    sweep(checks, &case, &batches(checks.level), &operands, &want, |backend, out, x, batch| {
        backend.rms_norm(&x[0], &vector, eps, batch.len(), out);
    });
}

/// Heads, dim, rotated dims, pairing, theta.
type RopeShape = (usize, usize, usize, Pairing, f64);

fn ropes<B: Backend>(checks: &mut Checks<'_, B>) {
    let shapes: [RopeShape; 8] = [
        (9, 64, 64, Pairing::Adjacent, 1e5),
        (3, 64, 64, Pairing::Halves, 1e4),
        (2, 256, 64, Pairing::Halves, 1e7),
        (1, 6, 6, Pairing::Adjacent, 1e4),
        (2, 24, 20, Pairing::Adjacent, 5e5),
        (3, 22, 10, Pairing::Halves, 5e5),
        (1, 128, 128, Pairing::Adjacent, 5e5),
        (32, 128, 128, Pairing::Halves, 5e5),
    ];
    let count = checks.level.pick(6, 8);
    shapes[..count].iter().for_each(|&shape| rope(checks, shape));
}

fn rope<B: Backend>(checks: &mut Checks<'_, B>, shape: RopeShape) {
    if checks.over() {
        return;
    }
    let (heads, dim, dims, pairing, theta) = shape;
    let width = heads * dim;
    let case = format!("rope {heads} x {dim}, {dims} rotated, {pairing:?}, theta {theta:e}");
    let mut noise = Noise::new(dims as u64);
    let pool = input::pool(&mut noise, checks.level.pool_rows(), width);
    let positions: Vec<u32> = (0..checks.level.pool_rows())
        .map(|r| [0, 1, 63, 64, 8191].get(r).copied().unwrap_or(noise.below(1 << 18) as u32))
        .collect();
    let mut want = pool.clone();
    checks.reference(&case, || {
        let table = RopeRows::new(theta, dims, &positions);
        for (r, row) in want.chunks_exact_mut(width).enumerate() {
            rotate(row, heads, dim, pairing, &table, r);
        }
    });
    let operands = [Operand::new(&pool, width)];
    sweep(checks, &case, &batches(checks.level), &operands, &want, |backend, x, _, batch| {
        let at: Vec<u32> = batch.iter().map(|&p| positions[p]).collect();
        backend.rope(x, heads, dim, pairing, &RopeRows::new(theta, dims, &at));
    });
}

/// Two pools of which some values nearly cancel: to sums of both signs that the flush takes, and to
/// the least that it leaves.
fn cancelling(a: &[f32], b: &[f32]) -> [Vec<f32>; 2] {
    /// In halves of the least value that stays; their sums are 1, -1, 2 and -2.
    const PAIRS: [(f32, f32); 4] = [(3.0, -2.0), (2.0, -3.0), (4.0, -2.0), (2.0, -4.0)];
    let half = f32::from_bits(0x2d00_0000); // 2^-37
    let [mut a, mut b] = [a.to_vec(), b.to_vec()];
    let places = a.iter_mut().zip(&mut b).step_by(3);
    // What is spoilt stays so.
    let sound = places.filter(|(x, y)| x.is_finite() && y.is_finite());
    for ((x, y), (p, q)) in sound.zip(PAIRS.iter().cycle()) {
        (*x, *y) = (p * half, q * half);
    }
    [a, b]
}

fn elementwise<B: Backend>(checks: &mut Checks<'_, B>) {
    let wide: &[usize] = checks.level.pick(&[576], &[192, 576, 1536, 5120]);
    for &width in ODD_WIDTHS.iter().chain(wide) {
        if checks.over() {
            return;
        }
        let [a, b] = &input::pools(900 + width as u64, checks.level.pool_rows(), width);
        let (a, b) = (Operand::new(a, width), Operand::new(b, width));
        let each = |op: fn(f32, f32) -> f32| -> Vec<f32> {
            a.pool.iter().zip(b.pool).map(|(&a, &b)| flush(op(a, b))).collect()
        };
        let case = format!("add [{width}]");
        let [x, y] = &cancelling(a.pool, b.pool);
        let sums = || -> Vec<f32> { x.iter().zip(y).map(|(x, y)| flush(x + y)).collect() };
        let want = checks.reference(&case, sums);
        let summands = [Operand::new(x, width), Operand::new(y, width)];
        sweep(checks, &case, &batches(checks.level), &summands, &want, |backend, x, y, batch| {
            backend.add(x, &y[0], batch.len());
        });
        let operands = [Operand::new(a.pool, width), Operand::new(b.pool, width)];
        let case = format!("gate [{width}]");
        let want = checks.reference(&case, || each(|x, gate| x * sigmoid(gate)));
        sweep(
            checks,
            &case,
            &batches(checks.level),
            &operands,
            &want,
            |backend, x, gate, batch| {
                backend.gate(x, &gate[0], batch.len());
            },
        );
        let case = format!("silu_mul [{width}]");
        let want = checks.reference(&case, || each(|gate, up| silu(gate) * up));
        let operands = [Operand::poison(width), a, b];
        sweep(checks, &case, &batches(checks.level), &operands, &want, |backend, out, x, batch| {
            backend.silu_mul(&x[0], &x[1], batch.len(), out);
        });
    }
}

/// silu, and with it exp, over evenly chosen f32 values of its whole domain.
fn dense_silu<B: Backend>(checks: &mut Checks<'_, B>) {
    const WIDTH: usize = 1 << 10;
    let step = checks.level.pick(16_411, 257);
    let tiny = 0x2b80_0000u32; // 2^-40
    let side = |end: f32, sign: f32| {
        let end = (sign * end).to_bits();
        (tiny..=end).step_by(step).map(move |b| sign * f32::from_bits(b))
    };
    let mut values: Vec<f32> = side(EXP_MIN - 2.0, -1.0).chain(side(EXP_MAX + 2.0, 1.0)).collect();
    values.extend([0.0, -0.0, EXP_MIN, EXP_MAX, -EXP_MAX]);
    values.resize(values.len().next_multiple_of(WIDTH), 1.0);
    let case = "silu_mul over its domain";
    // A factor of 2^20 keeps what lies below -40 from being flushed unseen.
    let up = [1.0, 1_048_576.0];
    for (i, gate) in values.chunks_exact(WIDTH).enumerate() {
        if checks.over() {
            return;
        }
        let up = vec![up[i % 2]; WIDTH];
        let want: Vec<f32> = checks
            .reference(case, || gate.iter().zip(&up).map(|(&g, &u)| flush(silu(g) * u)).collect());
        let made = [1, 1, 3].map(|rows| checks.backend.rows(rows, WIDTH));
        let [g, u, out] = made.map(|made| checks.made(case, made));
        let (Some(mut g), Some(mut u), Some(mut out)) = (g, u, out) else {
            return;
        };
        checks.backend.upload(gate, &mut g);
        checks.backend.upload(&up, &mut u);
        checks.backend.silu_mul(&g, &u, 1, &mut out);
        let mut got = vec![0.0; WIDTH];
        checks.backend.download(&out, 0, &mut got);
        checks.compare(case, WIDTH, &want, &[0], &got);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn every_row_count_is_tried_and_every_pool_row_used() {
        for level in [Level::Quick, Level::Full] {
            let all = batches(level);
            for n in level.row_counts() {
                assert!(all.iter().any(|b| b.len() == *n));
            }
            for row in 0..level.pool_rows() {
                assert!(all.iter().any(|b| b.contains(&row)));
            }
        }
    }
}
