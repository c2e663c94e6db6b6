//! `cargo xtask race-shards`: two ranks of one thread each that share every layer, beside a ring of
//! two and one rank alone, over links of a made rate and delay; and a group's prompts in pairs
//! beside its prompts alone. Run by run in turn, medians.

mod report;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use weights::Checkpoint;

use crate::race::models::{self, Model};
use crate::race_ring::hop::Wire;
use crate::race_ring::seat::{self, Case, Ring};
use crate::step::Steps;
use report::{Pairs, Row, Table};

/// Between two runs, so that what the one before left has come to rest.
const PAUSE: Duration = Duration::from_millis(50);
/// Runs of a prompt in pairs and alone, and of the table; medians are reported.
const RUNS: u32 = 9;
const TABLE_RUNS: u32 = 3;
/// Rows of a prompt unless said, and tokens after it. A round takes a prompt whole.
const PROMPT: u32 = 512;
const DECODE: u32 = 16;
/// As many as a round may have.
const PROMPTS: std::ops::RangeInclusive<u32> = 1..=4096;
const PARTS: [&str; 2] = ["table", "pairs"];
/// Members of one machine would exchange through memory, which no link slows.
const TCP: &str = "tcp";
/// How a group of two shares layers.
const SPLITS: [&str; 2] = ["shards2", "rows2"];

/// A link that is made.
#[derive(Clone, Copy, Debug)]
struct Link {
    name: &'static str,
    /// Its name without its delay, which the kernel's shaper does not make.
    rate: &'static str,
    gbit: Option<f64>,
    delay_us: u64,
}

const LINKS: [Link; 3] = [
    Link { name: "unthrottled", rate: "unthrottled", gbit: None, delay_us: 0 },
    Link { name: "10 Gbit/s, 50 us", rate: "10 Gbit/s", gbit: Some(10.0), delay_us: 50 },
    Link { name: "1 Gbit/s, 100 us", rate: "1 Gbit/s", gbit: Some(1.0), delay_us: 100 },
];

impl Link {
    fn bytes_per_s(self) -> Option<f64> {
        self.gbit.map(|gbit| gbit * 125e6)
    }

    fn wire(self) -> Wire {
        let delay = Duration::from_micros(self.delay_us);
        Wire { bytes_per_s: self.bytes_per_s(), delay }
    }
}

/// What the command is asked for.
#[derive(Debug)]
struct Asked {
    /// A tiny model, whatever it shows.
    short: bool,
    runs: u32,
    /// Tokens of a prompt.
    prompt: u32,
    parts: Vec<String>,
    splits: Vec<String>,
    model: &'static Model,
    baton: Option<PathBuf>,
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
    let model = asked.model.path(&folder, || crate::ci::pull(Command::new(&baton)))?;
    let layers = Checkpoint::open(&model)?.config().layers();
    let race = Race { asked: &asked, baton, model, layers };
    let mut summary = format!("race-shards: {}:", asked.model.name);
    if asked.has("table") {
        let table = race.table()?;
        println!("{table}");
        summary += &table.summary();
    }
    if asked.has("pairs") {
        for split in &asked.splits {
            let pairs = race.pairs(split)?;
            println!("{pairs}");
            summary += &pairs.summary();
        }
    }
    println!("{}", summary.trim_end_matches(';'));
    Ok(())
}

/// Who runs.
struct Race<'a> {
    asked: &'a Asked,
    baton: PathBuf,
    model: PathBuf,
    layers: u32,
}

