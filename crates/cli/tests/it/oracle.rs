//! SmolLM2's replies through the endpoint beside those that another implementation gave.

use std::path::Path;

use serde_json::{Value, json};

use crate::http::ids;
use crate::model::smollm2;
use crate::ring::Server;
use crate::turn::Turn;

/// Logits closer than this may change places between two implementations.
const GAP_MIN: f64 = 0.005;

/// The recorded replies: `golden/smollm2-q4_1/README.md` says how they were made.
fn recorded() -> Value {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/smollm2-q4_1");
    let text = std::fs::read_to_string(root.join("smollm2-q4_1.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn greedy_replies_equal_the_recorded_ones_up_to_the_first_close_call() {
    let Some(model) = smollm2("greedy_replies_equal_the_recorded_ones") else {
        return;
    };
    let _turn = Turn::alone();
    let recorded = recorded();
    let server = Server::ready(&model, &["--world", "3", "--kv", "f32", "--context", "2048"]);
    for (name, prompt) in recorded["prompts"].as_object().unwrap() {
        let expected: Vec<u64> = serde_json::from_value(prompt["greedy"].clone()).unwrap();
        let gaps: Vec<f64> = serde_json::from_value(prompt["top1_top2_gaps"].clone()).unwrap();
        let sure = gaps.iter().position(|&gap| gap < GAP_MIN).unwrap_or(expected.len());
        let (status, reply) = server.complete(&json!({
            "prompt": prompt["ids"], "max_tokens": expected.len(), "temperature": 0,
            "ignore_eos": true, "return_token_ids": true,
        }));
        assert_eq!(status, 200, "{reply}");
        let found = ids(&reply["choices"][0]);
        println!("{name}: {sure} of {} tokens compared", expected.len());
        assert_eq!(found[..sure], expected[..sure], "{name}");
    }
}

#[test]
fn a_chat_with_smollm2_makes_sense() {
    let Some(model) = smollm2("a_chat_with_smollm2_makes_sense") else {
        return;
    };
    let _turn = Turn::alone();
    let server = Server::ready(&model, &["--world", "2", "--context", "2048"]);
    let (status, reply) = server.chat(&json!({
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
    }));
    assert_eq!(status, 200, "{reply}");
    assert_eq!(reply["choices"][0]["message"]["content"], "The capital of France is Paris.");
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
}
