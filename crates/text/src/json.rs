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
        Self { item: item.to_owned(), key: ": ".to_owned(), indent, sort_keys: false, ascii: false }
    }

    /// The text of `value`; `None` where it has more than about `bytes_max` bytes.
    pub(crate) fn write(&self, value: &Value, bytes_max: usize) -> Option<String> {
        let mut out = Out { text: String::new(), bytes_max };
        self.value(&mut out, value, 0);
        (out.text.len() <= bytes_max).then_some(out.text)
    }

    fn value(&self, out: &mut Out, value: &Value, level: usize) {
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
        out: &mut Out,
        open: char,
        close: char,
        items: &[T],
        level: usize,
        mut write: impl FnMut(&mut Out, &T),
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

    fn line(&self, out: &mut Out, level: usize) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.push_str(&" ".repeat(indent * level));
        }
    }

    fn string(&self, out: &mut Out, text: &str) {
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

/// Text up to a limit, and a little more; what comes after that is dropped.
struct Out {
    text: String,
    bytes_max: usize,
}

impl Out {
    fn push_str(&mut self, piece: &str) {
        if self.text.len() <= self.bytes_max {
            self.text.push_str(piece);
        }
    }

    fn push(&mut self, c: char) {
        self.push_str(c.encode_utf8(&mut [0; 4]));
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
            if plain.contains('.') { plain } else { plain + ".0" }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_writes_what_python_writes() {
        let value = json!({"b": [1, 2.0, 1e20, 1.5e-7, -0.0, null, true],
            "a": {"k": "<é\"\n\u{1}>"},
            "e": [], "o": {}});
        assert_eq!(
            Style::new(None).write(&value, 999).unwrap_or_default(),
            r#"{"b": [1, 2.0, 1e+20, 1.5e-07, -0.0, null, true], "a": {"k": "<é\"\n\u0001>"}, "e": [], "o": {}}"#
        );
        let sorted = Style { sort_keys: true, ascii: true, ..Style::new(Some(2)) };
        assert_eq!(
            sorted.write(&json!({"b": [1, {}], "a": "🙂\u{7f}"}), 999).unwrap_or_default(),
            "{\n  \"a\": \"\\ud83d\\ude42\\u007f\",\n  \"b\": [\n    1,\n    {}\n  ]\n}"
        );
    }

    #[test]
    fn a_text_past_the_limit_is_none() {
        let style = Style::new(Some(2));
        let value = json!([["a", "b"], ["c"]]);
        let whole = style.write(&value, usize::MAX).unwrap_or_default();
        assert_eq!(style.write(&value, whole.len()), Some(whole.clone()));
        for bytes_max in 0..whole.len() {
            assert_eq!(style.write(&value, bytes_max), None);
        }
    }
}
