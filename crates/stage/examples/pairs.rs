//! How much of its exchanges a group of two hides by running prompts in pairs, over links of a made
//! rate and delay between threads: `cargo run --release -p baton-stage --example pairs [MODEL]`;
//! without a model on four layers of the 0.8B's shape.
//!
//! Each member has one compute thread, so the machine needs two cores that nobody else uses.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arith::attention::KvDtype;
use arith::base::{Arith, Generation, StreamId};
use arith::format::Format;
use baton_stage::exchange::{Local, local};
use baton_stage::{
    Engine, Exchange, ExchangeError, Input, Member, PAIR_ROWS_MIN, Shapes, Split, Stage,
    StageConfig,
};
use cpu::{Cpu, Isa};
use weights::{Checkpoint, synthetic};
use wire::plan::{Entry, Op, Plan, Want};

/// Runs of each kind, in turn.
const RUNS: usize = 9;
/// Rows of a prompt.
const ROWS: u32 = 512;
/// Rows of a reply.
const REPLY: u32 = 16;

/// A link's bits a second and its delay one way; none for what threads do.
#[derive(Clone, Copy)]
struct Link {
    name: &'static str,
    gbit: f64,
    delay: Duration,
}

const LINKS: [Link; 3] = [
    Link { name: "unthrottled", gbit: f64::INFINITY, delay: Duration::ZERO },
    Link { name: "10 Gbit/s, 50 us", gbit: 10.0, delay: Duration::from_micros(50) },
    Link { name: "1 Gbit/s, 100 us", gbit: 1.0, delay: Duration::from_micros(100) },
];

/// An exchange that takes as long as the link would.
struct Slow(Local, Link);

impl Exchange for Slow {
    fn member(&self) -> Member {
        self.0.member()
    }

    fn gather(
        &mut self,
        own: &[f32],
        sizes: &[usize],
        all: &mut Vec<f32>,
    ) -> Result<(), ExchangeError> {
        let started = Instant::now();
        self.0.gather(own, sizes, all)?;
        let most = sizes.iter().max().copied().unwrap_or(0);
        let sent = Duration::from_secs_f64(most as f64 * 32.0 / (self.1.gbit * 1e9));
        let wait = (sent + self.1.delay).saturating_sub(started.elapsed());
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
        Ok(())
    }
}

fn entry(op: Op, first: u32, rows: u32, accepted: u32, generation: u32) -> Plan {
    let entry = Entry {
        id: StreamId(1),
        op,
        want: Want::Last,
        first,
        rows,
        accepted,
        resume: 0,
        generation: Generation(generation),
        parents: None,
        tokens: None,
    };
    Plan { entries: vec![entry], ..Plan::default() }
}

/// Milliseconds of a prompt and of a row of a reply.
fn run(stage: &mut dyn Engine) -> Result<[f64; 2], baton_stage::StageError> {
    stage.reset();
    let (tokens, mut out): (Vec<u32>, _) = ((0..ROWS).map(|i| i % 251).collect(), Vec::new());
    let started = Instant::now();
    stage.step(&entry(Op::Open, 0, ROWS, 0, 0), Input::Tokens(&tokens), &mut out)?;
    let prompt = started.elapsed().as_secs_f64() * 1e3;
    let started = Instant::now();
    for i in 0..REPLY {
        let accepted = if i == 0 { ROWS } else { 1 };
        let plan = entry(Op::Continue, ROWS + i, 1, accepted, 1 + i);
        stage.step(&plan, Input::Tokens(&[7]), &mut out)?;
    }
    Ok([prompt, started.elapsed().as_secs_f64() * 1e3 / f64::from(REPLY)])
}

/// Four layers of the 0.8B's shape, from a file that is gone again.
fn made() -> Result<Checkpoint, Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("baton-pairs-{}.gguf", std::process::id()));
    let large = synthetic::Qwen35::of_bytes(256 << 20, Format::Q4_0);
    synthetic::qwen3_5(&path, &synthetic::Qwen35 { layers: 4, ..large })?;
    let opened = Checkpoint::open(&path);
    std::fs::remove_file(&path)?;
    Ok(opened?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let checkpoint = match std::env::args().nth(1) {
        Some(path) => Checkpoint::open(Path::new(&path))?,
        None => made()?,
    };
    let range = 0..checkpoint.config().layers();
    let config = StageConfig { range, ends: true, kv: KvDtype::F16, loop_mode: false };
    for link in LINKS {
        for split in [Split::Shards, Split::Rows] {
            let times = race(&checkpoint, &config, split, link)?;
            let median = |on: bool, at: usize| {
                let mut all: Vec<f64> = times[&on].iter().map(|times| times[at]).collect();
                all.sort_by(f64::total_cmp);
                all[all.len() / 2]
            };
            println!(
                "{split}2, {}: prompt of {ROWS} rows {:.0} ms alone, {:.0} ms in pairs; \
                 a reply's row {:.2} and {:.2} ms",
                link.name,
                median(false, 0),
                median(true, 0),
                median(false, 1),
                median(true, 1),
            );
        }
    }
    Ok(())
}

/// Times of prompts and replies, without pairs and with them in turn.
type Times = BTreeMap<bool, Vec<[f64; 2]>>;

/// The first member's times.
fn race(
    checkpoint: &Checkpoint,
    config: &StageConfig,
    split: Split,
    link: Link,
) -> Result<Times, Box<dyn Error>> {
    let shapes = Shapes {
        chunk_rows_max: ROWS,
        round_rows_max: ROWS,
        streams_max: 1,
        context_max: 1_024,
        pages: 16,
    };
    let member = |exchange: Local| -> Result<Times, Box<dyn Error>> {
        let cpu = Arc::new(Cpu::new(1, Isa::Auto, Arith::One)?);
        let slow = Box::new(Slow(exchange, link));
        let mut stage = Stage::open_share(cpu, checkpoint, config.clone(), split, slow)?;
        let mut times = Times::new();
        for at in 0..2 * RUNS {
            let on = at % 2 == 1;
            stage.set_prompt_pair(on.then_some(PAIR_ROWS_MIN));
            stage.prepare(&shapes)?;
            times.entry(on).or_default().push(run(&mut stage)?);
        }
        Ok(times)
    };
    let member = |exchange| member(exchange).map_err(|error| error.to_string());
    std::thread::scope(|scope| {
        let members = local(2).into_iter().map(|exchange| scope.spawn(move || member(exchange)));
        let members: Vec<_> = members.collect();
        let mut times = members.into_iter().map(|member| member.join().expect("no panic"));
        let first = times.next().ok_or("a group has members")??;
        times.try_for_each(|times| times.map(drop))?;
        Ok(first)
    })
}
