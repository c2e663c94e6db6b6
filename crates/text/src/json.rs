//! JSON as Python's `json.dumps(ensure_ascii=False)` writes it, which templates are made with.

use serde_json::Value;

/// How to write.
#[derive(Clone, Debug)]
pub(crate) struct Style {
    /// Between items.
    pub item: String,
    /// Between a key and its value.
    pub key: String,
    /// Spaces a level, one line where absent.
    pub indent: Option<usize>,
    /// Whether keys are put in order.
    pub sort_keys: bool,
    /// Whether characters outside ASCII are escaped.
    pub ascii: bool,
}

impl Style {
    /// Python's defaults for this indent.
    pub(crate) fn new(indent: Option<usize>) -> Self {
        let item = if indent.is_some() { "," } else { ", " };
        Self {
            item: item.to_owned(),
            key: ": ".to_owned(),
            indent,
            sort_keys: false,
            ascii: false,
        }
    }

    /// The text of `value`.
    pub(crate) fn write(&self, value: &Value) -> String {
        let mut out = String::new();
        self.value(&mut out, value, 0);
        out
    }

    fn value(&self, out: &mut String, value: &Value, level: usize) {
        match value {
            Value::Null => out.push_str("null"),
            Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
            Value::Number(n) => match n.as_f64() {
                Some(x) if n.is_f64() => out.push_str(&float(x)),
                _ => out.push_str(&n.to_string()),
            },
            Value::String(text) => self.string(out, text),
            Value::Array(items) => {
                self.list(out, '[', ']', items, level, |out, item| {
                    self.value(out, item, level + 1);
                });
            }
            Value::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                if self.sort_keys {
                    fields.sort_by_key(|(key, _)| *key);
                }
                self.list(out, '{', '}', &fields, level, |out, (key, value)| {
                    self.string(out, key);
                    out.push_str(&self.key);
                    self.value(out, value, level + 1);
                });
            }
        }
    }

    fn list<T>(
        &self,
        out: &mut String,
        open: char,
        close: char,
        items: &[T],
        level: usize,
        mut write: impl FnMut(&mut String, &T),
    ) {
        out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push_str(&self.item);
            }
            self.line(out, level + 1);
            write(out, item);
        }
        if !items.is_empty() {
            self.line(out, level);
        }
        out.push(close);
    }

    fn line(&self, out: &mut String, level: usize) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * level));
        }
    }

    fn string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// A float as Python's `repr`: the shortest digits, an exponent below 1e-4 and from 1e16 on.
fn float(x: f64) -> String {
    let shortest = format!("{x:e}");
    let Some((digits, exponent)) = shortest.split_once('e') else {
        return shortest;
    };
    match exponent.parse::<i32>() {
        Ok(n) if !(-4..16).contains(&n) => {
            format!("{digits}e{}{:02}", if n < 0 { '-' } else { '+' }, n.abs())
        }
        _ => {
            let plain = x.to_string();
            if plain.contains('.') {
                plain
            } else {
                plain + ".0"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_writes_what_python_writes() {
        let value = json!({"b": [1, 2.0, 1e20, 1.5e-7, -0.0, null, true], "a": {"k": "<é\"\n\u{1}>"},
            "e": [], "o": {}});
        assert_eq!(
            Style::new(None).write(&value),
            r#"{"b": [1, 2.0, 1e+20, 1.5e-07, -0.0, null, true], "a": {"k": "<é\"\n\u0001>"}, "e": [], "o": {}}"#
        );
        let sorted = Style {
            sort_keys: true,
            ascii: true,
            ..Style::new(Some(2))
        };
        assert_eq!(
            sorted.write(&json!({"b": [1, {}], "a": "🙂\u{7f}"})),
            "{\n  \"a\": \"\\ud83d\\ude42\\u007f\",\n  \"b\": [\n    1,\n    {}\n  ]\n}"
        );
    }
}
