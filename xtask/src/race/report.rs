//! What a race showed: medians, spreads, ratios, and the worst of them.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Write;

use anyhow::Result;

use super::engine::Timing;

/// Whom the others are measured against.
const RIVAL: &str = "llama.cpp";

/// A run that counts.
#[derive(Clone, Debug)]
pub struct Run {
    /// The model's name.
    pub model: &'static str,
    /// Threads that computed.
    pub threads: usize,
    /// The engine's name.
    pub engine: String,
    /// Tokens of each stream's prompt.
    pub prompt: u32,
    /// Streams at once.
    pub streams: u32,
    /// How long it took.
    pub timing: Timing,
}

/// Of a token of a model.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Weight bytes that decoding it reads.
    pub bytes: f64,
    /// Multiply-adds of a prompt's token.
    pub products: f64,
}

/// What the machine can do a second.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes from memory.
    pub read: f64,
    /// Multiply-adds of 16 and of 8 bits; 0 where they were not measured.
    pub products: [f64; 2],
}

/// Which part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Prompt,
    Decode,
}

/// What is compared between engines. Many streams decode only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    /// Place of the model in the race.
    model: usize,
    threads: usize,
    phase: Phase,
    prompt: u32,
    streams: u32,
}

/// Tokens a second of some runs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Self {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
        let last = values.len().saturating_sub(1);
        Self { median: (at(last / 2) + at(values.len() / 2)) / 2.0, min: at(0), max: at(last) }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.1} ({:.1}..{:.1})", self.median, self.min, self.max))
    }
}

/// Everything that was run.
#[derive(Debug, Default)]
pub struct Report {
    json: Option<File>,
    /// Models in the order in which they came.
    models: Vec<&'static str>,
    engines: Vec<String>,
    rates: BTreeMap<Event, BTreeMap<String, Vec<f64>>>,
    work: BTreeMap<&'static str, Work>,
    limits: BTreeMap<usize, Vec<Limits>>,
    notes: BTreeMap<(&'static str, usize, u32), String>,
}

impl Report {
    /// Of nothing yet; runs go to `json` too.
    pub fn new(json: Option<File>) -> Self {
        Self { json, ..Self::default() }
    }

    /// What a token of a model costs.
    pub fn work(&mut self, model: &'static str, work: Work) {
        self.work.insert(model, work);
    }

    /// A measurement of what the machine can do.
    pub fn limits(&mut self, threads: usize, limits: Limits) {
        self.limits.entry(threads).or_default().push(limits);
    }

    /// Adds a run.
    ///
    /// # Errors
    /// A JSON file that can't be written.
    pub fn add(&mut self, run: Run) -> Result<()> {
        let Run { model, threads, engine, prompt, streams, timing } = &run;
        if let Some(file) = &mut self.json {
            let Timing { prompt_s, decode_s, tokens, note } = timing;
            // Names and notes are plain words.
            writeln!(
                file,
                "{{\"model\":\"{model}\",\"threads\":{threads},\"engine\":\"{engine}\",\
                 \"prompt_tokens\":{prompt},\"streams\":{streams},\"prompt_s\":{prompt_s},\
                 \"decode_tokens\":{tokens},\"decode_s\":{decode_s},\"note\":\"{note}\"}}"
            )?;
        }
        if !self.engines.contains(engine) {
            self.engines.push(engine.clone());
            // The rival first, the others by name.
            self.engines.sort_by_key(|name| (name != RIVAL, name.clone()));
        }
        if !self.models.contains(model) {
            self.models.push(model);
        }
        let model_at = self.models.iter().position(|m| m == model).unwrap_or(0);
        let mut put = |phase, rate: f64| {
            let (model, threads, prompt, streams) = (model_at, *threads, *prompt, *streams);
            let event = Event { model, threads, phase, prompt, streams };
            let rates = self.rates.entry(event).or_default();
            rates.entry(engine.clone()).or_default().push(rate);
        };
        put(Phase::Decode, timing.tokens / timing.decode_s);
        put(Phase::Prompt, f64::from(prompt * streams) / timing.prompt_s);
        if !timing.note.is_empty() {
            self.notes.insert((model, *threads, *prompt), timing.note.clone());
        }
        Ok(())
    }

