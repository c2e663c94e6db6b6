//! The best candidates of rows of logits.

use super::Checks;
use super::input::Noise;
use crate::Backend;

/// Widths about those that a kernel may cut rows at, and of a model.
const WIDTHS: [usize; 5] = [3, 65, 300, 2_049, 9_000];
/// Of rows of which few are needed, more, and all.
const BEST: [&[u32]; 7] =
    [&[1], &[1, 1, 1, 1, 1, 1, 1, 1], &[2, 20], &[64, 1, 63], &[0, 5, 65, 1], &[1, 0], &[1_024, 1]];

pub(super) fn run<B: Backend>(checks: &mut Checks<'_, B>) {
    let wide: &[usize] = checks.level.pick(&[], &[124_160, 248_320]);
    for &width in WIDTHS.iter().chain(wide) {
        let pool = pool(width);
        for (n, best) in BEST.into_iter().enumerate() {
            for start in 0..pool.len() {
                check(checks, &pool, (start, [0, 124_160][n % 2]), best);
            }
        }
        // More rows than any device may look at together.
        check(checks, &pool, (0, 7), &[1; 80]);
    }
}

/// Rows of every kind: smooth, tied, of both zeros, equal throughout, negative, and spoilt by every
/// kind of value, in their midst and at their ends.
fn pool(width: usize) -> Vec<Vec<f32>> {
    let mut noise = Noise::new(width as u64);
    let mut row = |map: fn(f32) -> f32| -> Vec<f32> {
        (0..width).map(|_| map(noise.normal() * 8.0)).collect()
    };
    let smooth = row(|x| x);
    let mut rows = vec![row(|x| x), row(f32::round), row(|x| -x.abs() - 1.0)];
    rows.push(row(|x| if x < 0.0 { -0.0 } else { 0.0 }));
    rows.push(row(|x| if x < 0.0 { -0.0 } else { x.min(0.0) }));
    rows.push(vec![-2.5; width]);
    let spoils = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::from_bits(0xdd80_0000),
        f32::from_bits(0x5d80_0000),
    ];
    for (x, at) in spoils.into_iter().zip([0, width - 1, width / 2, width - 1, 1]) {
        rows.push(smooth.clone());
        rows.last_mut().expect("a row was pushed")[at] = x;
    }
    // The best at every end, and one that is almost spoilt.
    for at in [0, width - 1] {
        rows.push(smooth.clone());
        rows.last_mut().expect("a row was pushed")[at] = f32::from_bits(0x5d7f_ffff);
    }
    rows
}

/// One check: rows of the pool from `start` on, in turn, whose ids begin at `first`.
fn check<B: Backend>(
    checks: &mut Checks<'_, B>,
    pool: &[Vec<f32>],
    (start, first): (usize, u32),
    best: &[u32],
) {
    if checks.over() {
        return;
    }
    let (rows, width) = (best.len(), pool[0].len());
    let case = format!("candidates [{width}] from {first}, {} rows, row {start}", rows);
    let data: Vec<f32> = (0..rows).flat_map(|r| &pool[(start + r) % pool.len()]).copied().collect();
    let made = checks.backend.rows(rows, width);
    let Some(mut buffer) = checks.made(&case, made) else { return };
    checks.backend.upload(&data, &mut buffer);
    let mut want = Vec::new();
    for (row, &best) in data.chunks_exact(width).zip(best) {
        arith::candidates::pack(row, first, best, &mut want);
    }
    // What is there stays.
    let mut got = vec![0.5];
    checks.backend.candidates((&buffer, width), first, best, &mut got);
    match got.len() == want.len() + 1 && got[0] == 0.5 {
        true => checks.compare_values(&case, &want, &got[1..]),
        false => checks.fail(format!("{case}: {} values, {} given", want.len(), got.len() - 1)),
    }
}
