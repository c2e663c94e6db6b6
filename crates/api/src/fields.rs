//! A JSON object read field by field; each error names the field's path.

use serde_json::{Map, Value};

use crate::ApiError;

/// An object and the path that leads to it. A field that is `null` counts as absent.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

/// What a value is, in the words of error messages.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(n) if n.is_f64() => "a decimal",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The error for a value of another type.
pub fn wrong_type(param: impl Into<String>, expected: &'static str, value: &Value) -> ApiError {
    ApiError::WrongType { param: param.into(), expected, found: type_name(value) }
}

impl<'a> Fields<'a> {
    /// Reads `value`, found at `path` (empty for the body), as an object.
    pub fn of(value: &'a Value, path: impl Into<String>) -> Result<Self, ApiError> {
        let path = path.into();
        match value {
            Value::Object(map) => Ok(Self { map, path }),
            other => {
                Err(wrong_type(if path.is_empty() { "body" } else { &path }, "an object", other))
            }
        }
    }

    /// The path of a field.
    pub fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// The field, unless it is absent or null.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        #[cfg(test)]
        looked::note(&self.path(name));
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The field; an error when it is absent or null.
    pub fn need(&self, name: &str) -> Result<&'a Value, ApiError> {
        self.get(name).ok_or_else(|| ApiError::Missing { param: self.path(name) })
    }

    fn read<T>(
        &self,
        name: &str,
        expected: &'static str,
        as_type: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        self.get(name)
            .map(|value| as_type(value).ok_or_else(|| wrong_type(self.path(name), expected, value)))
            .transpose()
    }

    /// A string.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.read(name, "a string", Value::as_str)
    }

    /// A boolean.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.read(name, "a boolean", Value::as_bool)
    }

    /// An array.
    pub fn list(&self, name: &str) -> Result<Option<&'a Vec<Value>>, ApiError> {
        self.read(name, "an array", Value::as_array)
    }

    /// An object.
    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>, ApiError> {
        let path = self.path(name);
        self.get(name).map(|value| Fields::of(value, path)).transpose()
    }

    /// An integer from `min` up; values past 64 bits are the largest.
    pub fn integer(&self, name: &str, min: i64) -> Result<Option<i64>, ApiError> {
        let as_integer = |value: &Value| {
            let large = || value.as_u64().map(|_| i64::MAX);
            value.as_i64().or_else(large)
        };
        let Some(value) = self.read(name, "an integer", as_integer)? else {
            return Ok(None);
        };
        if value < min {
            let reason = format!("{value} is below the smallest value, {min}");
            return Err(ApiError::invalid(self.path(name), reason));
        }
        Ok(Some(value))
    }

    /// A number in `min ..= max`.
    pub fn number(&self, name: &str, min: f64, max: f64) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.read(name, "a number", Value::as_f64)? else {
            return Ok(None);
        };
        if !(min..=max).contains(&value) {
            let reason = format!("{value} is outside {min} to {max}");
            return Err(ApiError::invalid(self.path(name), reason));
        }
        Ok(Some(value))
    }

    /// The object itself.
    pub fn map(&self) -> &'a Map<String, Value> {
        self.map
    }
}

/// Which fields were looked for, so that a test can hold the OpenAPI file against them.
#[cfg(test)]
pub(crate) mod looked {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    thread_local! {
        static PATHS: RefCell<BTreeSet<String>> = RefCell::default();
    }

    /// Notes a path, places in arrays as `[]`.
    pub fn note(path: &str) {
        let mut parts: Vec<&str> = path.split(']').collect();
        let last = parts.pop().unwrap_or_default();
        let place = |c: char| c.is_ascii_digit() || c == '[';
        let lists = parts.iter().map(|part| format!("{}[]", part.trim_end_matches(place)));
        let path = lists.collect::<String>() + last;
        PATHS.with_borrow_mut(|paths| paths.insert(path));
    }

    /// What this thread has looked for since the last call.
    pub fn take() -> BTreeSet<String> {
        PATHS.take()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use serde_json::json;

    #[test]
    fn a_nested_field_is_named_by_its_whole_path() {
        let body = json!({"stream_options": {"include_usage": 3}});
        let fields = Fields::of(&body, "").unwrap();
        let options = fields.object("stream_options").unwrap().unwrap();
        let error = options.flag("include_usage").unwrap_err();
        assert_eq!(error.param(), Some("stream_options.include_usage"));
        assert!(error.to_string().contains("an integer"), "{error}");
    }

    #[test]
    fn null_counts_as_absent() {
        let body = json!({"stop": null});
        let fields = Fields::of(&body, "").unwrap();
        assert!(fields.text("stop").unwrap().is_none());
        assert!(fields.need("stop").is_err());
    }

    #[test]
    fn numbers_keep_their_bounds() {
        let body = json!({"a": 2.5, "b": -1, "c": u64::MAX, "d": 1.0});
        let fields = Fields::of(&body, "").unwrap();
        assert!(fields.number("a", 0.0, 2.0).is_err());
        assert!(fields.integer("b", 0).is_err());
        assert_eq!(fields.integer("c", 0).unwrap(), Some(i64::MAX));
        assert!(fields.integer("d", 0).is_err());
    }
}
