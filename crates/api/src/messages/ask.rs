//! A body of `/v1/messages` as a chat's.

use serde_json::{Value, json};

use crate::fields::{Fields, wrong_type};
use crate::{ApiError, Limits};

/// Fields that a chat has under another name or form.
const OWN: [&str; 9] = [
    "system",
    "messages",
    "stop_sequences",
    "tools",
    "tool_choice",
    "thinking",
    "metadata",
    "max_tokens",
    "stream_options",
];

/// Reads a body. `counts` asks for its tokens alone, so that it needs no `max_tokens`.
pub(crate) fn read(body: &Value, limits: &Limits, counts: bool) -> Result<Value, ApiError> {
    let fields = Fields::of(body, "")?;
    let mut chat = fields.map().clone();
    OWN.iter().for_each(|name| drop(chat.remove(*name)));
    let mut messages = Vec::new();
    if let Some(system) = fields.get("system") {
        messages.push(json!({"role": "system", "content": text(system, "system")?}));
    }
    fields.need("messages")?;
    for (i, message) in fields.list("messages")?.into_iter().flatten().enumerate() {
        read_message(&Fields::of(message, format!("messages[{i}]"))?, &mut messages)?;
    }
    chat.insert("messages".into(), messages.into());
    match fields.integer("max_tokens", 1)? {
        Some(most) => drop(chat.insert("max_tokens".into(), most.into())),
        None if counts => {}
        None => return Err(ApiError::Missing { param: "max_tokens".into() }),
    }
    if let Some(stops) = fields.list("stop_sequences")? {
        if stops.len() > limits.stops_max {
            let reason = format!("{} texts, more than {}", stops.len(), limits.stops_max);
            return Err(ApiError::invalid("stop_sequences", reason));
        }
        chat.insert("stop".into(), stops.clone().into());
    }
    if let Some(tools) = fields.list("tools")? {
        let tool = |(i, tool): (usize, &Value)| read_tool(tool, &format!("tools[{i}]"));
        let tools: Result<Vec<Value>, ApiError> = tools.iter().enumerate().map(tool).collect();
        chat.insert("tools".into(), tools?.into());
    }
    if let Some(choice) = fields.object("tool_choice")? {
        if let Some(off) = choice.flag("disable_parallel_tool_use")? {
            chat.insert("parallel_tool_calls".into(), (!off).into());
        }
        choice.need("type")?;
        let choice = match choice.text("type")?.unwrap_or_default() {
            "auto" => json!("auto"),
            "none" => json!("none"),
            "any" => json!("required"),
            "tool" => json!({"type": "function", "function": {"name": choice.need("name")?}}),
            _ => {
                let reason = "expected auto, any, tool or none";
                return Err(ApiError::invalid("tool_choice.type", reason));
            }
        };
        chat.insert("tool_choice".into(), choice);
    }
    if let Some(thinking) = fields.object("thinking")? {
        thinking.need("type")?;
        let on = thinking.text("type")? != Some("disabled");
        chat.insert("enable_thinking".into(), on.into());
        if let (true, Some(budget)) = (on, thinking.integer("budget_tokens", 1)?) {
            chat.insert("thinking_budget".into(), budget.into());
        }
    }
    Ok(chat.into())
}

fn read_tool(tool: &Value, path: &str) -> Result<Value, ApiError> {
    let fields = Fields::of(tool, path)?;
    if !matches!(fields.text("type")?, None | Some("custom")) {
        return Err(ApiError::unsupported(fields.path("type"), "tools are your own here"));
    }
    fields.object("input_schema")?;
    Ok(json!({"type": "function", "function": {
        "name": fields.need("name")?, "description": fields.get("description"),
        "parameters": tool["input_schema"],
    }}))
}

/// A text, or text blocks joined.
fn text(value: &Value, path: &str) -> Result<String, ApiError> {
    let blocks = match value {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(blocks) => blocks,
        other => return Err(wrong_type(path, "a string or an array of blocks", other)),
    };
    let mut texts = Vec::with_capacity(blocks.len());
    for (j, block) in blocks.iter().enumerate() {
        let block = Fields::of(block, format!("{path}[{j}]"))?;
        if block.text("type")? != Some("text") {
            return Err(ApiError::unsupported(block.path("type"), "only text is served here"));
        }
        block.need("text")?;
        texts.push(block.text("text")?.unwrap_or_default());
    }
    Ok(texts.join("\n"))
}

fn read_message(fields: &Fields<'_>, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    fields.need("role")?;
    let role = fields.text("role")?.unwrap_or_default();
    if !matches!(role, "user" | "assistant" | "system") {
        return Err(ApiError::invalid(fields.path("role"), "expected user or assistant"));
    }
    let path = fields.path("content");
    let blocks = match fields.need("content")? {
        Value::Array(blocks) => blocks,
        content => {
            messages.push(json!({"role": role, "content": text(content, &path)?}));
            return Ok(());
        }
    };
    let (mut texts, mut reasoning, mut calls) = (Vec::new(), String::new(), Vec::new());
    for (j, value) in blocks.iter().enumerate() {
        let block = Fields::of(value, format!("{path}[{j}]"))?;
        block.need("type")?;
        match block.text("type")?.unwrap_or_default() {
            "text" => {
                block.need("text")?;
                texts.push(block.text("text")?.unwrap_or_default());
            }
            "thinking" => reasoning += block.text("thinking")?.unwrap_or_default(),
            "redacted_thinking" => {}
            "tool_use" => {
                let function =
                    json!({"name": block.need("name")?, "arguments": block.need("input")?});
                let id = block.need("id")?;
                calls.push(json!({"id": id, "type": "function", "function": function}));
            }
            "tool_result" => {
                let content = block.get("content");
                let content = content.map(|c| text(c, &block.path("content"))).transpose()?;
                messages.push(json!({
                    "role": "tool", "tool_call_id": block.need("tool_use_id")?,
                    "content": content.unwrap_or_default(),
                }));
            }
            _ => {
                let reason = "expected text, thinking, tool_use or tool_result";
                return Err(ApiError::unsupported(block.path("type"), reason));
            }
        }
    }
    if texts.is_empty() && calls.is_empty() && reasoning.is_empty() {
        return Ok(()); // Results of tools alone.
    }
    let mut message = json!({"role": role, "content": texts.join("\n")});
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    messages.push(message);
    Ok(())
}
