//! Times of the Gated DeltaNet ops, a JSON line each: nanoseconds a row by the clock and by the
//! processor time of the process, as a share of what the machine reads from memory or multiplies.
//!
//! `cargo run --release -p baton-cpu --example gdn [THREADS...]`
#![allow(clippy::unwrap_used, reason = "a measuring tool")]

use std::time::{Duration, Instant};

use arith::base::Arith;
use arith::format::{Format, Matrix};
use arith::gdn::HeadOrder;
use backend::{Backend, Gdn, Walk};
use baton_cpu::{Cpu, Isa, Rows};

/// How long each case is repeated; the best of its runs counts.
const CASE: Duration = Duration::from_millis(500);
/// Bytes of S that single rows walk through, so that each finds its own in memory.
const FOOTPRINT_BYTES: usize = 256 << 20;

fn main() {
    let asked: Vec<usize> = std::env::args().skip(1).map(|a| a.parse().unwrap()).collect();
    for threads in if asked.is_empty() { vec![1, 2] } else { asked } {
        let cpu = Cpu::new(threads, Isa::Auto, Arith::One).unwrap();
        let (read, fma) = (read_gb_a_s(threads), fma_g_a_s(threads));
        println!("{{\"threads\":{threads},\"read_gb_a_s\":{read:.1},\"gfma_a_s\":{fma:.1}}}");
        for (model, keys, values) in [("27B", 16, 48), ("0.8B", 16, 16)] {
            let order = HeadOrder::Grouped;
            let shape = Gdn { keys, values, key_dim: 128, value_dim: 128, taps: 4, order };
            for rows in [1, 16, 512] {
                layer(&cpu, model, shape, rows, read, fma);
            }
        }
    }
}

/// The best times of some work, in seconds.
#[derive(Clone, Copy)]
struct Best {
    wall: f64,
    cpu: f64,
}

/// Processor time of this process, in seconds.
fn cpu_seconds() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

fn best(mut work: impl FnMut()) -> Best {
    let start = Instant::now();
    let mut best = Best { wall: f64::INFINITY, cpu: f64::INFINITY };
    while start.elapsed() < CASE {
        let (run, cpu) = (Instant::now(), cpu_seconds());
        work();
        best.cpu = best.cpu.min(cpu_seconds() - cpu);
        best.wall = best.wall.min(run.elapsed().as_secs_f64());
    }
    best
}

/// Runs `work` on so many threads at once.
fn all<T: Send>(threads: usize, work: impl Fn(usize) -> T + Sync) {
    std::thread::scope(|scope| {
        let work = &work;
        for i in 0..threads {
            scope.spawn(move || std::hint::black_box(work(i)));
        }
    });
}

/// What `threads` threads read from memory.
fn read_gb_a_s(threads: usize) -> f64 {
    let data = vec![1_u64; FOOTPRINT_BYTES / 8];
    let part = data.len() / threads;
    let sum = |i: usize| data[i * part..][..part].iter().fold(0_u64, |sum, x| sum.wrapping_add(*x));
    (part * threads * 8) as f64 / best(|| all(threads, sum)).wall / 1e9
}

/// What `threads` threads multiply and add in vectors of eight.
fn fma_g_a_s(threads: usize) -> f64 {
    const TURNS: usize = 20_000_000;
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn turns(seed: usize) -> f32 {
        use std::arch::x86_64::*;
        let (a, b) = (_mm256_set1_ps(0.9), _mm256_set1_ps(seed as f32));
        let mut sums = [b; 12];
        for _ in 0..TURNS / 12 {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, a, b);
            }
        }
        sums.iter().fold(0.0, |all, &sum| all + _mm256_cvtss_f32(sum))
    }
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the CPU has the features.
        let seconds = best(|| all(threads, |i| unsafe { turns(i) })).wall;
        return (TURNS * 8 * threads) as f64 / seconds / 1e9;
    }
    f64::NAN
}

fn values(n: usize, scale: f32) -> Vec<f32> {
    (0..n).map(|i| (((i * 7919) % 2003) as f32 / 1000.0 - 1.0) * scale).collect()
}

