//! Engines of a race: a ring, and two processes that work at the same time.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use weights::Checkpoint;

use super::hop::{Hop, Wire, free_address};
use crate::race::engine::{Engine, Timing};

/// One run's work.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Tokens of each stream's prompt.
    pub prompt: u32,
    /// Tokens that each decodes after it.
    pub decode: u32,
    /// Streams at once.
    pub streams: u32,
}

/// What a run gave.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Prompt tokens a second.
    pub prompt: f64,
    /// Decoded tokens a second, of all streams.
    pub decode: f64,
    /// The part of prompt and decode that each rank computed, where it is known.
    busy: Vec<[f64; 2]>,
}

impl Ran {
    fn of(case: Case, timing: &Timing) -> Self {
        let busy = timing.note.strip_prefix("busy ").unwrap_or_default();
        let rank = |word: &str| {
            let (prompt, decode) = word.split_once(',')?;
            Some([prompt.parse().ok()?, decode.parse().ok()?])
        };
        Self {
            prompt: f64::from(case.prompt * case.streams) / timing.prompt_s,
            decode: timing.tokens / timing.decode_s,
            busy: busy.split(' ').filter_map(rank).collect(),
        }
    }

    /// The share of the rank that computed least, in prompt (0) or decode (1).
    pub fn busy(&self, phase: usize) -> f64 {
        self.busy.iter().map(|rank| rank[phase]).reduce(f64::min).unwrap_or(f64::NAN)
    }
}

fn once(engine: &mut Engine, case: Case) -> Result<Ran> {
    let timing = engine.run(case.prompt, case.decode, case.streams)?;
    Ok(Ran::of(case, &timing))
}

/// Two ranks.
#[derive(Debug)]
pub struct Ring {
    /// First, so that it ends first.
    engine: Engine,
    hops: Vec<Hop>,
    _stage: Option<Stage>,
}

/// A rank that was started by hand; it ends with this.
#[derive(Debug)]
struct Stage(Child);

