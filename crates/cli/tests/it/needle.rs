//! A needle in a long prompt, found by a group that shares every layer, and turns that go on from
//! what the group has kept: one machine's bytes.
//!
//! The model is written by hand, so that what it finds is known: of two layers of two heads, the
//! first layer's first head looks at the token before, and the second layer's second head at where
//! that was the newest token, whose follower it says. In a group of two each member has one of
//! them: neither finds anything without the other.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use arith::format::Format;
use serde_json::{Value, json};
use weights::gguf::write::Writer;
use weights::quantise::quantise;
use weights::synthetic::byte_char;

use crate::model::scratch;
use crate::ring::Server;
use crate::turn::Turn;

/// Width of the residual: the newest token's code, the one's before it, and a constant.
const HIDDEN: usize = 256;
/// Values of a token's code, each 1 or -1.
const CODE: usize = 64;
/// Where the constant is.
const ONE: usize = 2 * CODE;
/// Width of a head: the first dims turn with the position, the others hold a code.
const DIM: usize = 128;
const TURNING: usize = DIM - CODE;
/// At 100,000 positions the first pair of the code has turned by a tenth of a radian.
const THETA: f32 = 1e12;
const VOCAB: usize = 258;
/// What is hidden: characters that are nowhere else, none of them twice.
const NEEDLE: &str = "@7304982#";

/// A matrix of `rows` by `cols` values.
fn matrix(rows: usize, cols: usize, value: impl Fn(usize, usize) -> f32) -> Vec<u8> {
    let row = |at: usize| (0..cols).map(|col| value(at, col)).collect::<Vec<_>>();
    (0..rows).flat_map(|at| quantise(Format::Q8_0, &row(at))).collect()
}

