//! `baton bench serve`: requests that come whatever the server does, as many clients send them.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::{plot, tally};
use crate::args::BenchServe;
use crate::client::Client;

/// Requests under way; the server has no more connections either.
const UNDER_WAY_MAX: usize = 512;
/// Most requests of one rate.
const REQUESTS_MAX: usize = 100_000;
/// Longest line of a stream.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Text whose tokens are the prompts' words.
const WORDS: &str = "The river ran past the old mill and the children of the village sat on a wall \
                     in the sun, counting boats, birds and clouds until somebody called them home.";

/// How a request went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The whole reply came.
    Done,
    /// The server said no, with this status.
    Refused(u16),
    /// The reply broke off, or never began.
    Broke,
    /// Not sent: too many were under way.
    LeftOut,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When it was due, since the first could be.
    pub due: Duration,
    /// From when it was due to its first token.
    pub first: Option<Duration>,
    /// From each token to the next.
    pub gaps: Vec<Duration>,
    /// From when it was due to its end.
    pub whole: Duration,
    /// Tokens that came.
    pub tokens: u32,
    /// Its end.
    pub outcome: Outcome,
}

/// All requests of one rate.
#[derive(Debug)]
pub struct Run {
    /// Requests a second that were to come.
    pub rate: f64,
    /// From the first due time to the last end.
    pub took: Duration,
    /// In order of their due times.
    pub samples: Vec<Sample>,
}

/// Loads the server at each rate in turn, prints percentiles, writes CSV and plot.
///
/// # Errors
/// A server that is not ready, files that can't be written, a load of which nothing came back.
pub fn serve(args: &BenchServe) -> Result<()> {
    let client = Client::new(&args.url);
    client.ready()?;
    let words = words(&client)?;
    let mut random = Random(args.seed);
    let mut runs = Vec::new();
    println!("{}", tally::HEAD);
    for &rate in &args.rate {
        let run = load(args, &client, &words, rate, &mut random)?;
        println!("{}", tally::line(&run));
        runs.push(run);
    }
    if let Some(file) = &args.csv {
        fs::write(file, tally::csv(&runs)).with_context(|| file.display().to_string())?;
    }
    if let Some(file) = &args.svg {
        fs::write(file, plot::svg(&runs)).with_context(|| file.display().to_string())?;
    }
    let done = runs.iter().flat_map(|run| &run.samples).any(|s| s.outcome == Outcome::Done);
    ensure!(done, "no reply came to its end: lower --rate, or look at the server's log");
    Ok(())
}

/// Ids of the model's vocabulary.
fn words(client: &Client) -> Result<Vec<u64>> {
    let mut response = client.post("/tokenize", &json!({"prompt": WORDS}))?;
    let text = response.body_mut().read_to_string()?;
    ensure!(response.status() == 200, "/tokenize: the server said {text}");
    let said: Value = serde_json::from_str(&text).context("/tokenize")?;
    let ids = said["tokens"].as_array().into_iter().flatten();
    let ids: Vec<u64> = ids.filter_map(Value::as_u64).collect();
    ensure!(!ids.is_empty(), "/tokenize gave no tokens");
    Ok(ids)
}

