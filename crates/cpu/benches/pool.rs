//! What the pool costs: a fork-join, a worker that waits, and a neighbour that wants a core.
//!
//! `cargo bench -p baton-cpu --bench pool -- [--threads N]`
//!
//! For as many threads as there are cores unless told otherwise. With that many a neighbour's fair
//! share is half of one core: a step that splits evenly would keep 0.5 of its speed, one whose
//! threads take over from each other more. A step that keeps less than [`KEPT_MIN`] beside one
//! neighbour or as many as there are threads fails the program.
#![allow(clippy::unwrap_used, reason = "a measuring tool")]
#![allow(dead_code, reason = "the library's own modules, of which this takes a part")]

use std::hint::black_box;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use arith::base::Arith;
use arith::format::{Format, Matrix};
use backend::Backend;
use baton_cpu::{Cpu, Isa, Linear, Rows};

#[path = "../src/pool/job.rs"]
mod job;
#[path = "../src/pool/seat.rs"]
mod seat;
#[path = "../src/pool/sync.rs"]
mod sync;
#[path = "../src/pool/workers.rs"]
mod workers;

use workers::Pool;

/// What the program calls itself with to be a neighbour.
const NEIGHBOUR: &str = "--be-a-neighbour";
/// Samples of each figure.
const SAMPLES: usize = 101;
/// Turns of a step alone and a step beside a neighbour.
const TURNS: usize = 5;
/// What a step must keep of its speed beside neighbours: their fair share leaves it half, and what
/// is less is a collapse.
const KEPT_MIN: f64 = 0.35;
/// How long each of them is measured.
const TURN: Duration = Duration::from_millis(1500);

fn main() {
    let words: Vec<String> = std::env::args().collect();
    if words.iter().any(|word| word == NEIGHBOUR) {
        burn();
        return;
    }
    let threads = words.iter().skip_while(|word| *word != "--threads").nth(1);
    let threads = threads.map_or_else(
        || std::thread::available_parallelism().unwrap().get(),
        |threads| threads.parse().unwrap(),
    );
    fork_join(threads);
    idle(threads);
    for neighbours in [1, threads] {
        let kept = neighbour(threads, neighbours);
        assert!(kept >= KEPT_MIN, "{kept:.2} of the speed: expected {KEPT_MIN} at least");
    }
}

/// An index's work.
fn empty(index: usize) {
    black_box(index);
}

/// Median and half of what lies between the quartiles.
fn median(mut samples: Vec<f64>) -> (f64, f64) {
    samples.sort_by(f64::total_cmp);
    let at = |part: usize| samples[(samples.len() - 1) * part / 4];
    (at(2), (at(3) - at(1)) / 2.0)
}

/// A job of one empty index a thread: while the workers spin, and when they have gone to sleep.
fn fork_join(threads: usize) {
    const TIMES: u32 = 1_000;
    let pool = Pool::new(threads).unwrap();
    let hot = || {
        let start = Instant::now();
        (0..TIMES).for_each(|_| pool.run(threads, &empty));
        start.elapsed().as_secs_f64() / f64::from(TIMES)
    };
    let cold = || {
        std::thread::sleep(Duration::from_millis(2));
        let start = Instant::now();
        pool.run(threads, &empty);
        start.elapsed().as_secs_f64()
    };
    for (what, sample) in [("spin", &hot as &dyn Fn() -> f64), ("sleep", &cold)] {
        let (time, spread) = median((0..SAMPLES).map(|_| sample()).collect());
        println!(
            "fork-join of {threads} empty indices, {threads} threads, workers that {what}: \
             {:.2} us +- {:.2}",
            time * 1e6,
            spread * 1e6
        );
    }
}

/// Processor time of this process, in seconds.
fn processor_seconds() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

