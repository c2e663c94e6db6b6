//! `cargo xtask race-ring`: a ring of two ranks of one thread each beside two processes of one
//! thread each, through a slow link as well, and beside llama.cpp's RPC; run by run in turn.

pub mod hop;
pub mod report;
mod rival;
pub mod seat;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::race::models::{self, Model};
use crate::step::Steps;
use hop::Wire;
use report::{Figures, Versus};
use rival::Rival;
use seat::{Case, Pair, Ring};

/// Between two runs, so that what the one before left has come to rest.
const PAUSE: Duration = Duration::from_millis(100);
/// Chunks of the long prompt.
const CHUNKS: u32 = 32;
/// Streams that decode at once.
const STREAMS: u32 = 8;
/// What a token may cost on the wire: 4 % of llama.cpp's 211 kB.
const RIVAL_BYTES: f64 = 210_942.0;
/// A gigabit a second.
const GIGABIT: f64 = 125e6;
/// Runs of a whole race and of a short one; medians are reported.
const RUNS: u32 = 5;
const RUNS_SHORT: u32 = 1;

/// What the command is asked for.
#[derive(Debug)]
struct Asked {
    /// Tiny cases, whatever they show, and no rival.
    short: bool,
    runs: u32,
    baton: Option<PathBuf>,
    /// `pair`, `link` and `rpc`, or some of them.
    parts: Vec<String>,
    /// The models of the first part; the first of them is the second's.
    models: Vec<&'static Model>,
    /// Its layout, else an even one.
    layout: Option<String>,
    arith: String,
}

/// Runs the race; the summary is its last line.
///
/// # Errors
/// An argument that can't be, an engine that does not run. Never a speed.
pub fn run(steps: &mut Steps, arguments: &[String]) -> Result<()> {
    let asked = parse(arguments)?;
    let folder = steps.root().join("target/race");
    std::fs::create_dir_all(&folder)?;
    let baton = asked.baton.clone().map_or_else(|| crate::race::baton(steps, asked.short), Ok)?;
    let is_there = asked.has("rpc") && !asked.short;
    let rival = is_there.then(|| Rival::build(steps, &folder)).transpose()?;
    let race = Race { asked: &asked, baton, folder };
    let mut summary = String::from("race-ring:");
    for model in asked.models.iter().filter(|_| asked.has("pair")) {
        let figures = race.beside_a_pair(model, None)?;
        write!(summary, " {}: {figures};", model.name)?;
    }
    if let Some(model) = asked.models.first().filter(|_| asked.has("link")) {
        let figures = race.beside_a_pair(model, Some(GIGABIT))?;
        write!(summary, " {} at 1 Gbit/s: {figures};", model.name)?;
    }
    if asked.has("rpc") {
        let model = if asked.short { asked.models[0] } else { models::named("smollm2-q4_0")? };
        let ours = race.bytes_a_token(model)?;
        let share = 100.0 * ours / RIVAL_BYTES;
        write!(summary, " {ours:.0} bytes a token, {share:.1} % of {RIVAL_BYTES:.0};")?;
        if let Some(rival) = &rival {
            write!(summary, " beside llama.cpp's RPC: {}", race.beside_rpc(rival)?)?;
        }
    }
    println!("{}", summary.trim_end_matches(';'));
    Ok(())
}

/// Who runs.
struct Race<'a> {
    asked: &'a Asked,
    baton: PathBuf,
    folder: PathBuf,
}

