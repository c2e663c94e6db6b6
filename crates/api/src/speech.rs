//! A reply's text as what it is: reasoning, content and calls of functions.

use grammar::{CallForm, Function};
use serde_json::{Map, Value};

/// Longest call; a longer one stays text.
const CALL_BYTES_MAX: usize = 256 << 10;
/// What opens and closes reasoning, and a call.
pub(crate) const THINK: &str = "<think>";
pub(crate) const THOUGHT: &str = "</think>";
const CALL: &str = "<tool_call>";
const CALLED: &str = "</tool_call>";

/// A stretch of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// What the model says to itself.
    Reasoning(String),
    /// What it says.
    Content(String),
    /// A call, well-formed.
    Call {
        /// Name of the function.
        name: String,
        /// A JSON object.
        arguments: String,
    },
}

/// Where reasoning may stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reasons {
    /// Nowhere.
    #[default]
    Never,
    /// At the start, where the reply opens it.
    Maybe,
    /// The prompt has opened it.
    Open,
}

/// What to look for in a reply.
#[derive(Clone, Debug, Default)]
pub struct Manner {
    /// Reasoning.
    pub reasons: Reasons,
    /// How calls are written, and of which functions; none are looked for otherwise.
    pub calls: Option<(CallForm, Vec<Function>)>,
    /// The reply ends with its first call.
    pub one_call: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    Reasoning,
    /// Line feeds after reasoning belong to nobody.
    Gap,
    Content,
    Call,
    /// From a brace on: a call in the bare form, or content that begins so.
    Bare,
}

/// A reply in the making.
#[derive(Debug)]
pub struct Speech {
    manner: Manner,
    state: State,
    held: String,
    said: bool,
    calls: u32,
}

impl Speech {
    /// Before its first character.
    pub fn new(manner: Manner) -> Self {
        let state = match manner.reasons {
            Reasons::Never => State::Content,
            Reasons::Maybe => State::Start,
            Reasons::Open => State::Reasoning,
        };
        Self { manner, state, held: String::new(), said: false, calls: 0 }
    }

    /// Whether the next character is reasoning.
    pub fn reasons(&self) -> bool {
        self.state == State::Reasoning
    }

    /// Calls so far.
    pub fn calls(&self) -> u32 {
        self.calls
    }

    /// Whether it has said all that it may.
    pub fn is_over(&self) -> bool {
        self.manner.one_call && self.calls > 0
    }

    /// Adds text; what is certain now.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while !self.is_over() && self.advance(&mut parts) {}
        parts
    }

    /// Ends it: what was held back is what it looks like.
    pub fn finish(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        if self.is_over() {
            return parts;
        }
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Reasoning => reasoning(&mut parts, held),
            State::Call => self.call(&held, "", &mut parts),
            State::Bare => self.bare(held, &mut parts),
            State::Gap => {}
            State::Content if self.calls > 0 && held.trim().is_empty() => {}
            State::Start | State::Content => self.say(&mut parts, held),
        }
        parts
    }

    /// One step; whether another may follow.
    fn advance(&mut self, parts: &mut Vec<Part>) -> bool {
        match self.state {
            State::Start => {
                let begun = self.held.trim_start();
                if let Some(rest) = begun.strip_prefix(THINK) {
                    self.held = rest.to_owned();
                    self.state = State::Reasoning;
                    return true;
                }
                if THINK.starts_with(begun) {
                    return false;
                }
                self.state = State::Content;
                true
            }
            State::Reasoning => match self.held.split_once(THOUGHT) {
                Some((before, after)) => {
                    reasoning(parts, before.to_owned());
                    self.held = after.to_owned();
                    self.state = State::Gap;
                    true
                }
                None => {
                    let certain = self.held.len() - tail(&self.held, THOUGHT);
                    let rest = self.held.split_off(certain);
                    reasoning(parts, std::mem::replace(&mut self.held, rest));
                    false
                }
            },
            State::Gap => {
                self.held = self.held.trim_start_matches('\n').to_owned();
                if !self.held.is_empty() {
                    self.state = State::Content;
                }
                !self.held.is_empty()
            }
            State::Content => self.content(parts),
            State::Call => {
                let Some((call, after)) = self.held.split_once(CALLED) else {
                    return self.give_up(parts);
                };
                let (call, after) = (call.to_owned(), after.to_owned());
                self.held = after;
                self.state = State::Content;
                self.call(&call, CALLED, parts);
                true
            }
            State::Bare => self.give_up(parts),
        }
    }

    fn content(&mut self, parts: &mut Vec<Part>) -> bool {
        let Some((form, _)) = self.manner.calls.as_ref() else {
            let held = std::mem::take(&mut self.held);
            self.say(parts, held);
            return false;
        };
        if *form == CallForm::Bare && !self.said {
            let begun = self.held.trim_start();
            if begun.is_empty() {
                return false;
            }
            if begun.starts_with('{') {
                self.state = State::Bare;
                return true;
            }
        }
        if let Some((before, after)) = self.held.split_once(CALL) {
            let before = before.trim_end().to_owned();
            self.held = after.to_owned();
            self.state = State::Call;
            self.say(parts, before);
            return true;
        }
        let certain = self.held.len() - tail(&self.held, CALL);
        // Space before a call is the call's.
        let certain = self.held[..certain].trim_end().len();
        let rest = self.held.split_off(certain);
        let text = std::mem::replace(&mut self.held, rest);
        self.say(parts, text);
        false
    }

    /// What is too long for a call is text.
    fn give_up(&mut self, parts: &mut Vec<Part>) -> bool {
        if self.held.len() <= CALL_BYTES_MAX {
            return false;
        }
        let open = if self.state == State::Call { CALL } else { "" };
        let text = format!("{open}{}", std::mem::take(&mut self.held));
        self.manner.calls = None;
        self.state = State::Content;
        self.say(parts, text);
        false
    }

    fn call(&mut self, text: &str, close: &str, parts: &mut Vec<Part>) {
        let functions = self.manner.calls.as_ref().map_or(&[][..], |(_, functions)| functions);
        let call = tagged(text.trim(), functions).or_else(|| xml(text.trim(), functions));
        match call {
            Some(call) => {
                self.calls += 1;
                parts.push(call);
            }
            None => self.say(parts, format!("{CALL}{text}{close}")),
        }
    }

    fn bare(&mut self, text: String, parts: &mut Vec<Part>) {
        let functions = self.manner.calls.as_ref().map_or(&[][..], |(_, functions)| functions);
        match tagged(text.trim(), functions) {
            Some(call) => {
                self.calls += 1;
                parts.push(call);
            }
            None => self.say(parts, text),
        }
    }

    fn say(&mut self, parts: &mut Vec<Part>, text: String) {
        if !text.is_empty() {
            self.said = true;
            parts.push(Part::Content(text));
        }
    }
}

