//! Server-sent events, as the openai client reads them.

use std::time::Duration;

use serde_json::{Value, json};

use crate::Server;
use crate::client::{Reply, post};

const CHAT: &str = "/v1/chat/completions";
const COMPLETION: &str = "/v1/completions";

fn chat(server: &Server, order: &str, more: Value) -> Reply {
    let messages = json!([{"role": "user", "content": order}]);
    let mut body = json!({"model": "m", "stream": true, "messages": messages});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let reply = post(server.addr, CHAT, &body);
    assert_eq!(reply.status, 200);
    reply
}

fn text_of(chunks: &[Value]) -> String {
    chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect()
}

fn ids_of(chunks: &[Value]) -> Vec<u64> {
    let ids = chunks.iter().filter_map(|c| c["choices"][0]["token_ids"].as_array());
    ids.flatten().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn a_chat_stream_is_role_deltas_finish_and_done() {
    let server = Server::start();
    let reply = chat(&server, "[[say:ab]]", json!({}));
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert_eq!(reply.header("cache-control"), Some("no-cache"));
    let chunks = reply.chunks();
    for chunk in &chunks {
        assert_eq!(chunk["id"], chunks[0]["id"]);
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["model"], "m");
        assert!(chunk["created"].is_u64() && chunk.get("usage").is_none());
    }
    let choices: Vec<&Value> = chunks.iter().map(|c| &c["choices"][0]).collect();
    let choice = |delta: Value, finish: Value| {
        let choice = json!({"index": 0, "delta": delta, "logprobs": null});
        let mut choice = choice.as_object().unwrap().clone();
        choice.insert("finish_reason".into(), finish);
        Value::Object(choice)
    };
    let expected = [
        choice(json!({"role": "assistant", "content": ""}), json!(null)),
        choice(json!({"content": "a"}), json!(null)),
        choice(json!({"content": "b"}), json!(null)),
        choice(json!({}), json!("stop")),
    ];
    assert_eq!(choices, expected.iter().collect::<Vec<_>>());
}

#[test]
fn include_usage_ends_the_stream_with_a_chunk_without_choices() {
    let server = Server::start();
    let usage = json!({"stream_options": {"include_usage": true}, "max_tokens": 1});
    let chunks = chat(&server, "[[say:ab]]", usage).chunks();
    let (last, rest) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 1);
    assert_eq!(last["usage"]["prompt_tokens"], server.submitted()[0].prompt.len());
    assert!(rest.iter().all(|chunk| chunk["usage"] == Value::Null && chunk.get("usage").is_some()));
    assert_eq!(rest.last().unwrap()["choices"][0]["finish_reason"], "length");
}

#[test]
fn a_completion_stream_has_text_and_no_role() {
    let server = Server::start();
    let body = json!({"prompt": "[[say:ab]]", "stream": true});
    let chunks = post(server.addr, COMPLETION, &body).chunks();
    let texts: Vec<&Value> = chunks.iter().map(|c| &c["choices"][0]["text"]).collect();
    assert_eq!(texts, ["a", "b", ""]);
    assert!(chunks.iter().all(|c| c["object"] == "text_completion"));
    assert_eq!(chunks[2]["choices"][0]["finish_reason"], "stop");
}

#[test]
fn characters_over_several_tokens_come_whole_with_their_ids() {
    let server = Server::start();
    let reply = "aé€🦀z";
    let order = format!("[[say:{reply}]]");
    let chunks = chat(&server, &order, json!({"return_token_ids": true})).chunks();
    let deltas = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str());
    assert_eq!(deltas.collect::<Vec<_>>(), ["", "a", "é", "€", "🦀", "z"]);
    assert_eq!(chunks[3]["choices"][0]["token_ids"].as_array().unwrap().len(), 3);
    assert_eq!(ids_of(&chunks), reply.bytes().map(u64::from).collect::<Vec<_>>());
}

#[test]
fn a_stream_and_a_whole_reply_are_the_same_text_and_ids() {
    let server = Server::start();
    for (order, more) in [
        ("[[say:one STOP two]]", json!({"stop": ["STOP"]})),
        ("[[say:one STO]]", json!({"stop": ["STOP"]})),
        ("[[say:aé🦀]]", json!({"max_tokens": 5})),
        ("[[say:]]", json!({})),
        ("[[say:STOP]]", json!({"stop": ["STOP"]})),
    ] {
        let mut more = more;
        more["return_token_ids"] = true.into();
        more["stream_options"] = json!({"include_usage": true});
        let chunks = chat(&server, order, more.clone()).chunks();
        more["stream"] = false.into();
        let whole = chat(&server, order, more).json();
        let choice = &whole["choices"][0];
        assert_eq!(text_of(&chunks), choice["message"]["content"], "{order}");
        assert_eq!(json!(ids_of(&chunks)), choice["token_ids"], "{order}");
        let (usage, chunks) = chunks.split_last().unwrap();
        assert_eq!(usage["usage"], whole["usage"], "{order}");
        let finish = &chunks.last().unwrap()["choices"][0]["finish_reason"];
        assert_eq!(*finish, choice["finish_reason"], "{order}");
    }
}

#[test]
fn no_part_of_a_stop_string_is_ever_sent() {
    let server = Server::start();
    let chunks = chat(&server, "[[say:a STxSTOPb]]", json!({"stop": "STOP"})).chunks();
    assert_eq!(text_of(&chunks), "a STx");
    let (_, sent) = server.wait_for_cancel(Duration::from_secs(5));
    assert!(sent <= 10, "{sent}");
}

#[test]
fn after_tokens_a_failure_is_an_error_event_and_nothing_follows() {
    let server = Server::start();
    for (order, code, name) in [
        ("[[break:3]]", "ring_failed", "rank 1 closed its link"),
        ("[[nan:3]]", "internal", "NonfiniteLogits"),
    ] {
        let mut events = chat(&server, order, json!({})).events();
        let error: Value = serde_json::from_str(&events.pop().unwrap()).unwrap();
        assert_eq!(error["error"]["code"], code);
        assert_eq!(error["error"]["type"], "server_error");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains(name), "{message}");
        let chunks: Vec<Value> = events.iter().map(|e| serde_json::from_str(e).unwrap()).collect();
        assert_eq!(text_of(&chunks), "xxx");
        assert!(chunks.iter().all(|c| c["choices"][0]["finish_reason"].is_null()));
    }
}

#[test]
fn a_token_reaches_the_client_before_the_next_is_made() {
    let server = Server::start();
    let mut reply = chat(&server, "[[endless]]", json!({}));
    let first = reply.event().unwrap();
    assert!(first.contains("\"role\":\"assistant\"") && first.ends_with("\n\n"), "{first}");
    assert!(reply.event().unwrap().contains("\"content\":\"x\""));
    reply.leave();
    let (_, sent) = server.wait_for_cancel(Duration::from_secs(5));
    assert!(sent < 1000, "{sent} tokens were made before the client saw two");
}
