//! Ops on the heads of a row: head_norm, gated_norm and gates; and copy_rows.

use arith::format::Format;
use arith::gdn;

use super::input::{self, Noise, POISON};
use super::rowwise::{Operand, poisoned, sweep, weights};
use super::{Checks, batches};
use crate::Backend;

/// Heads, and values of each.
type Shape = (usize, usize);

const QUICK: [Shape; 5] = [(3, 20), (6, 32), (4, 64), (3, 128), (2, 256)];
const FULL: [Shape; 8] =
    [(3, 20), (1, 7), (6, 32), (8, 64), (16, 128), (48, 128), (24, 256), (4, 256)];

pub(super) fn run<B: Backend>(checks: &mut Checks<'_, B>) {
    let shapes: &[Shape] = checks.level.pick(&QUICK, &FULL);
    for (i, &shape) in shapes.iter().enumerate() {
        if checks.over() {
            return;
        }
        let format = [Format::F32, Format::Bf16, Format::F16][i % 3];
        norms(checks, shape, format, [1e-6, 1e-5][i % 2]);
    }
    for heads in checks.level.pick([6, 3, 130], [6, 48, 1030]) {
        gates(checks, heads);
    }
    for width in [1, 5, 64, 576] {
        copy_rows(checks, width);
    }
}

fn norms<B: Backend>(checks: &mut Checks<'_, B>, shape: Shape, format: Format, eps: f32) {
    let (heads, dim) = shape;
    let width = heads * dim;
    let [x, z] = &input::pools(width as u64, checks.level.pool_rows(), width);
    let bytes = input::matrix(&mut Noise::new(dim as u64), format, 1, dim);
    let case = format!("head_norm {heads} x {dim}, weights {format}, eps {eps:e}");
    let Some((vector, w)) = weights(checks, &case, format, &bytes) else {
        return;
    };
    let mut want = vec![0.0; x.len()];
    checks.reference(&case, || {
        for (x, y) in x.chunks_exact(dim).zip(want.chunks_exact_mut(dim)) {
            arith::norm::rms_norm(x, &w, eps, y);
        }
    });
    let operands = [Operand::new(x, width).in_parts(dim), Operand::new(z, width)];
    sweep(checks, &case, &batches(checks.level), &operands[..1], &want, |backend, x, _, batch| {
        backend.head_norm(x, &vector, eps, batch.len());
    });
    let case = format!("gated_norm {heads} x {dim}, weights {format}, eps {eps:e}");
    want.copy_from_slice(x);
    checks.reference(&case, || {
        for (x, z) in want.chunks_exact_mut(dim).zip(z.chunks_exact(dim)) {
            gdn::gated_norm(x, &w, z, eps);
        }
    });
    sweep(checks, &case, &batches(checks.level), &operands, &want, |backend, x, z, batch| {
        backend.gated_norm(x, &vector, &z[0], eps, batch.len());
    });
}

fn gates<B: Backend>(checks: &mut Checks<'_, B>, heads: usize) {
    if checks.over() {
        return;
    }
    let case = format!("gates of {heads} heads");
    let mut noise = Noise::new(heads as u64);
    let rows = checks.level.pool_rows();
    let [mut b, mut a] = input::pools(70 + heads as u64, rows, heads);
    // Every other row over the whole domain of exp.
    for row in b.chunks_exact_mut(heads).chain(a.chunks_exact_mut(heads)).step_by(2) {
        row.fill_with(|| 10.0 + 65.0 * noise.unit());
    }
    let mut vector = |low, high, sign: fn(f32) -> f32| -> Vec<u8> {
        (0..heads).flat_map(|_| sign(noise.spread(low, high)).to_le_bytes()).collect()
    };
    let (dt_bias, amplitude) = (vector(-4, 3, |x| x), vector(-8, 5, f32::abs));
    let [dt_bias, amplitude] =
        [dt_bias, amplitude].map(|bytes| weights(checks, &case, Format::F32, &bytes));
    let (Some((dt_bias, dt_values)), Some((amplitude, amplitudes))) = (dt_bias, amplitude) else {
        return;
    };
    let mut want = Vec::new();
    checks.reference(&case, || {
        for (b, a) in b.chunks_exact(heads).zip(a.chunks_exact(heads)) {
            want.extend(b.iter().map(|&b| gdn::beta(b)));
            let each = a.iter().zip(&dt_values).zip(&amplitudes);
            want.extend(each.map(|((&a, &dt), &amplitude)| gdn::decay(a, dt, amplitude)));
        }
    });
    let out = Operand::poison(2 * heads).in_parts(1);
    let operands = [out, Operand::new(&b, heads), Operand::new(&a, heads)];
    sweep(checks, &case, &batches(checks.level), &operands, &want, |backend, out, x, batch| {
        backend.gates(&x[0], &x[1], &dt_bias, &amplitude, batch.len(), out);
    });
}

fn copy_rows<B: Backend>(checks: &mut Checks<'_, B>, width: usize) {
    let case = format!("copy_rows [{width}]");
    let rows = checks.level.pool_rows();
    let pool = Noise::new(width as u64).normals(rows * width);
    for (i, &count) in checks.level.row_counts().iter().enumerate() {
        if checks.over() {
            return;
        }
        let [Some(mut from), Some(mut to)] = [0, 1].map(|_| poisoned(checks, &case, width)) else {
            return;
        };
        checks.backend.upload(&pool, &mut from);
        let (first, at) = ((rows - count) / 2, [2, 0, 1][i % 3]);
        checks.backend.copy_rows(&from, first, count, &mut to, at);
        let mut want = vec![POISON; (rows + 2) * width];
        want[at * width..][..count * width]
            .copy_from_slice(&pool[first * width..][..count * width]);
        let mut got = vec![0.0; want.len()];
        checks.backend.download(&to, 0, &mut got);
        checks.compare_values(&case, &want, &got);
    }
}
