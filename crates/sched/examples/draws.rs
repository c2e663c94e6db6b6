//! `cargo run --release -p baton-sched --example draws -- [VOCABULARY]`: what a draw from one row
//! of logits takes, by how it is asked for; medians.

use std::hint::black_box;
use std::time::Instant;

use arith::float::is_spoilt;
use baton_sched::sample::{Sampling, argmax, draw};

/// Rows that are drawn from in turn, so that none is known beforehand.
const ROWS: usize = 4;
const DRAWS: usize = 200;

/// Logits like a model's: many of about the same size, a few tens far above them.
fn row(vocab: usize, seed: u64) -> Vec<f32> {
    let unit = |id: u64| arith::sample::mix(seed << 32 ^ id) as f64 / u64::MAX as f64;
    let value = |id: usize| {
        let sum: f64 = (0..6).map(|n| unit(6 * id as u64 + n) - 0.5).sum();
        let high = if id % 9_973 == seed as usize { 12.0 } else { 0.0 };
        (sum * 3.0 + high) as f32
    };
    (0..vocab).map(value).collect()
}

fn main() {
    let vocab = std::env::args().nth(1).map_or(248_320, |text| text.parse().expect("a number"));
    let rows: Vec<Vec<f32>> = (0..ROWS as u64).map(|seed| row(vocab, seed)).collect();
    let time = |name: &str, work: &mut dyn FnMut(&[f32], u32)| {
        let mut taken: Vec<u128> = Vec::with_capacity(DRAWS);
        for n in 0..DRAWS {
            let since = Instant::now();
            work(&rows[n % ROWS], n as u32);
            taken.push(since.elapsed().as_nanos());
        }
        taken.sort_unstable();
        println!("{name}: {:.1} us", taken[DRAWS / 2] as f64 / 1e3);
    };
    time("whether a row is spoilt", &mut |row, _| _ = black_box(is_spoilt(row)));
    time("the best", &mut |row, _| _ = black_box(argmax(row)));
    time("the best 20", &mut |row, _| _ = black_box(arith::head::leading(row, 20)));
    let plain = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 7 };
    for (name, sampling) in [
        ("temperature 1", plain),
        ("top_p 0.95", Sampling { top_p: 0.95, ..plain }),
        ("top_k 20, top_p 0.95", Sampling { top_k: 20, top_p: 0.95, ..plain }),
        ("min_p 0.05", Sampling { min_p: 0.05, ..plain }),
    ] {
        time(name, &mut |row, n| _ = black_box(draw(row, &sampling, n)));
    }
}