/// Processor time of a pool that has just finished a job and gets no other.
fn idle(threads: usize) {
    const PAUSE: Duration = Duration::from_secs(2);
    let pool = Pool::new(threads).unwrap();
    pool.run(64, &empty);
    let before = processor_seconds();
    std::thread::sleep(PAUSE);
    let burnt = processor_seconds() - before;
    println!(
        "idle for {} s after a job, {threads} threads: {:.2} ms of processor time",
        PAUSE.as_secs(),
        burnt * 1e3
    );
}

/// The linear layers of a decode step in the shapes of SmolLM2-135M, Q4_1.
struct Step {
    cpu: Cpu,
    layers: Vec<[Linear; 4]>,
    rows: [Rows; 5],
}

impl Step {
    fn new(threads: usize) -> Self {
        const LAYERS: usize = 30;
        let cpu = Cpu::new(threads, Isa::Auto, Arith::One).unwrap();
        let packed = |(outputs, cols): (usize, usize)| {
            let bytes = outputs * cols / Format::Q4_1.unit_values() * Format::Q4_1.unit_bytes();
            let bytes: Vec<u8> = (0..bytes).map(|i| (i * 31 % 61) as u8).collect();
            let matrix = Matrix { format: Format::Q4_1, rows: outputs, cols, bytes: &bytes };
            cpu.linear(&matrix).unwrap()
        };
        let shapes = [(960, 576), (576, 576), (3072, 576), (576, 1536)];
        let layers = (0..LAYERS).map(|_| shapes.map(packed)).collect();
        let mut rows = [576, 1536, 960, 576, 3072].map(|width| cpu.rows(1, width).unwrap());
        for (rows, width) in rows.iter_mut().zip([576, 1536]) {
            let values: Vec<f32> = (0..width).map(|i| (i % 17) as f32 / 16.0 - 0.5).collect();
            cpu.upload(&values, rows);
        }
        Self { cpu, layers, rows }
    }

    fn run(&mut self) {
        let [narrow, wide, a, b, c] = &mut self.rows;
        for [qkv, out, up, down] in &self.layers {
            self.cpu.project(narrow, 1, &[qkv], &mut [a]);
            self.cpu.project(narrow, 1, &[out], &mut [b]);
            self.cpu.project(narrow, 1, &[up], &mut [c]);
            self.cpu.project(wide, 1, &[down], &mut [b]);
        }
    }

    /// Mean seconds of a step over about [`TURN`].
    fn mean(&mut self) -> f64 {
        let (start, mut steps) = (Instant::now(), 0);
        while start.elapsed() < TURN {
            self.run();
            steps += 1;
        }
        start.elapsed().as_secs_f64() / f64::from(steps)
    }
}

/// Steps alone and beside processes that burn a core each, in turn: what is kept of the speed.
fn neighbour(threads: usize, neighbours: usize) -> f64 {
    let mut step = Step::new(threads);
    step.mean();
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        alone.push(step.mean());
        let mut all: Vec<Child> = (0..neighbours).map(|_| start_neighbour()).collect();
        beside.push(step.mean());
        // The end of its input ends it too, should this process be killed.
        for neighbour in &mut all {
            neighbour.kill().unwrap();
            neighbour.wait().unwrap();
        }
    }
    let ((alone, a), (beside, b)) = (median(alone), median(beside));
    println!(
        "linear layers of a decode step, {threads} threads: {:.2} ms +- {:.2} alone, {:.2} +- \
         {:.2} beside {neighbours} busy processes: {:.2} of the speed",
        alone * 1e3,
        a * 1e3,
        beside * 1e3,
        b * 1e3,
        alone / beside
    );
    alone / beside
}

fn start_neighbour() -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(NEIGHBOUR).stdin(Stdio::piped()).spawn().unwrap()
}

/// Keeps one core busy until the standard input ends.
fn burn() {
    std::thread::spawn(|| {
        let mut x = 1_u64;
        loop {
            x = black_box(x.wrapping_mul(6364136223846793005).wrapping_add(1));
        }
    });
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}
