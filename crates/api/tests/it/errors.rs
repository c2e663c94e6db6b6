//! Each error: status, OpenAI body, the name of what is at fault.

use std::io::Write;

use baton_api::Limits;
use ring::head::RingState;
use serde_json::{Value, json};

use crate::Server;
use crate::client::{self, Reply, get, post, send};
use crate::fake::CONTEXT_MAX;

const CHAT: &str = "/v1/chat/completions";
const COMPLETION: &str = "/v1/completions";

/// Checks the shape; returns status, code and param.
fn error_of(reply: Reply) -> (u16, String, Option<String>) {
    let status = reply.status;
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let body = reply.json();
    let error = body["error"].as_object().unwrap();
    assert_eq!(error.keys().collect::<Vec<_>>(), ["message", "type", "param", "code"]);
    assert!(!error["message"].as_str().unwrap().is_empty());
    let kind = match status {
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    };
    assert_eq!(error["type"], kind);
    let code = error["code"].as_str().unwrap().to_owned();
    (status, code, error["param"].as_str().map(str::to_owned))
}

fn chat(content: Value, more: Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": content}]});
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body
}

#[test]
fn bad_requests_are_400_and_name_their_field() {
    let server = Server::start();
    let image = json!([{"type": "text", "text": "what is this"},
                       {"type": "image_url", "image_url": {"url": "data:,"}}]);
    let hi = || json!("hi");
    for (path, body, code, param) in [
        (CHAT, json!({}), "missing_required_parameter", "messages"),
        (CHAT, json!([]), "invalid_type", "body"),
        (CHAT, chat(image, json!({})), "unsupported", "messages[0].content[1]"),
        (CHAT, chat(hi(), json!({"best_of": 2})), "unsupported", "best_of"),
        (CHAT, chat(hi(), json!({"functions": [{}]})), "unsupported", "functions"),
        (CHAT, chat(hi(), json!({"temperature": "1"})), "invalid_type", "temperature"),
        (CHAT, chat(hi(), json!({"temperature": 9})), "invalid_value", "temperature"),
        (CHAT, chat(hi(), json!({"max_tokens": 0})), "invalid_value", "max_tokens"),
        (CHAT, chat(json!(7), json!({})), "invalid_type", "messages[0].content"),
        (COMPLETION, json!({}), "missing_required_parameter", "prompt"),
        (COMPLETION, json!({"prompt": ["a", "b"]}), "unsupported", "prompt"),
        (COMPLETION, json!({"prompt": ""}), "invalid_value", "prompt"),
        (COMPLETION, json!({"prompt": [1, 999_999]}), "invalid_value", "prompt[1]"),
        (COMPLETION, json!({"prompt": "a", "suffix": "b"}), "unsupported", "suffix"),
    ] {
        let expected = (400, code.to_owned(), Some(param.to_owned()));
        assert_eq!(error_of(post(server.addr, path, &body)), expected, "{body}");
    }
    assert!(server.submitted().is_empty());
}

#[test]
fn a_body_that_is_no_json_is_a_400() {
    let server = Server::start();
    let deep = "[".repeat(100_000);
    for body in ["", "{", "\u{0}", "{\"messages\": [}", deep.as_str(), "{\"seed\": 1e999}"] {
        let reply = send(server.addr, "POST", CHAT, body);
        assert_eq!(error_of(reply), (400, "invalid_json".into(), None));
    }
}

#[test]
fn a_prompt_without_room_for_a_reply_is_named() {
    let server = Server::start();
    let full = vec![1; CONTEXT_MAX as usize];
    let reply = post(server.addr, COMPLETION, &json!({ "prompt": full }));
    let expected = (400, "context_length_exceeded".into(), Some("prompt".into()));
    assert_eq!(error_of(reply), expected);
    let reply = post(server.addr, CHAT, &chat("x".repeat(200_000).into(), json!({})));
    let expected = (400, "context_length_exceeded".into(), Some("messages".into()));
    assert_eq!(error_of(reply), expected);
}

#[test]
fn other_paths_and_methods_have_error_bodies() {
    let server = Server::start();
    assert_eq!(error_of(get(server.addr, "/v2/x")), (404, "unknown_url".into(), None));
    assert_eq!(error_of(get(server.addr, "/nothing")), (404, "unknown_url".into(), None));
    let reply = get(server.addr, CHAT);
    assert_eq!(reply.header("allow"), Some("POST"));
    assert_eq!(error_of(reply), (405, "method_not_allowed".into(), None));
    let reply = send(server.addr, "POST", "/health", "{}");
    assert_eq!(error_of(reply), (405, "method_not_allowed".into(), None));
    let expected = (404, "model_not_found".into(), Some("model".into()));
    assert_eq!(error_of(get(server.addr, "/v1/models/other")), expected);
    let expected = (400, "invalid_value".into(), Some("model".into()));
    assert_eq!(error_of(get(server.addr, "/v1/models/%ff")), expected);
}

