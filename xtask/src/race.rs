//! `cargo xtask race-cpu`: this engine and llama.cpp on the same files of the same machine, run by
//! run in turn.

pub mod engine;
pub mod models;
mod report;
mod venv;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::step::{self, Steps, cargo};
use engine::Engine;
use models::{Case, Model, STREAMS_PROMPT};
pub use models::{requantise, shorten};
use report::{Limits, Report, Run, Work};

/// Between two runs, so that the threads of the one before have gone to sleep.
const PAUSE: Duration = Duration::from_millis(100);
/// Runs of a case of a whole race and of a short one; medians are reported.
const RUNS: u32 = 9;
const RUNS_SHORT: u32 = 3;

/// What the command is asked for.
#[derive(Debug)]
struct Asked {
    /// One tiny case, whatever it shows, with the `baton` that the tests build.
    short: bool,
    models: Vec<&'static Model>,
    threads: Vec<usize>,
    arith: Vec<u32>,
    runs: u32,
    /// Where each run's figures go, as JSON lines.
    json: Option<PathBuf>,
    /// A `baton` that is built already.
    baton: Option<PathBuf>,
    /// A Python that has `llama_cpp`.
    python: Option<PathBuf>,
}

/// Runs the race and prints its report.
///
/// # Errors
/// An argument that can't be, an engine that does not run. Never a speed.
pub fn run(steps: &mut Steps, arguments: &[String]) -> Result<()> {
    let asked = parse(arguments)?;
    let folder = steps.root().join("target/race");
    std::fs::create_dir_all(&folder)?;
    let baton = asked.baton.clone().map_or_else(|| baton(steps, asked.short), Ok)?;
    let python = venv::python(steps, &folder, asked.python.clone(), asked.short)?;
    let mut paths = Vec::new();
    for model in &asked.models {
        paths.push(model.path(&folder, || crate::ci::pull(Command::new(&baton)))?);
    }
    let script = steps.root().join("xtask/src/race/llama.py");
    let race = Race { asked: &asked, baton, python, script };
    let mut report = Report::new(asked.json.as_deref().map(File::create).transpose()?);
    println!("{}", race.estimate(&paths)?);
    for (model, path) in asked.models.iter().zip(&paths) {
        for &threads in &asked.threads {
            println!("{}, {}", model.name, report::threads_of(threads));
            race.heat(model, path, threads, &mut report).with_context(|| model.name)?;
            race.crowd(model, path, threads, &mut report).with_context(|| model.name)?;
        }
    }
    print!("{report}");
    Ok(())
}

/// Who runs.
struct Race<'a> {
    asked: &'a Asked,
    baton: PathBuf,
    python: Option<PathBuf>,
    script: PathBuf,
}

