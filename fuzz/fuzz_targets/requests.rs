//! A request's body of any bytes, on its way to tokens and from tokens to a reply.
#![no_main]

use std::sync::{Arc, LazyLock};

use api::{ApiError, Asked, Dialect, Endpoint, Limits, Manner, Shape, Transcript};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use text::Text;

const CONTEXT_MAX: u32 = 256;

static TEXT: LazyLock<Arc<Text>> = LazyLock::new(|| Arc::new(Text::byte_level()));
static LIMITS: LazyLock<Limits> = LazyLock::new(Limits::default);

fuzz_target!(init: baton_fuzz::plant(seeds()), |data: &[u8]| {
    let Some((choice, body)) = baton_fuzz::choice(data) else {
        return;
    };
    let endpoint = if choice & 1 == 0 { Endpoint::Chat } else { Endpoint::Completion };
    if let Err(error) = serve(endpoint, body) {
        let status = error.status();
        assert!((400..500).contains(&status), "{status} for the client's own fault");
        assert!(error.body().to_string().len() < 4 << 10, "a long error");
    }
});

fn serve(endpoint: Endpoint, body: &[u8]) -> Result<(), ApiError> {
    let asked = Asked::read(endpoint, body, &LIMITS)?;
    let (tokens, manner) = asked.encode(&TEXT, CONTEXT_MAX)?;
    let request = asked.schedule(tokens, CONTEXT_MAX, &TEXT)?;
    let sampling = &request.sampling;
    assert!((0.0..=2.0).contains(&sampling.temperature));
    assert!((0.0..=1.0).contains(&sampling.top_p) && (0.0..=1.0).contains(&sampling.min_p));
    assert!(request.prompt.iter().all(|&id| (id as usize) < TEXT.vocab()));
    let positions = request.prompt.len() as u64 + u64::from(request.max_tokens);
    assert!(request.max_tokens > 0 && positions <= u64::from(CONTEXT_MAX));
    reply(&asked, &request, manner);
    Ok(())
}

/// The model says the prompt backwards.
fn reply(asked: &Asked, request: &sched::Request, manner: Manner) {
    let prompt_tokens = request.prompt.len() as u32;
    let mut shape = Shape::new(asked, &TEXT, "0", 0, "model", prompt_tokens);
    let mut transcript = Transcript::new(&TEXT, asked.options.stop.clone(), manner);
    let mut text = String::new();
    let ids = request.prompt.iter().rev().take(request.max_tokens as usize);
    let ended = ids.copied().find_map(|id| {
        let (piece, ending) = transcript.token(id, None);
        text.push_str(&piece.text());
        shape.piece(0, piece);
        ending
    });
    if ended.is_none() {
        let (piece, ending) = transcript.finish(sched::Finish::Length);
        text.push_str(&piece.text());
        shape.closing(0, piece, ending);
    }
    if asked.options.tools.is_some() {
        return; // What stood around a call may look like one when it is gone.
    }
    for stop in &asked.options.stop {
        assert!(!text.contains(stop.as_str()), "{stop:?} was shown");
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let bodies = [
        (0, json!({"messages": [{"role": "user", "content": "Hi"}]})),
        (
            0,
            json!({
                "model": "m", "max_tokens": 5, "max_completion_tokens": 7, "temperature": 0.5,
                "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": -1, "stream": true,
                "stream_options": {"include_usage": true}, "stop": ["a", "b"], "ignore_eos": true,
                "return_token_ids": true, "user": "u",
                "chat_template_kwargs": {"enable_thinking": false},
                "messages": [
                    {"role": "developer", "content": [{"type": "text", "text": "Be \u{e9}"},
                                                      {"type": "refusal", "refusal": "no"}]},
                    {"role": "assistant", "content": null, "tool_calls": [{"id": "c1"}]},
                    {"role": "tool", "content": "5", "tool_call_id": "c1"},
                ],
            }),
        ),
        (
            0,
            json!({
                "messages": [{"role": "user", "content": "x"}], "n": 1, "tools": [],
                "tool_choice": "none", "response_format": {"type": "text"}, "logprobs": false,
                "frequency_penalty": 0, "logit_bias": {}, "modalities": ["text"], "audio": null,
            }),
        ),
        (
            0,
            json!({
                "messages": [{"role": "user", "content": ">llac_loot<{}>llac_loot<"}], "n": 2,
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
                "tool_choice": "required", "parallel_tool_calls": false, "logprobs": true,
                "top_logprobs": 3, "logit_bias": {"5": 1}, "reasoning_effort": "low",
            }),
        ),
        (1, json!({"prompt": "a", "echo": true, "logprobs": 2, "guided_choice": ["a", "b"]})),
        (1, json!({"prompt": "<|im_start|>abc", "stop": "b", "max_tokens": 64})),
        (1, json!({"prompt": [1, 2, 257]})),
        (1, json!({"prompt": [258]})),
        (1, json!({"prompt": [[195, 169, 195]], "stop": ["\u{e9}"]})),
    ];
    let seed =
        |(endpoint, body): &(u8, Value)| [&[*endpoint], body.to_string().as_bytes()].concat();
    bodies.iter().map(seed).collect()
}
