//! `cargo xtask race-plan`: what `baton plan` predicts beside what its placements do, on machines
//! that are made: namespaces with a core or a share of one, over cables of three kinds.

mod machine;
mod placed;
mod report;
mod weighed;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::race::models;
use crate::race_ring::hop::{Hop, Wire};
use crate::step::Steps;
use machine::{CABLES, Cable, MACHINES, Rack};
use placed::{Bench, CHUNK, Figures, predicted};
use report::{Row, Scenario};

/// Placements of a scenario that are measured.
const PLACEMENTS_MAX: usize = 4;
/// Runs of each, of which the median counts.
const RUNS: u32 = 4;

/// A question to the plan.
struct Question {
    model: &'static str,
    /// Tokens of the prompt and after it.
    case: (u32, u32),
    /// Machines by index, and the part of the whole model that each has room for, in percent.
    machines: &'static [(usize, u64)],
    cable: Cable,
    objective: &'static str,
    /// Where the endpoint must be.
    head: Option<usize>,
}

const fn question(
    (model, case): (&'static str, (u32, u32)),
    machines: &'static [(usize, u64)],
    cable: usize,
    objective: &'static str,
) -> Question {
    Question { model, case, machines, cable: CABLES[cable], objective, head: None }
}

const SMALL: (&str, (u32, u32)) = ("smollm2-q4_0", (256, 48));
const DEEP: (&str, (u32, u32)) = ("deep-q4_0", (256, 32));
// A share of a core comes in pieces of the kernel's tick: what it slows must take longer.
const LARGE: (&str, (u32, u32)) = ("qwen3_5-q4_k_m", (128, 16));

const QUESTIONS: [Question; 12] = [
    question(DEEP, &[(0, 200), (1, 200)], 0, "decode"),
    question(DEEP, &[(0, 200), (1, 200)], 0, "prompt"),
    question(LARGE, &[(0, 70), (2, 70)], 1, "decode"),
    question(DEEP, &[(0, 200), (1, 200)], 2, "prompt"),
    question(LARGE, &[(0, 200), (1, 200)], 1, "prompt"),
    question(LARGE, &[(0, 75), (1, 75)], 2, "decode"),
    question(LARGE, &[(0, 200), (2, 200)], 0, "prompt"),
    question(SMALL, &[(0, 70), (1, 80)], 1, "decode"),
    question(SMALL, &[(0, 200), (1, 200)], 2, "prompt"),
    question(SMALL, &[(0, 200), (1, 200)], 0, "decode"),
    question(LARGE, &[(0, 65), (1, 65), (2, 65)], 1, "decode"),
    Question { head: Some(2), ..question(LARGE, &[(0, 200), (2, 200)], 1, "decode") },
];

struct Asked {
    /// From 1.
    scenarios: Vec<usize>,
    runs: u32,
    baton: Option<PathBuf>,
    again: bool,
    /// Nothing is timed.
    memory: bool,
}

/// Runs the race; the summary is its last line.
///
/// # Errors
/// An argument that can't be, a system without namespaces, a ring that does not come up. Never a
/// prediction.
pub fn run(steps: &mut Steps, arguments: &[String]) -> Result<()> {
    if let [hop, to, delay_us] = arguments
        && hop == "hop"
    {
        return delay(to, delay_us);
    }
    let asked = parse(arguments)?;
    let baton = asked.baton.clone().map_or_else(|| crate::race::baton(steps, false), Ok)?;
    let folder = steps.root().join("target/race-plan");
    if asked.again {
        let _ = std::fs::remove_dir_all(&folder);
    }
    std::fs::create_dir_all(&folder)?;
    let race = Race {
        baton,
        models: steps.root().join("target/race"),
        folder,
        runs: asked.runs,
        memory: asked.memory,
    };
    let mut scenarios = Vec::new();
    // Cable by cable, so that each is laid once.
    for cable in CABLES {
        let of = |at: &&usize| QUESTIONS[**at - 1].cable == cable;
        let numbers: Vec<usize> = asked.scenarios.iter().filter(of).copied().collect();
        if numbers.is_empty() {
            continue;
        }
        let rack = Rack::build(cable)?;
        let mut paths = None;
        for number in numbers {
            let question = &QUESTIONS[number - 1];
            let (facts, bench) = race.prepare(question)?;
            let known = match &paths {
                Some(known) => known,
                None => &*paths.insert(race.paths(&rack, &bench)?),
            };
            let scenario = race.answer(number, question, &rack, &bench, (&facts, known))?;
            match race.memory {
                true => print!("{}", report::memory(&scenario)),
                false => print!("{scenario}"),
            }
            scenarios.push(scenario);
        }
    }
    match race.memory {
        true => println!("{}", report::memory_summary(&scenarios)),
        false => println!("{}", report::summary(&scenarios)),
    }
    Ok(())
}

/// A link that is late, for as long as standard input is open.
fn delay(to: &str, delay_us: &str) -> Result<()> {
    let delay = Duration::from_micros(delay_us.parse().context("microseconds")?);
    let hop = Hop::to(to.parse()?, Wire { delay, ..Wire::default() })?;
    println!("{}", hop.address);
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

struct Race {
    baton: PathBuf,
    models: PathBuf,
    folder: PathBuf,
    runs: u32,
    memory: bool,
}

impl Race {
    /// The model's file, and what each machine says of itself.
    fn prepare(&self, question: &Question) -> Result<(Vec<Value>, Bench)> {
        let model = models::named(question.model)?;
        let model = model.path(&self.models, || crate::ci::pull(Command::new(&self.baton)))?;
        let key = self.folder.join("ring.key");
        if !key.exists() {
            output(Command::new(&self.baton).args(["key", "new"]).arg(&key))?;
        }
        let cache = self.folder.join("cache");
        let (baton, case, runs) = (self.baton.clone(), question.case, self.runs);
        let bench = Bench { baton, cache, model, key, case, runs };
        let facts = (0..MACHINES.len()).map(|machine| self.facts(machine, &bench));
        Ok((facts.collect::<Result<_>>()?, bench))
    }

    fn facts(&self, machine: usize, bench: &Bench) -> Result<Value> {
        let mut probe = Rack::command(machine, &self.baton, &bench.cache);
        probe.arg("probe").arg(&bench.model).args(["--threads", "1", "--json"]);
        probe.args(["--name", MACHINES[machine].name, "--chunk", CHUNK]);
        Ok(serde_json::from_slice(&output(&mut probe)?)?)
    }

    /// The measured ways between all machines, by where they begin.
    fn paths(&self, rack: &Rack, bench: &Bench) -> Result<Vec<Value>> {
        // Kept links are of an address, whatever cable it had.
        let cache = self.folder.join("links");
        let _ = std::fs::remove_dir_all(&cache);
        std::fs::create_dir_all(cache.join("probe"))?;
        for file in std::fs::read_dir(bench.cache.join("probe"))? {
            let file = file?;
            std::fs::copy(file.path(), cache.join("probe").join(file.file_name()))?;
        }
        let others = |of: usize| (0..MACHINES.len()).filter(move |other| *other != of);
        let probe = |of: usize| {
            let mut probe = Rack::command(of, &self.baton, &cache);
            probe.arg("probe").arg(&bench.model).args(["--threads", "1"]);
            probe
                .args(["--name", MACHINES[of].name, "--chunk", CHUNK])
                .arg("--key")
                .arg(&bench.key);
            probe
        };
        let mut doors = Vec::new();
        for of in 0..MACHINES.len() {
            let mut door = probe(of);
            others(of).for_each(|to| {
                door.args(["--listen", &Rack::listen(of, to)]);
            });
            let door = door.arg("--answer").stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
            doors.push(Door(door));
        }
        std::thread::sleep(Duration::from_secs(1));
        let mut all = Vec::new();
        for of in 0..MACHINES.len() {
            let mut asks = probe(of);
            others(of).for_each(|to| {
                let peer = format!("{}={}", MACHINES[to].name, rack.next(of, to));
                asks.args(["--peer", &peer]);
            });
            let told: Value = serde_json::from_slice(&output(asks.arg("--json"))?)?;
            all.push(told["paths"].clone());
        }
        Ok(all)
    }

    fn answer(
        &self,
        number: usize,
        question: &Question,
        rack: &Rack,
        bench: &Bench,
        (facts, paths): (&[Value], &[Value]),
    ) -> Result<Scenario> {
        let plan = Planner { race: self, bench, question };
        let files = plan.write(facts, paths, None)?;
        let layers = plan.layers(&files)?;
        let whole = plan.of(&files, &["--layers", &format!("a:0-{}", layers - 1)])?;
        let need: f64 = predicted(&whole)?.memory.iter().sum();
        let files = plan.write(facts, paths, Some(need))?;
        let mut choosing = vec!["--objective", question.objective];
        if let Some(head) = question.head {
            choosing.extend(["--head", MACHINES[head].name]);
        }
        let chosen = plan.of(&files, &choosing)?;
        let mut plans = vec![chosen];
        for text in plan.others(layers, &plans[0])? {
            // What does not fit is no placement.
            let Ok(other) = plan.of(&files, &["--layers", &text]) else { continue };
            if plans.iter().all(|known| known["ranks"] != other["ranks"]) {
                plans.push(other);
            }
            if plans.len() == PLACEMENTS_MAX {
                break;
            }
        }
        let mut rows = Vec::new();
        // What a host gives a guest anew is slow memory at first: whoever comes next gets it back.
        if !self.memory {
            bench.measure(rack, &plans[0])?;
        }
        for plan in &plans {
            let told = predicted(plan)?;
            let found = match self.memory {
                true => Figures { memory: bench.weigh(rack, plan)?, ..told.clone() },
                false => bench.measure(rack, plan)?,
            };
            rows.push(Row { placement: name(plan), predicted: told, measured: found });
        }
        let machines: Vec<String> = question
            .machines
            .iter()
            .map(|(at, room)| format!("{} {room} %", MACHINES[*at].name))
            .collect();
        let name = format!(
            "{number}: {}, {}, {}, {}",
            question.model,
            machines.join(" + "),
            question.cable.name,
            question.objective
        );
        Ok(Scenario { name, prompt: question.objective == "prompt", rows })
    }
}

/// A process that answers measurers.
struct Door(std::process::Child);

impl Drop for Door {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `baton plan` on files of facts.
struct Planner<'a> {
    race: &'a Race,
    bench: &'a Bench,
    question: &'a Question,
}

impl Planner<'_> {
    /// Facts of the question's machines, with the room that they have of `need` bytes.
    fn write(&self, facts: &[Value], paths: &[Value], need: Option<f64>) -> Result<Vec<PathBuf>> {
        let one = |(at, room): &(usize, u64)| {
            let mut facts = facts[*at].clone();
            facts["paths"] = paths[*at].clone();
            let bytes = need.map_or(1e15, |need| need * *room as f64 / 100.0);
            facts["node"]["memory_bytes"] = json!(bytes as u64);
            let file = self.race.folder.join(format!("{}.json", MACHINES[*at].name));
            std::fs::write(&file, facts.to_string())?;
            Ok(file)
        };
        self.question.machines.iter().map(one).collect()
    }

    fn of(&self, files: &[PathBuf], words: &[&str]) -> Result<Value> {
        let mut plan = Command::new(&self.race.baton);
        plan.arg("plan").arg(&self.bench.model).args(["--json", "--streams", "1"]);
        plan.args(["--chunk", CHUNK]);
        plan.args(["--context", &self.bench.context().to_string()]);
        plan.args(["--prompt", &self.question.case.0.to_string()]).args(words);
        files.iter().for_each(|file| {
            plan.arg("--node").arg(file);
        });
        Ok(serde_json::from_slice(&output(&mut plan)?)?)
    }

    fn layers(&self, files: &[PathBuf]) -> Result<u64> {
        let plan = self.of(files, &[])?;
        let end =
            plan["ranks"].as_array().and_then(|ranks| ranks.last()?["layers"]["end"].as_u64());
        end.context("a plan has layers")
    }

    /// Other placements to try, as `--layers` takes them: the chosen one's cut moved, even cuts
    /// either way, and each machine alone.
    fn others(&self, layers: u64, chosen: &Value) -> Result<Vec<String>> {
        let ranks = chosen["ranks"].as_array().context("ranks")?;
        let cut = |first: &str, second: &str, at: u64| {
            format!("{first}:0-{},{second}:{at}-{}", at - 1, layers - 1)
        };
        let mut texts = Vec::new();
        if let [first, second] = &ranks[..] {
            let names = [first, second].map(|rank| rank["node"].as_str().unwrap_or_default());
            let at = first["layers"]["end"].as_u64().context("an end")?;
            let by = (layers / 8).max(2);
            for at in
                [at.saturating_sub(by), at + by].into_iter().filter(|at| (1..layers).contains(at))
            {
                texts.push(cut(names[0], names[1], at));
            }
        }
        let names: Vec<&str> =
            self.question.machines.iter().map(|(at, _)| MACHINES[*at].name).collect();
        let heads = |name: &str| self.question.head.is_none_or(|head| MACHINES[head].name == name);
        let (one, two) = (names[0], names[1]);
        for (first, second) in [(one, two), (two, one)].into_iter().filter(|pair| heads(pair.0)) {
            texts.push(format!("{first}:0-{}", layers - 1));
            texts.push(cut(first, second, layers / 2));
        }
        Ok(texts)
    }
}

/// `a > b (0:12,12:24)`.
fn name(plan: &Value) -> String {
    let ranks = plan["ranks"].as_array().into_iter().flatten();
    let names: Vec<&str> = ranks.filter_map(|rank| rank["node"].as_str()).collect();
    format!("{} ({})", names.join(" > "), plan["layout"].as_str().unwrap_or_default())
}

fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}", said.trim());
    Ok(output.stdout)
}

