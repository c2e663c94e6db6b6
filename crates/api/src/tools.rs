//! The functions that a model may call, and whether it must.

use grammar::{Body, CallForm, Function};
use serde_json::{Value, json};
use text::Text;

use crate::fields::{Fields, wrong_type};
use crate::{ApiError, Limits};

/// Whether the reply calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// As the model likes.
    Auto,
    /// Never.
    None,
    /// One of the functions at least.
    Required,
    /// This one.
    Named(String),
}

/// A request's tools.
#[derive(Clone, Debug, PartialEq)]
pub struct Tools {
    /// As the template takes them: `{"type": "function", "function": {...}}`.
    pub list: Vec<Value>,
    /// Whether to call.
    pub choice: Choice,
    /// Whether a reply may hold several calls.
    pub parallel: bool,
}

impl Tools {
    /// Those of a body; `None` where there are none or none may be called.
    pub(crate) fn read(body: &Fields<'_>, limits: &Limits) -> Result<Option<Self>, ApiError> {
        let path = body.path("tools");
        let values = body.list("tools")?.map_or(&[][..], Vec::as_slice);
        if values.len() > limits.tools_max {
            let reason = format!("{} tools, more than {}", values.len(), limits.tools_max);
            return Err(ApiError::invalid(path, reason));
        }
        let mut list = Vec::with_capacity(values.len());
        for (i, value) in values.iter().enumerate() {
            list.push(read_tool(value, &format!("{path}[{i}]"))?);
        }
        let parallel = body.flag("parallel_tool_calls")?.unwrap_or(true);
        let choice = read_choice(body, &list)?;
        if list.is_empty() {
            return match choice {
                Choice::Auto | Choice::None => Ok(None),
                _ => Err(ApiError::invalid(body.path("tool_choice"), "there are no 'tools'")),
            };
        }
        Ok((choice != Choice::None).then_some(Self { list, choice, parallel }))
    }

    /// Name and schema of each function that may be called.
    pub(crate) fn functions(&self) -> Vec<Function> {
        let function = |tool: &Value| {
            let function = &tool["function"];
            let empty = json!({"type": "object", "properties": {}});
            let parameters = function.get("parameters").filter(|p| p.is_object());
            Function {
                name: function["name"].as_str().unwrap_or_default().to_owned(),
                parameters: parameters.cloned().unwrap_or(empty),
            }
        };
        let all = self.list.iter().map(function);
        match &self.choice {
            Choice::Named(name) => all.filter(|function| function.name == *name).collect(),
            _ => all.collect(),
        }
    }

    /// What a reply that must call has to look like.
    pub(crate) fn must(&self, form: CallForm) -> Option<Body> {
        let several = self.parallel && self.choice == Choice::Required;
        let must = matches!(self.choice, Choice::Required | Choice::Named(_));
        must.then(|| Body::Calls { form, functions: self.functions(), several })
    }
}

fn read_tool(value: &Value, path: &str) -> Result<Value, ApiError> {
    let tool = Fields::of(value, path)?;
    match tool.text("type")?.unwrap_or("function") {
        "function" => {}
        _ => return Err(ApiError::unsupported(tool.path("type"), "tools are functions here")),
    }
    tool.need("function")?;
    let function = Fields::of(tool.need("function")?, tool.path("function"))?;
    function.need("name")?;
    let name = function.text("name")?.unwrap_or_default();
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > 64 || !name.chars().all(known) {
        let reason = "a name has 1 to 64 letters, digits, '_', '-' or '.'";
        return Err(ApiError::invalid(function.path("name"), reason));
    }
    function.text("description")?;
    function.object("parameters")?;
    Ok(json!({"type": "function", "function": function.map()}))
}

fn read_choice(body: &Fields<'_>, tools: &[Value]) -> Result<Choice, ApiError> {
    let path = body.path("tool_choice");
    match body.get("tool_choice") {
        None => Ok(Choice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => Ok(Choice::Auto),
            "none" => Ok(Choice::None),
            "required" | "any" => Ok(Choice::Required),
            _ => Err(ApiError::invalid(path, "expected auto, none, required or a function")),
        },
        Some(value @ Value::Object(_)) => {
            let choice = Fields::of(value, path)?;
            choice.need("function")?;
            let function = Fields::of(choice.need("function")?, choice.path("function"))?;
            function.need("name")?;
            let name = function.text("name")?.unwrap_or_default();
            if !tools.iter().any(|tool| tool["function"]["name"] == name) {
                let reason = "no tool has this name";
                return Err(ApiError::invalid(function.path("name"), reason));
            }
            Ok(Choice::Named(name.to_owned()))
        }
        Some(other) => Err(wrong_type(path, "a string or an object", other)),
    }
}

/// How a model writes its calls, as its template shows them.
pub(crate) fn call_form(text: &Text) -> CallForm {
    if text.template_mentions("<function=") {
        CallForm::Xml
    } else if text.template_mentions("\"parameters\": ") && !text.template_mentions("<tool_call>") {
        CallForm::Bare
    } else {
        CallForm::Tagged
    }
}

/// Tells a model of its tools whose template does not: a system message in Hermes' words.
pub(crate) fn introduce(messages: &mut Vec<Value>, tools: &[Value]) {
    let lines: Vec<String> = tools.iter().map(Value::to_string).collect();
    let words = format!(
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are \
         provided with function signatures within <tools></tools> XML tags:\n<tools>\n{}\n\
         </tools>\n\nFor each function call, return a json object with function name and arguments \
         within <tool_call></tool_call> XML tags:\n<tool_call>\n{{\"name\": <function-name>, \
         \"arguments\": <args-json-object>}}\n</tool_call>",
        lines.join("\n")
    );
    match messages.first_mut() {
        Some(first) if first["role"] == "system" => {
            let own = first["content"].as_str().unwrap_or_default();
            first["content"] = format!("{own}\n\n{words}").into();
        }
        _ => messages.insert(0, json!({"role": "system", "content": words})),
    }
    for message in messages {
        let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
        let mut content = message["content"].as_str().unwrap_or_default().to_owned();
        for call in calls {
            let object = json!({
                "name": call["function"]["name"], "arguments": call["function"]["arguments"],
            });
            content += &format!("\n<tool_call>\n{object}\n</tool_call>");
        }
        message["content"] = content.trim_start_matches('\n').into();
    }
}
