//! A placement that runs: its ranks on their machines, timed and weighed.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::machine::{MACHINES, Rack};
use crate::race::engine::Engine;
use crate::race_ring::report::median;

/// Most rows of a prompt's chunk.
pub const CHUNK: &str = "128";

/// What is run, and with what.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The binary.
    pub baton: PathBuf,
    /// The ranks' cache.
    pub cache: PathBuf,
    /// The model's file.
    pub model: PathBuf,
    /// The ring's key.
    pub key: PathBuf,
    /// Tokens of the prompt and after it.
    pub case: (u32, u32),
    /// Runs after the one that warms.
    pub runs: u32,
}

/// What a placement is predicted to do, or was measured to.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// A token of one stream.
    pub decode_s: f64,
    /// The prompt, to its first token.
    pub prompt_s: f64,
    /// What each rank holds.
    pub memory: Vec<f64>,
}

/// A rank's process, for as long as it is held.
#[derive(Debug)]
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whose layers a plan puts where.
#[derive(Debug)]
pub struct Placed<'a> {
    ranks: &'a [Value],
    /// As `--layout` takes it.
    pub layout: &'a str,
}

impl<'a> Placed<'a> {
    /// What `plan` says.
    ///
    /// # Errors
    /// A plan in another form.
    pub fn of(plan: &'a Value) -> Result<Self> {
        let ranks = plan["ranks"].as_array().context("a plan has ranks")?;
        Ok(Self { ranks, layout: plan["layout"].as_str().context("a plan has a layout")? })
    }

    /// The machine of a rank, counted around the ring.
    ///
    /// # Errors
    /// One that the rack does not have.
    pub fn at(&self, rank: usize) -> Result<usize> {
        machine(&self.ranks[rank % self.ranks.len()])
    }
}

impl Bench {
    /// Tokens that a stream may have, as the benchmark counts them.
    pub fn context(&self) -> u32 {
        (self.case.0 + self.case.1 + 1).max(64)
    }

    /// Measures the ring of a plan's `ranks`, and weighs it as it serves.
    ///
    /// # Errors
    /// A ring that does not come up.
    pub fn measure(&self, rack: &Rack, plan: &Value) -> Result<Figures> {
        let placed = Placed::of(plan)?;
        let stages = self.stages(rack, &placed)?;
        let mut head = Rack::command(placed.at(0)?, &self.baton, &self.cache);
        head.arg("bench").arg(&self.model).args(["--lines", "--threads", "1"]);
        head.args(["--prompt", &self.case.0.to_string(), "--decode", &self.case.1.to_string()]);
        head.args(["--layouts", placed.layout, "--chunk", CHUNK]);
        self.join(rack, &placed, &mut head)?;
        let mut engine = Engine::start(placed.layout, head)?;
        let (mut prompts, mut tokens) = (Vec::new(), Vec::new());
        for run in 0..=self.runs {
            let timing = engine.run(self.case.0, self.case.1, 1)?;
            if run > 0 {
                prompts.push(timing.prompt_s);
                tokens.push(timing.decode_s / timing.tokens);
            }
            std::thread::sleep(Duration::from_millis(30));
        }
        drop((engine, stages));
        let memory = self.weigh(rack, plan)?;
        Ok(Figures { decode_s: median(&tokens), prompt_s: median(&prompts), memory })
    }

    /// Where rank 0 listens and connects, if it has neighbours.
    pub fn join(&self, rack: &Rack, placed: &Placed, head: &mut Command) -> Result<()> {
        let ranks = placed.ranks.len();
        if ranks > 1 {
            let (own, next, last) = (placed.at(0)?, placed.at(1)?, placed.at(ranks - 1)?);
            head.args(["--listen", &Rack::listen(own, last)]);
            head.args(["--next", rack.next(own, next)]).arg("--key").arg(&self.key);
        }
        Ok(())
    }

    /// Starts all ranks but the first.
    pub fn stages(&self, rack: &Rack, placed: &Placed) -> Result<Vec<Running>> {
        (1..placed.ranks.len()).map(|rank| self.stage(rack, rank, placed)).collect()
    }

    fn stage(&self, rack: &Rack, rank: usize, placed: &Placed) -> Result<Running> {
        let (before, own, after) = (placed.at(rank - 1)?, placed.at(rank)?, placed.at(rank + 1)?);
        let mut stage = Rack::command(own, &self.baton, &self.cache);
        stage.arg("stage").arg(&self.model).args(["--rank", &rank.to_string()]);
        stage.args(["--layout", placed.layout, "--threads", "1", "--streams", "1"]);
        stage.args(["--context", &self.context().to_string()]);
        stage.args(["--listen", &Rack::listen(own, before), "--next", rack.next(own, after)]);
        stage.args(["--prompt-cache-gib", "0", "--chunk", CHUNK]).arg("--key").arg(&self.key);
        let child = stage.stdin(Stdio::null()).spawn();
        Ok(Running(child.with_context(|| format!("can't run {stage:?}"))?))
    }
}

/// Which machine an order is for.
fn machine(order: &Value) -> Result<usize> {
    let name = order["node"].as_str().context("an order names its node")?;
    let found = MACHINES.iter().position(|machine| machine.name == name);
    found.with_context(|| format!("no machine is called {name}"))
}

/// What a plan predicts.
///
/// # Errors
/// A plan in another form.
pub fn predicted(plan: &Value) -> Result<Figures> {
    let told = &plan["prediction"];
    let number = |value: &Value| value.as_f64().with_context(|| format!("{value}: a number"));
    let memory = told["memory"].as_array().context("memory")?;
    let all = |rank: &Value| {
        let parts = rank.as_object().context("memory of a rank")?;
        parts.values().map(number).sum::<Result<f64>>()
    };
    Ok(Figures {
        decode_s: 1.0 / number(&told["decode_per_s"])?,
        prompt_s: number(&told["prompt_s"])?,
        memory: memory.iter().map(all).collect::<Result<_>>()?,
    })
}