impl Race<'_> {
    fn path(&self, model: &Model) -> Result<PathBuf> {
        model.path(&self.folder, || crate::ci::pull(Command::new(&self.baton)))
    }

    /// A command of ours on `model` with room for the case; threads are one a rank.
    fn bench(&self, path: &Path, case: Case, chunk: Option<u32>) -> Command {
        let mut command = Command::new(&self.baton);
        command.arg("bench").arg(path).args(["--lines", "--threads", "1"]);
        command.args(["--arith", &self.asked.arith, "--prompt", &case.prompt.to_string()]);
        command.args(["--decode", &case.decode.to_string()]);
        command.args(["--streams", &case.streams.to_string()]);
        command.args(chunk.map(|chunk| format!("--chunk={chunk}")));
        command
    }

    fn ring(&self, path: &Path, case: Case, chunk: Option<u32>, rate: Link) -> Result<Ring> {
        let layout = match &self.asked.layout {
            Some(layout) => layout.clone(),
            None => seat::even(path)?,
        };
        let command = self.bench(path, case, chunk);
        match rate {
            Link::None => Ring::within(command, &layout),
            Link::Free => Ring::through(command, &self.baton, path, &layout, Wire::default()),
            Link::Slow(rate) if seat::can_shape() => Ring::behind_a_shaper(&command, &layout, rate),
            Link::Slow(rate) => {
                Ring::through(command, &self.baton, path, &layout, Wire::of_rate(rate))
            }
        }
    }

    /// The same work on the ring and on two processes; through links of `rate` bytes a second.
    fn beside_a_pair(&self, model: &Model, rate: Option<f64>) -> Result<Figures> {
        let path = self.path(model)?;
        let short = self.asked.short;
        let rows: u32 = if short { 4 } else { 96 };
        let decode = if short { 16 } else { 64 };
        let link = rate.map_or(Link::None, Link::Slow);
        let long = Case { prompt: CHUNKS * rows, decode: 1, streams: 1 };
        let many = Case { prompt: 16, decode, streams: STREAMS };
        let one = Case { streams: 1, ..many };
        println!("{}, {}", model.name, rate.map_or("loopback", |_| "links of 1 Gbit/s"));
        let mut figures = Figures::default();
        {
            let mut ring = self.ring(&path, long, Some(rows), link)?;
            let half = |_| self.bench(&path, long, None);
            let mut pair = Pair::start([0, 1].map(half))?;
            for round in 0..=self.asked.runs {
                let (ring, pair) = self.turn(&mut ring, &mut pair, long, long)?;
                figures.prompt.add(round, &ring, &pair);
                figures.busy_prompt.push(ring.busy(0));
            }
        }
        let mut ring = self.ring(&path, many, None, link)?;
        let half = Case { streams: STREAMS / 2, ..many };
        let mut pair = Pair::start([0, 1].map(|_| self.bench(&path, half, None)))?;
        for round in 0..=self.asked.runs {
            let (all, both) = self.turn(&mut ring, &mut pair, many, half)?;
            figures.streams.add(round, &all, &both);
            figures.busy_streams.push(all.busy(1));
            let alone = pair.first(one)?;
            std::thread::sleep(PAUSE);
            figures.one.add(round, &ring.run(one)?, &[alone]);
            std::thread::sleep(PAUSE);
        }
        print!("{}", figures.table());
        Ok(figures)
    }

    fn turn(&self, ring: &mut Ring, pair: &mut Pair, whole: Case, half: Case) -> Turn {
        let ring = ring.run(whole)?;
        std::thread::sleep(PAUSE);
        let pair = pair.run(half)?;
        std::thread::sleep(PAUSE);
        Ok((ring, pair))
    }

    /// What one decoded token of one stream carries over all hops of the ring.
    fn bytes_a_token(&self, model: &Model) -> Result<f64> {
        const FEW: u32 = 16;
        const MANY: u32 = 48;
        let case = |decode| Case { prompt: 16, decode, streams: 1 };
        let mut ring = self.ring(&self.path(model)?, case(MANY), None, Link::Free)?;
        let mut carried = |decode| {
            let before = ring.carried();
            ring.run(case(decode))?;
            // The close's round is the last, and nobody waits for it.
            std::thread::sleep(PAUSE);
            anyhow::Ok(ring.carried() - before)
        };
        let (few, many) = (carried(FEW)?, carried(MANY)?);
        Ok(many.saturating_sub(few) as f64 / f64::from(MANY - FEW))
    }

    /// The same file on llama.cpp's two servers.
    fn beside_rpc(&self, rival: &Rival) -> Result<String> {
        const STREAMS: u32 = 4;
        const MODELS: [&str; 3] = ["smollm2-q4_1", "smollm2-q4_0", "smollm2-q8_0"];
        let (prompt, decode) = (512, 64);
        let case = |streams| Case { prompt, decode, streams };
        let mut worst = Versus::default();
        for name in MODELS {
            let path = self.path(models::named(name)?)?;
            let mut ring = self.ring(&path, case(STREAMS), None, Link::None)?;
            let mut versus = Versus::default();
            for round in 0..=self.asked.runs {
                let one = ring.run(case(1))?;
                let many = ring.run(case(STREAMS))?;
                std::thread::sleep(PAUSE);
                let theirs = rival.race(&path, prompt, decode, &format!("1,{STREAMS}"))?;
                std::thread::sleep(PAUSE);
                if round > 0 {
                    versus.add(&one, &many, &theirs);
                }
            }
            println!("{name} beside llama.cpp's RPC\n{}", versus.table());
            println!("  their bytes a decoded token: {:.0}", rival.bytes_a_token(&path)?);
            worst = worst.or(versus);
        }
        Ok(worst.to_string())
    }
}

