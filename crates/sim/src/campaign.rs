//! Many seeds, over all cores.

use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::{Plant, Report, Size, run};

/// How it is called.
pub const USAGE: &str = "\
sim [--seeds 10000] [--from 0] [--seed N] [--long | --pressed] [--plant BUG] [--trace]
    runs seeds, or one; --trace prints what happened in it, --plant plants a bug to be found;
    --pressed: a hundred requests a seed that share their beginnings, one rank short of memory";
/// Failures that are told of in full.
const SHOWN: usize = 3;
/// Lines of a failure's trace.
const LINES: usize = 30;

/// What to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Campaign {
    /// The first seed.
    pub from: u64,
    /// Seeds.
    pub seeds: u64,
    /// How much each does.
    pub size: Size,
    /// A bug in each.
    pub plant: Option<Plant>,
    /// Whether the trace of the only seed is printed.
    pub is_traced: bool,
}

impl Default for Campaign {
    fn default() -> Self {
        Self { from: 0, seeds: 10_000, size: Size::Short, plant: None, is_traced: false }
    }
}

/// What the seeds came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Sums over all seeds.
    pub sum: Report,
    /// Failures, by seed.
    pub failures: Vec<(u64, String)>,
}

impl Campaign {
    /// Reads a command line.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(arguments: &[String]) -> Result<Self> {
        let mut campaign = Self::default();
        let mut rest = arguments.iter();
        while let Some(flag) = rest.next() {
            let mut number = || -> Result<u64> {
                let value = rest.next().with_context(|| format!("{flag}: a number is missing"))?;
                value.parse().with_context(|| format!("{flag} {value}: expected a number"))
            };
            match &**flag {
                "--seeds" => campaign.seeds = number()?,
                "--from" => campaign.from = number()?,
                "--seed" => (campaign.from, campaign.seeds) = (number()?, 1),
                "--long" => campaign.size = Size::Long,
                "--pressed" => campaign.size = Size::Pressed,
                "--trace" => campaign.is_traced = true,
                "--plant" => {
                    let name = rest.next().map_or("", String::as_str);
                    let names = Plant::ALL.map(Plant::name).join(", ");
                    let plant = Plant::named(name);
                    let plant = plant
                        .with_context(|| format!("--plant {name}: expected one of {names}"))?;
                    campaign.plant = Some(plant);
                }
                other => bail!("{other}: expected\n{USAGE}"),
            }
        }
        ensure!(!campaign.is_traced || campaign.seeds == 1, "--trace: of one --seed");
        Ok(campaign)
    }

    /// Runs the seeds.
    pub fn run(&self) -> Outcome {
        let next = AtomicU64::new(self.from);
        let outcome = Mutex::new(Outcome::default());
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= self.from + self.seeds {
                            return;
                        }
                        let report = run(seed, self.size, self.plant, false);
                        outcome.lock().unwrap_or_else(PoisonError::into_inner).add(report);
                    }
                });
            }
        });
        let mut outcome = outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
        outcome.failures.sort();
        outcome
    }

    /// Runs the seeds and prints what they came to; the last line is the summary.
    ///
    /// # Errors
    /// When any failed.
    pub fn report(&self) -> Result<()> {
        std::panic::set_hook(Box::new(|_| {})); // a panic is a failure of its seed
        let started = Instant::now();
        if self.is_traced {
            let report = run(self.from, self.size, self.plant, true);
            print!("{}", report.trace);
            println!("trace {:016x}", report.hash);
        }
        let outcome = self.run();
        for (seed, why) in outcome.failures.iter().take(SHOWN) {
            println!("seed {seed}: {why}");
            let trace = run(*seed, self.size, self.plant, true).trace;
            let lines: Vec<&str> = trace.lines().collect();
            lines[lines.len().saturating_sub(LINES)..].iter().for_each(|line| println!("  {line}"));
        }
        let sum = &outcome.sum;
        let Report { steps, served, cancels, breaks, late, preemptions, .. } = sum;
        let Report { cached, drafted, accepted, .. } = sum;
        println!(
            "{served} replies, {cancels} cancels, {breaks} breaks, {late} late frames, \
             {preemptions} preemptions, {cached} tokens cached, {accepted} of {drafted} guesses \
             right, {:.1} s",
            started.elapsed().as_secs_f64()
        );
        let failures = outcome.failures.len();
        println!("sim: {} seeds, {steps} events, {failures} failures", self.seeds);
        ensure!(failures == 0, "seed {} and others fail", outcome.failures[0].0);
        Ok(())
    }
}

impl Outcome {
    fn add(&mut self, report: Report) {
        let sum = &mut self.sum;
        sum.steps += report.steps;
        sum.served += report.served;
        sum.cancels += report.cancels;
        sum.breaks += report.breaks;
        sum.late += report.late;
        sum.quiets += report.quiets;
        sum.cached += report.cached;
        sum.drafted += report.drafted;
        sum.accepted += report.accepted;
        sum.preemptions += report.preemptions;
        if let Some(why) = report.failure {
            self.failures.push((report.seed, why));
        }
    }
}