    /// How many times the rival's rate an engine's is.
    fn ratio(&self, event: &Event, engine: &str) -> Option<f64> {
        let rates = self.rates.get(event)?;
        let median = |name: &str| rates.get(name).map(|rates| Spread::of(rates).median);
        Some(median(engine)? / median(RIVAL)?)
    }

    /// The least ratio of an engine.
    fn worst(&self, engine: &str, phase: Phase) -> Option<f64> {
        let events = self.rates.keys().filter(|event| event.phase == phase);
        events.filter_map(|event| self.ratio(event, engine)).reduce(f64::min)
    }

    fn limit(&self, threads: usize, of: impl Fn(&Limits) -> f64) -> f64 {
        let all = self.limits.get(&threads).into_iter().flatten();
        Spread::of(&all.map(of).collect::<Vec<_>>()).median
    }

    /// The part of what the machine can do, in percent.
    fn share(&self, event: &Event, engine: &str, rate: f64) -> Option<f64> {
        let work = self.work.get(self.models[event.model])?;
        let (used, limit) = match (event.phase, engine) {
            (Phase::Decode, _) => (work.bytes, self.limit(event.threads, |l| l.read)),
            // It computes in 8 bits, as arith 2 does.
            (Phase::Prompt, name) => {
                let at = usize::from(name != "arith 1");
                (work.products, self.limit(event.threads, |l| l.products[at]))
            }
        };
        Some(100.0 * rate * used / limit).filter(|share| share.is_finite())
    }

    fn write_races(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\ntokens/s, median (least..most); times the rival's; share of the limit")?;
        let alone = |event: &&Event| event.streams == 1 && self.raced(event);
        for event in self.rates.keys().filter(alone) {
            let what = match event.phase {
                Phase::Prompt => format!("prompt {}", event.prompt),
                Phase::Decode => format!("decode after {}", event.prompt),
            };
            let model = self.models[event.model];
            let note = self.notes.get(&(model, event.threads, event.prompt));
            let note = note.map(|note| format!(", {note}")).unwrap_or_default();
            writeln!(f, "{model}, {}, {what}{note}", threads_of(event.threads))?;
            for engine in &self.engines {
                let Some(rates) = self.rates[event].get(engine) else { continue };
                let spread = Spread::of(rates);
                let share = self.share(event, engine, spread.median);
                let share = share.map(|share| format!("{share:4.0} %")).unwrap_or_default();
                let ratio = self.ratio(event, engine).filter(|_| engine != RIVAL);
                let ratio = ratio.map(|ratio| format!("{ratio:.2}x")).unwrap_or_default();
                writeln!(f, "    {engine:10} {spread:28} {ratio:>7} {share}")?;
            }
        }
        Ok(())
    }

    /// Whether it is a case of the race, and not what streams are compared with.
    fn raced(&self, event: &Event) -> bool {
        let alone = self.engines.first().is_none_or(|first| first != RIVAL);
        alone || self.rates[event].contains_key(RIVAL)
    }

