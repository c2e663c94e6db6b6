//! What each rank spent on each request, as spans for an OpenTelemetry collector: OTLP's JSON over
//! plain HTTP, where `OTEL_EXPORTER_OTLP_ENDPOINT` names one.

use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Where a collector is, `http://HOST:4318`.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// Spans that wait to be sent; more are dropped, so that a collector that is away costs nothing.
const WAITING_MAX: usize = 4096;
/// Spans of one message.
const BATCH_MAX: usize = 512;
/// Longest time that a span waits for others.
const BATCH_TIME: Duration = Duration::from_secs(1);
/// Patience with the collector.
const POST_TIMEOUT: Duration = Duration::from_secs(5);

/// One stream's life on one rank, as `ring::span` tells of it.
#[derive(Clone, Debug)]
struct Span {
    trace: String,
    end: SystemTime,
    numbers: Vec<(&'static str, u64)>,
}

impl Span {
    fn number(&self, name: &str) -> u64 {
        self.numbers.iter().find(|(found, _)| *found == name).map_or(0, |(_, value)| *value)
    }

    /// The id of this trace's span on a rank.
    fn id(&self, rank: u64) -> String {
        let trace = u64::from_str_radix(&self.trace, 16).unwrap_or_default();
        format!("{:016x}", trace.rotate_left(8) ^ (rank + 1))
    }

    fn json(&self) -> Value {
        let rank = self.number("rank");
        let end = self.end.duration_since(UNIX_EPOCH).unwrap_or_default();
        let start = end.saturating_sub(Duration::from_micros(self.number("took_us")));
        let nanos = |time: Duration| time.as_nanos().to_string();
        let attribute = |(name, value): &(&str, u64)| {
            let value = json!({"intValue": value.to_string()});
            json!({"key": format!("baton.{name}"), "value": value})
        };
        let attributes: Vec<Value> = self.numbers.iter().map(attribute).collect();
        let parent = if rank == 0 { String::new() } else { self.id(0) };
        json!({
            "traceId": format!("{:0>32}", self.trace), "spanId": self.id(rank),
            "parentSpanId": parent, "name": format!("rank {rank}"), "kind": 1,
            "startTimeUnixNano": nanos(start), "endTimeUnixNano": nanos(end),
            "attributes": attributes,
        })
    }
}

impl Visit for Span {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.numbers.push((field.name(), value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "trace" {
            self.trace = format!("{value:?}");
        }
    }
}

/// Hands spans to the thread that sends them.
pub struct Exporter(SyncSender<Span>);

impl Exporter {
    /// Where the environment names a collector.
    pub fn from_environment() -> Option<Self> {
        Self::to(&std::env::var(ENDPOINT).ok()?).ok()
    }

    fn to(endpoint: &str) -> std::io::Result<Self> {
        let url = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
        let (sender, spans) = sync_channel(WAITING_MAX);
        let name = "baton-otlp".into();
        std::thread::Builder::new().name(name).spawn(move || send(&url, &spans))?;
        Ok(Self(sender))
    }
}

impl<S: Subscriber> Layer<S> for Exporter {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() != ring::span::TARGET {
            return;
        }
        let (trace, numbers) = (String::new(), Vec::new());
        let mut span = Span { trace, end: SystemTime::now(), numbers };
        event.record(&mut span);
        let _ = self.0.try_send(span);
    }
}

fn send(url: &str, spans: &Receiver<Span>) {
    let config = ureq::Agent::config_builder().timeout_global(Some(POST_TIMEOUT)).build();
    let agent = ureq::Agent::new_with_config(config);
    while let Ok(first) = spans.recv() {
        let (mut batch, until) = (vec![first.json()], Instant::now() + BATCH_TIME);
        while batch.len() < BATCH_MAX {
            match spans.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(span) => batch.push(span.json()),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        let name = json!({"key": "service.name", "value": {"stringValue": "baton"}});
        let body = json!({"resourceSpans": [{
            "resource": {"attributes": [name]},
            "scopeSpans": [{"scope": {"name": "baton"}, "spans": batch}],
        }]});
        let request = agent.post(url).header("Content-Type", "application/json");
        // A collector that is away misses them.
        let _ = request.send(body.to_string());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Takes one message as a collector does.
    fn collect(listener: &TcpListener) -> (String, Value) {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                length = bytes.trim().parse().unwrap();
            }
            head += &line;
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap();
        (head, serde_json::from_slice(&body).unwrap())
    }

    #[test]
    fn a_collector_gets_the_spans_of_a_request_from_its_ranks_as_one_trace() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let exporter = Exporter::to(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let subscriber = tracing_subscriber::registry().with(exporter);
        tracing::subscriber::with_default(subscriber, || {
            for rank in [0_u32, 2] {
                tracing::debug!(target: ring::span::TARGET, trace = format_args!("{:016x}", 0xab),
                    rank, request = 7_u64, took_us = 4_u64, computed_us = 3_u64,
                    "stream");
            }
            tracing::debug!("another event");
        });
        let (head, body) = collect(&listener);
        assert!(head.starts_with("POST /v1/traces "), "{head}");
        let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
        assert_eq!(spans.len(), 2, "{body}");
        assert_eq!(spans[0]["traceId"], "000000000000000000000000000000ab");
        assert_eq!(spans[1]["traceId"], spans[0]["traceId"]);
        assert_eq!(spans[1]["parentSpanId"], spans[0]["spanId"]);
        assert_eq!(spans[1]["name"], "rank 2");
        let nanos = |name: &str| spans[1][name].as_str().unwrap().parse::<u64>().unwrap();
        assert_eq!(nanos("endTimeUnixNano") - nanos("startTimeUnixNano"), 4000);
        let request = json!({"key": "baton.request", "value": {"intValue": "7"}});
        assert!(spans[0]["attributes"].as_array().unwrap().contains(&request), "{body}");
    }
}