fn parse(arguments: &[String]) -> Result<Asked> {
    let all = (1..=QUESTIONS.len()).collect();
    let mut asked = Asked { scenarios: all, runs: RUNS, baton: None, again: false, memory: false };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--again" => asked.again = true,
            "--memory" => asked.memory = true,
            "--runs" => {
                let runs = value()?;
                let number = runs.parse().ok().filter(|n| *n > 0);
                asked.runs = number.with_context(|| format!("--runs {runs}: 1 or more"))?;
            }
            "--baton" => asked.baton = Some(Path::new(value()?).canonicalize()?),
            "--scenarios" => {
                let text = value()?;
                let known = |n: &usize| (1..=QUESTIONS.len()).contains(n);
                let numbers = text.split(',').map(|n| n.parse().ok().filter(known));
                let numbers = numbers.collect::<Option<_>>();
                asked.scenarios = numbers
                    .with_context(|| format!("--scenarios {text}: 1 to {}", QUESTIONS.len()))?;
            }
            other => bail!("race-plan: there is no {other}"),
        }
    }
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_have_every_kind_of_cable_and_objective() {
        for cable in CABLES {
            assert!(QUESTIONS.iter().any(|q| q.cable == cable), "{}", cable.name);
        }
        for objective in ["decode", "prompt"] {
            assert!(QUESTIONS.iter().filter(|q| q.objective == objective).count() > 3);
        }
        let words = ["--scenarios", "1,12", "--runs", "3"].map(String::from);
        let asked = parse(&words).expect("arguments");
        assert_eq!((asked.scenarios, asked.runs), (vec![1, 12], 3));
        assert!(parse(&["--scenarios".into(), "13".into()]).is_err());
    }
}