    /// Decode of many streams over that of one after an equal prompt.
    fn write_streams(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let many = |event: &&Event| event.streams > 1 && event.phase == Phase::Decode;
        for (at, event) in self.rates.keys().filter(many).enumerate() {
            if at == 0 {
                writeln!(f, "\ndecode of streams at once, tokens/s of all; times one alone")?;
            }
            let (model, one) = (self.models[event.model], Event { streams: 1, ..*event });
            for (engine, rates) in &self.rates[event] {
                let (all, streams) = (Spread::of(rates), event.streams);
                let one = self.rates.get(&one).and_then(|rates| rates.get(engine));
                let times = all.median / one.map_or(f64::NAN, |rates| Spread::of(rates).median);
                let threads = threads_of(event.threads);
                let who = format!("{model}, {threads}, {streams} streams, {engine}");
                writeln!(f, "{who:48} {all:28} {times:.2}x")?;
            }
        }
        Ok(())
    }
}

/// `1 thread`, `2 threads`.
pub fn threads_of(threads: usize) -> String {
    format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_races(f)?;
        self.write_streams(f)?;
        writeln!(f, "\nlimits: reads, and multiply-adds of 16 and of 8 bits")?;
        for &threads in self.limits.keys() {
            let giga = |of: fn(&Limits) -> f64| self.limit(threads, of) / 1e9;
            let [read, wide, narrow] =
                [giga(|l| l.read), giga(|l| l.products[0]), giga(|l| l.products[1])];
            let threads = threads_of(threads);
            writeln!(f, "{threads}: {read:.1} GB/s, {wide:.0} G/s, {narrow:.0} G/s")?;
        }
        for engine in self.engines.iter().filter(|name| *name != RIVAL) {
            let figure =
                |phase| self.worst(engine, phase).map_or("-".into(), |r| format!("{r:.2}"));
            let (decode, prompt) = (figure(Phase::Decode), figure(Phase::Prompt));
            writeln!(f, "race: worst decode {decode}, worst prompt {prompt} ({engine})")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(engine: &str, threads: usize, prompt_s: f64, decode_s: f64) -> Run {
        let timing = Timing { prompt_s, decode_s, tokens: 10.0, note: String::new() };
        let (model, engine) = ("m", engine.to_owned());
        Run { model, threads, engine, prompt: 100, streams: 1, timing }
    }

    fn report(runs: Vec<Run>) -> Report {
        let mut report = Report::new(None);
        for run in runs {
            report.add(run).expect("no file");
        }
        report.work("m", Work { bytes: 1e6, products: 1e6 });
        report.limits(1, Limits { read: 1e7, products: [4e8, 8e8] });
        report
    }

    #[test]
    fn the_worst_ratio_of_each_phase_ends_the_report() {
        let report = report(vec![
            run("arith 1", 1, 0.5, 1.0),
            run(RIVAL, 1, 1.0, 2.0),
            run(RIVAL, 2, 1.0, 2.0),
            run("arith 1", 2, 0.8, 1.6),
            run("arith 2", 2, 2.0, 1.0),
        ]);
        let text = report.to_string();
        let ends = "race: worst decode 1.25, worst prompt 1.25 (arith 1)\n\
                    race: worst decode 2.00, worst prompt 0.50 (arith 2)\n";
        assert!(text.ends_with(ends), "{text}");
        assert_eq!(report.engines, [RIVAL, "arith 1", "arith 2"]);
    }

    #[test]
    fn shares_are_of_bytes_read_and_of_products_made() {
        let text = report(vec![run("arith 1", 1, 0.5, 2.0), run(RIVAL, 1, 1.0, 4.0)]).to_string();
        // 200 prompt tokens a second of 1e6 products, of 4e8; 5 decoded of 1e6 bytes, of 1e7.
        let line = |part: &str| text.lines().find(|line| line.contains(part)).unwrap_or("");
        assert!(line("200.0 (200.0..200.0)").ends_with("2.00x   50 %"), "{text}");
        assert!(line("5.0 (5.0..5.0)").ends_with("2.00x   50 %"), "{text}");
    }

    #[test]
    fn streams_are_compared_with_one_after_the_same_prompt() {
        let mut many = run("arith 1", 1, 1.0, 1.0);
        (many.streams, many.timing.tokens) = (8, 40.0);
        let text = report(vec![run("arith 1", 1, 1.0, 1.0), many]).to_string();
        assert!(text.contains("8 streams, arith 1"), "{text}");
        assert!(text.contains("40.0 (40.0..40.0)            4.00x"), "{text}");
    }
}