impl Race<'_> {
    /// Every case of a model at a number of threads: the engines in turn, `runs` times, each time
    /// another one first.
    fn heat(&self, model: &Model, path: &Path, threads: usize, report: &mut Report) -> Result<()> {
        let mut engines: Vec<Engine> = self.rival(model, path, threads)?.into_iter().collect();
        let ours = engines.len();
        let prompts: Vec<u32> = model.cases.iter().map(|case| case.0).collect();
        engines.extend(self.ours(path, threads, &prompts, model.decode(), 1)?);
        for engine in &engines {
            println!("  {}: {}", engine.name, engine.words);
        }
        report.work(model.name, work(&engines[ours].words)?);
        for round in 0..=self.asked.runs {
            for &(prompt, decode) in model.cases {
                for turn in 0..engines.len() {
                    let at = (turn + round as usize) % engines.len();
                    let run = (prompt, decode, 1);
                    once(&mut engines[at], model, threads, run, round, report)?;
                }
            }
            report.limits(threads, limits(&engines[ours].ask("limits")?)?);
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Streams at once beside one alone, ours only and on more than one thread.
    fn crowd(&self, model: &Model, path: &Path, threads: usize, report: &mut Report) -> Result<()> {
        let Some(&most) = model.streams.last() else { return Ok(()) };
        if threads == 1 && !self.asked.short {
            return Ok(());
        }
        let prompts = [STREAMS_PROMPT];
        let mut engines = self.ours(path, threads, &prompts, model.decode(), most)?;
        for round in 0..=self.asked.runs {
            for &streams in [1].iter().chain(model.streams) {
                for engine in &mut engines {
                    let run = (STREAMS_PROMPT, model.decode(), streams);
                    once(engine, model, threads, run, round, report)?;
                }
            }
        }
        Ok(())
    }

    /// llama.cpp with the model loaded, where there is one.
    fn rival(&self, model: &Model, path: &Path, threads: usize) -> Result<Option<Engine>> {
        let Some(python) = &self.python else { return Ok(None) };
        let longest = model.cases.iter().map(|(prompt, decode)| prompt + decode).max();
        let mut command = Command::new(python);
        command.arg(&self.script).arg(path).arg(threads.to_string());
        command.arg((longest.unwrap_or(0) + 16).to_string());
        Engine::start("llama.cpp", command).map(Some)
    }

    /// Ours of each arithmetic with the model loaded, and with room for such prompts and tokens of
    /// up to `streams` streams.
    fn ours(
        &self,
        path: &Path,
        threads: usize,
        prompts: &[u32],
        decode: u32,
        streams: u32,
    ) -> Result<Vec<Engine>> {
        let prompts: Vec<String> = prompts.iter().map(u32::to_string).collect();
        let start = |arith: &u32| {
            let mut command = Command::new(&self.baton);
            command.arg("bench").arg(path).arg("--lines");
            command.args(["--threads", &threads.to_string(), "--arith", &arith.to_string()]);
            command.args(["--prompt", &prompts.join(","), "--decode", &decode.to_string()]);
            command.args(["--streams", &streams.to_string()]);
            Engine::start(&format!("arith {arith}"), command)
        };
        self.asked.arith.iter().map(start).collect()
    }

    /// A guess at how long it takes.
    fn estimate(&self, paths: &[PathBuf]) -> Result<String> {
        // Multiply-adds and bytes a second of one thread, as two of the slower engines have them.
        const PRODUCTS: f64 = 2e10;
        const BYTES: f64 = 6e9;
        let engines = (self.asked.arith.len() + usize::from(self.python.is_some())) as f64;
        let mut seconds = 0.0;
        for (model, path) in self.asked.models.iter().zip(paths) {
            let bytes = path.metadata()?.len() as f64;
            // Five bits a weight or so.
            let weights = bytes * 1.4;
            for &threads in &self.asked.threads {
                let one = |&(prompt, decode): &Case| {
                    let threads = threads as f64;
                    f64::from(prompt) * weights / (PRODUCTS * threads)
                        + f64::from(decode) * bytes / (BYTES * threads.sqrt())
                };
                let all: f64 = model.cases.iter().map(one).sum();
                let runs = f64::from(self.asked.runs) + 2.0;
                seconds += engines * runs * all + engines * bytes / 2e8;
            }
        }
        Ok(format!("about {:.1} minutes", seconds / 60.0))
    }
}

/// One run and a pause; the first of a case warms caches and does not count.
fn once(
    engine: &mut Engine,
    model: &Model,
    threads: usize,
    (prompt, decode, streams): (u32, u32, u32),
    round: u32,
    report: &mut Report,
) -> Result<()> {
    let timing = engine.run(prompt, decode, streams)?;
    std::thread::sleep(PAUSE);
    if round > 0 {
        let (model, engine) = (model.name, engine.name.clone());
        report.add(Run { model, threads, engine, prompt, streams, timing })?;
    }
    Ok(())
}

/// `BYTES MULTIPLY-ADDS DEVICE`.
fn work(words: &str) -> Result<Work> {
    let mut numbers = words.split(' ').map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(bytes)), Some(Ok(products))) => Ok(Work { bytes, products }),
        _ => bail!("`{words}`: expected bytes and multiply-adds of a token"),
    }
}

/// `READ MULTIPLY16 MULTIPLY8`.
fn limits(line: &str) -> Result<Limits> {
    let numbers: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [read, wide, narrow] => Ok(Limits { read, products: [wide, narrow] }),
        _ => bail!("`{line}`: expected three rates"),
    }
}

