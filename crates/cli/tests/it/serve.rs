//! Replies of one rank and of three.

use serde_json::{Value, json};

use crate::http::{self, ids};
use crate::model::{LAYERS, TINY};
use crate::process::{s, wait_for};
use crate::ring::{ByHand, Server, greedy};
use crate::turn::Turn;

/// A chat that draws its tokens.
fn drawn(seed: u64) -> Value {
    json!({
        "messages": [{"role": "user", "content": "tell me of the sea"}], "max_tokens": 40,
        "temperature": 2, "top_k": 60, "top_p": 0.97, "seed": seed, "ignore_eos": true,
        "return_token_ids": true,
    })
}

/// The first choice of a reply that must come.
fn choice((status, reply): (u16, Value)) -> Value {
    assert_eq!(status, 200, "{reply}");
    reply["choices"][0].clone()
}

/// A server that is ready, of one rank or of three.
fn of_world(world: &str) -> Server {
    Server::ready(&TINY, &["--world", world, "--threads", "1"])
}

#[test]
fn replies_of_three_ranks_are_one_ranks_replies() {
    let _turn = Turn::shared();
    let (one, three) = (of_world("1"), of_world("3"));
    for seed in 1..=3 {
        let (a, b) = (choice(one.chat(&drawn(seed))), choice(three.chat(&drawn(seed))));
        assert_eq!(a, b);
        assert_eq!(ids(&a).len(), 40);
    }
    let (a, b) = (one.sample(), three.sample());
    assert_eq!(a, b);
}

#[test]
fn a_quiet_log_says_nothing_and_changes_nothing() {
    let _turn = Turn::shared();
    let mut server = Server::quiet(&TINY, &["--world", "3"]);
    server.wait_ready(s(20));
    assert_eq!(server.sample(), of_world("1").sample());
    server.process.signal(libc::SIGTERM);
    server.process.ends_well(s(10));
    assert_eq!(server.process.log.to_end(s(5)), "");
}

#[test]
fn health_ready_and_models_say_what_is_served() {
    let _turn = Turn::shared();
    for (world, layout) in [("1", "0:8"), ("3", "0:2,2:5,5:8")] {
        let server = of_world(world);
        let (status, ready) = server.get("/ready");
        assert_eq!((status, &ready["status"]), (200, &json!("ready")));
        let health = server.health();
        assert_eq!(health["status"], "ok", "{health}");
        assert_eq!(health["layout"], layout, "{health}");
        assert_eq!(health["world"].to_string(), world, "{health}");
        assert_eq!((&health["running"], &health["kv_pages_used"]), (&json!(0), &json!(0)));
        let (status, models) = server.get("/v1/models");
        assert_eq!((status, &models["data"][0]["id"]), (200, &json!("tiny")), "{models}");
        assert_eq!(server.get("/v1/models/tiny").0, 200);
        assert_eq!(server.get("/v1/models/other").0, 404);
    }
}

/// A ring that lacks a rank keeps the port open and says so.
#[test]
fn requests_get_a_503_until_the_canary_is_back() {
    let _turn = Turn::shared();
    let ring = ByHand::new("until-ready", &TINY, &format!("0:4,4:{LAYERS}"));
    let server = ring.serve();
    let named = wait_for(s(10), || {
        let (status, ready) = server.get("/ready");
        assert_eq!((status, &ready["status"]), (503, &json!("booting")), "{ready}");
        ready["detail"].as_str().unwrap().contains("rank 1").then_some(())
    });
    assert!(named.is_some(), "{}", server.health());
    let (status, health) = server.get("/health");
    assert_eq!((status, &health["status"]), (200, &json!("booting")), "{health}");
    let (status, refused) = server.chat(&drawn(1));
    assert_eq!((status, &refused["error"]["code"]), (503, &json!("ring_not_ready")));
    let _stage = ring.stage(1);
    server.wait_ready(s(20));
    assert_eq!(choice(server.chat(&drawn(1))), choice(of_world("1").chat(&drawn(1))));
}

#[test]
fn a_streamed_reply_is_the_whole_one_in_pieces() {
    let _turn = Turn::shared();
    for world in ["1", "3"] {
        let server = of_world(world);
        let mut ask = drawn(5);
        let whole = choice(server.chat(&ask));
        ask["stream_options"] = json!({"include_usage": true});
        let pieces = server.stream_chat(&ask).finish();
        assert!(pieces.done && pieces.ended && pieces.error.is_none(), "{pieces:?}");
        assert_eq!(pieces.text, whole["message"]["content"].as_str().unwrap());
        assert_eq!((&pieces.ids, pieces.finish.as_deref()), (&ids(&whole), Some("length")));
        let usage = pieces.usage.unwrap();
        assert_eq!(usage["completion_tokens"], 40, "{usage}");
        let ask = greedy("two and two", 20);
        let whole = choice(server.complete(&ask));
        let pieces = server.stream(&ask).finish();
        assert_eq!(pieces.text, whole["text"].as_str().unwrap());
        assert_eq!(pieces.ids, ids(&whole));
    }
}

