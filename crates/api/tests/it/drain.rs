//! Shutdown: nothing new, what runs ends properly, and it takes no longer than the limits.

use std::time::{Duration, Instant};

use baton_api::Limits;
use serde_json::{Value, json};

use crate::Server;
use crate::client::{Reply, get, post};
use crate::fake::Seen;

const COMPLETION: &str = "/v1/completions";

fn stream(server: &Server, order: &str, max_tokens: u32) -> Reply {
    let body = json!({"prompt": order, "stream": true, "max_tokens": max_tokens});
    let mut reply = post(server.addr, COMPLETION, &body);
    assert!(reply.event().is_some());
    reply
}

fn wait_for_drain(server: &Server) {
    let start = Instant::now();
    while !server.fake.log.lock().unwrap().iter().any(|s| matches!(s, Seen::Drain)) {
        assert!(start.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn running_replies_finish_while_new_ones_are_refused() {
    let mut server = Server::start();
    let running = stream(&server, "[[endless]]", 500);
    server.shut_down();
    wait_for_drain(&server);
    let refused = post(server.addr, COMPLETION, &json!({"prompt": "a"}));
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("2")));
    assert_eq!(refused.json()["error"]["code"], "draining");
    assert_eq!(get(server.addr, "/ready").status, 503);
    assert_eq!(get(server.addr, "/health").json()["status"], "draining");

    let chunks = running.chunks();
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
    assert_eq!(chunks.len(), 500);
    let finished = Instant::now();
    server.join();
    assert!(finished.elapsed() < Duration::from_secs(3), "{:?}", finished.elapsed());
    assert!(std::net::TcpStream::connect(server.addr).is_err());
}

#[test]
fn an_idle_server_stops_at_once_though_connections_are_open() {
    let mut server = Server::start();
    let (_, idle) = get(server.addr, "/health").body();
    let start = Instant::now();
    server.shut_down();
    server.join();
    assert!(start.elapsed() < Duration::from_millis(1500), "{:?}", start.elapsed());
    drop(idle);
}

#[test]
fn at_the_deadline_running_replies_end_with_an_error() {
    let mut server = Server::within(Limits { drain_timeout_ms: 200, ..Limits::default() });
    let running = stream(&server, "[[endless]]", 100_000);
    let addr = server.addr;
    let whole = std::thread::spawn(move || {
        let reply = post(addr, COMPLETION, &json!({"prompt": "[[endless]]"}));
        (reply.status, reply.json()["error"]["code"].take())
    });
    let start = Instant::now();
    while server.submitted().len() < 2 {
        assert!(start.elapsed() < Duration::from_secs(5));
    }
    server.shut_down();
    let mut events = running.events();
    let error: Value = serde_json::from_str(&events.pop().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "draining");
    assert_eq!(whole.join().unwrap(), (503, json!("draining")));
    server.join();
}

#[test]
fn in_a_hurry_running_replies_end_with_an_error_at_once() {
    let mut server = Server::start();
    let running = stream(&server, "[[endless]]", 100_000);
    server.shut_down();
    wait_for_drain(&server);
    let start = Instant::now();
    server.hurry();
    let error: Value = serde_json::from_str(&running.events().pop().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "draining");
    server.join();
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[test]
fn a_client_that_reads_nothing_does_not_hold_the_shutdown() {
    let mut server = Server::within(Limits {
        drain_timeout_ms: 200,
        flush_timeout_ms: 200,
        ..Limits::default()
    });
    let stalled = stream(&server, "[[burst]]", 90_000);
    let start = Instant::now();
    server.shut_down();
    server.join();
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    stalled.leave();
}
