//! Chat messages, brought to the form that templates take: `content` is always a string.

use serde_json::{Map, Value};

use crate::ApiError;
use crate::fields::{Fields, wrong_type};

const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// Reads `messages`: at least one, each with a known role and text content.
///
/// Parts of type `text` are joined by a line feed; any other part is refused by its path.
/// `developer` becomes `system`. An assistant's absent content is the empty string.
pub fn read_messages(body: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    body.need("messages")?;
    let list = body.list("messages")?.map_or(&[][..], Vec::as_slice);
    if list.is_empty() {
        return Err(ApiError::invalid("messages", "at least one message is needed"));
    }
    list.iter()
        .enumerate()
        .map(|(i, value)| {
            let fields = Fields::of(value, format!("messages[{i}]"))?;
            read_message(&fields).map(Value::Object)
        })
        .collect()
}

fn read_message(fields: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    fields.need("role")?;
    let role = fields.text("role")?.unwrap_or_default();
    if !ROLES.contains(&role) {
        let reason = format!("expected one of {}", ROLES.join(", "));
        return Err(ApiError::invalid(fields.path("role"), reason));
    }
    let content = match fields.get("content") {
        None if role == "assistant" => String::new(),
        None => {
            return Err(ApiError::Missing { param: fields.path("content") });
        }
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => join_parts(parts, &fields.path("content"))?,
        Some(other) => {
            let expected = "a string or an array of parts";
            return Err(wrong_type(fields.path("content"), expected, other));
        }
    };
    let mut message = fields.map().clone();
    if let Some(calls) = fields.list("tool_calls")? {
        let path = fields.path("tool_calls");
        let read = |(i, call)| read_call(call, &format!("{path}[{i}]"));
        let calls: Result<Vec<Value>, ApiError> = calls.iter().enumerate().map(read).collect();
        message.insert("tool_calls".into(), calls?.into());
    }
    let role = if role == "developer" { "system" } else { role };
    message.insert("role".into(), role.into());
    message.insert("content".into(), content.into());
    Ok(message)
}

/// A call whose arguments are an object, as templates take them, where they are one.
fn read_call(call: &Value, path: &str) -> Result<Value, ApiError> {
    let fields = Fields::of(call, path)?;
    let mut call = call.clone();
    if let Some(function) = fields.object("function")? {
        function.need("name")?;
        function.text("name")?;
        if let Some(Value::String(text)) = function.get("arguments")
            && let Ok(arguments @ Value::Object(_)) = serde_json::from_str(text)
        {
            call["function"]["arguments"] = arguments;
        }
    }
    Ok(call)
}

fn join_parts(parts: &[Value], path: &str) -> Result<String, ApiError> {
    let mut texts = Vec::with_capacity(parts.len());
    for (j, part) in parts.iter().enumerate() {
        let part = Fields::of(part, format!("{path}[{j}]"))?;
        part.need("type")?;
        let field = match part.text("type")?.unwrap_or_default() {
            "text" => "text",
            "refusal" => "refusal",
            _ => {
                let reason = "only parts of type 'text' are served";
                return Err(ApiError::unsupported(format!("{path}[{j}]"), reason));
            }
        };
        part.need(field)?;
        texts.push(part.text(field)?.unwrap_or_default());
    }
    Ok(texts.join("\n"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use serde_json::json;

    fn read(messages: Value) -> Result<Vec<Value>, ApiError> {
        let body = json!({ "messages": messages });
        read_messages(&Fields::of(&body, "").unwrap())
    }

    #[test]
    fn text_parts_become_one_string_and_other_fields_stay() {
        let read = read(json!([
            {"role": "developer", "content": [{"type": "text", "text": "a"},
                                              {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "c1"}]},
            {"role": "assistant", "tool_calls": []},
            {"role": "tool", "content": "5", "tool_call_id": "c1"},
        ]));
        let read = read.unwrap();
        assert_eq!(read[0], json!({"role": "system", "content": "a\nb"}));
        assert_eq!(read[1]["content"], "");
        assert_eq!(read[1]["tool_calls"][0]["id"], "c1");
        assert_eq!(read[2]["content"], "");
        assert_eq!(read[3]["tool_call_id"], "c1");
    }

    #[test]
    fn each_fault_is_named_by_its_path() {
        let image = json!({"type": "image_url", "image_url": {"url": "data:"}});
        let text = json!({"type": "text", "text": "x"});
        for (messages, param) in [
            (json!([]), "messages"),
            (json!("hi"), "messages"),
            (json!(["hi"]), "messages[0]"),
            (json!([{"content": "x"}]), "messages[0].role"),
            (json!([{"role": "robot", "content": "x"}]), "messages[0].role"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (json!([{"role": "user", "content": 5}]), "messages[0].content"),
            (json!([{"role": "user", "content": [text, image]}]), "messages[0].content[1]"),
            (
                json!([{"role": "user", "content": [{"type": "text"}]}]),
                "messages[0].content[0].text",
            ),
            (json!([{"role": "user", "content": [{"text": "x"}]}]), "messages[0].content[0].type"),
        ] {
            assert_eq!(read(messages).unwrap_err().param(), Some(param));
        }
    }
}
