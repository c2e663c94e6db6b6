//! Where the time of a prompt chunk and of decode steps goes, op by op.
//!
//! `cargo run --release -p baton-stage --example profile -- MODEL.gguf THREADS [PROMPT] [DECODE]
//! [ARITH] [STREAMS]`
//!
//! With STREAMS so many decode at once after a prompt each, one row a stream and step.
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
        return Err("usage: profile MODEL.gguf THREADS [PROMPT] [DECODE] [ARITH] [STREAMS]".into());
    };
    let number = |at: usize, default: u32| args.get(at).map_or(Ok(default), |n| n.parse());
    let (prompt, decode) = (number(3, 512)?, number(4, 64)?);
    let arith: Arith = args.get(5).map_or(Ok(Arith::One), |number| number.parse())?;
    let streams = number(6, 1)?;
    let checkpoint = weights::Checkpoint::open(model.as_ref())?;
    let cpu = Arc::new(Timed(cpu::Cpu::new(threads.parse()?, cpu::Isa::Auto, arith)?));
    let range = 0..checkpoint.config().layers();
    let config = StageConfig { range, ends: true, kv: KvDtype::F16, loop_mode: false };
    let mut stage = Stage::open(cpu, &checkpoint, config)?;
    let context = prompt + decode + 1;
    stage.prepare(&Shapes {
        chunk_rows_max: prompt,
        round_rows_max: prompt.max(streams),
        streams_max: streams,
        context_max: context,
        pages: streams * context.div_ceil(64),
    })?;
    let mut driver = Driver { stage, streams: vec![Stream::default()], rows: Vec::new() };
    let mut logits = Vec::new();
    let ids: Vec<u32> = (0..prompt).map(|i| 1 + i * 7 % 1000).collect();
    let mut prompts = Vec::new();
    for _ in 0..PROMPTS {
        driver.close()?;
        prompts.push(measured(|| driver.step(0, &ids, &mut logits))?);
    }
    report(&format!("prompt of {prompt}, {threads} threads"), &prompts);
    for stream in 1..streams as usize {
        driver.streams.push(Stream::default());
        driver.step(stream, &ids, &mut logits)?;
    }
    let mut steps = Vec::new();
    for i in 0..decode {
        steps.push(measured(|| driver.decode(5 + i, &mut logits))?);
    }
    report(&format!("{streams} streams, decode after {prompt}, {threads} threads"), &steps);
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

/// Where a stream stands.
#[derive(Default)]
struct Stream {
    generation: u32,
    first: u32,
    accepted: u32,
}

impl Stream {
    fn entry(&self, id: usize, op: Op, rows: u32) -> Entry {
        let (first, accepted) = if op == Op::Close { (0, 0) } else { (self.first, self.accepted) };
        Entry {
            id: StreamId(id as u32),
            op,
            want: if rows == 0 { Want::None } else { Want::Last },
            first,
            rows,
            accepted,
            resume: 0,
            generation: Generation(self.generation),
            parents: None,
            tokens: None,
        }
    }

    /// The next rows' entry, which is computed for sure.
    fn go(&mut self, id: usize, rows: u32) -> Entry {
        let op = if self.first == 0 { Op::Open } else { Op::Continue };
        let entry = self.entry(id, op, rows);
        self.first += rows;
        self.accepted = rows;
        self.generation += 1;
        entry
    }
}

/// The streams of a stage.
struct Driver<E> {
    stage: E,
    streams: Vec<Stream>,
    rows: Vec<f32>,
}

impl<E: Engine> Driver<E> {
    /// Computes the next rows of a stream and the last one's logits.
    fn step(&mut self, id: usize, ids: &[u32], logits: &mut Vec<f32>) -> Result<(), Failure> {
        let entry = self.streams[id].go(id, u32::try_from(ids.len())?);
        self.round(Mode::Prompt, vec![entry], ids)?;
        let last = self.rows.len() - self.stage.hidden();
        self.draw(last, logits)
    }

    /// Computes a row of every stream and its logits.
    fn decode(&mut self, token: u32, logits: &mut Vec<f32>) -> Result<(), Failure> {
        let streams = self.streams.iter_mut().enumerate();
        let entries: Vec<Entry> = streams.map(|(id, stream)| stream.go(id, 1)).collect();
        let ids: Vec<u32> = (0..entries.len() as u32).map(|id| token + id).collect();
        self.round(Mode::Window, entries, &ids)?;
        self.draw(0, logits)
    }

    /// Logits of the rows from value `from` on, and the best token of each.
    fn draw(&mut self, from: usize, logits: &mut Vec<f32>) -> Result<(), Failure> {
        let rows = (self.rows.len() - from) / self.stage.hidden();
        self.stage.logits(&self.rows[from..], logits)?;
        let row = logits.len() / rows;
        timed::time("draw", || {
            for row in logits.chunks_exact(row) {
                std::hint::black_box(arith::head::argmax(row));
            }
        });
        Ok(())
    }

    /// Ends the first stream, if it has rows.
    fn close(&mut self) -> Result<(), Failure> {
        if self.streams[0].first > 0 {
            let entry = self.streams[0].entry(0, Op::Close, 0);
            self.round(Mode::Window, vec![entry], &[])?;
        }
        self.streams[0] = Stream::default();
        Ok(())
    }

    fn round(&mut self, mode: Mode, entries: Vec<Entry>, ids: &[u32]) -> Result<(), Failure> {
        let plan = Plan { mode, entries, ..Plan::default() };
        Ok(self.stage.step(&plan, Input::Tokens(ids), &mut self.rows)?)
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
