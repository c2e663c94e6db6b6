//! What a benchmark found: a table, or a line of JSON a row.

use std::collections::BTreeMap;

use arith::base::Arith;
use cpu::Limits;
use serde_json::{Value, json};
use weights::Checkpoint;

use super::Seat;
use super::case::{Case, Timing};
use super::work::Work;

/// Every row, in the order of their runs.
pub struct Table {
    model: String,
    /// Bytes by format.
    formats: BTreeMap<String, u64>,
    work: Work,
    runs: u32,
    rows: Vec<Row>,
    limits: Vec<(usize, Limits)>,
}

/// A case on a seat.
struct Row {
    layout: String,
    arith: Arith,
    threads: usize,
    device: String,
    case: Case,
    /// Tokens a second of each run.
    prompt: Vec<f64>,
    decode: Vec<f64>,
    /// Of each run, the part of both times that each rank computed.
    busy: Vec<Vec<[f64; 2]>>,
}

impl Row {
    /// Medians over the runs, a rank each.
    fn busy(&self) -> Vec<[f64; 2]> {
        let ranks = self.busy.first().map_or(0, Vec::len);
        let of = |rank: usize, phase: usize| {
            let all: Vec<f64> = self.busy.iter().map(|run| run[rank][phase]).collect();
            Spread::of(&all).median
        };
        (0..ranks).map(|rank| [of(rank, 0), of(rank, 1)]).collect()
    }
}

/// A median with the least and the most.
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

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{:.1} ({:.1}..{:.1})", self.median, self.min, self.max);
        f.pad(&text)
    }
}

impl Table {
    /// Without rows.
    pub fn new(checkpoint: &Checkpoint, runs: u32) -> Self {
        let mut formats: BTreeMap<String, u64> = BTreeMap::new();
        for tensor in checkpoint.tensors() {
            *formats.entry(tensor.format.to_string()).or_default() += tensor.bytes as u64;
        }
        let (model, work) = (checkpoint.name(), Work::of(checkpoint));
        Self { model, formats, work, runs, rows: Vec::new(), limits: Vec::new() }
    }

    /// Adds a row.
    pub fn add(&mut self, seat: &Seat, case: Case) {
        self.rows.push(Row {
            layout: seat.placement.to_string(),
            arith: seat.arith,
            threads: seat.threads,
            device: seat.device.clone(),
            case,
            prompt: Vec::new(),
            decode: Vec::new(),
            busy: Vec::new(),
        });
    }

    /// Adds a run to the row `at`.
    pub fn put(&mut self, at: usize, timing: Timing) {
        let row = &mut self.rows[at];
        row.prompt.push(f64::from(row.case.prompt * row.case.streams) / timing.prompt_s);
        row.decode.push(f64::from(timing.tokens) / timing.decode_s);
        row.busy.push(timing.busy);
    }

    /// Adds what `threads` threads can do.
    pub fn limit(&mut self, threads: usize, limits: Limits) {
        self.limits.push((threads, limits));
    }

    /// A line of JSON a row and a limit.
    pub fn print_json(&self) {
        for row in &self.rows {
            println!("{}", self.row_json(row));
        }
        for (threads, limits) in &self.limits {
            let line = json!({
                "threads": threads, "read_bytes_per_s": limits.read_bytes,
                "multiply_adds_16_per_s": limits.multiply_16,
                "multiply_adds_8_per_s": limits.multiply_8,
            });
            println!("{line}");
        }
    }

    fn row_json(&self, row: &Row) -> Value {
        let (prompt, decode) = (Spread::of(&row.prompt), Spread::of(&row.decode));
        json!({
            "model": self.model, "formats": self.formats, "device": row.device,
            "layout": row.layout, "arith": row.arith.number(), "threads": row.threads,
            "streams": row.case.streams,
            "runs": self.runs,
            "prompt_tokens": row.case.prompt, "prompt_tokens_per_s": prompt.median,
            "prompt_min": prompt.min, "prompt_max": prompt.max,
            "decode_tokens": row.case.decode, "decode_tokens_per_s": decode.median,
            "decode_min": decode.min, "decode_max": decode.max,
            "busy": row.busy(),
            "read_bytes_a_token": self.work.read_bytes,
            "multiply_adds_a_prompt_token": self.work.multiply_adds,
        })
    }

