//! Clients that leave, stall, dawdle or crowd.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use baton_api::Limits;
use serde_json::{Value, json};

use crate::Server;
use crate::client::{self, Reply, get, post};
use crate::fake::Seen;

const COMPLETION: &str = "/v1/completions";
/// Far below what the rest of an endless reply would take.
const SOON: Duration = Duration::from_secs(2);

fn open(server: &Server, order: &str, stream: bool) -> TcpStream {
    let body = json!({"prompt": order, "stream": stream}).to_string();
    let mut connection = client::connect(server.addr);
    let request = client::request_bytes("POST", COMPLETION, &body);
    connection.write_all(&request).unwrap();
    connection
}

#[test]
fn a_client_that_leaves_its_stream_frees_it() {
    let server = Server::start();
    let mut reply = Reply::read(open(&server, "[[endless]]", true));
    for _ in 0..5 {
        reply.event().unwrap();
    }
    let left = Instant::now();
    reply.leave();
    server.wait_for_cancel(SOON);
    assert!(left.elapsed() < Duration::from_millis(500), "{:?}", left.elapsed());
}

#[test]
fn a_client_that_leaves_before_its_reply_frees_the_stream_too() {
    for (order, stream) in
        [("[[endless]]", false), ("[[mute]]", false), ("[[mute]]", true), ("[[silent]]", true)]
    {
        let server = Server::start();
        let connection = open(&server, order, stream);
        server.wait_for_submit();
        drop(connection);
        server.wait_for_cancel(SOON);
        let start = Instant::now();
        while get(server.addr, "/health").json()["running"] != 0 {
            assert!(start.elapsed() < SOON, "{order}");
        }
    }
}

#[test]
fn two_hundred_slow_readers_block_nobody() {
    let server = Server::start();
    let body = json!({"model": "m".repeat(256), "prompt": "[[burst]]", "stream": true,
                      "max_tokens": 12_000});
    let request = client::request_bytes("POST", COMPLETION, &body.to_string());
    let open = || {
        let mut connection = client::connect(server.addr);
        connection.write_all(&request).unwrap();
        connection
    };
    let slow: Vec<TcpStream> = (0..200).map(|_| open()).collect();
    let start = Instant::now();
    while server.submitted().len() < 200 {
        assert!(start.elapsed() < client::PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    // Until every reply stands in full buffers.
    std::thread::sleep(Duration::from_millis(500));
    let asked = Instant::now();
    let reply = post(server.addr, COMPLETION, &json!({"prompt": "[[say:quick]]"})).json();
    assert_eq!(reply["choices"][0]["text"], "quick");
    assert_eq!(get(server.addr, "/ready").status, 200);
    assert!(asked.elapsed() < client::PATIENCE / 2, "{:?}", asked.elapsed());
    let log = server.fake.log.lock().unwrap();
    let ended = log.iter().filter(|seen| matches!(seen, Seen::Cancelled(..))).count();
    assert!(ended < 200, "the readers were not slow");
    drop(log);
    drop(slow);
}

#[test]
fn a_slow_reader_gets_every_byte() {
    let server = Server::start();
    let body = json!({"prompt": "[[burst]]", "stream": true, "max_tokens": 20_000});
    let reply = post(server.addr, COMPLETION, &body);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(reply.chunks().len(), 20_001);
}

#[test]
fn a_client_that_takes_no_byte_is_dropped_and_its_stream_freed() {
    let server = Server::within(Limits { stall_timeout_ms: 200, ..Limits::default() });
    let stalled = open(&server, "[[burst]]", true);
    server.wait_for_cancel(client::PATIENCE);
    drop(stalled);
}

/// Whether the server closes within the time; the bytes that came before.
fn closes(mut connection: TcpStream, within: Duration) -> bool {
    connection.set_read_timeout(Some(within)).unwrap();
    let mut rest = Vec::new();
    connection.read_to_end(&mut rest).is_ok()
}

#[test]
fn a_head_that_dawdles_and_an_idle_connection_are_closed() {
    let server = Server::within(Limits { head_timeout_ms: 200, ..Limits::default() });
    assert!(closes(client::connect(server.addr), SOON));

    let mut dawdler = client::connect(server.addr);
    dawdler.write_all(b"GET /health HTTP/1.1\r\n").unwrap();
    let start = Instant::now();
    while dawdler.write_all(b"x: y\r\n").is_ok() {
        assert!(start.elapsed() < SOON, "a byte now and then kept the head open");
        std::thread::sleep(Duration::from_millis(20));
    }

    let mut idle = client::connect(server.addr);
    idle.write_all(&client::request_bytes("GET", "/health", "")).unwrap();
    let (_, idle) = Reply::read(idle).body();
    assert!(closes(idle, SOON));
}

#[test]
fn an_endless_head_is_refused() {
    let server = Server::start();
    let mut connection = client::connect(server.addr);
    connection.write_all(b"GET /health HTTP/1.1\r\n").unwrap();
    let line = format!("x: {}\r\n", "y".repeat(1000));
    let mut bytes = 0;
    while connection.write_all(line.as_bytes()).is_ok() {
        bytes += line.len();
        assert!(bytes < 64 << 20, "the head has no end");
    }
}

#[test]
fn more_connections_than_allowed_wait_their_turn() {
    let server = Server::within(Limits { connections_max: 2, ..Limits::default() });
    let first = Reply::read(open(&server, "[[endless]]", true));
    let second = Reply::read(open(&server, "[[endless]]", true));
    let mut third = open(&server, "[[say:third]]", false);
    third.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(third.read(&mut [0]).is_err(), "the third was served beside two others");
    assert_eq!(server.submitted().len(), 2);
    first.leave();
    third.set_read_timeout(Some(client::PATIENCE)).unwrap();
    let reply: Value = serde_json::from_slice(&Reply::read(third).body().0).unwrap();
    assert_eq!(reply["choices"][0]["text"], "third");
    second.leave();
}

#[test]
fn bytes_that_are_no_http_close_the_connection_and_nothing_else() {
    let server = Server::start();
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"\0\0\0\0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let mut connection = client::connect(server.addr);
        connection.write_all(bytes).unwrap();
        assert!(closes(connection, SOON));
    }
    assert_eq!(get(server.addr, "/ready").status, 200);
}
