//! What a reply must look like: `response_format`, and the fields of other servers for the same.

use grammar::Body;
use serde_json::{Value, json};

use crate::draws::read_texts;
use crate::fields::{Fields, wrong_type};
use crate::{ApiError, Limits};

/// Reads the one constraint of a body.
pub(crate) fn read_format(
    body: &Fields<'_>,
    limits: &Limits,
) -> Result<Option<(Body, String)>, ApiError> {
    let mut found = Vec::new();
    if let Some(format) = body.object("response_format")? {
        found.extend(read_response_format(&format)?.map(|form| (form, format.path("type"))));
    }
    for (prefix, fields) in [("guided_", Some(body.clone())), ("", nested(body)?)] {
        let Some(fields) = fields else { continue };
        for name in ["json", "regex", "choice", "grammar"] {
            let field = format!("{prefix}{name}");
            if let Some(value) = fields.get(&field) {
                let path = fields.path(&field);
                found.push((read_one(name, value, &path, limits)?, path));
            }
        }
    }
    match found.len() {
        0 | 1 => Ok(found.pop()),
        _ => {
            let path = found.remove(1).1;
            Err(ApiError::invalid(path, format!("beside '{}': one constraint a reply", found[0].1)))
        }
    }
}

fn nested<'a>(body: &Fields<'a>) -> Result<Option<Fields<'a>>, ApiError> {
    body.object("structured_outputs")
}

fn read_response_format(format: &Fields<'_>) -> Result<Option<Body>, ApiError> {
    format.need("type")?;
    match format.text("type")?.unwrap_or_default() {
        "text" => Ok(None),
        "json_object" => Ok(Some(Body::Json(json!({"type": "object"})))),
        "json_schema" => {
            format.need("json_schema")?;
            let outer = Fields::of(format.need("json_schema")?, format.path("json_schema"))?;
            let schema = outer.object("schema")?;
            let any = || json!({"type": "object"});
            Ok(Some(Body::Json(schema.map_or_else(any, |s| Value::Object(s.map().clone())))))
        }
        "grammar" | "lark" => {
            format.need("grammar")?;
            Ok(Some(Body::Lark(format.text("grammar")?.unwrap_or_default().to_owned())))
        }
        "regex" => {
            format.need("pattern")?;
            Ok(Some(Body::Regex(format.text("pattern")?.unwrap_or_default().to_owned())))
        }
        _ => {
            let reason = "expected text, json_object, json_schema, regex or grammar";
            Err(ApiError::invalid(format.path("type"), reason))
        }
    }
}

fn read_one(name: &str, value: &Value, path: &str, limits: &Limits) -> Result<Body, ApiError> {
    match (name, value) {
        ("json", Value::Object(_) | Value::Bool(_)) => Ok(Body::Json(value.clone())),
        ("json", Value::String(text)) => match serde_json::from_str(text) {
            Ok(schema) => Ok(Body::Json(schema)),
            Err(e) => Err(ApiError::invalid(path, format!("no JSON: {e}"))),
        },
        ("json", other) => Err(wrong_type(path, "a schema", other)),
        ("choice", value) => {
            let (count, bytes) = (limits.alternatives_max, limits.alternative_bytes_max);
            read_texts(value, path, count, bytes).map(Body::Choice)
        }
        ("regex", Value::String(text)) => Ok(Body::Regex(text.clone())),
        ("grammar", Value::String(text)) => Ok(Body::Lark(text.clone())),
        (_, other) => Err(wrong_type(path, "a string", other)),
    }
}