impl Drop for Stage {
    fn drop(&mut self) {
        // It holds nothing that could be lost.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Ring {
    /// Both in the process of `bench`, on loopback.
    ///
    /// # Errors
    /// A ring that does not come up.
    pub fn within(mut bench: Command, layout: &str) -> Result<Self> {
        bench.args(["--layouts", layout]);
        Ok(Self { engine: Engine::start("ring", bench)?, hops: Vec::new(), _stage: None })
    }

    /// Both in one process, in a network of their own whose loopback carries `rate` bytes a second,
    /// both ways together. The kernel does it, so that no third process takes the ranks' cores.
    ///
    /// # Errors
    /// A ring that does not come up.
    pub fn behind_a_shaper(bench: &Command, layout: &str, rate: f64) -> Result<Self> {
        let mut shaped = shaper(rate);
        shaped.arg(bench.get_program()).args(bench.get_args());
        Self::within(shaped, layout)
    }

    /// Rank 1 in a process of its own, every hop through a link as `wire` is.
    ///
    /// # Errors
    /// A ring that does not come up.
    pub fn through(
        mut bench: Command,
        baton: &Path,
        model: &Path,
        layout: &str,
        wire: Wire,
    ) -> Result<Self> {
        let (first, second) = (free_address()?, free_address()?);
        let hops = vec![Hop::to(first, wire)?, Hop::to(second, wire)?];
        let mut stage = Command::new(baton);
        stage.args(["--log", "warn", "stage"]).arg(model).args(["--rank", "1", "--layout", layout]);
        stage.args(["--listen", &second.to_string(), "--next", &hops[0].address.to_string()]);
        stage.args(["--threads", "1", "--streams", "8", "--arith"]);
        let arith = bench.get_args().skip_while(|word| *word != "--arith").nth(1);
        stage.arg(arith.context("the benchmark's arithmetic")?).stdin(Stdio::null());
        let stage = Stage(stage.spawn().with_context(|| format!("can't run {stage:?}"))?);
        bench.args(["--layouts", layout, "--listen", &first.to_string()]);
        bench.args(["--next", &hops[1].address.to_string()]);
        Ok(Self { engine: Engine::start("ring", bench)?, hops, _stage: Some(stage) })
    }

    /// A group of two: the other member in a process of its own, behind a link as `wire` is; both
    /// with room for `case` in chunks of `chunk`.
    ///
    /// # Errors
    /// A group that does not come up.
    pub fn group(
        mut bench: Command,
        (baton, model, layout): (&Path, &Path, &str),
        (case, chunk): (Case, u32),
        prompt_pair: &str,
        wire: Wire,
    ) -> Result<Self> {
        let (first, second) = (free_address()?, free_address()?);
        let hops = vec![Hop::to(first, wire)?];
        // As much as the benchmark takes: members must agree.
        let context = (case.prompt + case.decode + 1).max(64).to_string();
        let mut stage = Command::new(baton);
        stage.args(["--log", "warn", "stage"]).arg(model).args(["--rank", "0", "--member", "1"]);
        stage.args(["--layout", layout, "--group", &format!("{},{second}", hops[0].address)]);
        stage.args(["--threads", "1", "--streams", &case.streams.to_string()]);
        stage.args(["--context", &context, "--chunk", &chunk.to_string()]);
        stage.args(["--prompt-pair", prompt_pair]).stdin(Stdio::null());
        let stage = Stage(stage.spawn().with_context(|| format!("can't run {stage:?}"))?);
        bench.args(["--layouts", layout, "--group", &format!("{first},{second}")]);
        bench.args(["--prompt-pair", prompt_pair]);
        Ok(Self { engine: Engine::start("group", bench)?, hops, _stage: Some(stage) })
    }

    /// One run.
    ///
    /// # Errors
    /// A run that fails.
    pub fn run(&mut self, case: Case) -> Result<Ran> {
        once(&mut self.engine, case)
    }

    /// Bytes over all hops so far, where they are counted.
    pub fn carried(&self) -> u64 {
        self.hops.iter().map(Hop::carried).sum()
    }
}

/// Runs what follows in a network of its own at `rate` bytes a second.
fn shaper(rate: f64) -> Command {
    let lines = format!(
        "ip link set lo up && \
         tc qdisc add dev lo root tbf rate {:.0}bit burst 128kb latency 50ms && exec \"$@\"",
        rate * 8.0
    );
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", &lines, "sh"]);
    command
}

/// Whether this machine lets us shape a network.
pub fn can_shape() -> bool {
    let status = shaper(1e6).arg("true").stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Two processes of one rank each.
#[derive(Debug)]
pub struct Pair([Engine; 2]);

impl Pair {
    /// Starts both.
    ///
    /// # Errors
    /// An engine that does not load.
    pub fn start([first, second]: [Command; 2]) -> Result<Self> {
        Ok(Self([Engine::start("first", first)?, Engine::start("second", second)?]))
    }

    /// The case on both at the same time.
    ///
    /// # Errors
    /// A run that fails.
    pub fn run(&mut self, case: Case) -> Result<Vec<Ran>> {
        std::thread::scope(|scope| {
            let both = self.0.each_mut().map(|engine| scope.spawn(move || once(engine, case)));
            let ran = both.map(|thread| thread.join().expect("a run that fails is an error"));
            ran.into_iter().collect()
        })
    }

    /// The case on one, the other at rest.
    ///
    /// # Errors
    /// A run that fails.
    pub fn first(&mut self, case: Case) -> Result<Ran> {
        once(&mut self.0[0], case)
    }
}

/// Half of the layers each.
///
/// # Errors
/// A model that can't be read, or of one layer.
pub fn even(model: &Path) -> Result<String> {
    let layers = Checkpoint::open(model)?.config().layers();
    ensure!(layers > 1, "{}: one layer is too few for two ranks", model.display());
    let half = layers / 2;
    Ok(format!("0:{half},{half}:{layers}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_a_ring_says_how_busy_its_idlest_rank_was() {
        let note = "busy 0.970,0.480 0.910,0.950".to_owned();
        let timing = Timing { prompt_s: 2.0, decode_s: 4.0, tokens: 64.0, note };
        let ran = Ran::of(Case { prompt: 100, decode: 8, streams: 8 }, &timing);
        assert_eq!((ran.prompt, ran.decode), (400.0, 16.0));
        assert_eq!((ran.busy(0), ran.busy(1)), (0.91, 0.48));
        let alone = Timing { note: String::new(), ..timing };
        assert!(Ran::of(Case { prompt: 1, decode: 1, streams: 1 }, &alone).busy(0).is_nan());
    }
}
