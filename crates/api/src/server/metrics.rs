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
/// Most pairs of key and status, and most keys, that are told apart.
const SERIES_MAX: usize = 4096;
/// The name of keys past those.
const OTHERS: &str = "others";
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
    /// The last completed reply of each key.
    last: BTreeMap<String, Run>,
    gone: u64,
    /// Tokens guessed ahead, and those of them that replies have.
    drafted: (u64, u64),
    cached: u64,
    head: Histogram,
    first: Histogram,
    between: Histogram,
    whole: Histogram,
    decode: Histogram,
    each: Histogram,
}

/// What replies took so far, for whoever compares two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Work {
    /// Tokens behind the first of their reply, and seconds before each, in all.
    pub tokens: u64,
    pub between_s: f64,
    /// Prompt tokens that were computed, and seconds to first tokens, in all.
    pub prompt_tokens: u64,
    pub first_s: f64,
}

impl Work {
    /// What came after `before`.
    pub fn less(self, before: Self) -> Self {
        Self {
            tokens: self.tokens - before.tokens,
            between_s: self.between_s - before.between_s,
            // A cached part is known at its reply's end only.
            prompt_tokens: self.prompt_tokens.saturating_sub(before.prompt_tokens),
            first_s: self.first_s - before.first_s,
        }
    }
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
        self.counts().of(key).0 += u64::from(tokens);
    }

    /// A reply's first token.
    pub fn first(&self, key: &str, took: Duration) {
        let mut counts = self.counts();
        counts.first.add(took);
        counts.of(key).1 += 1;
    }

    /// Another.
    pub fn next(&self, key: &str, took: Duration) {
        let mut counts = self.counts();
        counts.between.add(took);
        counts.of(key).1 += 1;
    }

    /// A reply was completed.
    pub fn finished(&self, key: &str, reason: &'static str, took: Duration, run: &Run) {
        let mut counts = self.counts();
        counts.drafted.0 += u64::from(run.drafted);
        counts.drafted.1 += u64::from(run.accepted);
        counts.cached += u64::from(run.cached_tokens);
        if run.tokens > 1 {
            counts.decode.add(run.decode);
            counts.each.add(run.decode / (run.tokens - 1));
        }
        if counts.last.len() < SERIES_MAX || counts.last.contains_key(key) {
            counts.last.insert(key.to_owned(), *run);
        }
        *counts.finished.entry(reason).or_default() += 1;
        counts.whole.add(took);
    }

    /// The key's last completed reply.
    pub fn last(&self, key: &str) -> Option<Run> {
        self.counts().last.get(key).copied()
    }

    /// What replies took so far.
    pub fn work(&self) -> Work {
        let counts = self.counts();
        let prompts: u64 = counts.tokens.values().map(|(prompt, _)| prompt).sum();
        Work {
            tokens: counts.between.counts.iter().sum(),
            between_s: counts.between.sum,
            prompt_tokens: prompts.saturating_sub(counts.cached),
            first_s: counts.first.sum,
        }
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
        own(&mut out, "gauge", "kv_pages_kept", f64::from(facts.pages_kept));
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
            ("preemptions_total", "num_preemptions_total", "counter", facts.preemptions as f64),
            ("cached_tokens_total", "prefix_cache_hits_total", "counter", counts.cached as f64),
        ] {
            own(&mut out, kind, ours, value);
            theirs(&mut out, kind, vllm, value);
        }
        // Each prompt is looked for in the prompt cache.
        theirs(&mut out, "counter", "prefix_cache_queries_total", prompt as f64);
        counts.write_series(&mut out, &model);
        for (name, theirs, histogram) in [
            ("time_to_first_token", Some("time_to_first_token"), &counts.first),
            ("inter_token", Some("inter_token_latency"), &counts.between),
            ("request", Some("e2e_request_latency"), &counts.whole),
            ("request_decode", Some("request_decode_time"), &counts.decode),
            ("time_per_output_token", Some("request_time_per_output_token"), &counts.each),
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
    /// Prompt and reply tokens of a key: keys that were read anew have ever new names.
    fn of(&mut self, key: &str) -> &mut (u64, u64) {
        let known = self.tokens.len() < SERIES_MAX || self.tokens.contains_key(key);
        self.tokens.entry(if known { key } else { OTHERS }.to_owned()).or_default()
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_past_the_limit_are_counted_as_others() {
        let metrics = Metrics::default();
        for n in 0..=SERIES_MAX {
            let key = format!("key-{n}");
            metrics.answered(&key, 200, Duration::ZERO);
            metrics.prompt(&key, 3);
            metrics.finished(&key, "stop", Duration::ZERO, &Run::default());
        }
        metrics.prompt("key-0", 4);
        let past = format!("key-{SERIES_MAX}");
        assert!(metrics.last("key-0").is_some() && metrics.last(&past).is_none());
        let text = metrics.text(&Facts::default(), Cost::default(), "m", true);
        let has = |line: &str| text.lines().any(|found| found == line);
        assert!(has("baton_key_tokens_total{key=\"key-0\",kind=\"prompt\"} 7"), "{text}");
        assert!(has("baton_key_tokens_total{key=\"others\",kind=\"prompt\"} 3"));
        assert!(!text.contains(&past), "requests of a key past the limit are in the sums alone");
    }
}
