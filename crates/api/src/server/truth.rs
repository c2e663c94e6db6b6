//! What the plan predicted beside what this server measures: taken in window by window, told in
//! `/metrics` and `/health`.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use placement::truth::{Advice, Window};
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

use super::metrics::Work;
use super::{Compared, Shared};

/// Ticks of a window.
const TICKS: u32 = 10;

/// Counts at the beginning of a window.
#[derive(Clone, Copy, Default)]
struct Mark {
    work: Work,
    at_work_ms: u64,
}

impl Mark {
    fn now(shared: &Shared) -> Self {
        Self { work: shared.metrics.work(), at_work_ms: shared.app.handle.facts().at_work_ms }
    }
}

/// Takes a window in after every [`TICKS`] ticks, for as long as the server lives.
pub(super) async fn watch(shared: Arc<Shared>, compared: Compared) {
    let mut ticks = interval(compared.tick);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let (since, began) = (Mark::now(&shared), tokio::time::Instant::now());
        let mut running = 0;
        for _ in 0..TICKS {
            ticks.tick().await;
            running += shared.app.handle.facts().running;
        }
        let window = window(&shared, since, began.elapsed(), f64::from(running) / f64::from(TICKS));
        if let Some(truth) = &mut *compared.known() {
            truth.add(&window);
        }
    }
}

fn window(shared: &Shared, since: Mark, took: Duration, streams: f64) -> Window {
    let (now, facts) = (Mark::now(shared), shared.app.handle.facts());
    let Work { tokens, between_s, prompt_tokens, first_s } = now.work.less(since.work);
    let memory = facts.seats.iter().enumerate().map(|(rank, _)| {
        let tally = facts.tallies.iter().find(|tally| tally.origin.0 as usize == rank);
        tally.map_or(0, |tally| tally.memory_bytes)
    });
    Window {
        seconds: took.as_secs_f64(),
        at_work_s: now.at_work_ms.saturating_sub(since.at_work_ms) as f64 / 1e3,
        tokens,
        between_s,
        prompt_tokens,
        first_s,
        streams,
        memory_bytes: memory.collect(),
    }
}

/// Prometheus' text: predictions, and measurements once there are some.
pub(super) fn write(out: &mut String, compared: &Compared) {
    let known = compared.known();
    let Some(truth) = &*known else { return };
    let (told, found) = (truth.expected(), truth.measured());
    let mut gauge = |name: &str, values: &[(String, Option<f64>)]| {
        let known = || values.iter().filter_map(|(labels, value)| Some((labels, (*value)?)));
        if known().next().is_some() {
            let _ = writeln!(out, "# TYPE baton_{name} gauge");
        }
        for (labels, value) in known() {
            let _ = writeln!(out, "baton_{name}{labels} {value}");
        }
    };
    let plain = |value| [(String::new(), value)];
    let streams = told.streams;
    gauge(
        "plan_token_seconds",
        &[
            ("{streams=\"1\"}".into(), Some(told.decode_s)),
            (format!("{{streams=\"{streams}\"}}"), (streams > 1).then_some(told.round_s)),
        ],
    );
    gauge("measured_token_seconds", &plain(found.decode_s));
    gauge("measured_token_streams", &plain(found.decode_s.map(|_| found.streams)));
    let chunk = f64::from(told.chunk_rows);
    gauge("plan_chunk_seconds", &plain(Some(chunk * told.prompt_token_s())));
    gauge("measured_chunk_seconds", &plain(found.prompt_token_s.map(|time_s| chunk * time_s)));
    let of_rank =
        |(rank, bytes): (usize, &u64)| (format!("{{rank=\"{rank}\"}}"), Some(*bytes as f64));
    let memory: Vec<_> = told.memory_bytes.iter().enumerate().map(of_rank).collect();
    gauge("plan_rank_memory_bytes", &memory);
    let replan = truth.advice() != Advice::Keep;
    gauge("plan_is_off", &plain(Some(f64::from(u8::from(replan)))));
}

/// The same for people and the page; null without a plan.
pub(super) fn told(compared: Option<&Compared>) -> Value {
    let known = compared.map(Compared::known);
    let Some(truth) = known.as_ref().and_then(|known| known.as_ref()) else { return Value::Null };
    let (told, found) = (truth.expected(), truth.measured());
    let ms = |time_s: f64| time_s * 1e3;
    json!({
        "token_ms": [ms(told.decode_s), ms(told.round_s)],
        "streams": told.streams,
        "chunk_rows": told.chunk_rows,
        "chunk_ms": ms(f64::from(told.chunk_rows) * told.prompt_token_s()),
        "memory_bytes": told.memory_bytes,
        "measured": {
            "token_ms": found.decode_s.map(ms),
            "expected_token_ms": found.decode_s.map(|_| ms(told.decode_at(found.streams))),
            "streams": found.streams,
            "chunk_ms": found.prompt_token_s.map(|s| ms(f64::from(told.chunk_rows) * s)),
            "memory_bytes": found.memory_bytes,
        },
        "advice": truth.advice(),
    })
}