impl Race<'_> {
    fn case(&self) -> Case {
        Case { prompt: self.asked.prompt, decode: DECODE, streams: 1 }
    }

    /// `baton bench` on one thread; members of one machine exchange through what is said.
    fn bench(&self, exchange: &str) -> Command {
        let mut command = Command::new(&self.baton);
        command.arg("bench").arg(&self.model).args(["--lines", "--threads", "1"]);
        command.args(["--arith", "1"]);
        command.args(["--exchange", exchange]);
        let prompt = self.asked.prompt.to_string();
        command.args(["--prompt", &prompt, "--decode", &DECODE.to_string(), "--chunk", &prompt]);
        command
    }

    fn group(&self, split: &str, link: Link) -> Result<Ring> {
        let layout = format!("0:{}@{split}", self.layers);
        let place = (&*self.baton, &*self.model, &*layout);
        Ring::group(self.bench(TCP), place, (self.case(), self.asked.prompt), "auto", link.wire())
    }

    /// Every layout over every link, through a process that throttles.
    fn table(&self) -> Result<Table> {
        let mut table = Table::default();
        for link in LINKS {
            let layout = seat::even(&self.model)?;
            let (baton, model): (&Path, &Path) = (&self.baton, &self.model);
            let mut rings = vec![
                ("one rank".to_owned(), Ring::within(self.bench(TCP), "1")?),
                (
                    "ring".into(),
                    Ring::through(self.bench(TCP), baton, model, &layout, link.wire())?,
                ),
            ];
            for split in &self.asked.splits {
                rings.push((split.clone(), self.group(split, link)?));
            }
            let mut rows: Vec<Row> =
                rings.iter().map(|(name, _)| Row::new(link.name, name)).collect();
            for round in 0..=self.asked.runs.min(TABLE_RUNS) {
                for ((_, ring), row) in rings.iter_mut().zip(&mut rows) {
                    row.add(round, &ring.run(self.case())?);
                    std::thread::sleep(PAUSE);
                }
            }
            table.rows.extend(rows);
        }
        Ok(table)
    }

    /// Both members in one process, behind what the kernel throttles where it lets us: no third
    /// process takes the ranks' cores.
    fn paired(&self, split: &str, link: Link, prompt_pair: &str) -> Result<Ring> {
        let layout = format!("0:{}@{split}", self.layers);
        let mut bench = self.bench(TCP);
        bench.args(["--prompt-pair", prompt_pair]);
        match link.bytes_per_s() {
            // Members give and take at once: twice as much passes the loopback.
            Some(rate) => Ring::behind_a_shaper(&bench, &layout, 2.0 * rate),
            None => Ring::within(bench, &layout),
        }
    }

    fn pairs(&self, split: &str) -> Result<Pairs> {
        if !seat::can_shape() {
            bail!("--parts pairs: this machine lets nobody shape a network: ask for the table");
        }
        let layout = format!("0:{}@{split}", self.layers);
        let mut near = self.bench("memory");
        near.args(["--prompt-pair", "off"]);
        let mut free = (Ring::within(near, &layout)?, Row::new("", "through memory"));
        let mut all = Vec::new();
        for link in LINKS {
            let mut rings = [("off", "alone"), ("auto", "in pairs")]
                .map(|(on, name)| (self.paired(split, link, on), Row::new(link.rate, name)));
            for round in 0..=self.asked.runs {
                for (ring, row) in &mut rings {
                    let ring = ring.as_mut().map_err(|error| anyhow::anyhow!("{error:#}"))?;
                    row.add(round, &ring.run(self.case())?);
                    std::thread::sleep(PAUSE);
                }
                // As often as those of one link, over all of them.
                if round % LINKS.len() as u32 == 0 {
                    free.1.add(all.len() as u32 + round, &free.0.run(self.case())?);
                }
            }
            all.push(rings.map(|(_, row)| row));
        }
        let mut pairs = Pairs::new(split, self.asked.prompt, free.1);
        all.into_iter().for_each(|rows| pairs.add(rows));
        Ok(pairs)
    }
}

impl Asked {
    fn has(&self, part: &str) -> bool {
        self.parts.iter().any(|p| p == part)
    }
}

fn some_of(flag: &str, value: &str, all: &[&str]) -> Result<Vec<String>> {
    let some: Vec<String> = value.split(',').map(String::from).collect();
    if let Some(other) = some.iter().find(|one| !all.contains(&one.as_str())) {
        bail!("{flag} {other}: expected some of {}", all.join(", "));
    }
    Ok(some)
}

fn parse(arguments: &[String]) -> Result<Asked> {
    let short = arguments.iter().any(|word| word == "--short");
    let mut asked = Asked {
        short,
        runs: if short { 1 } else { RUNS },
        prompt: PROMPT,
        parts: PARTS.map(String::from).into(),
        splits: SPLITS.map(String::from).into(),
        model: models::named(if short { "tiny-q4_0" } else { "qwen3_5-q4_k_m" })?,
        baton: None,
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
            "--prompt" => {
                let tokens = value()?;
                let number = tokens.parse().ok().filter(|n| PROMPTS.contains(n));
                asked.prompt = number.with_context(|| {
                    format!("--prompt {tokens}: {} to {}", PROMPTS.start(), PROMPTS.end())
                })?;
            }
            "--parts" => asked.parts = some_of(word, value()?, &PARTS)?,
            "--splits" => asked.splits = some_of(word, value()?, &SPLITS)?,
            "--model" => asked.model = models::named(value()?)?,
            "--baton" => asked.baton = Some(value()?.into()),
            other => bail!("race-shards: there is no {other}"),
        }
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
    fn a_race_has_both_parts_and_splits_unless_some_are_named() {
        let asked = parsed("").unwrap();
        assert!(asked.has("table") && asked.has("pairs") && asked.splits == SPLITS);
        let asked = parsed("--short --parts pairs --splits rows2 --runs 3").unwrap();
        assert!(!asked.has("table") && asked.splits == ["rows2"]);
        assert_eq!((asked.runs, asked.prompt, asked.model.name), (3, PROMPT, "tiny-q4_0"));
        assert_eq!(parsed("--prompt 256").unwrap().prompt, 256);
    }

    #[test]
    fn what_cannot_be_is_named() {
        for (line, part) in [
            ("--parts ring", "--parts ring: expected some of table, pairs"),
            ("--splits shards4", "--splits shards4: expected some of shards2, rows2"),
            ("--runs 0", "--runs 0: 1 or more"),
            ("--prompt 4097", "--prompt 4097: 1 to 4096"),
            ("--fast", "there is no --fast"),
            ("--model", "--model needs a value"),
        ] {
            let said = parsed(line).unwrap_err().to_string();
            assert!(said.contains(part), "`{part}` is not in: {said}");
        }
    }
}