/// 1 or -1: value `at` of a token's code.
fn code(token: usize, at: usize) -> f32 {
    let mut x = (token * CODE + at) as u64 ^ 0x9e37_79b9_7f4a_7c15;
    for _ in 0..3 {
        x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    if x >> 63 == 0 { 1.0 } else { -1.0 }
}

/// Queries, keys, values and output of a layer, `true` for the second one.
fn attention(second: bool) -> [Vec<u8>; 4] {
    // What the norm before it multiplies a row by: 1 / rms.
    let norm = (HIDDEN as f32 / (1 + CODE + if second { CODE } else { 0 }) as f32).sqrt();
    // The strength of a match, far above what 100,000 others add up to.
    let (turn, meet, say) = (32.0 / norm, 5.0 / norm, 4.0 / norm);
    let angle = |pair: usize| f64::from(THETA).powf(-2.0 * pair as f64 / DIM as f64);
    let query = move |row: usize, col: usize| match (second, row) {
        // The first head, from the constant: the same direction in each pair.
        (false, 0..TURNING) if col == ONE && row.is_multiple_of(2) => turn,
        // The second head, from the newest token.
        (true, row) if row >= DIM + TURNING && col == row - DIM - TURNING => meet,
        _ => 0.0,
    };
    let key = move |row: usize, col: usize| match (second, row) {
        // Turned on by a position: the token before meets the query.
        (false, 0..TURNING) if col == ONE && row.is_multiple_of(2) => {
            turn * angle(row / 2).cos() as f32
        }
        (false, 0..TURNING) if col == ONE => turn * angle(row / 2).sin() as f32,
        (true, row) if row >= DIM + TURNING && col == CODE + row - DIM - TURNING => meet,
        _ => 0.0,
    };
    let first = if second { DIM } else { 0 };
    let value = move |row: usize, col: usize| {
        let own = (first..first + CODE).contains(&row) && col == row - first;
        if own { 1.0 / norm } else { 0.0 }
    };
    let output = move |row: usize, col: usize| match second {
        false if (CODE..2 * CODE).contains(&row) && col == row - CODE => 1.0,
        true if row < CODE && col == DIM + row => say * norm,
        _ => 0.0,
    };
    let wide = 2 * DIM;
    [
        matrix(wide, HIDDEN, query),
        matrix(wide, HIDDEN, key),
        matrix(wide, HIDDEN, value),
        matrix(HIDDEN, wide, output),
    ]
}

/// The model's file.
fn recalling() -> PathBuf {
    let mut out = Writer::new();
    let mut names: Vec<String> = (0..=255).map(|byte| byte_char(byte).to_string()).collect();
    names.extend(["<|im_start|>", "<|im_end|>"].map(String::from));
    let types: Vec<i32> = (0..VOCAB).map(|id| if id < 256 { 1 } else { 3 }).collect();
    out.string("general.architecture", "llama")
        .string("general.name", "recalling")
        .u32("llama.block_count", 2)
        .u32("llama.context_length", 1 << 17)
        .u32("llama.embedding_length", HIDDEN as u32)
        .u32("llama.feed_forward_length", 32)
        .u32("llama.attention.head_count", 2)
        .u32("llama.attention.head_count_kv", 2)
        .u32("llama.attention.key_length", DIM as u32)
        .u32("llama.attention.value_length", DIM as u32)
        .u32("llama.rope.dimension_count", DIM as u32)
        .f32("llama.rope.freq_base", THETA)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-6)
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.tokens", &names)
        .i32s("tokenizer.ggml.token_type", &types)
        .strings::<&str>("tokenizer.ggml.merges", &[])
        .u32("tokenizer.ggml.eos_token_id", 257)
        .bool("tokenizer.ggml.add_bos_token", false);
    let linear = |out: &mut Writer, name: &str, rows: usize, cols: usize, bytes: &[u8]| {
        out.tensor(&format!("{name}.weight"), Format::Q8_0, &[cols as u64, rows as u64], bytes);
    };
    let norm = |out: &mut Writer, name: &str| {
        let ones: Vec<u8> = (0..HIDDEN).flat_map(|_| 1f32.to_le_bytes()).collect();
        out.tensor(&format!("{name}.weight"), Format::F32, &[HIDDEN as u64], &ones);
    };
    let token = |token: usize, at: usize| match at {
        0..CODE => code(token, at),
        ONE => 1.0,
        _ => 0.0,
    };
    linear(&mut out, "token_embd", VOCAB, HIDDEN, &matrix(VOCAB, HIDDEN, token));
    for layer in 0..2 {
        let parts = ["attn_q", "attn_k", "attn_v", "attn_output"];
        for (name, bytes) in parts.into_iter().zip(attention(layer == 1)) {
            linear(&mut out, &format!("blk.{layer}.{name}"), HIDDEN, HIDDEN, &bytes);
        }
        // Adds nothing.
        for (name, rows, cols) in
            [("ffn_gate", 32, HIDDEN), ("ffn_up", 32, HIDDEN), ("ffn_down", HIDDEN, 32)]
        {
            let name = format!("blk.{layer}.{name}");
            linear(&mut out, &name, rows, cols, &matrix(rows, cols, |_, _| 0.0));
        }
        norm(&mut out, &format!("blk.{layer}.attn_norm"));
        norm(&mut out, &format!("blk.{layer}.ffn_norm"));
    }
    norm(&mut out, "output_norm");
    let path = scratch("recalling.gguf");
    let part = path.with_extension(format!("{}.part", std::process::id()));
    std::fs::write(&part, out.finish()).unwrap();
    std::fs::rename(part, &path).unwrap();
    path
}

/// `count` letters and spaces with the needle after a third of them.
fn hay(count: usize) -> String {
    let mut x = 7u32;
    let letters = std::iter::repeat_with(|| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b"etaoin shrdlu cmfwyp vbgkqjxz   "[(x >> 27) as usize])
    });
    let mut hay: String = letters.take(count - NEEDLE.len()).collect();
    hay.insert_str(count / 3, NEEDLE);
    hay
}

/// One request by curl, whose replies may take minutes.
fn curl(server: &Server, body: &Value) -> (Value, Duration) {
    let file = scratch(&format!("needle-{}.json", std::process::id()));
    std::fs::write(&file, body.to_string()).unwrap();
    let started = Instant::now();
    let output = Command::new("curl")
        .args(["-sS", "--max-time", "1200", "-H", "Content-Type: application/json"])
        .args(["-d", &format!("@{}", file.display())])
        .arg(format!("http://{}/v1/completions", server.addr))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    (serde_json::from_slice(&output.stdout).unwrap(), started.elapsed())
}