/// One rate: a thread a request, started when it is due.
fn load(
    args: &BenchServe,
    client: &Client,
    words: &[u64],
    rate: f64,
    random: &mut Random,
) -> Result<Run> {
    let dues = dues(rate, args.seconds, random);
    ensure!(
        dues.len() <= REQUESTS_MAX,
        "{} requests at rate {rate}, more than {REQUESTS_MAX}: lower --seconds",
        dues.len()
    );
    let bar = bar(rate, dues.len());
    let samples = Arc::new(Mutex::new(Vec::with_capacity(dues.len())));
    let under_way = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for due in dues {
            let body = body(args, words, random);
            std::thread::sleep((start + due).saturating_duration_since(Instant::now()));
            let (samples, under_way, bar) = (samples.clone(), under_way.clone(), bar.clone());
            let keep = move |sample| {
                samples.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
                bar.inc(1);
            };
            if under_way.load(Ordering::Relaxed) >= UNDER_WAY_MAX {
                keep(Sample::left_out(due));
                continue;
            }
            under_way.fetch_add(1, Ordering::Relaxed);
            scope.spawn(move || {
                keep(ask(client, &body, start, due));
                under_way.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    bar.finish_and_clear();
    let took = start.elapsed();
    let mut samples = std::mem::take(&mut *samples.lock().unwrap_or_else(PoisonError::into_inner));
    samples.sort_by_key(|sample: &Sample| sample.due);
    Ok(Run { rate, took, samples })
}

/// When requests come: at random, independent of each other, `rate` a second in the mean.
fn dues(rate: f64, seconds: f64, random: &mut Random) -> Vec<Duration> {
    let mut at = 0.0;
    let mut dues = Vec::new();
    loop {
        at -= (1.0 - random.unit()).ln() / rate;
        if at >= seconds {
            return dues;
        }
        dues.push(Duration::from_secs_f64(at));
    }
}

fn body(args: &BenchServe, words: &[u64], random: &mut Random) -> Value {
    let prompt: Vec<u64> = (0..args.prompt).map(|_| words[random.below(words.len())]).collect();
    json!({
        "prompt": prompt, "max_tokens": args.decode, "ignore_eos": true, "temperature": 0,
        "stream": true, "return_token_ids": true, "cache_prompt": false,
    })
}

/// One request, to its end.
fn ask(client: &Client, body: &Value, start: Instant, due: Duration) -> Sample {
    let mut sample = Sample { outcome: Outcome::Broke, ..Sample::left_out(due) };
    let due_at = start + due;
    if let Ok(mut response) = client.post("/v1/completions", body) {
        let status = response.status().as_u16();
        if status == 200 {
            follow(BufReader::new(response.body_mut().as_reader()), due_at, &mut sample);
        } else {
            sample.outcome = Outcome::Refused(status);
        }
    }
    sample.whole = due_at.elapsed();
    sample
}

/// Reads a stream; the sample is done once it has ended well.
fn follow(mut lines: impl BufRead, due_at: Instant, sample: &mut Sample) {
    let mut last = None;
    loop {
        let mut line = String::new();
        match lines.by_ref().take(LINE_BYTES_MAX).read_line(&mut line) {
            Ok(1..) => {}
            _ => return,
        }
        let Some(data) = line.trim_end().strip_prefix("data: ") else { continue };
        if data == "[DONE]" {
            sample.outcome = Outcome::Done;
            return;
        }
        let Ok(event) = serde_json::from_str::<Value>(data) else { return };
        if event.get("error").is_some() {
            return;
        }
        let ids = event["choices"][0]["token_ids"].as_array().map_or(0, Vec::len);
        if ids == 0 {
            continue;
        }
        let now = Instant::now();
        sample.tokens += u32::try_from(ids).unwrap_or(u32::MAX);
        match last.replace(now) {
            None => sample.first = Some(now - due_at),
            // Tokens that came together have no time between them.
            Some(before) => {
                sample.gaps.push(now - before);
                sample.gaps.extend(std::iter::repeat_n(Duration::ZERO, ids - 1));
            }
        }
    }
}

impl Sample {
    fn left_out(due: Duration) -> Self {
        let outcome = Outcome::LeftOut;
        Self { due, first: None, gaps: Vec::new(), whole: Duration::ZERO, tokens: 0, outcome }
    }
}

fn bar(rate: f64, requests: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix} [{bar:30}] {pos} of {len} requests");
    let bar = ProgressBar::new(requests as u64).with_prefix(format!("{rate}/s"));
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("#--"))
}

/// Numbers that the seed alone decides (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0, below 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_at_the_rate_and_as_the_seed_says() {
        let all = dues(50.0, 100.0, &mut Random(7));
        assert!((4_700..5_300).contains(&all.len()), "{}", all.len());
        assert!(all.is_sorted() && all.last().is_some_and(|last| *last < Duration::from_secs(100)));
        assert_eq!(all, dues(50.0, 100.0, &mut Random(7)));
        assert_ne!(all, dues(50.0, 100.0, &mut Random(8)));
    }

    #[test]
    fn a_stream_gives_a_first_token_and_gaps_and_one_that_breaks_off_is_not_done() {
        let event = |ids: &str| format!("data: {{\"choices\":[{{\"token_ids\":[{ids}]}}]}}\n\n");
        let begun = event("") + &event("4") + &event("5,6");
        let read = |text: &str| {
            let mut sample = Sample { outcome: Outcome::Broke, ..Sample::left_out(Duration::ZERO) };
            follow(text.as_bytes(), Instant::now(), &mut sample);
            sample
        };
        let whole = read(&(begun.clone() + "data: [DONE]\n\n"));
        assert_eq!((whole.tokens, whole.gaps.len(), whole.outcome), (3, 2, Outcome::Done));
        assert!(whole.first.is_some());
        assert_eq!(read(&begun).outcome, Outcome::Broke);
        let failed = begun + "data: {\"error\":{}}\n\ndata: [DONE]\n\n";
        assert_eq!(read(&failed).outcome, Outcome::Broke);
    }
}
