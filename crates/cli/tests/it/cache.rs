//! Prompts that go on from what earlier ones left: conversations and shared beginnings on real
//! processes, with the bytes of a cold run.

use arith::format::Format;
use serde_json::{Value, json};
use weights::synthetic::{self, Qwen35};

use crate::http::ids;
use crate::model::{TINY, scratch};
use crate::process::{baton, s, wait_for};
use crate::ring::{ByHand, Server};
use crate::turn::Turn;

/// Turns of the long conversation.
const TURNS: usize = 20;

fn ask(messages: &[Value], max_tokens: u32) -> Value {
    json!({
        "messages": messages, "max_tokens": max_tokens, "temperature": 0.8, "seed": 7,
        "ignore_eos": true, "return_token_ids": true,
    })
}

fn answer(server: &Server, body: &Value) -> Value {
    let (status, reply) = server.chat(body);
    assert_eq!(status, 200, "{reply}");
    reply
}

fn count(reply: &Value, name: &str) -> u64 {
    let usage = &reply["usage"];
    let count = if name == "cached_tokens" { &usage["prompt_tokens_details"] } else { usage };
    count[name].as_u64().unwrap_or_else(|| panic!("no {name}: {reply}"))
}

/// The turns of a conversation as requests, each with the reply that `server` gives.
fn converse(server: &Server) -> Vec<(Value, Value)> {
    let mut messages =
        vec![json!({"role": "system", "content": "You tell of the sea. ".repeat(9)})];
    let mut turns = Vec::new();
    for turn in 0..TURNS {
        let content = format!("And what does the {turn}. wave say to the shore?");
        messages.push(json!({"role": "user", "content": content}));
        let body = ask(&messages, 24);
        let reply = answer(server, &body);
        let content = reply["choices"][0]["message"]["content"].clone();
        messages.push(json!({"role": "assistant", "content": content}));
        turns.push((body, reply));
    }
    turns
}

#[test]
fn the_twentieth_turn_of_a_chat_computes_a_tenth_of_its_prompt_at_most() {
    let _turn = Turn::shared();
    let tiny = "baton-tiny".as_ref();
    let warm = Server::ready(tiny, &["--world", "3", "--threads", "1"]);
    let cold = Server::ready(tiny, &["--threads", "1", "--prompt-cache-gib", "0"]);
    let turns = converse(&warm);
    for (body, reply) in &turns {
        let alone = answer(&cold, body);
        assert_eq!(reply["choices"], alone["choices"]);
        assert_eq!(reply["baton"]["token_sha256"], alone["baton"]["token_sha256"]);
        assert_eq!(count(&alone, "cached_tokens"), 0);
        assert_eq!(reply["baton"]["placement"], "0:2,2:5,5:8");
    }
    let (body, last) = &turns[TURNS - 1];
    let (prompt, cached) = (count(last, "prompt_tokens"), count(last, "cached_tokens"));
    let computed = prompt - cached;
    println!("turn {TURNS}: {computed} of {prompt} prompt tokens computed");
    assert!(computed * 10 <= prompt, "{computed} of {prompt}");
    let again = answer(&warm, body);
    assert_eq!(count(&again, "cached_tokens"), prompt - 1, "all but the last token");
    assert_eq!(again["choices"], last["choices"]);
    let mut refused = body.clone();
    refused["cache_prompt"] = json!(false);
    let fresh = answer(&warm, &refused);
    assert_eq!(count(&fresh, "cached_tokens"), 0);
    assert_eq!(fresh["choices"], last["choices"]);
}

/// Milliseconds to a reply's first token, as its proof says.
fn ttft_ms(reply: &Value) -> f64 {
    reply["baton"]["ttft_ms"].as_f64().unwrap_or_else(|| panic!("no ttft_ms: {reply}"))
}

#[test]
#[ignore = "a checkpoint of 0.8B's shape takes minutes on few cores; for a quiet machine"]
fn a_late_turn_waits_for_its_own_words_alone() {
    let _turn = Turn::alone();
    let path = scratch("chat-0.8b.gguf");
    let shape =
        Qwen35 { layers: 24, context_max: 8_192, ..Qwen35::of_bytes(1 << 29, Format::Q4_1) };
    synthetic::qwen3_5(&path, &shape).unwrap();
    let server = Server::ready(&path, &["--world", "3"]);
    let turns = converse(&server);
    let (body, last) = &turns[TURNS - 1];
    let mut fresh = body.clone();
    fresh["cache_prompt"] = json!(false);
    let cold = answer(&server, &fresh);
    let again = answer(&server, body);
    assert_eq!(cold["choices"], last["choices"]);
    assert_eq!(again["choices"], last["choices"]);
    let computed = count(last, "prompt_tokens") - count(last, "cached_tokens");
    println!(
        "turn {TURNS} of {} tokens: {computed} computed, first token after {:.0} ms; cold {:.0} ms; \
         asked again {:.0} ms",
        count(last, "prompt_tokens"),
        ttft_ms(last),
        ttft_ms(&cold),
        ttft_ms(&again),
    );
    let _ = std::fs::remove_file(path);
}