#[test]
fn a_body_past_the_limit_is_a_413_with_and_without_a_length() {
    let server = Server::within(Limits { body_bytes_max: 1000, ..Limits::default() });
    let expected = || (413, "body_too_large".into(), None);
    let fits = format!("{{\"prompt\": \"{}\"}}", "x".repeat(1000 - 14));
    assert_eq!(fits.len(), 1000);
    assert_eq!(send(server.addr, "POST", COMPLETION, &fits).status, 200);
    let over = format!("{fits} ");
    assert_eq!(error_of(send(server.addr, "POST", COMPLETION, &over)), expected());

    let mut stream = client::connect(server.addr);
    let head =
        format!("POST {COMPLETION} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(format!("3e9\r\n{over}\r\n0\r\n\r\n").as_bytes()).unwrap();
    assert_eq!(error_of(Reply::read(stream)), expected());

    // The length alone is enough: no byte of the body has to come.
    let mut stream = client::connect(server.addr);
    let head = format!("POST {COMPLETION} HTTP/1.1\r\nHost: t\r\nContent-Length: 1001\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(error_of(Reply::read(stream)), expected());
}

#[test]
fn a_body_that_does_not_come_is_a_408() {
    let server = Server::within(Limits { body_timeout_ms: 100, ..Limits::default() });
    let mut stream = client::connect(server.addr);
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\n{{");
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(error_of(Reply::read(stream)), (408, "body_timeout".into(), None));
}

#[test]
fn a_full_queue_is_a_429_with_a_time_to_wait() {
    let server = Server::start();
    for stream in [false, true] {
        let body = chat(json!("[[queue]]"), json!({"stream": stream}));
        let reply = post(server.addr, CHAT, &body);
        assert_eq!(reply.header("retry-after"), Some("5"));
        assert_eq!(error_of(reply), (429, "queue_full".into(), None));
    }
}

#[test]
fn before_the_first_token_a_broken_ring_is_a_503_that_names_the_rank() {
    let server = Server::start();
    for (order, code, name) in [
        ("[[away]]", "ring_not_ready", "rank 1 is gone"),
        ("[[break:0]]", "ring_failed", "rank 1 closed its link"),
    ] {
        for stream in [false, true] {
            let body = chat(json!(order), json!({"stream": stream}));
            let reply = post(server.addr, CHAT, &body);
            assert_eq!(reply.status, 503);
            assert!(reply.header("retry-after").is_some());
            let error = reply.json()["error"].take();
            assert_eq!(error["code"], code);
            assert!(error["message"].as_str().unwrap().contains(name), "{error}");
        }
    }
}

#[test]
fn without_a_stream_a_failure_after_tokens_is_a_503_too() {
    let server = Server::start();
    let reply = post(server.addr, CHAT, &chat(json!("[[break:3]]"), json!({})));
    assert_eq!(error_of(reply), (503, "ring_failed".into(), None));
    let reply = post(server.addr, CHAT, &chat(json!("[[nan:3]]"), json!({})));
    assert_eq!(reply.header("retry-after"), None);
    assert_eq!(error_of(reply), (500, "internal".into(), None));
}

#[test]
fn a_ring_that_is_not_ready_takes_no_request_and_says_why() {
    let server = Server::start();
    for (state, code, name) in [
        (RingState::Booting("rank 2 loads".into()), "ring_not_ready", "rank 2 loads"),
        (RingState::Waiting("rank 1 is silent".into()), "ring_not_ready", "rank 1 is silent"),
        (RingState::Draining, "draining", "shutting down"),
    ] {
        server.fake.set_state(state);
        let reply = post(server.addr, CHAT, &chat(json!("hi"), json!({})));
        assert_eq!(reply.status, 503);
        assert!(reply.header("retry-after").is_some());
        let error = reply.json()["error"].take();
        assert_eq!(error["code"], code);
        assert!(error["message"].as_str().unwrap().contains(name), "{error}");
    }
    assert!(server.submitted().is_empty());
}

#[test]
fn a_ring_that_breaks_before_the_verdict_ends_the_wait() {
    let server = Server::start();
    let addr = server.addr;
    let waiting = std::thread::spawn(move || {
        error_of(post(addr, CHAT, &chat(json!("[[silent]]"), json!({}))))
    });
    server.wait_for_submit();
    server.fake.set_state(RingState::Waiting("rank 1 is silent".into()));
    assert_eq!(waiting.join().unwrap(), (503, "ring_not_ready".into(), None));
    server.wait_for_cancel(client::PATIENCE);
}

#[test]
fn an_engine_that_dies_is_a_503_and_the_server_stays_up() {
    let mut server = Server::start();
    let addr = server.addr;
    let waiting =
        std::thread::spawn(move || error_of(post(addr, CHAT, &chat(json!("[[mute]]"), json!({})))));
    server.wait_for_submit();
    server.fake.crash();
    assert_eq!(waiting.join().unwrap(), (503, "ring_failed".into(), None));
    let reply = post(addr, CHAT, &chat(json!("hi"), json!({})));
    assert_eq!(error_of(reply), (503, "ring_not_ready".into(), None));
    assert_eq!(get(addr, "/health").json()["ring"]["detail"], "rank 0 has stopped");
    assert_eq!(get(addr, "/ready").status, 503);
}
