//! A placement that runs: its ranks on their machines, timed and weighed.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
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

/// A rank that is not the first.
#[derive(Debug)]
struct Stage(Child);

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Bench {
    /// Tokens that a stream may have, as the benchmark counts them.
    pub fn context(&self) -> u32 {
        (self.case.0 + self.case.1 + 1).max(64)
    }

    /// Measures the ring of a plan's `ranks`.
    ///
    /// # Errors
    /// A ring that does not come up.
    pub fn measure(&self, rack: &Rack, plan: &Value) -> Result<Figures> {
        let ranks = plan["ranks"].as_array().context("a plan has ranks")?;
        let layout = plan["layout"].as_str().context("a plan has a layout")?;
        let at = |rank: usize| machine(&ranks[rank % ranks.len()]);
        let mut stages = Vec::new();
        for rank in 1..ranks.len() {
            stages.push(Stage(self.stage(rack, rank, layout, at)?));
        }
        let mut head = Rack::command(at(0)?, &self.baton, &self.cache);
        head.arg("bench").arg(&self.model).args(["--lines", "--threads", "1"]);
        head.args(["--prompt", &self.case.0.to_string(), "--decode", &self.case.1.to_string()]);
        head.args(["--layouts", layout, "--chunk", CHUNK]);
        if ranks.len() > 1 {
            let (last, next) = (at(ranks.len() - 1)?, at(1)?);
            head.args(["--listen", &Rack::listen(at(0)?, last)]);
            head.args(["--next", rack.next(at(0)?, next)]).arg("--key").arg(&self.key);
        }
        let mut engine = Engine::start(layout, head)?;
        let (mut prompts, mut tokens) = (Vec::new(), Vec::new());
        for run in 0..=self.runs {
            let timing = engine.run(self.case.0, self.case.1, 1)?;
            if run > 0 {
                prompts.push(timing.prompt_s);
                tokens.push(timing.decode_s / timing.tokens);
            }
            std::thread::sleep(Duration::from_millis(30));
        }
        let pids = std::iter::once(engine.pid()).chain(stages.iter().map(|stage| stage.0.id()));
        let memory = pids.map(resident_bytes).collect::<Result<_>>()?;
        Ok(Figures { decode_s: median(&tokens), prompt_s: median(&prompts), memory })
    }

    fn stage(
        &self,
        rack: &Rack,
        rank: usize,
        layout: &str,
        at: impl Fn(usize) -> Result<usize>,
    ) -> Result<Child> {
        let (before, own, after) = (at(rank - 1)?, at(rank)?, at(rank + 1)?);
        let mut stage = Rack::command(own, &self.baton, &self.cache);
        stage.arg("stage").arg(&self.model).args(["--rank", &rank.to_string()]);
        stage.args(["--layout", layout, "--threads", "1", "--streams", "1"]);
        stage.args(["--context", &self.context().to_string()]);
        stage.args(["--listen", &Rack::listen(own, before), "--next", rack.next(own, after)]);
        stage.args(["--prompt-cache-gib", "0", "--chunk", CHUNK]).arg("--key").arg(&self.key);
        stage.stdin(Stdio::null()).spawn().with_context(|| format!("can't run {stage:?}"))
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

fn resident_bytes(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(Path::new("/proc").join(format!("{pid}/status")))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    let kib = kib.context("a process says what it holds")?;
    ensure!(kib > 0.0, "process {pid} holds nothing");
    Ok(kib * 1024.0)
}
