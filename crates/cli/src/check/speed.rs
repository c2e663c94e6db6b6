//! What drafts win or cost: replies with and without them in turn, over rings whose hops take time.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use anyhow::Result;
use sched::{Event, Request};
use text::Text;
use weights::Checkpoint;

use super::acceptance::{prompts, tiny};
use super::proxy::{Proxy, Way};
use crate::cell::Cell;
use crate::model::Settings;

/// Replies of each kind, in turn with the other's.
const RUNS: usize = 9;
/// Most tokens of a reply.
const TOKENS: u32 = 96;
/// Drafts never cost more than this.
const LEAST: f64 = 0.93;
/// What copies win where a hop takes 20 ms.
const COPY_LEAST: f64 = 2.0;

/// What is asked.
struct Task {
    name: &'static str,
    prompt: Vec<u32>,
    stops: Vec<u32>,
}

/// One reply: tokens a second behind its first, its tokens, and the drafts that were right.
async fn reply(cell: &Cell, task: &Task, draft: bool) -> Result<(f64, u32, u32)> {
    let request = Request {
        prompt: task.prompt.clone(),
        max_tokens: TOKENS,
        stop_tokens: task.stops.clone(),
        draft,
        cached: false,
        ..Request::default()
    };
    let mut events = cell.handle().submit(request).await?;
    let mut first = None;
    while let Some(event) = events.next().await {
        match event {
            Event::Token { .. } => first = first.or(Some(Instant::now())),
            Event::Done { accepted, reply_tokens, .. } => {
                let seconds = first.unwrap().elapsed().as_secs_f64();
                return Ok((f64::from(reply_tokens - 1) / seconds, reply_tokens, accepted));
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("no last event")
}

/// Medians of plain and drafted tokens a second, and the drafted tokens a round.
fn measure(cell: &Cell, task: &Task) -> Result<(f64, f64, f64)> {
    let (mut plain, mut drafted, mut tokens, mut right) = (Vec::new(), Vec::new(), 0, 0);
    for _ in 0..RUNS {
        plain.push(cell.run(reply(cell, task, false))?.0);
        let (rate, all, accepted) = cell.run(reply(cell, task, true))?;
        drafted.push(rate);
        (tokens, right) = (tokens + all, right + accepted);
    }
    let median = |mut rates: Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates[RUNS / 2]
    };
    Ok((median(plain), median(drafted), f64::from(tokens) / f64::from(tokens - right)))
}

#[test]
#[ignore = "minutes, for a quiet machine; `cargo xtask matrix --speed` runs it"]
fn drafts_win_time_where_they_can_and_cost_little_where_they_can_not() {
    let checkpoint = Checkpoint::open(&tiny()).unwrap();
    let text = Text::from_checkpoint(&checkpoint).unwrap();
    let stops = || text.stop_tokens().to_vec();
    let task = |name, prompt| Task { name, prompt, stops: stops() };
    let copy = prompts(&text, "copy").into_iter().max_by_key(Vec::len).unwrap();
    let tasks = [
        task("free text", prompts(&text, "stories")[0].clone()),
        task("instruction", prompts(&text, "instructions")[1].clone()),
        task("copy", copy),
    ];
    println!("| task | world | delay | plain | drafted | ratio | tokens a round |");
    println!("|---|---|---|---|---|---|---|");
    let mut worst = (f64::MAX, String::new());
    let mut copies = f64::MAX;
    for (world, delay_ms) in [(1, 0), (2, 0), (2, 5), (2, 20)] {
        let settings = Settings { world, context: Some(1024), ..Settings::default() };
        let mut proxies = Vec::new();
        let cell = Cell::start_over(&tiny(), settings, 1, |places| {
            for place in places {
                let proxy = Proxy::to(place.next[0].parse().unwrap());
                let delay = Duration::from_millis(delay_ms);
                proxy.weather(Way::Onward, |weather| weather.delay = delay);
                place.next = vec![proxy.address.to_string()];
                proxies.push(proxy);
            }
        });
        let cell = cell.unwrap();
        for task in &tasks {
            let (plain, drafted, round) = measure(&cell, task).unwrap();
            let (ratio, task) = (drafted / plain, task.name);
            println!(
                "| {task} | {world} | {delay_ms} ms | {plain:.1} | {drafted:.1} | {ratio:.2} | \
                 {round:.2} |"
            );
            if ratio < worst.0 {
                worst = (ratio, format!("{task}, world {world}, {delay_ms} ms"));
            }
            if task == "copy" && delay_ms == 20 {
                copies = ratio;
            }
        }
        cell.stop().unwrap();
    }
    println!("drafts: worst {:.2} ({}), copies at 20 ms {copies:.2}", worst.0, worst.1);
    assert!(worst.0 >= LEAST && copies >= COPY_LEAST);
}
