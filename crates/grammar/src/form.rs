//! What a reply is to look like, as llguidance's grammars.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Map, Value, json};

/// Most calls of a reply that must call.
const CALLS_MAX: usize = 16;
/// Whitespace between JSON tokens: a space, or a line feed and its indentation. Models that are
/// at a loss would go on with more for ever.
const WHITESPACE: &str = r"(\x20|\x0A\x20{0,24})?";

/// What a reply must be.
#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    /// What reasoning begins with; it may then be left out. With none it has begun.
    pub open: Option<String>,
    /// What it ends with; there is none where this is none.
    pub after: Option<String>,
    /// What follows.
    pub body: Body,
}

/// The constrained part.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// JSON that a schema describes.
    Json(Value),
    /// A match of a regular expression.
    Regex(String),
    /// One of some texts.
    Choice(Vec<String>),
    /// A grammar in llguidance's Lark.
    Lark(String),
    /// Calls of functions.
    Calls {
        /// How calls are written.
        form: CallForm,
        /// Those that may be called.
        functions: Vec<Function>,
        /// Whether several calls may follow each other.
        several: bool,
    },
}

/// How a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallForm {
    /// `<tool_call>` around a JSON object with `name` and `arguments`.
    Tagged,
    /// `<tool_call>` around `<function=NAME>` and `<parameter=KEY>` elements.
    Xml,
    /// A bare JSON object with `name` and `parameters`.
    Bare,
}

/// A function that may be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// JSON schema of its arguments.
    pub parameters: Value,
}

impl Form {
    pub(crate) fn grammar(&self) -> TopLevelGrammar {
        let body = match &self.body {
            Body::Json(schema) => GrammarWithLexer::from_json_schema(bounded(schema)),
            Body::Regex(regex) => GrammarWithLexer::from_regex(regex),
            Body::Choice(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
                GrammarWithLexer::from_lark(format!("start: {}", texts.join(" | ")))
            }
            Body::Lark(source) => GrammarWithLexer::from_lark(source.clone()),
            Body::Calls { form, functions, several } => {
                GrammarWithLexer::from_lark(calls(*form, functions, *several))
            }
        };
        let Some(after) = &self.after else {
            return TopLevelGrammar::from_grammar(body);
        };
        let (open, maybe) = match &self.open {
            Some(open) => (quoted(open), "?"),
            None => (String::new(), ""),
        };
        let before = format!(
            "start: before{maybe} @body\nbefore: {open} reasons gap\n\
             reasons[suffix={}]: /(.|\\n)*/\ngap: /[ \\n]{{0,8}}/\n",
            quoted(after)
        );
        let before = GrammarWithLexer::from_lark(before);
        let body = GrammarWithLexer { name: Some("body".into()), ..body };
        TopLevelGrammar { grammars: vec![before, body], max_tokens: None }
    }
}

/// A text as a Lark literal.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A schema whose whitespace ends.
fn bounded(schema: &Value) -> Value {
    let mut schema = match schema {
        Value::Object(schema) => schema.clone(),
        // `true` allows everything, `false` nothing.
        Value::Bool(false) => Map::from_iter([("not".to_owned(), json!({}))]),
        _ => Map::new(),
    };
    let whitespace = json!({"whitespace_flexible": true, "whitespace_pattern": WHITESPACE});
    schema.entry("x-guidance").or_insert(whitespace);
    Value::Object(schema)
}

fn calls(form: CallForm, functions: &[Function], several: bool) -> String {
    let repeat = if several { format!("{{1,{CALLS_MAX}}}") } else { String::new() };
    match form {
        CallForm::Tagged => {
            let schema = one_of(functions, "arguments");
            format!(
                "start: call{repeat}\ncall: \"<tool_call>\\n\" object \"\\n</tool_call>\" gap\n\
                 gap: /\\n?/\nobject: %json {schema}\n"
            )
        }
        CallForm::Bare => format!("start: %json {}\n", one_of(functions, "parameters")),
        CallForm::Xml => xml(functions, &repeat),
    }
}

/// A schema of one object for each function.
fn one_of(functions: &[Function], arguments: &str) -> Value {
    let object = |function: &Function| {
        let properties = Map::from_iter([
            ("name".to_owned(), json!({"const": function.name})),
            (arguments.to_owned(), function.parameters.clone()),
        ]);
        json!({
            "type": "object", "properties": properties, "required": ["name", arguments],
            "additionalProperties": false,
        })
    };
    let objects: Vec<Value> = functions.iter().map(object).collect();
    let schema = match objects.len() {
        1 => objects.into_iter().next().unwrap_or_default(),
        _ => json!({"anyOf": objects}),
    };
    bounded(&schema)
}

fn xml(functions: &[Function], repeat: &str) -> String {
    let mut rules = format!("start: call{repeat}\ngap: /\\n?/\n");
    let mut names = Vec::new();
    for (f, function) in functions.iter().enumerate() {
        let empty = Map::new();
        let properties = function.parameters["properties"].as_object().unwrap_or(&empty);
        let required = function.parameters["required"].as_array();
        let mut body = quoted(&format!("<tool_call>\n<function={}>\n", function.name));
        for (p, (key, schema)) in properties.iter().enumerate() {
            let needed = required.is_some_and(|names| names.iter().any(|name| name == key));
            let optional = if needed { "" } else { "?" };
            body += &format!(" f{f}_p{p}{optional}");
            let open = quoted(&format!("<parameter={key}>\n"));
            if schema["type"] == "string" && schema.get("enum").is_none() {
                rules += &format!(
                    "f{f}_p{p}: {open} f{f}_v{p}\n\
                     f{f}_v{p}[suffix=\"\\n</parameter>\\n\"]: /(.|\\n)*/\n"
                );
            } else if let Some(texts) = texts(schema) {
                let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
                let texts = texts.join(" | ");
                rules += &format!("f{f}_p{p}: {open} ({texts}) \"\\n</parameter>\\n\"\n");
            } else {
                let schema = bounded(schema);
                rules += &format!(
                    "f{f}_p{p}: {open} f{f}_v{p} \"\\n</parameter>\\n\"\n\
                     f{f}_v{p}: %json {schema}\n"
                );
            }
        }
        rules += &format!("f{f}: {body} \"</function>\\n</tool_call>\" gap\n");
        names.push(format!("f{f}"));
    }
    rules += &format!("call: {}\n", names.join(" | "));
    rules
}

/// The texts of an enum of texts alone.
fn texts(schema: &Value) -> Option<Vec<&str>> {
    let values = schema.get("enum")?.as_array()?;
    values.iter().map(Value::as_str).collect()
}
