//! Linear layers of every format, shape, row count and thread count.

use arith::format::{Format, Matrix};
use arith::linear::linear;
use backend::Backend;
use proptest::prelude::*;

use crate::{Random, assert_same, backends, download, upload};

const BLOCKS: [Format; 3] = [Format::Q4_0, Format::Q4_1, Format::Q8_0];
const FLOATS: [Format; 3] = [Format::F32, Format::F16, Format::Bf16];

/// Rows of every kind: usual, tiny, huge, all zero, one large value among tiny ones, spoilt.
fn inputs(random: &mut Random, rows: usize, cols: usize) -> Vec<f32> {
    let mut x = Vec::new();
    for row in 0..rows {
        let scale = match row % 7 {
            1 | 2 => 2.0_f32.powi(-34),
            6 => 2.0_f32.powi(40),
            3 => 0.0,
            4 => 2.0_f32.powi(-20),
            _ => 4.0,
        };
        x.extend(random.values(cols, scale));
        let last = x.len() - 1;
        match row % 11 {
            4 => x[last] = 1e6,
            6 => x[last] = f32::INFINITY,
            8 => x[last] = 2.0_f32.powi(60),
            9 => x[last] = f32::NAN,
            // Just enough, and not quite enough, not to quantise to zeros.
            1 => x[last] = 2.0_f32.powi(-30),
            2 => x[last] = f32::from_bits(2.0_f32.powi(-30).to_bits() - 1),
            _ => {}
        }
    }
    x
}

fn expected(matrices: &[Matrix<'_>], x: &[f32]) -> Vec<Vec<f32>> {
    let out = |m: &Matrix<'_>| {
        let mut all = Vec::new();
        for x in x.chunks_exact(m.cols) {
            let mut out = vec![0.0; m.rows];
            linear(m, x, &mut out);
            all.extend(out);
        }
        all
    };
    matrices.iter().map(out).collect()
}

/// Checks `shapes` (format, outputs) over one K for several row counts on every backend.
fn check(shapes: &[(Format, usize)], cols: usize, row_counts: &[usize], seed: u64) {
    let mut random = Random(seed);
    let stored: Vec<_> = shapes.iter().map(|&(f, n)| random.stored(f, n, cols)).collect();
    let matrices: Vec<_> = shapes
        .iter()
        .zip(&stored)
        .map(|(&(format, rows), bytes)| Matrix { format, rows, cols, bytes })
        .collect();
    let most = *row_counts.iter().max().unwrap();
    let x = inputs(&mut random, most, cols);
    let expected = expected(&matrices, &x);
    for (name, cpu) in backends() {
        let packed: Vec<_> = matrices.iter().map(|m| cpu.linear(m).unwrap()).collect();
        let packed: Vec<_> = packed.iter().collect();
        let x = upload(&cpu, &x, cols);
        for &rows in row_counts {
            let outs = matrices.iter().map(|m| cpu.rows(most, m.rows).unwrap());
            let mut outs: Vec<_> = outs.collect();
            let mut refs: Vec<_> = outs.iter_mut().collect();
            cpu.project(&x, rows, &packed, &mut refs);
            for ((m, out), expected) in matrices.iter().zip(&outs).zip(&expected) {
                let case = format!("{name}: {} {}x{cols}, {rows} rows", m.format, m.rows);
                let out = download(&cpu, out, most * m.rows);
                let (done, rest) = out.split_at(rows * m.rows);
                assert_same(done, &expected[..rows * m.rows], &case);
                assert!(rest.iter().all(|x| x.to_bits() == 0), "{case}: wrote past its rows");
            }
        }
    }
}

#[test]
fn block_formats_equal_the_reference_for_every_row_count() {
    for format in BLOCKS {
        check(&[(format, 21)], 576, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 17, 33, 130], 1);
    }
}

#[test]
fn block_formats_equal_the_reference_for_every_width() {
    for format in BLOCKS {
        for (i, cols) in [32, 64, 224, 256, 288, 1536, 2080, 2304, 4128].into_iter().enumerate() {
            check(&[(format, [1, 7, 8, 9, 16, 17, 33, 40, 24][i])], cols, &[1, 3, 4, 14], 2);
        }
    }
}

