//! norm_project and norm_gated: what they give is what their parts give one after another, which
//! are checked by themselves.

use arith::format::{Format, Matrix};

use super::input::{self, Noise};
use super::linear::Stored;
use super::rowwise::{gather, poisoned, read_back};
use super::{Checks, few_batches};
use crate::{Backend, Normed};

const EPS: f32 = 1e-5;
/// K, outputs, and the formats of gate and factor.
const SHAPES: [(usize, usize, [Format; 2]); 5] = [
    (256, 41, [Format::Q4K, Format::Q4K]),
    (576, 24, [Format::Q8_0, Format::Q8_0]),
    (256, 8, [Format::Q6K, Format::Q6K]),
    (96, 31, [Format::F16, Format::F16]),
    // Which some devices cut in other ways each.
    (288, 40, [Format::Q4_1, Format::Bf16]),
];

pub(super) fn run<B: Backend>(checks: &mut Checks<'_, B>) {
    for (cols, outputs, formats) in SHAPES {
        if checks.over() || gated(checks, cols, outputs, formats).is_none() {
            return;
        }
    }
}

/// `None` where the backend refused a buffer.
fn gated<B: Backend>(
    checks: &mut Checks<'_, B>,
    cols: usize,
    outputs: usize,
    formats: [Format; 2],
) -> Option<()> {
    let case = format!("norm, {} and {} [{outputs}, {cols}], silu", formats[0], formats[1]);
    let mut noise = Noise::new((cols + outputs) as u64);
    let pool = input::pool(&mut noise, checks.level.pool_rows(), cols);
    let stored = formats.map(|format| Stored::new(&mut noise, format, outputs, cols));
    let mut weights = Vec::new();
    for stored in &stored {
        let made = checks.backend.linear(&stored.matrix());
        weights.push(checks.made(&case, made)?);
    }
    let into = [&weights[0], &weights[1]];
    let bytes: Vec<u8> = noise.normals(cols).iter().flat_map(|x| x.to_le_bytes()).collect();
    let made = checks.backend.vector(&Matrix { format: Format::F32, rows: 1, cols, bytes: &bytes });
    let w = checks.made(&case, made)?;
    for batch in few_batches(checks.level) {
        if checks.over() {
            break;
        }
        let rows = batch.len();
        let mut x = poisoned(checks, &case, cols)?;
        checks.backend.upload(&gather(&pool, cols, &batch), &mut x);
        // A set a way: normed rows, gate, factor, product.
        let mut sets = Vec::new();
        for _ in 0..3 {
            let mut set = Vec::new();
            for width in [cols, outputs, outputs, outputs] {
                set.push(poisoned(checks, &case, width)?);
            }
            sets.push(set);
        }
        for (way, set) in sets.iter_mut().enumerate() {
            call(checks.backend, way, (&x, &w), rows, into, set);
        }
        let [parts, rest @ ..] = &sets[..] else { unreachable!("three sets") };
        for (set, way) in rest.iter().zip(["projected", "gated"]) {
            let names = ["normed rows", "gate", "factor", "product"];
            for (i, width) in [cols, outputs, outputs, outputs].into_iter().enumerate() {
                let want = read_back(checks, &parts[i], rows, width);
                let got = read_back(checks, &set[i], rows, width);
                let case = format!("{case}, {rows} rows, {way} at once: {}", names[i]);
                checks.compare_values(&case, &want, &got);
            }
        }
    }
    Some(())
}

/// Norms `x`, projects it and multiplies: in parts, projected at once, gated at once.
fn call<B: Backend>(
    backend: &B,
    way: usize,
    (x, w): (&B::Rows, &B::Vector),
    rows: usize,
    into: [&B::Linear; 2],
    set: &mut [B::Rows],
) {
    let [n, gate, up, out] = set else { unreachable!("four buffers a set") };
    if way == 0 {
        backend.rms_norm(x, w, EPS, rows, n);
        backend.project(n, rows, &into, &mut [&mut *gate, &mut *up]);
        return backend.silu_mul(gate, up, rows, out);
    }
    let from = Normed { x, w, eps: EPS, n };
    if way == 1 {
        backend.norm_project(from, rows, &into, &mut [&mut *gate, &mut *up]);
        return backend.silu_mul(gate, up, rows, out);
    }
    backend.norm_gated(from, rows, into, [gate, up], out);
}
