//! Linear layers of every format, shape, row count and thread count.

use arith::base::Arith;
use arith::format::{Format, Matrix, Mlx, Scales};
use arith::linear::linear;
use backend::Backend;
use proptest::prelude::*;

use crate::{Random, assert_same, backends, backends_of, download, upload};

/// What GGUF files store in blocks.
const GGUF: [Format; 8] = [
    Format::Q4_0,
    Format::Q4_1,
    Format::Q5_0,
    Format::Q5_1,
    Format::Q8_0,
    Format::Q4K,
    Format::Q5K,
    Format::Q6K,
];
const FLOATS: [Format; 3] = [Format::F32, Format::F16, Format::Bf16];

fn mlx(bits: u8, group: u8, scales: Scales) -> Format {
    Format::Mlx(Mlx { bits, group, scales })
}

/// GGUF's formats, then every width of MLX with every group and kind of scales once at least.
fn blocks() -> Vec<Format> {
    let mut all = GGUF.to_vec();
    for (i, bits) in Mlx::BITS.into_iter().enumerate() {
        all.extend((0..3).map(|j| mlx(bits, Mlx::GROUPS[j], Scales::ALL[(i + j) % 3])));
    }
    all.push(mlx(4, 64, Scales::F16));
    all.push(mlx(4, 64, Scales::Bf16));
    all
}

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

fn expected(arith: Arith, matrices: &[Matrix<'_>], x: &[f32]) -> Vec<Vec<f32>> {
    let out = |m: &Matrix<'_>| {
        let mut all = Vec::new();
        for x in x.chunks_exact(m.cols) {
            let mut out = vec![0.0; m.rows];
            linear(arith, m, x, &mut out);
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
    for arith in Arith::ALL {
        let expected = expected(arith, &matrices, &x);
        compare(arith, &matrices, &x, row_counts, &expected);
    }
}

fn compare(
    arith: Arith,
    matrices: &[Matrix<'_>],
    x: &[f32],
    row_counts: &[usize],
    expected: &[Vec<f32>],
) {
    let (most, cols) = (*row_counts.iter().max().unwrap(), matrices[0].cols);
    for (name, cpu) in backends_of(arith) {
        let packed: Vec<_> = matrices.iter().map(|m| cpu.linear(m).unwrap()).collect();
        let packed: Vec<_> = packed.iter().collect();
        let x = upload(&cpu, x, cols);
        for &rows in row_counts {
            let outs = matrices.iter().map(|m| cpu.rows(most, m.rows).unwrap());
            let mut outs: Vec<_> = outs.collect();
            let mut refs: Vec<_> = outs.iter_mut().collect();
            cpu.project(&x, rows, &packed, &mut refs);
            for ((m, out), expected) in matrices.iter().zip(&outs).zip(expected) {
                let case =
                    format!("{name}, arith {arith}: {} {}x{cols}, {rows} rows", m.format, m.rows);
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
    for format in blocks() {
        let cols = if format.unit_values() == 256 { 512 } else { 384 };
        check(&[(format, 21)], cols, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33], 1);
    }
    for format in [Format::Q4_1, Format::Q6K, mlx(4, 128, Scales::F32)] {
        check(&[(format, 9)], 256, &[10, 11, 12, 130], 1);
    }
}

#[test]
fn block_formats_equal_the_reference_for_every_width() {
    for format in blocks() {
        let widths = [32, 64, 128, 224, 256, 288, 1536, 2080, 2304, 4224];
        for (i, cols) in widths.into_iter().enumerate() {
            if cols % format.unit_values() == 0 {
                check(&[(format, [1, 7, 8, 9, 16, 17, 33, 40, 24, 15][i])], cols, &[1, 3, 14], 2);
            }
        }
    }
}

#[test]
fn every_affine_format_equals_the_reference() {
    for format in Format::mlx_all() {
        check(&[(format, 19)], 640, &[1, 2, 9], 9);
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
    let all = blocks().into_iter().chain(FLOATS);
    let shapes: Vec<_> = all.enumerate().map(|(i, f)| (f, 20 + 9 * (i % 8))).collect();
    check(&shapes, 768, &[1, 8, 20], 5);
    let ten: Vec<_> = (0..10).map(|i| (GGUF[i % 5], 8 + i)).collect();
    check(&ten, 96, &[2, 40], 6);
}

#[test]
fn work_that_is_spread_over_the_pool_equals_the_reference() {
    check(&[(Format::Q4_1, 576), (Format::Q8_0, 190)], 576, &[1, 4, 40], 7);
    check(&[(Format::Q4K, 576), (Format::Q6K, 190)], 768, &[1, 4, 40], 7);
}

/// A matrix of `rows` units, all codes and factors `fill`, scales 1 and offsets or minima -1.
fn filled(format: Format, rows: usize, units: usize, fill: u8) -> Vec<u8> {
    let mut bytes = vec![fill; rows * units * format.unit_bytes()];
    let floats: Vec<Vec<u8>> = [1.0_f32, -1.0]
        .into_iter()
        .map(|x| match format {
            Format::Mlx(Mlx { scales: Scales::F32, .. }) => x.to_le_bytes().to_vec(),
            Format::Mlx(Mlx { scales: Scales::Bf16, .. }) => x.to_le_bytes()[2..].to_vec(),
            _ => arith::float::f32_to_f16(x).to_le_bytes().to_vec(),
        })
        .collect();
    for unit in bytes.chunks_exact_mut(format.unit_bytes()) {
        let at = if format == Format::Q6K { 208 } else { 0 };
        let width = floats[0].len();
        unit[at..at + width].copy_from_slice(&floats[0]);
        if format.has_offset() {
            unit[width..2 * width].copy_from_slice(&floats[1]);
        }
    }
    bytes
}

#[test]
fn the_largest_integers_do_not_overflow() {
    // All codes at their extremes, all activations at +-amax: the largest dots there are.
    for format in blocks() {
        for fill in [0x00, 0xff, 0x7f, 0x80] {
            let cols = 512;
            let bytes = filled(format, 9, cols / format.unit_values(), fill);
            let matrix = Matrix { format, rows: 9, cols, bytes: &bytes };
            let rows = 12;
            let sign = |i: usize| {
                if i / cols % 3 == 2 && i.is_multiple_of(2) { -1.0 } else { 1.0 }
            };
            let x: Vec<_> = (0..rows * cols).map(|i| 7.0 * sign(i)).collect();
            for arith in Arith::ALL {
                let expected = expected(arith, &[matrix], &x);
                compare(arith, &[matrix], &x, &[1, 3, rows], &expected);
            }
        }
    }
}

#[test]
fn a_row_looked_up_equals_the_reference() {
    let mut random = Random(8);
    for format in blocks().into_iter().chain(FLOATS) {
        let (rows, cols) = (29, 768);
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
        format in any::<prop::sample::Index>(),
        outputs in 1..70_usize,
        blocks in 1..40_usize,
        odd in 0..32_usize,
        rows in 1..40_usize,
        seed in any::<u64>(),
    ) {
        let all: Vec<_> = self::blocks().into_iter().chain(FLOATS).collect();
        let format = *format.get(&all);
        let cols = (32 * blocks).next_multiple_of(format.unit_values());
        let cols = cols - if format.is_float() { odd } else { 0 };
        check(&[(format, outputs)], cols, &[rows], seed);
    }
}