/// Asks what follows the needle's first character in a prompt of `count` tokens, and once more in a
/// turn that goes on from there: text, hash and cached tokens of both.
fn turns(model: &Path, layout: &str, threads: &str, count: usize) -> [(String, Value, u64); 2] {
    let context = (count + 256).to_string();
    let place = ["--layout", layout, "--threads", threads, "--context", &context];
    let server = Server::ready(model, &[&place[..], &["--streams", "1"]].concat());
    let mut prompt = hay(count) + " and what was it? @";
    [0, 1].map(|turn| {
        let body = json!({
            "prompt": prompt, "max_tokens": NEEDLE.len() - 1, "temperature": 0, "ignore_eos": true,
        });
        let (reply, took) = curl(&server, &body);
        let text = reply["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{reply}"));
        let cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        let (asked, layout) = (&reply["usage"]["prompt_tokens"], &reply["baton"]["placement"]);
        println!("{layout}, turn {turn}: {asked} tokens, {cached} cached, {took:.1?}: {text}");
        prompt += &format!("{text} and once more? @");
        (text.to_owned(), reply["baton"]["token_sha256"].clone(), cached)
    })
}

fn a_needle_is_found_in(count: usize) {
    let model = recalling();
    let group = turns(&model, "0:2@shards2", "1", count);
    for (turn, (text, _, cached)) in group.iter().enumerate() {
        assert_eq!(text, &NEEDLE[1..], "turn {turn}");
        // All of the first turn but its page's rest.
        assert_eq!(*cached > count as u64 - 64, turn == 1, "turn {turn}: {cached} cached");
    }
    assert_eq!(turns(&model, "0:2", "2", count), group);
}

#[test]
fn a_needle_of_a_long_prompt_is_found_by_a_group_and_again_from_its_cache() {
    let _turn = Turn::alone();
    a_needle_is_found_in(2_000);
}

#[test]
#[ignore = "minutes: 80,000 tokens"]
fn a_needle_of_80_000_tokens_is_found_by_a_group_and_again_from_its_cache() {
    let _turn = Turn::alone();
    a_needle_is_found_in(80_000);
}

#[test]
fn the_second_turn_of_a_chat_resumes_in_a_group_with_one_machines_bytes() {
    let _turn = Turn::shared();
    let system = "You tell of the sea. ".repeat(30);
    let servers = ["0:8@shards2", "0:8"].map(|layout| {
        Server::ready("baton-tiny".as_ref(), &["--layout", layout, "--threads", "1"])
    });
    let mut messages = vec![json!({"role": "system", "content": system})];
    for (turn, said) in ["Tell of a ship.", "And of its sails?"].into_iter().enumerate() {
        messages.push(json!({"role": "user", "content": said}));
        let body = json!({
            "messages": messages, "max_tokens": 16, "temperature": 0.8, "seed": 7,
            "ignore_eos": true,
        });
        let [group, one] = servers.each_ref().map(|server| {
            let (status, reply) = server.chat(&body);
            assert_eq!(status, 200, "{reply}");
            reply
        });
        assert_eq!(group["choices"], one["choices"], "turn {turn}");
        assert_eq!(group["baton"]["token_sha256"], one["baton"]["token_sha256"]);
        let count = |name: &str| group.pointer(name).and_then(Value::as_u64).unwrap();
        let cached = count("/usage/prompt_tokens_details/cached_tokens");
        let prompt = count("/usage/prompt_tokens");
        println!("turn {turn}: {cached} of {prompt} cached");
        assert_eq!(cached * 2 > prompt, turn == 1, "turn {turn}: {cached} of {prompt} cached");
        messages.push(group["choices"][0]["message"].clone());
    }
    let [group, _] = servers;
    assert_eq!(group.health()["layout"], "0:8@shards2");
}