#[test]
fn float_formats_equal_the_reference_for_every_row_count_and_width() {
    for format in FLOATS {
        check(&[(format, 45)], 300, &[1, 2, 3, 4, 5, 8, 9, 17, 130], 3);
        for (i, cols) in [1, 2, 31, 33, 255, 256, 257, 576, 2305].into_iter().enumerate() {
            check(&[(format, [1, 7, 8, 9, 16, 17, 31, 32, 33][i])], cols, &[1, 4, 6], 4);
        }
    }
}

#[test]
fn matrices_of_several_formats_share_one_call() {
    let all = BLOCKS.iter().chain(&FLOATS);
    let shapes: Vec<_> = all.enumerate().map(|(i, &f)| (f, 60 + 9 * i)).collect();
    check(&shapes, 320, &[1, 8, 20], 5);
    let ten: Vec<_> = (0..10).map(|i| (BLOCKS[i % 3], 8 + i)).collect();
    check(&ten, 96, &[2, 40], 6);
}

#[test]
fn work_that_is_spread_over_the_pool_equals_the_reference() {
    check(&[(Format::Q4_1, 576), (Format::Q8_0, 190)], 576, &[1, 4, 40], 7);
}

#[test]
fn the_largest_integers_do_not_overflow() {
    // All codes at their extremes, all activations at +-amax: the largest dots there are.
    for format in BLOCKS {
        for fill in [0x00, 0xff, 0x7f, 0x80] {
            let cols = 512;
            let mut bytes = vec![fill; 9 * cols / 32 * format.unit_bytes()];
            for block in bytes.chunks_exact_mut(format.unit_bytes()) {
                block[..2].copy_from_slice(&0x3c00_u16.to_le_bytes());
                if format.has_offset() {
                    block[2..4].copy_from_slice(&0xbc00_u16.to_le_bytes());
                }
            }
            let matrix = Matrix { format, rows: 9, cols, bytes: &bytes };
            let rows = 12;
            let sign = |i: usize| {
                if i / cols % 3 == 2 && i.is_multiple_of(2) { -1.0 } else { 1.0 }
            };
            let x: Vec<_> = (0..rows * cols).map(|i| 7.0 * sign(i)).collect();
            let expected = expected(&[matrix], &x);
            for (name, cpu) in backends() {
                let packed = cpu.linear(&matrix).unwrap();
                let x = upload(&cpu, &x, cols);
                for rows in [1, 3, rows] {
                    let mut out = cpu.rows(rows, 9).unwrap();
                    cpu.project(&x, rows, &[&packed], &mut [&mut out]);
                    let out = download(&cpu, &out, rows * 9);
                    assert_same(&out, &expected[0][..rows * 9], &name);
                }
            }
        }
    }
}

#[test]
fn a_row_looked_up_equals_the_reference() {
    let mut random = Random(8);
    for format in BLOCKS.into_iter().chain(FLOATS) {
        let (rows, cols) = (29, 96);
        let bytes = random.stored(format, rows, cols);
        let matrix = Matrix { format, rows, cols, bytes: &bytes };
        let ids = [0_u32, 28, 7, 8, 8, 15, 16];
        let mut expected = Vec::new();
        for id in ids {
            let mut row = vec![0.0; cols];
            arith::format::read_row(&matrix, id as usize, &mut row);
            expected.extend(row);
        }
        for (name, cpu) in backends() {
            let table = cpu.linear(&matrix).unwrap();
            let mut out = cpu.rows(ids.len(), cols).unwrap();
            cpu.embed(&table, &ids, &mut out);
            assert_same(&download(&cpu, &out, ids.len() * cols), &expected, &name);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn any_shape_equals_the_reference(
        format in 0..6_usize,
        outputs in 1..70_usize,
        blocks in 1..40_usize,
        odd in 0..32_usize,
        rows in 1..40_usize,
        seed in any::<u64>(),
    ) {
        let format = [BLOCKS, FLOATS].concat()[format];
        let cols = 32 * blocks - if format.is_float() { odd } else { 0 };
        check(&[(format, outputs)], cols, &[rows], seed);
    }
}