/// Requests that begin alike, on a ring of which the last rank has room for a few states.
fn pressed(requests: u64) {
    let model = "baton-tiny".as_ref();
    let mut ring = ByHand::new("pressed", model, "0:3,3:6,6:8");
    ring.extra = ["--context", "512"].map(String::from).to_vec();
    let roomy = ring.stage(1);
    let mut short = ring.clone();
    short.extra.extend(["--prompt-cache-gib", "0.002"].map(String::from));
    let tight = short.stage(2);
    let server = ring.serve();
    server.wait_ready(s(60));
    let cold = Server::ready(model, &["--threads", "1", "--prompt-cache-gib", "0"]);
    let (mut cached, mut prompts) = (0, 0);
    let mut known = std::collections::BTreeMap::new();
    for n in 0..requests {
        let theme = n * n % 7;
        let words = format!("The {theme}. story of the old harbour goes like this. ").repeat(14);
        let end = format!("{words} But in the {}. year", n * n * n % 11);
        let body = json!({
            "prompt": end, "max_tokens": 6, "temperature": 1, "seed": 3, "ignore_eos": true,
            "return_token_ids": true,
        });
        let (status, reply) = server.complete(&body);
        assert_eq!(status, 200, "{reply}");
        let alone = known.entry(end).or_insert_with(|| ids(&cold.complete(&body).1["choices"][0]));
        assert_eq!(&ids(&reply["choices"][0]), alone, "request {n}");
        cached += count(&reply, "cached_tokens");
        prompts += count(&reply, "prompt_tokens");
    }
    let health = server.health();
    println!("{requests} requests: {cached} of {prompts} prompt tokens cached, {health}");
    assert!(cached * 3 > prompts, "{cached} of {prompts}");
    assert!(health["kept_prompts"].as_u64().is_some_and(|kept| kept < 12), "{health}");
    drop((roomy, tight));
}

#[test]
fn one_rank_short_of_memory_makes_the_cache_smaller_and_changes_no_byte() {
    let _turn = Turn::shared();
    pressed(40);
}

#[test]
#[ignore = "five hundred requests on processes take a minute; after a change of the prompt cache"]
fn five_hundred_requests_share_their_beginnings_under_pressure_on_one_rank() {
    let _turn = Turn::alone();
    pressed(500);
}

/// Runs `baton check --proof` over an exchange.
fn proves(body: &Value, reply: &str) -> (bool, String) {
    let file = scratch(&format!("exchange-{}.json", std::process::id()));
    std::fs::write(&file, format!("{body}\n{reply}")).unwrap();
    let mut check = baton();
    check.args(["check", "--threads", "1", "--proof"]).arg(&file).arg(&*TINY);
    let output = check.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn a_proof_holds_for_its_own_reply_alone() {
    let _turn = Turn::shared();
    let server = Server::ready(&TINY, &["--world", "3", "--threads", "1"]);
    let body = ask(&[json!({"role": "user", "content": "tell me of the sea"})], 12);
    let reply = answer(&server, &body);
    let (holds, said) = proves(&body, &reply.to_string());
    assert!(holds && said.contains("proof holds: 12 tokens"), "{said}");
    let mut other = body.clone();
    other["seed"] = json!(8);
    let (holds, said) = proves(&other, &reply.to_string());
    assert!(!holds && said.contains("does not hold"), "{said}");
    // Two replies that a grammar binds, whole and as a stream.
    let schema = json!({"type": "object", "properties": {"sea": {"type": "integer"}},
                        "required": ["sea"], "additionalProperties": false});
    let schema = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}});
    let mut bound = body.clone();
    (bound["response_format"], bound["n"]) = (schema, json!(2));
    bound["temperature"] = json!(1);
    let several = answer(&server, &bound);
    assert_eq!(several["baton"].as_array().map(Vec::len), Some(2), "{several}");
    let (holds, said) = proves(&bound, &several.to_string());
    assert!(holds && said.matches("proof holds").count() == 2, "{said}");
    bound.as_object_mut().unwrap().remove("response_format");
    let (holds, said) = proves(&bound, &several.to_string());
    assert!(!holds && said.contains("does not hold"), "{said}");
    let proof = &reply["baton"];
    assert!(proof["ttft_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{proof}");
    assert!(proof["decode_tokens_per_s"].as_f64().is_some_and(|speed| speed > 0.0), "{proof}");
    assert_eq!((&proof["arith"], &proof["cached_tokens"]), (&json!("1"), &json!(0)));
    assert!(wait_for(s(5), || (server.health()["kv_pages_used"] == 0).then_some(())).is_some());
}