    /// For people.
    pub fn print(&self) {
        let mib = |bytes: &u64| *bytes as f64 / f64::from(1 << 20);
        let formats = self.formats.iter().map(|(name, b)| format!("{name} {:.1} MiB", mib(b)));
        println!("{}: {}", self.model, formats.collect::<Vec<_>>().join(", "));
        if let Some(row) = self.rows.first() {
            println!("{}", row.device);
        }
        println!("tokens/s, median (least..most) of {} runs; decode of all streams", self.runs);
        let wide = self.rows.iter().map(|row| row.layout.len()).max().unwrap_or(0).max(6);
        let head = ["arith", "threads", "streams", "prompt", "prompt tokens/s", "decode tokens/s"];
        let [arith, threads, streams, length, prompt, decode] = head;
        println!("{:wide$}  {arith} {threads} {streams} {length}  {prompt:24} {decode}", "layout");
        for row in &self.rows {
            let Case { prompt: length, streams, .. } = row.case;
            let (prompt, decode) = (Spread::of(&row.prompt), Spread::of(&row.decode));
            let (layout, arith, threads) = (&row.layout, row.arith.number(), row.threads);
            print!("{layout:wide$}  {arith:>5} {threads:>7} {streams:>7} {length:>6}  ");
            println!("{prompt:24} {decode}");
            if row.layout.contains(',') {
                let ranks = row.busy().into_iter().enumerate().map(|(rank, [prompt, decode])| {
                    format!("rank {rank} {:.0} % and {:.0} %", 100.0 * prompt, 100.0 * decode)
                });
                let ranks = ranks.collect::<Vec<_>>().join(", ");
                println!("{:wide$}  busy in prompt and decode: {ranks}", "");
            }
        }
        for (threads, limits) in &self.limits {
            self.print_limit(*threads, limits);
        }
    }

    /// What the machine could do, and the best share of it among one rank's rows of one stream.
    fn print_limit(&self, threads: usize, limits: &Limits) {
        println!("{threads} threads read {:.1} GB/s at most", limits.read_bytes / 1e9);
        let products = [(Arith::One, 16, limits.multiply_16), (Arith::Two, 8, limits.multiply_8)];
        for (arith, bits, limit) in products {
            let alone = |row: &&Row| {
                let one = row.case.streams == 1 && !row.layout.contains(',');
                one && (row.arith, row.threads) == (arith, threads)
            };
            let rows: Vec<&Row> = self.rows.iter().filter(alone).collect();
            let best = |of: fn(&Row) -> &[f64]| {
                rows.iter().map(|row| Spread::of(of(row)).median).reduce(f64::max)
            };
            let (Some(prompt), Some(decode)) = (best(|r| &r.prompt), best(|r| &r.decode)) else {
                continue;
            };
            let share = 100.0 * decode * self.work.read_bytes as f64 / limits.read_bytes;
            print!("arith {arith}: decode reads {share:.0} % of that");
            if let Some(limit) = limit {
                let share = 100.0 * prompt * self.work.multiply_adds as f64 / limit;
                let limit = limit / 1e9;
                print!("; prompts make {share:.0} % of {limit:.0} G {bits}-bit multiply-adds/s");
            }
            println!();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_middle_the_least_and_the_most() {
        let text = |values: &[f64]| Spread::of(values).to_string();
        assert_eq!(text(&[3.0, 1.0, 2.0]), "2.0 (1.0..3.0)");
        assert_eq!(text(&[4.0, 1.0, 2.0, 9.0]), "3.0 (1.0..9.0)");
        assert_eq!(text(&[5.0]), "5.0 (5.0..5.0)");
    }
}
