//! OpenAI messages in the form that chat templates expect: every content a text.

use serde_json::Value;

use crate::TextError;

/// Replaces `content: null` by an empty text and a list of text parts by their concatenation.
pub(crate) fn normalise(messages: &[Value]) -> Result<Value, TextError> {
    let messages = messages.iter().enumerate().map(|(index, message)| one(index, message));
    Ok(Value::Array(messages.collect::<Result<_, _>>()?))
}

fn one(index: usize, message: &Value) -> Result<Value, TextError> {
    let wrong = |expected, found: &Value| TextError::Message {
        index,
        expected,
        found: kind(found).to_owned(),
    };
    let mut message = message.as_object().ok_or_else(|| wrong("an object", message))?.clone();
    if let Some(content) = message.get_mut("content") {
        let text = match &*content {
            Value::Null => String::new(),
            Value::String(_) => return Ok(Value::Object(message)),
            Value::Array(parts) => join(index, parts)?,
            other => return Err(wrong("a content of text, text parts or null", other)),
        };
        *content = Value::String(text);
    }
    Ok(Value::Object(message))
}

fn join(index: usize, parts: &[Value]) -> Result<String, TextError> {
    let mut out = String::new();
    for (part, value) in parts.iter().enumerate() {
        match (value.get("type").and_then(Value::as_str), value.get("text")) {
            (Some("text"), Some(Value::String(text))) => out.push_str(text),
            (found, _) => {
                let found = match found {
                    Some("text") => "text without a `text` string",
                    Some(found) => found,
                    None => "none",
                };
                return Err(TextError::ContentPart { index, part, found: found.to_owned() });
            }
        }
    }
    Ok(out)
}

/// The type of a value, as errors name it.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a bool",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use serde_json::json;

    use super::*;

    #[test]
    fn every_content_becomes_a_text() {
        let messages = [
            json!({"role": "user", "content": null, "name": "x"}),
            json!({"role": "user", "content": [{"type": "text", "text": "a"},
                {"type": "text", "text": "b"}]}),
            json!({"role": "assistant"}),
        ];
        let expected = json!([{"role": "user", "content": "", "name": "x"},
            {"role": "user", "content": "ab"}, {"role": "assistant"}]);
        assert_eq!(normalise(&messages).unwrap(), expected);
    }

    #[test]
    fn a_part_that_is_no_text_is_named_by_type_and_place() {
        let refuse = |content: Value| {
            let ok = json!({"role": "user", "content": "x"});
            normalise(&[ok, json!({"role": "user", "content": content})]).unwrap_err().to_string()
        };
        let image = json!([{"type": "text", "text": "a"}, {"type": "image_url"}]);
        let said = refuse(image);
        assert!(said.contains("messages[1].content[1]") && said.contains("`image_url`"), "{said}");
        assert!(refuse(json!([{"type": "text"}])).contains("without a `text` string"));
        assert!(refuse(json!([3])).contains("`none`"));
        assert!(refuse(json!(3)).contains("found a number"));
    }
}