fn upload(cpu: &Cpu, rows: usize, width: usize) -> Rows {
    let mut buffer = cpu.rows(rows, width).unwrap();
    cpu.upload(&values(rows * width, 1.0), &mut buffer);
    buffer
}

fn vector(cpu: &Cpu, n: usize) -> Vec<f32> {
    let bytes: Vec<u8> = values(n, 0.5).iter().flat_map(|x| x.to_le_bytes()).collect();
    cpu.vector(&Matrix { format: Format::F32, rows: 1, cols: n, bytes: &bytes }).unwrap()
}

/// One layer's ops for `rows` rows of one stream.
fn layer(cpu: &Cpu, model: &str, shape: Gdn, rows: usize, read: f64, fma: f64) {
    let places = match rows {
        1 => FOOTPRINT_BYTES / (shape.state_values() * 4),
        _ => 2,
    };
    let mut state = cpu.state(shape, places).unwrap();
    let (channels, width) = (shape.channels(), shape.value_width());
    let (taps, bias, w) = (
        vector(cpu, shape.taps * channels),
        vector(cpu, shape.values),
        vector(cpu, shape.value_dim),
    );
    let x = upload(cpu, rows, channels);
    let (b, a, z) = (
        upload(cpu, rows, shape.values),
        upload(cpu, rows, shape.values),
        upload(cpu, rows, width),
    );
    let mut mixed = cpu.rows(rows, channels).unwrap();
    let mut gates = cpu.rows(rows, 2 * shape.values).unwrap();
    let mut out = cpu.rows(rows, width).unwrap();
    let mut norms = upload(cpu, rows, width);
    let walk = |place: usize, to: usize| [Walk { rows: 0..rows, from: Some(place), to }];
    let mut place = 0;
    let mut next = move || {
        place = (place + 1) % places;
        place
    };
    let amplitude: Vec<f32> = bias.iter().map(|x| x.abs()).collect();
    for place in 0..places {
        cpu.convolve(&x, &taps, &mut state, &walk(place, place), &mut mixed);
        cpu.gates(&b, &a, &bias, &amplitude, rows, &mut gates);
        cpu.delta(&mixed, &gates, &mut state, &walk(place, place), &mut out);
    }
    let line = |op: &str, best: Best, more: String| {
        println!(
            "{{\"model\":\"{model}\",\"op\":\"{op}\",\"rows\":{rows},\"threads\":{},\
             \"ns_a_row\":{:.0},\"cpu_ns_a_row\":{:.0}{more}}}",
            cpu.threads(),
            best.wall * 1e9 / rows as f64,
            best.cpu * 1e9 / rows as f64,
        );
    };
    let times = best(|| {
        let place = next();
        cpu.convolve(&x, &taps, &mut state, &walk(place, place), &mut mixed);
    });
    line("convolve", times, String::new());
    line("gates", best(|| cpu.gates(&b, &a, &bias, &amplitude, rows, &mut gates)), String::new());
    for (op, step) in [("delta", 0), ("delta elsewhere", 1)] {
        let times = best(|| {
            let place = next();
            let to = (place + step) % places;
            cpu.delta(&mixed, &gates, &mut state, &walk(place, to), &mut out);
        });
        let bytes = (shape.state_values() * 4) as f64;
        // A row multiplies every value of S four times: decay, m, update, read.
        let share = match rows {
            1 => format!(",\"of_read\":{:.2}", bytes / times.wall / 1e9 / read),
            _ => format!(",\"of_fma\":{:.2}", bytes * rows as f64 / times.wall / 1e9 / fma),
        };
        line(op, times, share);
    }
    let times = best(|| cpu.gated_norm(&mut norms, &w, &z, 1e-6, rows));
    line("gated_norm", times, String::new());
    line("head_norm", best(|| cpu.head_norm(&mut norms, &w, 1e-6, rows)), String::new());
    line("gate", best(|| cpu.gate(&mut norms, &z, rows)), String::new());
}