fn reasoning(parts: &mut Vec<Part>, text: String) {
    if !text.is_empty() {
        parts.push(Part::Reasoning(text));
    }
}

/// Bytes at the end of `text` that may begin `mark`.
fn tail(text: &str, mark: &str) -> usize {
    let most = mark.len().saturating_sub(1).min(text.len());
    let begins = |n: &usize| text.as_bytes().ends_with(&mark.as_bytes()[..*n]);
    (1..=most).rev().find(begins).unwrap_or(0)
}

/// `{"name": ..., "arguments": {...}}`, or `parameters` for `arguments`.
fn tagged(text: &str, functions: &[Function]) -> Option<Part> {
    let call: Map<String, Value> = serde_json::from_str(text).ok()?;
    let name = call.get("name")?.as_str()?;
    functions.iter().find(|function| function.name == name)?;
    let arguments = match call.get("arguments").or_else(|| call.get("parameters")) {
        None => Map::new(),
        Some(Value::Object(arguments)) => arguments.clone(),
        Some(Value::String(text)) => serde_json::from_str(text).ok()?,
        Some(_) => return None,
    };
    Some(Part::Call { name: name.to_owned(), arguments: Value::Object(arguments).to_string() })
}

/// `<function=NAME>` around `<parameter=KEY>` elements; values as the schema types them.
fn xml(text: &str, functions: &[Function]) -> Option<Part> {
    let rest = text.strip_prefix("<function=")?;
    let (name, rest) = rest.split_once('>')?;
    let body = rest.trim_end().strip_suffix("</function>")?;
    let function = functions.iter().find(|function| function.name == name)?;
    let mut arguments = Map::new();
    let mut rest = body.trim_start();
    while !rest.is_empty() {
        let (key, after) = rest.strip_prefix("<parameter=")?.split_once('>')?;
        let (value, after) = after.split_once("</parameter>")?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        let is_text = function.parameters["properties"][key]["type"] == "string";
        let parsed = if is_text { None } else { serde_json::from_str(value).ok() };
        arguments.insert(key.to_owned(), parsed.unwrap_or_else(|| value.into()));
        rest = after.trim_start();
    }
    Some(Part::Call { name: name.to_owned(), arguments: Value::Object(arguments).to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn functions() -> Vec<Function> {
        let properties = json!({"city": {"type": "string"}, "days": {"type": "integer"}});
        let parameters = json!({"type": "object", "properties": properties});
        vec![Function { name: "weather".into(), parameters }]
    }

    fn manner(reasons: Reasons, form: Option<CallForm>) -> Manner {
        Manner { reasons, calls: form.map(|form| (form, functions())), one_call: false }
    }

    /// The parts, pushed as a whole and by single bytes: they must join to the same.
    fn parts(manner: &Manner, text: &str) -> Vec<Part> {
        let join = |pieces: Vec<&str>| {
            let mut speech = Speech::new(manner.clone());
            let mut parts: Vec<Part> = pieces.iter().flat_map(|piece| speech.push(piece)).collect();
            parts.extend(speech.finish());
            let mut joined: Vec<Part> = Vec::new();
            for part in parts {
                match (joined.last_mut(), part) {
                    (Some(Part::Content(a)), Part::Content(b)) => a.push_str(&b),
                    (Some(Part::Reasoning(a)), Part::Reasoning(b)) => a.push_str(&b),
                    (_, part) => joined.push(part),
                }
            }
            joined
        };
        let whole = join(vec![text]);
        assert_eq!(join(text.split_inclusive(|_: char| true).collect()), whole, "{text:?}");
        whole
    }

    fn content(text: &str) -> Part {
        Part::Content(text.into())
    }

    fn reasoning(text: &str) -> Part {
        Part::Reasoning(text.into())
    }

    fn call(arguments: Value) -> Part {
        Part::Call { name: "weather".into(), arguments: arguments.to_string() }
    }

    #[test]
    fn reasoning_is_told_apart_where_the_model_reasons() {
        let text = "<think>\nhm</think>\n\nyes";
        let maybe = manner(Reasons::Maybe, None);
        assert_eq!(parts(&maybe, text), [reasoning("\nhm"), content("yes")]);
        assert_eq!(parts(&maybe, " <b>"), [content(" <b>")]);
        let open = manner(Reasons::Open, None);
        assert_eq!(parts(&open, "hm</thin</think>yes"), [reasoning("hm</thin"), content("yes")]);
        assert_eq!(parts(&open, "hm</thi"), [reasoning("hm</thi")]);
        assert_eq!(parts(&manner(Reasons::Never, None), text), [content(text)]);
    }

    #[test]
    fn calls_of_both_tagged_forms_are_read_and_typed_by_the_schema() {
        let json = r#"{"name": "weather", "arguments": {"city": "Ulm", "days": 2}}"#;
        let text = format!("Let me see.\n\n<tool_call>\n{json}\n</tool_call>");
        let expected = json!({"city": "Ulm", "days": 2});
        let tagged = manner(Reasons::Never, Some(CallForm::Tagged));
        let said = content("Let me see.");
        assert_eq!(parts(&tagged, &text), [said, call(expected.clone())]);
        let xml = "<function=weather>\n<parameter=city>\n12\n</parameter>\n\
                   <parameter=days>\n2\n</parameter>\n</function>";
        let two = format!("<tool_call>\n{xml}\n</tool_call>\n<tool_call>\n{json}\n</tool_call>");
        let form = manner(Reasons::Never, Some(CallForm::Xml));
        assert_eq!(
            parts(&form, &two),
            [call(json!({"city": "12", "days": 2})), call(expected.clone())]
        );
        // Without its end, as models end that stop there.
        assert_eq!(parts(&form, &format!("<tool_call>\n{json}")), [call(expected)]);
    }

    #[test]
    fn a_malformed_call_stays_text() {
        let tagged = manner(Reasons::Never, Some(CallForm::Tagged));
        for text in [
            "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\n</tool_call>",
            "<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call> and on",
            "<tool_call>\n<function=weather>\n<parameter=city>Ulm\n</function>\n</tool_call>",
            "a <tool_cal",
        ] {
            assert_eq!(parts(&tagged, text), [content(text)], "{text}");
        }
        let long = format!("<tool_call>{}", "x".repeat(CALL_BYTES_MAX + 1));
        let mut speech = Speech::new(tagged);
        assert_eq!(speech.push(&long), [content(&long)]);
    }

    #[test]
    fn a_bare_call_is_the_whole_reply() {
        let bare = manner(Reasons::Never, Some(CallForm::Bare));
        let json = r#"{"name": "weather", "parameters": {"city": "Ulm"}}"#;
        assert_eq!(parts(&bare, json), [call(json!({"city": "Ulm"}))]);
        assert_eq!(parts(&bare, "{\"a\": 1}"), [content("{\"a\": 1}")]);
        assert_eq!(parts(&bare, "So: {"), [content("So: {")]);
    }

    #[test]
    fn one_call_may_be_all() {
        let manner = Manner { one_call: true, ..manner(Reasons::Never, Some(CallForm::Tagged)) };
        let json = r#"<tool_call>{"name": "weather"}</tool_call>"#;
        assert_eq!(parts(&manner, &format!("{json}{json}")), [call(json!({}))]);
    }
}
