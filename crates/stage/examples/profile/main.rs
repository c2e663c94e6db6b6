//! Where the time of a prompt chunk and of decode steps goes, op by op.
//!
//! `cargo run --release -p baton-stage --example profile -- MODEL.gguf THREADS [PROMPT] [DECODE]
//! [ARITH]`
//!
//! All steps make the same calls, and each call counts with its best time of all steps, so that a
//! busy neighbour does not count. `between` is what the stage does outside of ops.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arith::attention::KvDtype;
use arith::base::{Arith, Generation, StreamId};
use baton_stage::{Engine, Input, Shapes, Stage, StageConfig};
use timed::{Timed, Times};
use wire::plan::{Entry, Mode, Op, Plan, Want};

mod timed;

type Failure = Box<dyn std::error::Error>;

/// Prompts that are computed, each as a new stream's.
const PROMPTS: u32 = 5;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().collect();
    let (Some(model), Some(threads)) = (args.get(1), args.get(2)) else {
        return Err("usage: profile MODEL.gguf THREADS [PROMPT] [DECODE] [ARITH]".into());
    };
    let number = |at: usize, default: u32| args.get(at).map_or(Ok(default), |n| n.parse());
    let (prompt, decode) = (number(3, 512)?, number(4, 64)?);
    let arith: Arith = args.get(5).map_or(Ok(Arith::One), |number| number.parse())?;
    let checkpoint = weights::Checkpoint::open(model.as_ref())?;
    let cpu = Arc::new(Timed(cpu::Cpu::new(threads.parse()?, cpu::Isa::Auto, arith)?));
    let range = 0..checkpoint.config().layers();
    let config = StageConfig { range, ends: true, kv: KvDtype::F16, loop_mode: false };
    let mut stage = Stage::open(cpu, &checkpoint, config)?;
    let context = prompt + decode + 1;
    stage.prepare(&Shapes {
        chunk_rows_max: prompt,
        round_rows_max: prompt,
        streams_max: 1,
        context_max: context,
        pages: context.div_ceil(64),
    })?;
    let mut driver = Driver { stage, generation: 0, first: 0, accepted: 0, rows: Vec::new() };
    let mut logits = Vec::new();
    let ids: Vec<u32> = (0..prompt).map(|i| 1 + i * 7 % 1000).collect();
    let mut prompts = Vec::new();
    for _ in 0..PROMPTS {
        driver.close()?;
        prompts.push(measured(|| driver.step(&ids, &mut logits))?);
    }
    report(&format!("prompt of {prompt}, {threads} threads"), &prompts);
    let mut steps = Vec::new();
    for i in 0..decode {
        steps.push(measured(|| driver.step(&[5 + i], &mut logits))?);
    }
    report(&format!("decode after {prompt}, {threads} threads"), &steps);
    Ok(())
}

/// One step: its whole time, and that of its ops.
struct Sample {
    whole: Duration,
    times: Times,
}

fn measured(step: impl FnOnce() -> Result<(), Failure>) -> Result<Sample, Failure> {
    timed::take();
    let start = Instant::now();
    step()?;
    Ok(Sample { whole: start.elapsed(), times: timed::take() })
}

/// The one stream of a stage.
struct Driver<E> {
    stage: E,
    generation: u32,
    first: u32,
    accepted: u32,
    rows: Vec<f32>,
}

impl<E: Engine> Driver<E> {
    /// Computes the next rows of the stream and the last one's logits.
    fn step(&mut self, ids: &[u32], logits: &mut Vec<f32>) -> Result<(), Failure> {
        let rows = u32::try_from(ids.len())?;
        let op = if self.first == 0 { Op::Open } else { Op::Continue };
        self.round(op, rows, ids)?;
        self.first += rows;
        self.accepted = rows;
        let hidden = self.stage.hidden();
        let last = self.rows.len() - hidden;
        self.stage.logits(&self.rows[last..], logits)?;
        std::hint::black_box(timed::time("draw", || arith::head::argmax(logits)));
        Ok(())
    }

    /// Ends the stream, if there is one.
    fn close(&mut self) -> Result<(), Failure> {
        if self.first > 0 {
            self.round(Op::Close, 0, &[])?;
        }
        (self.first, self.accepted, self.generation) = (0, 0, 0);
        Ok(())
    }

    fn round(&mut self, op: Op, rows: u32, ids: &[u32]) -> Result<(), Failure> {
        let want = if rows == 0 { Want::None } else { Want::Last };
        let first = if op == Op::Close { 0 } else { self.first };
        let accepted = if op == Op::Close { 0 } else { self.accepted };
        let entry = Entry {
            id: StreamId(0),
            op,
            want,
            first,
            rows,
            accepted,
            resume: 0,
            generation: Generation(self.generation),
            parents: None,
            tokens: None,
        };
        let mode = if rows > 1 { Mode::Prompt } else { Mode::Window };
        let plan = Plan { mode, entries: vec![entry], ..Plan::default() };
        self.stage.step(&plan, Input::Tokens(ids), &mut self.rows)?;
        self.generation += 1;
        Ok(())
    }
}

/// Prints the ops by their share of a step.
fn report(what: &str, samples: &[Sample]) {
    let Some(first) = samples.first() else { return };
    let between = |s: &Sample| s.whole.saturating_sub(s.times.iter().map(|call| call.1).sum());
    let best = samples.iter().map(between).min().unwrap_or_default();
    let mut ops = vec![("between", 1, best)];
    for (call, (name, _)) in first.times.iter().enumerate() {
        let times = samples.iter().filter_map(|s| s.times.get(call));
        let best = times.map(|call| call.1).min().unwrap_or_default();
        match ops.iter_mut().find(|op| op.0 == *name) {
            Some((_, calls, sum)) => (*calls, *sum) = (*calls + 1, *sum + best),
            None => ops.push((name, 1, best)),
        }
    }
    ops.sort_by_key(|op| std::cmp::Reverse(op.2));
    let sum: Duration = ops.iter().map(|op| op.2).sum();
    let wholes = || samples.iter().map(|s| s.whole);
    let (whole, all) = (wholes().min().unwrap_or_default(), wholes().sum::<Duration>());
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let (best, mean) = (micros(whole), micros(all) / samples.len() as f64);
    println!("{what}: {:.1} us; whole steps: best {best:.1} us, mean {mean:.1} us", micros(sum));
    for (op, calls, time) in ops {
        let share = 100.0 * time.div_duration_f64(sum);
        println!("  {op:<12} {calls:>4} calls {:>10.1} us {share:>6.2} %", micros(time));
    }
}
