//! How much of its exchanges a group of two hides by running prompts in pairs, over links of a made
//! rate and delay between threads: `cargo run --release -p baton-stage --example pairs -- MODEL`.
//!
//! Each member has one compute thread, so the machine needs two cores that nobody else uses.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arith::attention::KvDtype;
use arith::base::{Arith, Generation, StreamId};
use baton_stage::exchange::{Local, local};
use baton_stage::{
    Engine, Exchange, ExchangeError, Input, Member, Shapes, Split, Stage, StageConfig,
};
use cpu::{Cpu, Isa};
use weights::Checkpoint;
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

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("pairs: the model's path is needed")?;
    let checkpoint = Checkpoint::open(Path::new(&path))?;
    let range = 0..checkpoint.config().layers();
    let config = StageConfig { range, ends: true, kv: KvDtype::F16, loop_mode: false };
    let shapes = Shapes {
        chunk_rows_max: ROWS,
        round_rows_max: ROWS,
        streams_max: 1,
        context_max: 1_024,
        pages: 16,
    };
    for link in LINKS {
        for split in [Split::Shards, Split::Rows] {
            let member = |exchange: Local| -> Result<BTreeMap<bool, Vec<[f64; 2]>>, String> {
                let open = || -> Result<_, Box<dyn Error>> {
                    let cpu = Arc::new(Cpu::new(1, Isa::Auto, Arith::One)?);
                    let slow = Box::new(Slow(exchange, link));
                    let (checkpoint, config) = (&checkpoint, config.clone());
                    let mut stage = Stage::open_share(cpu, checkpoint, config, split, slow)?;
                    let mut times: BTreeMap<bool, Vec<[f64; 2]>> = BTreeMap::new();
                    for run_at in 0..2 * RUNS {
                        let on = run_at % 2 == 1;
                        stage.set_prompt_pair(on);
                        stage.prepare(&shapes)?;
                        times.entry(on).or_default().push(run(&mut stage)?);
                    }
                    Ok(times)
                };
                open().map_err(|error| error.to_string())
            };
            let times = std::thread::scope(|scope| {
                let member = &member;
                let threads = local(2).into_iter().map(|e| scope.spawn(move || member(e)));
                let threads: Vec<_> = threads.collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().map_err(|_| "a thread panicked"))
                    .collect::<Result<Vec<_>, _>>()
            })?;
            let times = times.into_iter().next().ok_or("a group has members")??;
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