#[test]
fn a_prompt_may_be_text_or_its_ids_and_usage_counts_both() {
    let _turn = Turn::shared();
    let server = of_world("1");
    let text = greedy("abc def", 12);
    let mut bytes = text.clone();
    bytes["prompt"] = json!("abc def".bytes().collect::<Vec<u8>>());
    // A byte-level vocabulary: a byte's id is the byte.
    let ((_, a), (_, b)) = (server.complete(&text), server.complete(&bytes));
    assert_eq!(a["choices"], b["choices"]);
    assert_eq!(a["usage"]["prompt_tokens"], 7);
    let count = ids(&a["choices"][0]).len();
    assert_eq!(a["usage"]["completion_tokens"], count);
    assert_eq!(a["usage"]["total_tokens"], 7 + count);
}

#[test]
fn a_seed_repeats_a_reply_and_another_changes_it() {
    let _turn = Turn::shared();
    let server = of_world("1");
    let reply = |seed| ids(&choice(server.chat(&drawn(seed))));
    assert_eq!(reply(11), reply(11));
    assert_ne!(reply(11), reply(12));
}

#[test]
fn a_stop_string_ends_the_reply_before_itself() {
    let _turn = Turn::shared();
    for world in ["1", "3"] {
        let server = of_world(world);
        let mut ask = drawn(21);
        ask["max_tokens"] = 200.into();
        let whole = choice(server.chat(&ask));
        let text = whole["message"]["content"].as_str().unwrap().to_owned();
        let middle = text.char_indices().nth(text.chars().count() / 2).unwrap().0;
        let stop: String = text[middle..].chars().take(2).collect();
        let before = &text[..text.find(&stop).unwrap()];
        ask["stop"] = json!([stop]);
        let stopped = choice(server.chat(&ask));
        assert_eq!(stopped["message"]["content"].as_str().unwrap(), before);
        assert_eq!(stopped["finish_reason"], "stop");
        let pieces = server.stream_chat(&ask).finish();
        assert_eq!((pieces.text.as_str(), pieces.finish.as_deref()), (before, Some("stop")));
    }
}

#[test]
fn what_is_not_served_is_a_400_by_name() {
    let _turn = Turn::shared();
    let server = of_world("1");
    let image = json!({"messages": [{"role": "user", "content": [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]}]});
    let greeting = json!([{"role": "user", "content": "hello"}]);
    let hello = |name: &str, value: Value| json!({"messages": greeting.clone(), name: value});
    for (body, param) in [
        (image, "messages[0].content[1]"),
        (hello("tools", json!([{"type": "function"}])), "tools[0].function"),
        (hello("modalities", json!(["audio"])), "modalities"),
        (hello("n", json!(0)), "n"),
        (hello("response_format", json!({"type": "xml"})), "response_format.type"),
        (hello("temperature", json!(3)), "temperature"),
    ] {
        let (status, refused) = server.chat(&body);
        assert_eq!((status, &refused["error"]["param"]), (400, &json!(param)), "{refused}");
    }
    let (status, refused) = server.complete(&json!({"prompt": [1, 2, 5000]}));
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("prompt[2]")), "{refused}");
    let long = "x".repeat(9_000);
    let (status, refused) = server.complete(&json!({"prompt": long}));
    assert_eq!(status, 400);
    assert_eq!(refused["error"]["code"], "context_length_exceeded", "{refused}");
    assert_eq!(http::call(server.addr, "POST", "/v1/chat/completions", "{").0, 400);
    assert_eq!(http::get(server.addr, "/v1/other").0, 404);
    assert_eq!(http::get(server.addr, "/v1/chat/completions").0, 405);
}

#[test]
fn chat_asks_once_and_prints_the_reply() {
    let _turn = Turn::shared();
    let server = of_world("3");
    let url = format!("http://{}/v1", server.addr);
    let ask = ["chat", "--url", &url, "--max-tokens", "20", "--temperature", "0.8", "hello"];
    let mut chat = crate::process::Baton::start(ask);
    chat.ends_well(s(30));
    let printed = chat.out.to_end(s(5));
    assert!(!printed.trim().is_empty(), "{}", chat.log.text());
    let nobody = format!("http://{}", crate::ring::free_addresses(1)[0]);
    let mut chat = crate::process::Baton::start(["chat", "--url", &nobody, "hello"]);
    assert_eq!(chat.exit(s(30)).code(), Some(1));
    let said = chat.log.to_end(s(5));
    assert!(said.contains("no server at") && said.contains("baton serve"), "{said}");
}
