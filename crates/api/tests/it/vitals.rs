//! What `/metrics` and `/health` tell of the ring, and what the dashboard asks of it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use baton_api::Compared;
use placement::truth::{Expected, WINDOWS, Window};
use serde_json::{Value, json};

use crate::Server;
use crate::client::{get, post};

const DASHBOARD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/grafana/baton.json");

fn metrics(server: &Server) -> String {
    String::from_utf8(get(server.addr, "/metrics").body().0).unwrap()
}

/// A server that has answered something.
fn used() -> Server {
    let server = Server::start();
    let body = json!({"messages": [{"role": "user", "content": "[[say:abc]]"}],
        "response_format": {"type": "json_object"}});
    assert_eq!(post(server.addr, "/v1/chat/completions", &body).status, 200);
    server
}

/// Words of a query that name series of this server.
fn names(query: &str) -> BTreeSet<String> {
    let of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = query.split(|c| !of_name(c));
    let ours = |word: &&str| word.starts_with("baton_") || word.starts_with("vllm:");
    words.filter(ours).map(str::to_owned).collect()
}

#[test]
fn every_series_of_the_dashboard_is_exported() {
    let server = used();
    let exported: BTreeSet<String> = metrics(&server).lines().flat_map(names).collect();
    let dashboard: Value =
        serde_json::from_str(&std::fs::read_to_string(DASHBOARD).unwrap()).unwrap();
    let mut asked = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let found = names(target["expr"].as_str().unwrap());
            assert!(!found.is_empty(), "{target}");
            asked.extend(found);
        }
    }
    let missing: Vec<&String> = asked.difference(&exported).collect();
    assert!(missing.is_empty() && asked.len() > 20, "{missing:?} of {}", asked.len());
}

#[test]
fn each_rank_has_its_series_and_its_label_is_escaped() {
    let server = used();
    let text = metrics(&server);
    for line in [
        "baton_rank_info{rank=\"1\",layers=\"1:2\",backend=\"cpu\",device=\"a \\\"fake\\\"\"} 1",
        "baton_rank_compute_seconds_total{rank=\"1\"} 1.5",
        "baton_rank_rounds_total{rank=\"0\"} 7",
        "baton_rank_states_kept{rank=\"1\"} 0",
        "baton_link_sent_bytes_total{rank=\"1\",to=\"0\"} 9",
        "baton_link_round_trip_seconds{rank=\"0\",to=\"1\"} 0.00025",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    assert_eq!(value("baton_rank_states_used{rank=\"1\"} "), value("baton_requests_running "));
    let health = get(server.addr, "/health").json();
    let ranks = health["ranks"].as_array().unwrap();
    assert_eq!((ranks.len(), &ranks[1]["layers"]), (2, &json!([1, 2])));
    assert_eq!((&ranks[1]["computed_s"], &ranks[1]["link_us"]), (&json!(1.5), &json!(250)));
}

/// `# TYPE` once a family and before its series, as the text format wants it.
#[test]
fn each_family_is_announced_once_before_its_series() {
    let text = metrics(&used());
    let mut announced = BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let name = rest.split(' ').next().unwrap();
            assert!(announced.insert(name.to_owned()), "{name} twice");
            continue;
        }
        let name = line.split(['{', ' ']).next().unwrap();
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let known = announced.contains(name) || family.is_some_and(|f| announced.contains(f));
        assert!(known, "{line}");
        assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
    }
}

#[test]
fn what_was_planned_stands_beside_what_is_measured() {
    let expected = Expected {
        decode_s: 0.01,
        round_s: 0.02,
        streams: 4,
        prompt_s: 1.0,
        prompt_tokens: 1_000,
        chunk_rows: 100,
        memory_bytes: vec![1_000, 2_000],
    };
    let compared = Compared { tick: Duration::from_millis(5), ..Compared::new(expected) };
    let truth = compared.truth.clone();
    let server = Server::configured(|app| app.compared = Some(compared));
    let has = |line: &str| metrics(&server).lines().any(|found| found == line);
    for line in [
        "baton_plan_token_seconds{streams=\"1\"} 0.01",
        "baton_plan_token_seconds{streams=\"4\"} 0.02",
        "baton_plan_chunk_seconds 0.1",
        "baton_plan_rank_memory_bytes{rank=\"1\"} 2000",
        "baton_plan_is_off 0",
    ] {
        assert!(has(line), "{line} is not in\n{}", metrics(&server));
    }
    assert!(!metrics(&server).contains("baton_measured_token_seconds "), "nothing ran");
    let until = Instant::now() + Duration::from_secs(10);
    let memory = || get(server.addr, "/health").json()["plan"]["measured"]["memory_bytes"].clone();
    while memory().as_array().is_none_or(|ranks| ranks.len() != 2) {
        assert!(Instant::now() < until, "windows end");
        std::thread::sleep(Duration::from_millis(5));
    }
    let slow = Window {
        seconds: 10.0,
        at_work_s: 10.0,
        tokens: 400,
        between_s: 8.0,
        streams: 1.0,
        ..Window::default()
    };
    (0..WINDOWS).for_each(|_| truth.lock().unwrap().as_mut().unwrap().add(&slow));
    assert!(has("baton_measured_token_seconds 0.02") && has("baton_plan_is_off 1"));
    let plan = get(server.addr, "/health").json()["plan"].clone();
    assert_eq!(plan["measured"]["token_ms"], json!(20.0));
    assert_eq!(plan["measured"]["expected_token_ms"], json!(10.0));
    assert_eq!(plan["advice"]["replan"]["decode"], json!(2.0), "{plan}");
    assert_eq!(get(used().addr, "/health").json()["plan"], Value::Null, "without a plan");
}
