//! Whole replies, and what of a request reaches the engine.

use std::io::Write;

use serde_json::{Value, json};

use crate::Server;
use crate::client::{self, Reply, get, post};

const CHAT: &str = "/v1/chat/completions";
const COMPLETION: &str = "/v1/completions";

fn completion(server: &Server, body: Value) -> Value {
    let reply = post(server.addr, COMPLETION, &body);
    assert_eq!(reply.status, 200);
    reply.json()
}

#[test]
fn a_chat_reply_has_the_shape_that_clients_read() {
    let server = Server::start();
    let body = json!({"model": "any-name", "messages": [
        {"role": "developer", "content": "be brief"},
        {"role": "assistant", "content": null, "tool_calls": []},
        {"role": "user", "content": [{"type": "text", "text": "[[say:wörld]]"}]},
    ]});
    let reply = post(server.addr, CHAT, &body);
    assert_eq!(reply.status, 200);
    let reply = reply.json();
    let prompt_tokens = server.submitted()[0].prompt.len();
    assert!(reply["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(reply["created"].as_u64().unwrap() > 1_700_000_000);
    assert_eq!(reply["object"], "chat.completion");
    assert_eq!(reply["model"], "any-name");
    let choice = json!([{
        "index": 0, "message": {"role": "assistant", "content": "wörld", "refusal": null},
        "logprobs": null, "finish_reason": "stop",
    }]);
    assert_eq!(reply["choices"], choice);
    let usage = json!({
        "prompt_tokens": prompt_tokens, "completion_tokens": 6, "total_tokens": prompt_tokens + 6,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    });
    assert_eq!(reply["usage"], usage);
}

#[test]
fn messages_go_through_the_template_to_the_engine() {
    let server = Server::start();
    let body = json!({"messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(post(server.addr, CHAT, &body).json()["model"], "org/fake");
    let text = text::Text::byte_level();
    let messages = [json!({"role": "user", "content": "hi"})];
    let rendered = text.render(&messages, true, &serde_json::Map::new()).unwrap();
    assert_eq!(server.submitted()[0].prompt, text.encode(&rendered).unwrap());
}

#[test]
fn a_completion_takes_ids_as_they_are_and_returns_the_replys() {
    let server = Server::start();
    let ids: Vec<u32> = "[[say:é!]]".bytes().map(u32::from).collect();
    let reply = completion(&server, json!({"prompt": ids, "return_token_ids": true}));
    assert!(reply["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(reply["object"], "text_completion");
    let choice = json!([{
        "index": 0, "text": "é!", "logprobs": null, "finish_reason": "stop",
        "token_ids": [0xc3, 0xa9, 0x21],
    }]);
    assert_eq!(reply["choices"], choice);
    assert_eq!(reply["usage"]["completion_tokens"], 3);
    assert_eq!(server.submitted()[0].prompt, ids);
}

#[test]
fn each_field_reaches_the_engine() {
    let server = Server::start();
    completion(
        &server,
        json!({"prompt": "a", "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05,
               "seed": 77, "max_tokens": 3, "ignore_eos": true}),
    );
    completion(&server, json!({"prompt": "a", "max_completion_tokens": 4}));
    completion(&server, json!({"prompt": "a"}));
    let [asked, bare, full] = server.submitted().try_into().unwrap();
    let sampling = asked.sampling;
    assert_eq!(
        (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.seed),
        (0.5, 0.9, 40, 0.05, 77)
    );
    assert_eq!((asked.max_tokens, asked.stop_tokens), (3, vec![]));
    assert_eq!((bare.sampling.temperature, bare.sampling.top_p), (1.0, 1.0));
    assert_eq!(bare.max_tokens, 4);
    assert_eq!(bare.stop_tokens, text::Text::byte_level().stop_tokens());
    assert_eq!(bare.sampling.seed, full.sampling.seed);
    assert_eq!(full.max_tokens, crate::fake::CONTEXT_MAX - 1);
}

#[test]
fn a_reply_that_fills_max_tokens_ends_with_length() {
    let server = Server::start();
    let reply = completion(&server, json!({"prompt": "[[say:abcdef]]", "max_tokens": 4}));
    assert_eq!(reply["choices"][0]["text"], "abcd");
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    assert_eq!(reply["usage"]["completion_tokens"], 4);
}

#[test]
fn a_stop_string_cuts_the_text_exactly_and_cancels_the_stream() {
    let server = Server::start();
    let body = json!({"prompt": "[[say:one STOP two STOP three]]", "stop": ["nothing", "STOP"],
                      "return_token_ids": true});
    let reply = completion(&server, body);
    let choice = &reply["choices"][0];
    assert_eq!(choice["text"], "one ");
    assert_eq!(choice["finish_reason"], "stop");
    let ids: Vec<u32> = "one STOP".bytes().map(u32::from).collect();
    assert_eq!(choice["token_ids"], json!(ids));
    assert_eq!(reply["usage"]["completion_tokens"], 8);
    let (_, sent) = server.wait_for_cancel(client::PATIENCE);
    assert!(sent < 25, "{sent} tokens were computed");
}

#[test]
fn a_stop_string_that_only_began_is_part_of_the_reply() {
    let server = Server::start();
    let reply = completion(&server, json!({"prompt": "[[say:a ST]]", "stop": "STOP"}));
    assert_eq!(reply["choices"][0]["text"], "a ST");
}

#[test]
fn a_character_that_stays_incomplete_does_not_break_the_reply() {
    let server = Server::start();
    let reply = completion(&server, json!({"prompt": "[[say:aé]]", "max_tokens": 2}));
    assert_eq!(reply["choices"][0]["text"], "a\u{fffd}");
}

#[test]
fn a_long_prompt_takes_the_same_way_off_the_network_threads() {
    let server = Server::start();
    let prompt = format!("{}[[say:far]]", "x".repeat(50_000));
    let reply = completion(&server, json!({ "prompt": prompt }));
    assert_eq!(reply["choices"][0]["text"], "far");
    assert_eq!(reply["usage"]["prompt_tokens"], prompt.len());
}

#[test]
fn one_connection_carries_several_requests() {
    let server = Server::start();
    let mut stream = client::connect(server.addr);
    for word in ["one", "two", "three"] {
        let body = json!({"prompt": format!("[[say:{word}]]")}).to_string();
        let request = client::request_bytes("POST", COMPLETION, &body);
        stream.write_all(&request).unwrap();
        let (body, rest) = Reply::read(stream).body();
        let reply: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(reply["choices"][0]["text"], word);
        stream = rest;
    }
}

#[test]
fn models_health_and_ready_tell_the_truth() {
    use ring::head::RingState;
    let server = Server::start();
    let models = get(server.addr, "/v1/models").json();
    assert_eq!(models["object"], "list");
    assert_eq!(models["data"][0]["id"], "org/fake");
    assert_eq!(models["data"][0]["object"], "model");
    let one = get(server.addr, "/v1/models/org/fake").json();
    assert_eq!(one, models["data"][0]);

    let health = get(server.addr, "/health").json();
    assert_eq!(health["status"], "ok");
    assert_eq!((&health["layout"], &health["world"]), (&json!("0:1,1:2"), &json!(2)));
    assert!(health["rounds"].is_u64() && health["running"] == 0 && health["waiting"] == 0);
    assert!(health["uptime_s"].as_f64().unwrap() >= 0.0);
    assert_eq!(get(server.addr, "/ready").status, 200);

    for (state, word, detail) in [
        (RingState::Booting("rank 1 loads".into()), "booting", json!("rank 1 loads")),
        (RingState::Waiting("rank 1 left".into()), "waiting", json!("rank 1 left")),
        (RingState::Draining, "draining", json!(null)),
    ] {
        server.fake.set_state(state);
        let health = get(server.addr, "/health");
        assert_eq!(health.status, 200);
        let health = health.json();
        assert_eq!(health["status"], word);
        assert_eq!(health["ring"], json!({"state": word, "detail": detail}));
        let ready = get(server.addr, "/ready");
        assert_eq!(ready.status, 503);
        assert_eq!(ready.json(), json!({"status": word, "detail": detail}));
    }
}
