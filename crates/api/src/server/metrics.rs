//! Counters, and their text for Prometheus: under names of our own and under vLLM's.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grammar::Cost;
use ring::head::Facts;

use super::vitals;
use crate::Run;

/// Upper bounds of the buckets, seconds.
const BOUNDS: [f64; 17] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0,
];
/// Most pairs of key and status that are told apart.
const SERIES_MAX: usize = 4096;
/// vLLM's names of guessed tokens.
const DRAFTED: &str = "spec_decode_num_draft_tokens_total";
const ACCEPTED: &str = "spec_decode_num_accepted_tokens_total";

#[derive(Clone, Debug, Default)]
struct Histogram {
    counts: [u64; BOUNDS.len() + 1],
    sum: f64,
}

impl Histogram {
    fn add(&mut self, value: Duration) {
        let seconds = value.as_secs_f64();
        let at = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        self.counts[at] += 1;
        self.sum += seconds;
    }

    fn write(&self, out: &mut String, name: &str, labels: &str) {
        let _ = writeln!(out, "# TYPE {name} histogram");
        let mut count = 0;
        for (n, added) in self.counts.iter().enumerate() {
            count += added;
            let bound = BOUNDS.get(n).map_or("+Inf".to_owned(), f64::to_string);
            let _ = writeln!(out, "{name}_bucket{{{labels}le=\"{bound}\"}} {count}");
        }
        let labels = labels.trim_end_matches(',');
        let _ = writeln!(out, "{name}_sum{{{labels}}} {}", self.sum);
        let _ = writeln!(out, "{name}_count{{{labels}}} {count}");
    }
}

#[derive(Debug, Default)]
struct Counts {
    answered: BTreeMap<(String, u16), u64>,
    tokens: BTreeMap<String, (u64, u64)>,
    finished: BTreeMap<&'static str, u64>,
    gone: u64,
    /// Tokens guessed ahead, and those of them that replies have.
    drafted: (u64, u64),
    head: Histogram,
    first: Histogram,
    between: Histogram,
    whole: Histogram,
}

/// What one server has counted.
#[derive(Debug, Default)]
pub(super) struct Metrics(Mutex<Counts>);

impl Metrics {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request's head was answered.
    pub fn answered(&self, key: &str, status: u16, took: Duration) {
        let mut counts = self.counts();
        let pair = (key.to_owned(), status);
        if counts.answered.len() < SERIES_MAX || counts.answered.contains_key(&pair) {
            *counts.answered.entry(pair).or_default() += 1;
        }
        counts.head.add(took);
    }

    /// A prompt was taken in.
    pub fn prompt(&self, key: &str, tokens: u32) {
        let mut counts = self.counts();
        counts.tokens.entry(key.to_owned()).or_default().0 += u64::from(tokens);
    }

    /// A reply's first token.
    pub fn first(&self, key: &str, took: Duration) {
        let mut counts = self.counts();
        counts.first.add(took);
        counts.tokens.entry(key.to_owned()).or_default().1 += 1;
    }

    /// Another.
    pub fn next(&self, key: &str, took: Duration) {
        let mut counts = self.counts();
        counts.between.add(took);
        counts.tokens.entry(key.to_owned()).or_default().1 += 1;
    }

    /// A reply was completed.
    pub fn finished(&self, reason: &'static str, took: Duration, run: &Run) {
        let mut counts = self.counts();
        counts.drafted.0 += u64::from(run.drafted);
        counts.drafted.1 += u64::from(run.accepted);
        *counts.finished.entry(reason).or_default() += 1;
        counts.whole.add(took);
    }

    /// A client went away before its reply's end.
    pub fn gone(&self) {
        self.counts().gone += 1;
    }

    /// Prometheus' text form.
    pub fn text(&self, facts: &Facts, cost: Cost, model: &str, ready: bool) -> String {
        let counts = self.counts();
        let mut out = String::new();
        let model = label(model);
        let own = |out: &mut String, kind, name, value: f64| {
            let _ = writeln!(out, "# TYPE baton_{name} {kind}\nbaton_{name} {value}");
        };
        let theirs = |out: &mut String, kind, name, value: f64| {
            let _ = writeln!(out, "# TYPE vllm:{name} {kind}");
            let _ = writeln!(out, "vllm:{name}{{model_name=\"{model}\"}} {value}");
        };
        let (prompt, reply) = counts.tokens.values().fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        let usage = f64::from(facts.pages_used) / f64::from(facts.pages.max(1));
        own(&mut out, "gauge", "ready", f64::from(u8::from(ready)));
        own(&mut out, "gauge", "ranks", f64::from(facts.world));
        own(&mut out, "gauge", "kv_pages_used", f64::from(facts.pages_used));
        own(&mut out, "gauge", "kv_pages", f64::from(facts.pages));
        own(&mut out, "gauge", "rounds_of_epoch", facts.rounds as f64);
        own(&mut out, "counter", "client_disconnections_total", counts.gone as f64);
        vitals::write(&mut out, facts, cost);
        let (drafted, accepted) = counts.drafted;
        for (ours, vllm, kind, value) in [
            ("requests_running", "num_requests_running", "gauge", f64::from(facts.running)),
            ("requests_waiting", "num_requests_waiting", "gauge", f64::from(facts.waiting)),
            ("kv_cache_usage_ratio", "kv_cache_usage_perc", "gauge", usage),
            ("prompt_tokens_total", "prompt_tokens_total", "counter", prompt as f64),
            ("generation_tokens_total", "generation_tokens_total", "counter", reply as f64),
            ("drafted_tokens_total", DRAFTED, "counter", drafted as f64),
            ("accepted_drafts_total", ACCEPTED, "counter", accepted as f64),
        ] {
            own(&mut out, kind, ours, value);
            theirs(&mut out, kind, vllm, value);
        }
        counts.write_series(&mut out, &model);
        for (name, theirs, histogram) in [
            ("time_to_first_token", Some("time_to_first_token"), &counts.first),
            ("inter_token", Some("inter_token_latency"), &counts.between),
            ("request", Some("e2e_request_latency"), &counts.whole),
            ("head", None, &counts.head),
        ] {
            histogram.write(&mut out, &format!("baton_{name}_seconds"), "");
            if let Some(theirs) = theirs {
                let labels = format!("model_name=\"{model}\",");
                histogram.write(&mut out, &format!("vllm:{theirs}_seconds"), &labels);
            }
        }
        out
    }
}

impl Counts {
    fn write_series(&self, out: &mut String, model: &str) {
        let _ = writeln!(out, "# TYPE baton_requests_total counter");
        for ((key, status), count) in &self.answered {
            let key = label(key);
            let labels = format!("key=\"{key}\",status=\"{status}\"");
            let _ = writeln!(out, "baton_requests_total{{{labels}}} {count}");
        }
        let _ = writeln!(out, "# TYPE baton_key_tokens_total counter");
        for (key, (prompt, reply)) in &self.tokens {
            let key = label(key);
            for (kind, count) in [("prompt", prompt), ("generation", reply)] {
                let labels = format!("key=\"{key}\",kind=\"{kind}\"");
                let _ = writeln!(out, "baton_key_tokens_total{{{labels}}} {count}");
            }
        }
        let _ = writeln!(out, "# TYPE vllm:request_success_total counter");
        for (reason, count) in &self.finished {
            let labels = format!("model_name=\"{model}\",finished_reason=\"{reason}\"");
            let _ = writeln!(out, "vllm:request_success_total{{{labels}}} {count}");
        }
    }
}

/// A text within a label's quotes.
pub(super) fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