/// The program that runs: of the release profile, but for a short race the tests' own.
///
/// # Errors
/// A build that fails.
pub fn baton(steps: &mut Steps, short: bool) -> Result<PathBuf> {
    let own = PathBuf::from(step::baton()?.get_program());
    if short && own.is_file() {
        return Ok(own);
    }
    steps.run("build", &mut cargo(&["build", "--release", "--locked", "-p", "baton"]))?;
    let target = own.parent().and_then(Path::parent).context("a target folder")?;
    Ok(target.join("release/baton"))
}

fn parse(arguments: &[String]) -> Result<Asked> {
    let mut asked = Asked {
        short: false,
        models: Vec::new(),
        threads: Vec::new(),
        arith: vec![1, 2],
        runs: 0,
        json: None,
        baton: None,
        python: None,
    };
    let mut names: Vec<&str> = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--short" => asked.short = true,
            "--model" => names.extend(value()?.split(',')),
            "--threads" => asked.threads = numbers(word, value()?)?,
            "--arith" => asked.arith = numbers(word, value()?)?,
            "--runs" => asked.runs = numbers(word, value()?)?[0],
            "--json" => asked.json = Some(value()?.into()),
            "--baton" => asked.baton = Some(value()?.into()),
            "--python" => asked.python = Some(value()?.into()),
            other => bail!("race-cpu: there is no {other}"),
        }
    }
    let all = if asked.short { models::SHORT } else { models::ALL };
    for name in &names {
        let known = all.iter().any(|model| model.name.starts_with(name));
        let list = || all.iter().map(|model| model.name).collect::<Vec<_>>().join(", ");
        ensure!(known, "--model {name}: expected the beginning of one of {}", list());
    }
    let named =
        |model: &&Model| names.is_empty() || names.iter().any(|n| model.name.starts_with(n));
    asked.models = all.iter().filter(named).collect();
    if asked.threads.is_empty() {
        asked.threads = if asked.short { vec![1] } else { vec![1, 2] };
    }
    if asked.runs == 0 {
        asked.runs = if asked.short { RUNS_SHORT } else { RUNS };
    }
    Ok(asked)
}

/// Numbers of one or more, with commas between.
fn numbers<T: std::str::FromStr + Default + PartialEq>(flag: &str, text: &str) -> Result<Vec<T>> {
    let number = |word: &str| word.parse().ok().filter(|n| *n != T::default());
    let numbers: Option<Vec<T>> = text.split(',').map(number).collect();
    numbers.with_context(|| format!("{flag} {text}: expected numbers of 1 or more, as 1,2"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn parsed(line: &str) -> Result<Asked> {
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        parse(&words)
    }

    fn names(asked: &Asked) -> Vec<&str> {
        asked.models.iter().map(|model| model.name).collect()
    }

    #[test]
    fn a_race_is_of_all_models_unless_the_beginnings_of_some_are_named() {
        let asked = parsed("").unwrap();
        assert_eq!(asked.models.len(), models::ALL.len());
        assert_eq!((asked.threads, asked.arith, asked.runs), (vec![1, 2], vec![1, 2], 9));
        let asked = parsed("--model qwen3_5,llama-q6_k --threads 2 --runs 3 --arith 1").unwrap();
        assert_eq!(names(&asked), ["llama-q6_k", "qwen3_5-q4_k_m", "qwen3_5-q8_0"]);
        assert_eq!((asked.threads, asked.arith, asked.runs), (vec![2], vec![1], 3));
        let asked = parsed("--short --json out").unwrap();
        assert_eq!((names(&asked), asked.runs), (vec!["tiny-q4_0"], 3));
    }

    #[test]
    fn what_cannot_be_is_named() {
        for (line, part) in [
            ("--model gpt", "--model gpt: expected the beginning of one of smollm2-q4_1, "),
            ("--threads 0", "--threads 0"),
            ("--threads 1,x", "--threads 1,x"),
            ("--runs", "--runs needs a value"),
            ("--fast", "no --fast"),
        ] {
            let said = parsed(line).unwrap_err().to_string();
            assert!(said.contains(part), "`{part}` is not in: {said}");
        }
    }
}
