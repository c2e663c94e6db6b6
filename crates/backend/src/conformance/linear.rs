//! project (block and float formats) and embed.

use arith::base::Arith;
use arith::format::{Format, Matrix, Mlx, Scales, read_row};
use arith::linear::{GROUPS, Groups, linear, linear_share};

use super::input::{self, Noise};
use super::rowwise::{Operand, gather, poisoned, read_back, sweep};
use super::{Checks, Level, batches, few_batches, fused};
use crate::Backend;

/// K and the outputs of the matrices that one call projects to.
type Shape = (usize, &'static [usize]);

const QUICK: [Shape; 5] =
    [(32, &[1, 7]), (256, &[9]), (288, &[13]), (576, &[24, 9]), (2304, &[10])];
const QUICK_FLOAT: [Shape; 4] = [(1, &[3]), (7, &[9]), (257, &[8, 3]), (2304, &[5])];
/// Small and odd shapes, SmolLM2 in full, then cuts of wider families.
const FULL: [Shape; 13] = [
    (32, &[1, 7]),
    (96, &[33]),
    (256, &[64, 16]),
    (288, &[13]),
    (768, &[40]),
    (800, &[31, 1, 8]),
    (576, &[576, 192, 192]),
    (576, &[1536, 1536]),
    (1536, &[576]),
    (2048, &[96]),
    (5120, &[40, 24]),
    (6144, &[24]),
    (17408, &[16]),
];
const FULL_FLOAT: [Shape; 9] = [
    (1, &[3]),
    (7, &[9]),
    (255, &[17]),
    (257, &[8, 3]),
    (576, &[192, 64]),
    (1536, &[72]),
    (2048, &[33]),
    (5120, &[16]),
    (17408, &[4]),
];

/// Outputs that a large card shares among its multiprocessors: more than all its blocks take at
/// once, and so few that some blocks take half of what others do.
const WIDE: [Shape; 2] = [(2_304, &[8_480]), (512, &[4_320])];

/// The MLX format that is called with every batch; the others are with a few.
const MLX: Format = Format::Mlx(Mlx { bits: 4, group: 64, scales: Scales::Bf16 });

/// K and the formats of shares: groups of one and two slices, the last one short, and of four.
const SHARED: [(usize, Format); 6] = [
    (2_208, Format::Q4_1),
    (2_208, Format::Q8_0),
    (2_304, Format::Q6K),
    (2_301, Format::Bf16),
    (2_304, MLX),
    (8_192, Format::Q8_0),
];

pub(super) fn run<B: Backend>(checks: &mut Checks<'_, B>) {
    let (blocks, floats): (&[Shape], &[Shape]) = match checks.level {
        Level::Quick => (&QUICK, &QUICK_FLOAT),
        Level::Full => (&FULL, &FULL_FLOAT),
    };
    let (every, few) = (batches(checks.level), few_batches(checks.level));
    let main: Vec<Format> = Format::plain_all().chain([MLX]).collect();
    for &format in &main {
        let batches = match format {
            Format::Q5_0 | Format::Q5_1 | Format::Q5K | Format::Q6K => &few,
            _ => &every,
        };
        for &(cols, outputs) in if format.is_float() { floats } else { blocks } {
            if cols.is_multiple_of(format.unit_values()) {
                let matrices: Vec<_> = outputs.iter().map(|&rows| (format, rows)).collect();
                project(checks, cols, &matrices, batches);
            }
        }
    }
    // One call over many formats at once.
    let mixed: Vec<_> =
        main.iter().copied().zip([16, 8, 9, 5, 24, 1, 2].into_iter().cycle()).collect();
    project(checks, 512, &mixed, &few);
    let mlx_all: Vec<_> = Format::mlx_all().zip([3, 1, 9, 2].into_iter().cycle()).collect();
    for matrices in mlx_all.chunks(9) {
        for &cols in checks.level.pick(&[384][..], &[128, 384, 5120, 17408]) {
            project(checks, cols, matrices, &few);
        }
    }
    for format in [MLX, Format::Q4_0, Format::Q4K] {
        for (cols, outputs) in WIDE {
            let matrices: Vec<_> = outputs.iter().map(|&rows| (format, rows)).collect();
            project(checks, cols, &matrices, &[vec![0], vec![0, 1, 2]]);
        }
    }
    fused::run(checks);
    for &(cols, format) in &SHARED {
        let cols = checks.level.pick(cols, 2 * cols);
        [2, 4, 8].into_iter().for_each(|count| shares(checks, format, cols, count));
    }
    for format in Format::plain_all().chain(Format::mlx_all()) {
        for &cols in checks.level.pick(&[256][..], &[256, 1280]) {
            embed(checks, format, cols);
        }
    }
}

/// A matrix that owns its bytes.
pub(super) struct Stored {
    format: Format,
    rows: usize,
    cols: usize,
    bytes: Vec<u8>,
}

impl Stored {
    pub(super) fn new(noise: &mut Noise, format: Format, rows: usize, cols: usize) -> Self {
        let bytes = input::matrix(noise, format, rows, cols);
        Self { format, rows, cols, bytes }
    }

    pub(super) fn matrix(&self) -> Matrix<'_> {
        let Self { format, rows, cols, .. } = *self;
        Matrix { format, rows, cols, bytes: &self.bytes }
    }
}

