//! Replies that a request shapes: by grammar, tools, penalties and bias, over one rank and three.

use serde_json::{Value, json};

use crate::http;
use crate::model::TINY;
use crate::ring::Server;
use crate::turn::Turn;

fn ask(server: &Server, path: &str, body: &Value) -> Value {
    let (status, mut reply) = http::post(server.addr, path, body);
    assert_eq!(status, 200, "{body}: {reply}");
    // What names the one reply, and how fast it was, may differ.
    for choice in reply["choices"].as_array_mut().into_iter().flatten() {
        if let Some(call) = choice.pointer_mut("/message/tool_calls/0/id") {
            *call = Value::Null;
        }
    }
    json!([reply["choices"], reply["usage"]["completion_tokens"]])
}

fn chat(more: &Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "tell me of the sea"}], "max_tokens": 400,
        "temperature": 1, "seed": 5,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn shaped_replies_follow_their_form_and_are_one_reply_in_every_layout() {
    let _turn = Turn::shared();
    let servers = ["1", "3"].map(|n| Server::ready(&TINY, &["--world", n, "--threads", "1"]));
    let both = |path: &str, body: &Value| {
        let [one, three] = servers.each_ref().map(|server| ask(server, path, body));
        assert_eq!(one, three, "{body}");
        one
    };
    let properties = json!({
        "name": {"type": "string", "maxLength": 12}, "depth": {"type": "integer"},
        "salty": {"type": "boolean"},
    });
    let schema = json!({
        "type": "object", "properties": properties, "required": ["name", "depth", "salty"],
        "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "sea", "schema": schema}});
    let reply = both("/v1/chat/completions", &chat(&json!({"response_format": format})));
    let choice = &reply[0][0];
    if choice["finish_reason"] == "stop" {
        let text = choice["message"]["content"].as_str().unwrap();
        let sea: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{text:?}: {e}"));
        assert!(sea["name"].is_string() && sea["depth"].is_i64() && sea["salty"].is_boolean());
    }
    let call = json!({"type": "function", "function": {"name": "dive", "parameters": {
        "type": "object", "properties": {"deep": {"type": "boolean"}}, "required": ["deep"],
        "additionalProperties": false,
    }}});
    let must = json!({"tools": [call], "tool_choice": "required", "parallel_tool_calls": false});
    let reply = both("/v1/chat/completions", &chat(&must));
    let choice = &reply[0][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
    let function = &choice["message"]["tool_calls"][0]["function"];
    let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
    assert!(function["name"] == "dive" && arguments["deep"].is_boolean());
    let shaped = json!({
        "guided_choice": ["red", "green", "blue"], "n": 3, "logprobs": true, "top_logprobs": 3,
    });
    let reply = both("/v1/chat/completions", &chat(&shaped));
    for choice in reply[0].as_array().unwrap() {
        let said = choice["message"]["content"].as_str().unwrap();
        assert!(["red", "green", "blue"].contains(&said), "{said}");
    }
    let scored = json!({
        "prompt": "tell me of the sea", "echo": true, "logprobs": 2, "max_tokens": 20,
        "frequency_penalty": 1.5, "presence_penalty": 0.5, "repetition_penalty": 1.3,
        "logit_bias": {"97": 4, "98": -100}, "seed": 3, "ignore_eos": true,
    });
    let reply = both("/v1/completions", &scored);
    let scores = &reply[0][0]["logprobs"]["token_logprobs"];
    assert_eq!(scores.as_array().unwrap().iter().filter(|score| score.is_null()).count(), 1);
}
