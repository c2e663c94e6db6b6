//! The OpenAPI file held against the code, both ways: routes, fields, limits, errors.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::fields::looked;
use crate::responses::Store;
use crate::{ApiError, Asked, Endpoint, Limits, messages, responses, server};

fn document() -> Value {
    serde_json::from_str(include_str!("openapi.json")).unwrap()
}

/// Paths of all fields that a schema names, places in lists as `[]`.
fn named(document: &Value, schema: &Value, path: &str, names: &mut BTreeSet<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = document.pointer(reference.trim_start_matches('#')).unwrap();
        return named(document, target, path, names);
    }
    for any in schema["anyOf"].as_array().into_iter().flatten() {
        named(document, any, path, names);
    }
    if let Some(items) = schema.get("items") {
        named(document, items, &format!("{path}[]"), names);
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        named(document, schema, &path, names);
        names.insert(path);
    }
}

fn described(schema: &str) -> BTreeSet<String> {
    let (document, mut names) = (document(), BTreeSet::new());
    named(&document, &document["components"]["schemas"][schema], "", &mut names);
    names
}

/// Without what stands below `roots` or is one of them.
fn without(names: BTreeSet<String>, roots: &[&str]) -> BTreeSet<String> {
    let below = |name: &String, root: &str| {
        let rest = name.strip_prefix(root);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    names.into_iter().filter(|name| !roots.iter().any(|root| below(name, root))).collect()
}

fn assert_equal(schema: &str, described: &BTreeSet<String>, read: &BTreeSet<String>) {
    let unread: Vec<_> = described.difference(read).collect();
    let untold: Vec<_> = read.difference(described).collect();
    assert!(unread.is_empty(), "{schema}: described, and not read: {unread:?}");
    assert!(untold.is_empty(), "{schema}: read, and not described: {untold:?}");
}

/// Bodies of a chat or a completion that together lead to every field.
fn bodies() -> Vec<Value> {
    let function = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
    let call = json!({"function": {"name": "f", "arguments": "{}"}});
    let parts = json!([{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]);
    let base = json!({
        "prompt": "a",
        "messages": [{"role": "assistant", "content": parts, "tool_calls": [call]}],
        "stream_options": {}, "reasoning": {}, "chat_template_kwargs": {}, "logit_bias": {},
        "tools": [function], "tool_choice": function, "structured_outputs": {},
    });
    let with = |format: Value| {
        let mut body = base.clone();
        body["response_format"] = format;
        body
    };
    vec![
        with(json!({"type": "json_schema", "json_schema": {}})),
        with(json!({"type": "lark", "grammar": "start: \"a\""})),
        with(json!({"type": "regex", "pattern": "a"})),
    ]
}

fn read(endpoint: Endpoint, bodies: &[Value]) -> BTreeSet<String> {
    looked::take();
    for body in bodies {
        Asked::of(endpoint, body, &Limits::default()).unwrap();
    }
    looked::take()
}

#[test]
fn every_field_of_chats_and_completions_is_described_and_no_other() {
    for (schema, endpoint) in
        [("ChatRequest", Endpoint::Chat), ("CompletionRequest", Endpoint::Completion)]
    {
        assert_equal(schema, &described(schema), &read(endpoint, &bodies()));
    }
}

#[test]
fn every_field_of_responses_is_described_and_no_other() {
    let (store, text) = (Store::new(1, 1), json!([{"type": "input_text", "text": "a"}]));
    let function = json!({"type": "function", "name": "f", "parameters": {}});
    let base = json!({
        "input": [
            {"role": "user", "content": text},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "1"},
        ],
        "text": {"format": {"type": "json_schema", "schema": {}}}, "tools": [function],
        "stream_options": {}, "reasoning": {}, "chat_template_kwargs": {}, "logit_bias": {},
        "structured_outputs": {},
    });
    looked::take();
    let (chat, _) = responses::read(&base, "", &store).unwrap();
    let mut own = looked::take();
    // What is translated has other names in a chat; what only a chat has is ignored here.
    let translated = [
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "response_format",
        "n",
        "tools",
        "tool_choice",
        "top_logprobs",
    ];
    own.extend(without(read(Endpoint::Response, &[chat]), &translated));
    let below = ["tools", "tool_choice", "input[].content", "input[].output"];
    let (own, mut told) = (without(own, &below), without(described("ResponseRequest"), &below));
    told.extend(["input[].content", "input[].output"].map(str::to_owned));
    let own = own.into_iter().chain(["input[].content", "input[].output"].map(str::to_owned));
    assert_equal("ResponseRequest", &told, &own.collect());
}

#[test]
fn every_field_of_messages_is_described_and_no_other() {
    let text = json!([{"type": "text", "text": "a"}]);
    let base = json!({
        "max_tokens": 5, "system": text,
        "messages": [{"role": "user", "content": [
            {"type": "text", "text": "a"}, {"type": "thinking", "thinking": "b"},
            {"type": "tool_use", "id": "c", "name": "f", "input": {}},
            {"type": "tool_result", "tool_use_id": "c", "content": text},
        ]}],
        "tools": [{"name": "f", "input_schema": {}}],
        "tool_choice": {"type": "tool", "name": "f"},
        "thinking": {"type": "enabled", "budget_tokens": 5},
        "reasoning": {}, "chat_template_kwargs": {}, "logit_bias": {}, "structured_outputs": {},
    });
    let (mut own, limits) = (BTreeSet::new(), Limits::default());
    // What is translated has other names in a chat; what only a chat has is ignored here.
    let translated = [
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "stop",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "stream_options",
        "top_logprobs",
        "logprobs",
    ];
    let formats = [
        json!({"type": "json_schema", "json_schema": {}}),
        json!({"type": "lark", "grammar": "start: \"a\""}),
        json!({"type": "regex", "pattern": "a"}),
    ];
    for format in formats {
        let mut body = base.clone();
        if format["type"] == "regex" {
            // What this says would hide its namesakes.
            body["thinking"] = Value::Null;
        }
        body["response_format"] = format;
        looked::take();
        let chat = messages::read(&body, &limits, false).unwrap();
        own.extend(looked::take());
        own.extend(without(read(Endpoint::Message, &[chat]), &translated));
    }
    for schema in ["MessageRequest", "CountRequest"] {
        assert_equal(schema, &described(schema), &own);
    }
}

#[test]
fn every_route_is_described_and_no_other() {
    let served: BTreeSet<String> =
        server::paths().into_iter().map(|path| path.replace("{*", "{")).collect();
    let document = document();
    let told: BTreeSet<String> = document["paths"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(served, told);
}

/// Taking the limits apart makes one that is added break this until the file has it.
#[test]
fn every_limit_is_described_with_its_value() {
    macro_rules! limits {
        ($($name:ident)*) => {{
            let Limits { $($name),* } = Limits::default();
            json!({$(stringify!($name): $name),*})
        }};
    }
    let limits = limits!(
        body_bytes_max values_max model_bytes_max stops_max stop_bytes_max choices_max biases_max
        top_logprobs_max tools_max alternatives_max alternative_bytes_max connections_max
        responses_max responses_bytes_max requests_max reply_timeout_ms connection_buffer_bytes_max
        inline_bytes_max tokenising_max head_timeout_ms body_timeout_ms stall_timeout_ms
        drain_timeout_ms flush_timeout_ms
    );
    let document = document();
    assert_eq!(document["x-limits"], limits);
    let field = |pointer: &str| document["components"]["schemas"].pointer(pointer).cloned();
    for (pointer, limit) in [
        ("/field.n/maximum", "choices_max"),
        ("/field.logit_bias/maxProperties", "biases_max"),
        ("/field.stop/anyOf/1/maxItems", "stops_max"),
        ("/field.stop/anyOf/0/maxLength", "stop_bytes_max"),
        ("/field.model/maxLength", "model_bytes_max"),
        ("/field.guided_choice/maxItems", "alternatives_max"),
        ("/field.guided_choice/items/maxLength", "alternative_bytes_max"),
        ("/ChatRequest/properties/top_logprobs/maximum", "top_logprobs_max"),
        ("/ChatRequest/properties/tools/maxItems", "tools_max"),
    ] {
        assert_eq!(field(pointer), Some(limits[limit].clone()), "{pointer}");
    }
}

#[test]
fn every_status_of_an_error_is_described() {
    let param = String::new;
    let errors = [
        ApiError::NotJson(param()),
        ApiError::Unauthorized,
        ApiError::UnknownModel(param()),
        ApiError::WrongMethod { method: param(), path: param() },
        ApiError::BodyTimeout { limit_ms: 1 },
        ApiError::BodyTooLarge { limit: 1 },
        ApiError::QueueFull(param()),
        ApiError::Internal(param()),
        ApiError::Draining,
        ApiError::ReplyTimeout { limit_ms: 1 },
    ];
    let document = document();
    for error in errors {
        let name = format!("Error.{}", error.status());
        let told = &document["components"]["responses"][&name];
        // Of a path that has other methods there is nothing to describe.
        assert!(told.is_object() || error.status() == 405, "{name}");
        let waits = told["headers"]["Retry-After"].is_object();
        assert_eq!(waits, error.retry_after_s().is_some(), "{name}");
    }
}
