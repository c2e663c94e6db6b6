//! Norm, rotation, gate and sum.

use arith::rope::{Pairing, RopeRows};
use backend::Backend;

use crate::{Random, assert_same, backends, download, upload};

const ROWS: [usize; 4] = [1, 2, 9, 70];

fn usual(random: &mut Random, rows: usize, width: usize) -> Vec<f32> {
    let mut x = Vec::new();
    for row in 0..rows {
        let scale = [1.0, 2.0_f32.powi(-38), 60.0, 0.0, 2.0_f32.powi(-19)][row % 5];
        x.extend(random.values(width, scale));
    }
    x
}

#[test]
fn norms_equal_the_reference() {
    let mut random = Random(11);
    for width in [1, 5, 8, 31, 32, 33, 64, 100, 576, 1000] {
        let w = random.values(width, 2.0);
        let bytes: Vec<u8> = w.iter().flat_map(|w| w.to_le_bytes()).collect();
        let format = arith::format::Format::F32;
        let matrix = arith::format::Matrix { format, rows: 1, cols: width, bytes: &bytes };
        let mut x = usual(&mut random, 70, width);
        x[7 * width] = f32::NAN;
        x[8 * width] = 2.0_f32.powi(60);
        let mut expected = vec![0.0; x.len()];
        for (x, out) in x.chunks_exact(width).zip(expected.chunks_exact_mut(width)) {
            arith::norm::rms_norm(x, &w, 1e-5, out);
        }
        for (name, cpu) in backends() {
            let w = cpu.vector(&matrix).unwrap();
            let rows = upload(&cpu, &x, width);
            for n in ROWS {
                let mut out = cpu.rows(n, width).unwrap();
                cpu.rms_norm(&rows, &w, 1e-5, n, &mut out);
                let out = download(&cpu, &out, n * width);
                assert_same(&out, &expected[..n * width], &format!("{name}, width {width}"));
            }
        }
    }
}

#[test]
fn rotations_equal_the_reference() {
    let mut random = Random(12);
    for pairing in [Pairing::Adjacent, Pairing::Halves] {
        for (heads, dim, dims) in [(9, 64, 64), (3, 20, 12), (2, 256, 64), (1, 8, 2)] {
            for n in ROWS {
                let positions: Vec<_> = (0..n).map(|_| random.bits() % 5000).collect();
                let rope = RopeRows::new(1e5, dims, &positions);
                let x = usual(&mut random, n, heads * dim);
                let mut expected = x.clone();
                for (row, x) in expected.chunks_exact_mut(heads * dim).enumerate() {
                    arith::rope::rotate(x, heads, dim, pairing, &rope, row);
                }
                for (name, cpu) in backends() {
                    let mut rows = upload(&cpu, &x, heads * dim);
                    cpu.rope(&mut rows, heads, dim, pairing, &rope);
                    assert_same(&download(&cpu, &rows, x.len()), &expected, &name);
                }
            }
        }
    }
}

#[test]
fn gates_equal_the_reference() {
    let mut random = Random(13);
    for width in [1, 7, 8, 9, 40, 1536] {
        let gate = usual(&mut random, 70, width);
        let up = usual(&mut random, 70, width);
        let value = |(g, u): (&f32, &f32)| arith::float::flush(arith::exp::silu(*g) * u);
        let expected: Vec<_> = gate.iter().zip(&up).map(value).collect();
        for (name, cpu) in backends() {
            let (gate, up) = (upload(&cpu, &gate, width), upload(&cpu, &up, width));
            for n in ROWS {
                let mut out = cpu.rows(n, width).unwrap();
                cpu.silu_mul(&gate, &up, n, &mut out);
                assert_same(&download(&cpu, &out, n * width), &expected[..n * width], &name);
            }
        }
    }
}

#[test]
fn silu_equals_the_reference_over_its_domain() {
    // Every 997th f32 of both signs, whatever it is but NaN.
    let finite = |x: &f32| !x.is_nan();
    let gate: Vec<f32> = (0..u32::MAX / 997).map(|i| f32::from_bits(i * 997)).collect();
    let gate: Vec<f32> = gate.into_iter().filter(finite).collect();
    let gate = &gate[..gate.len() / 64 * 64];
    let expected: Vec<_> = gate.iter().map(|&g| arith::float::flush(arith::exp::silu(g))).collect();
    for (name, cpu) in backends() {
        let n = gate.len() / 64;
        let rows = upload(&cpu, gate, 64);
        let ones = upload(&cpu, &vec![1.0; gate.len()], 64);
        let mut out = cpu.rows(n, 64).unwrap();
        cpu.silu_mul(&rows, &ones, n, &mut out);
        assert_same(&download(&cpu, &out, gate.len()), &expected, &name);
    }
}

#[test]
fn sums_equal_the_reference() {
    let mut random = Random(14);
    for width in [1, 9, 576] {
        let (x, y) = (usual(&mut random, 70, width), usual(&mut random, 70, width));
        let value = |(x, y): (&f32, &f32)| arith::float::flush(x + y);
        let expected: Vec<_> = x.iter().zip(&y).map(value).collect();
        for (name, cpu) in backends() {
            for n in ROWS {
                let mut rows = upload(&cpu, &x, width);
                cpu.add(&mut rows, &upload(&cpu, &y, width), n);
                let out = download(&cpu, &rows, n * width);
                assert_same(&out, &expected[..n * width], &name);
            }
        }
    }
}
