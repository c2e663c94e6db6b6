//! Features that would change the reply and are not served: refused by name, never ignored.

use serde_json::{Value, json};

use crate::ApiError;
use crate::fields::Fields;

/// A field, and the values that ask for nothing.
struct Feature {
    name: &'static str,
    neutral: fn(&Value) -> bool,
}

const fn feature(name: &'static str, neutral: fn(&Value) -> bool) -> Feature {
    Feature { name, neutral }
}

fn never(_: &Value) -> bool {
    false
}
fn empty(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}
fn no(value: &Value) -> bool {
    *value == Value::Bool(false)
}
fn zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}
fn yes(value: &Value) -> bool {
    *value == Value::Bool(true)
}
fn one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}
fn tool_choice_without_tools(value: &Value) -> bool {
    matches!(value.as_str(), Some("none" | "auto"))
}
fn text_only(value: &Value) -> bool {
    *value == json!(["text"])
}

const FEATURES: &[Feature] = &[
    feature("best_of", one),
    feature("functions", empty),
    feature("function_call", tool_choice_without_tools),
    feature("prompt_logprobs", never),
    feature("modalities", text_only),
    feature("audio", never),
    feature("web_search_options", never),
    feature("suffix", empty),
    feature("grammar", empty),
    feature("json_schema", never),
    // What other servers of local models take beside OpenAI's fields.
    feature("min_tokens", zero),
    feature("stop_token_ids", empty),
    feature("bad_words", empty),
    feature("include_stop_str_in_output", no),
    feature("skip_special_tokens", yes),
    feature("use_beam_search", no),
    feature("length_penalty", one),
    feature("dry_multiplier", zero),
    feature("xtc_probability", zero),
    feature("typical_p", one),
    feature("mirostat", zero),
    feature("add_generation_prompt", yes),
    feature("continue_final_message", no),
    feature("chat_template", never),
    feature("documents", empty),
];

/// Refuses the first feature of `fields` that is asked for and not served.
pub fn refuse_unserved(fields: &Fields<'_>) -> Result<(), ApiError> {
    for feature in FEATURES {
        if let Some(value) = fields.get(feature.name)
            && !(feature.neutral)(value)
        {
            let reason = match feature.name {
                "best_of" => "every choice is given",
                _ => "leave it out, or at the value that asks for nothing",
            };
            return Err(ApiError::unsupported(fields.path(feature.name), reason));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn refused(body: Value) -> Option<String> {
        let fields = Fields::of(&body, "").unwrap();
        let error = refuse_unserved(&fields).err()?;
        assert_eq!(error.code(), "unsupported");
        error.param().map(str::to_owned)
    }

    #[test]
    fn values_that_ask_for_nothing_pass() {
        let body = json!({
            "modalities": ["text"], "audio": null,
            "min_tokens": 0, "skip_special_tokens": true, "add_generation_prompt": true,
            "stop_token_ids": [], "mirostat": 0,
        });
        assert_eq!(refused(body), None);
    }

    #[test]
    fn each_feature_is_refused_by_its_own_name() {
        let asked = json!({
            "best_of": 3, "functions": [{}],
            "function_call": {"name": "f"}, "prompt_logprobs": 1, "modalities": ["text", "audio"],
            "audio": {}, "web_search_options": {}, "suffix": "x", "grammar": "root",
            "json_schema": {},
        });
        let beside = json!({
            "min_tokens": 5, "stop_token_ids": [1], "bad_words": ["a"],
            "include_stop_str_in_output": true, "skip_special_tokens": false,
            "use_beam_search": true, "length_penalty": 2, "dry_multiplier": 0.8,
            "xtc_probability": 0.5, "typical_p": 0.9, "mirostat": 2,
            "add_generation_prompt": false, "continue_final_message": true,
            "chat_template": "", "documents": [{}],
        });
        let (asked, beside) = (asked.as_object().unwrap(), beside.as_object().unwrap());
        assert_eq!(asked.len() + beside.len(), FEATURES.len());
        for (name, value) in asked.iter().chain(beside) {
            assert_eq!(refused(json!({name.as_str(): value})).as_deref(), Some(name.as_str()));
        }
    }
}