/// What lies between the ranks.
#[derive(Clone, Copy)]
enum Link {
    /// Both are threads of one process.
    None,
    /// Two processes, whose bytes are counted.
    Free,
    /// So many bytes a second.
    Slow(f64),
}

/// A run of the ring, and one of each process.
type Turn = Result<(seat::Ran, Vec<seat::Ran>)>;

impl Asked {
    fn has(&self, part: &str) -> bool {
        self.parts.iter().any(|p| p == part)
    }
}

fn parse(arguments: &[String]) -> Result<Asked> {
    let short = arguments.iter().any(|word| word == "--short");
    let mut asked = Asked {
        short,
        runs: if short { RUNS_SHORT } else { RUNS },
        baton: None,
        parts: ["pair", "link", "rpc"].map(String::from).into(),
        models: Vec::new(),
        layout: None,
        arith: "1".into(),
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--short" => {}
            "--runs" => {
                let runs = value()?;
                let number = runs.parse().ok().filter(|n| *n > 0);
                asked.runs = number.with_context(|| format!("--runs {runs}: 1 or more"))?;
            }
            "--baton" => asked.baton = Some(value()?.into()),
            "--parts" => asked.parts = value()?.split(',').map(String::from).collect(),
            "--model" => {
                let names = value()?.split(',').map(models::named);
                asked.models = names.collect::<Result<_>>()?;
            }
            "--layout" => asked.layout = Some(value()?.clone()),
            "--arith" => asked.arith = value()?.clone(),
            other => bail!("race-ring: there is no {other}"),
        }
    }
    if asked.models.is_empty() {
        let names: &[&str] = if short { &["tiny-q4_0"] } else { &["deep-q4_0", "smollm2-q4_0"] };
        asked.models = names.iter().map(|name| models::named(name)).collect::<Result<_>>()?;
    }
    if let Some(part) = asked.parts.iter().find(|p| !["pair", "link", "rpc"].contains(&p.as_str()))
    {
        bail!("--parts {part}: expected some of pair, link and rpc");
    }
    Ok(asked)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn parsed(line: &str) -> Result<Asked> {
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        parse(&words)
    }

    #[test]
    fn a_race_has_all_its_parts_unless_some_are_named() {
        let asked = parsed("").unwrap();
        assert!(asked.has("pair") && asked.has("link") && asked.has("rpc"));
        assert_eq!((asked.runs, asked.models.len()), (RUNS, 2));
        let asked = parsed("--short --parts link --runs 2").unwrap();
        assert!(asked.has("link") && !asked.has("rpc"));
        assert_eq!((asked.runs, asked.models[0].name), (2, "tiny-q4_0"));
    }

    #[test]
    fn what_cannot_be_is_named() {
        for (line, part) in [
            ("--parts nothing", "--parts nothing"),
            ("--runs 0", "--runs 0"),
            ("--model gpt", "gpt"),
            ("--fast", "no --fast"),
            ("--layout", "--layout needs a value"),
        ] {
            let said = parsed(line).unwrap_err().to_string();
            assert!(said.contains(part), "`{part}` is not in: {said}");
        }
    }
}
