//! A body of `/v1/responses` as a chat's.

use serde_json::{Map, Value, json};

use super::Store;
use crate::ApiError;
use crate::fields::{Fields, wrong_type};

/// Fields that mean the same in a chat, or are only repeated in the response.
const OWN: [&str; 13] = [
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "text",
    "max_output_tokens",
    "store",
    "previous_response_id",
    "metadata",
    "truncation",
    "include",
    "top_logprobs",
    "background",
];

/// What a response is part of.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// Whose it is.
    pub owner: String,
    /// Whether it is kept.
    pub store: bool,
    /// The conversation so far, without instructions.
    pub messages: Vec<Value>,
    /// What the response repeats of the request.
    pub repeated: Map<String, Value>,
}

/// Reads a body; a previous response is looked up in `store`.
pub(crate) fn read(body: &Value, owner: &str, store: &Store) -> Result<(Value, Session), ApiError> {
    let fields = Fields::of(body, "")?;
    let mut chat = fields.map().clone();
    OWN.iter().for_each(|name| drop(chat.remove(*name)));
    let mut messages = match fields.text("previous_response_id")? {
        None => Vec::new(),
        Some(id) => match store.get(owner, id) {
            Some(kept) => kept.messages,
            None => return Err(ApiError::UnknownResponse(id.chars().take(200).collect())),
        },
    };
    if fields.flag("background")?.unwrap_or(false) {
        return Err(ApiError::unsupported("background", "responses are made while you wait"));
    }
    match fields.need("input")? {
        Value::String(text) => messages.push(json!({"role": "user", "content": text})),
        Value::Array(items) => read_items(items, &mut messages)?,
        other => return Err(wrong_type("input", "a string or an array of items", other)),
    }
    let mut told = Vec::new();
    if let Some(instructions) = fields.text("instructions")? {
        told.push(json!({"role": "system", "content": instructions}));
    }
    told.extend(messages.iter().cloned());
    chat.insert("messages".into(), told.into());
    if let Some(tokens) = fields.integer("max_output_tokens", 1)? {
        chat.insert("max_tokens".into(), tokens.into());
    }
    if let Some(tools) = fields.list("tools")? {
        chat.insert("tools".into(), tools.iter().map(tool).collect());
    }
    if let Some(choice) = fields.get("tool_choice") {
        let named = choice["type"] == "function" && choice.get("name").is_some();
        let choice = if named { tool(choice) } else { choice.clone() };
        chat.insert("tool_choice".into(), choice);
    }
    if let Some(text) = fields.object("text")?
        && let Some(format) = text.object("format")?
    {
        let is_schema = format.get("type").is_some_and(|kind| kind == "json_schema");
        let flat = is_schema && format.get("schema").is_some();
        let mut format = Value::Object(format.map().clone());
        if flat {
            format = json!({"type": "json_schema", "json_schema": format});
        }
        chat.insert("response_format".into(), format);
    }
    let store = fields.flag("store")?.unwrap_or(true);
    let owner = owner.to_owned();
    Ok((chat.into(), Session { owner, store, messages, repeated: repeated(&fields) }))
}

fn repeated(fields: &Fields<'_>) -> Map<String, Value> {
    let mut repeated = Map::new();
    for (name, absent) in [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", json!(true)),
        ("previous_response_id", Value::Null),
        ("reasoning", json!({"effort": null, "summary": null})),
        ("temperature", json!(1.0)),
        ("text", json!({"format": {"type": "text"}})),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("top_p", json!(1.0)),
        ("truncation", json!("disabled")),
    ] {
        repeated.insert(name.into(), fields.get(name).cloned().unwrap_or(absent));
    }
    repeated
}

/// A function as a chat nests it.
fn tool(tool: &Value) -> Value {
    let Value::Object(map) = tool else {
        return tool.clone();
    };
    if tool["type"] != "function" || tool.get("function").is_some() {
        return tool.clone();
    }
    let mut function = map.clone();
    function.remove("type");
    json!({"type": "function", "function": function})
}

fn read_items(items: &[Value], messages: &mut Vec<Value>) -> Result<(), ApiError> {
    for (i, item) in items.iter().enumerate() {
        let fields = Fields::of(item, format!("input[{i}]"))?;
        match fields.text("type")?.unwrap_or("message") {
            "message" => {
                fields.need("role")?;
                fields.need("content")?;
                let mut message = fields.map().clone();
                message.retain(|name, _| matches!(name.as_str(), "role" | "content"));
                message["content"] = content(&message["content"]);
                messages.push(message.into());
            }
            "function_call" => {
                let (id, name) = (fields.need("call_id")?, fields.need("name")?);
                let arguments = fields.need("arguments")?;
                let function = json!({"name": name, "arguments": arguments});
                let call = json!({"id": id, "type": "function", "function": function});
                call_on(messages, call);
            }
            "function_call_output" => {
                let (id, output) = (fields.need("call_id")?, fields.need("output")?);
                let output = content(output);
                messages.push(json!({"role": "tool", "tool_call_id": id, "content": output}));
            }
            "reasoning" => {}
            _ => {
                let reason = "items are messages, function calls and their outputs here";
                return Err(ApiError::unsupported(fields.path("type"), reason));
            }
        }
    }
    Ok(())
}

/// Adds a call to the assistant's last message, or begins one.
pub(super) fn call_on(messages: &mut Vec<Value>, call: Value) {
    match messages.last_mut() {
        Some(last) if last["role"] == "assistant" => match last["tool_calls"].as_array_mut() {
            Some(calls) => calls.push(call),
            None => last["tool_calls"] = json!([call]),
        },
        _ => messages.push(json!({"role": "assistant", "content": "", "tool_calls": [call]})),
    }
}

/// Parts under a chat's names.
fn content(content: &Value) -> Value {
    let Value::Array(parts) = content else {
        return content.clone();
    };
    let part = |part: &Value| match part["type"].as_str() {
        Some("input_text" | "output_text") => json!({"type": "text", "text": part["text"]}),
        _ => part.clone(),
    };
    parts.iter().map(part).collect()
}