fn project<B: Backend>(
    checks: &mut Checks<'_, B>,
    cols: usize,
    shapes: &[(Format, usize)],
    batches: &[Vec<usize>],
) {
    if checks.over() {
        return;
    }
    let names: Vec<_> = shapes.iter().map(|(f, n)| format!("{} [{n}, {cols}]", f)).collect();
    let mut noise = Noise::new(cols as u64 * 31 + shapes[0].1 as u64);
    let rows = batches.iter().flatten().max().map_or(0, |row| row + 1);
    let pool = input::pool(&mut noise, rows, cols);
    let stored: Vec<_> =
        shapes.iter().map(|&(f, rows)| Stored::new(&mut noise, f, rows, cols)).collect();
    let arith = checks.backend.arith();
    let mut wants = Vec::new();
    let mut weights = Vec::new();
    for (stored, name) in stored.iter().zip(&names) {
        let matrix = stored.matrix();
        wants.push(
            checks.reference(&format!("project {name}"), || reference(arith, &matrix, &pool)),
        );
        let made = checks.backend.linear(&matrix);
        let Some(packed) = checks.made(name, made) else {
            return;
        };
        weights.push(packed);
    }
    let weights: Vec<&B::Linear> = weights.iter().collect();
    for batch in batches {
        if checks.over() {
            return;
        }
        let Some(mut x) = poisoned(checks, "project", cols) else {
            return;
        };
        checks.backend.upload(&gather(&pool, cols, batch), &mut x);
        let mut outs = Vec::new();
        for &(_, rows) in shapes {
            let Some(out) = poisoned(checks, "project", rows) else {
                return;
            };
            outs.push(out);
        }
        let mut out_refs: Vec<&mut B::Rows> = outs.iter_mut().collect();
        checks.backend.project(&x, batch.len(), &weights, &mut out_refs);
        for (i, &(_, rows)) in shapes.iter().enumerate() {
            let got = read_back(checks, &outs[i], batch.len(), rows);
            let case = format!("project {}, matrix {i} of {}", names[i], names.len());
            checks.compare(&case, rows, &wants[i], batch, &got);
        }
    }
}

/// The nodes of the first and the last of `count` shares of K, where they have slices.
fn shares<B: Backend>(checks: &mut Checks<'_, B>, format: Format, cols: usize, count: usize) {
    let wide = GROUPS / count;
    if !checks.backend.has_shares() {
        return;
    }
    for first in [0, GROUPS - wide] {
        let groups = first..first + wide;
        let share = Groups::values(cols, groups.clone()).len();
        if checks.over() || share == 0 {
            return;
        }
        let case = format!("project {format} [9, {share} of {cols}], groups {groups:?}");
        let groups = Groups::share(cols, groups);
        let mut noise = Noise::new((cols + first) as u64);
        let pool = input::pool(&mut noise, checks.level.pool_rows(), share);
        let stored = Stored::new(&mut noise, format, 9, share);
        let arith = checks.backend.arith();
        let want = checks.reference(&case, || {
            each_row(&stored.matrix(), &pool, |matrix, x, y| {
                linear_share(arith, matrix, &groups, x, y);
            })
        });
        let made = checks.backend.linear_share(&stored.matrix(), groups);
        let Some(packed) = checks.made(&case, made) else {
            return;
        };
        let operands = [Operand::poison(9), Operand::new(&pool, share)];
        let batches = few_batches(checks.level);
        sweep(checks, &case, &batches, &operands, &want, |backend, out, others, batch| {
            backend.project(&others[0], batch.len(), &[&packed], &mut [out]);
        });
    }
}

/// The reference's outputs of every row of the pool.
fn reference(arith: Arith, matrix: &Matrix<'_>, pool: &[f32]) -> Vec<f32> {
    each_row(matrix, pool, |matrix, x, y| linear(arith, matrix, x, y))
}

fn each_row(
    matrix: &Matrix<'_>,
    pool: &[f32],
    row: impl Fn(&Matrix<'_>, &[f32], &mut [f32]),
) -> Vec<f32> {
    let mut want = vec![0.0; pool.len() / matrix.cols * matrix.rows];
    for (x, y) in pool.chunks_exact(matrix.cols).zip(want.chunks_exact_mut(matrix.rows)) {
        row(matrix, x, y);
    }
    want
}

fn embed<B: Backend>(checks: &mut Checks<'_, B>, format: Format, cols: usize) {
    if checks.over() {
        return;
    }
    let rows = checks.level.pool_rows();
    let case = format!("embed {} [{rows}, {cols}]", format);
    let mut noise = Noise::new(cols as u64);
    let stored = Stored::new(&mut noise, format, rows, cols);
    let mut want = vec![0.0; rows * cols];
    checks.reference(&case, || {
        for (id, row) in want.chunks_exact_mut(cols).enumerate() {
            read_row(&stored.matrix(), id, row);
        }
    });
    let made = checks.backend.linear(&stored.matrix());
    let Some(table) = checks.made(&case, made) else {
        return;
    };
    let out = Operand::poison(cols);
    sweep(checks, &case, &few_batches(checks.level), &[out], &want, |backend, out, _, batch| {
        let ids: Vec<u32> = batch.iter().map(|&p| p as u32).collect();
        backend.embed(&table, &ids, out);
    });
}
