//! A request's body, checked, and its way to tokens.

use grammar::Form;
use sched::sample::Sampling;
use serde_json::{Map, Value};
use text::Text;

use crate::features::refuse_unserved;
use crate::fields::{Fields, wrong_type};
use crate::message::read_messages;
use crate::speech::{Manner, Reasons, THINK, THOUGHT};
use crate::tools::{call_form, introduce};
use crate::{ApiError, Limits, Options};

/// Salt of the seeds that follow from prompts.
const SEED_SALT: u64 = 0;

/// Which form a request and its reply have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
    /// `/v1/responses`; its body is read as a chat's.
    Response,
    /// `/v1/messages`; its body is read as a chat's.
    Message,
}

impl Endpoint {
    /// The field that holds the prompt.
    pub fn prompt_param(self) -> &'static str {
        match self {
            Self::Chat | Self::Message => "messages",
            Self::Completion => "prompt",
            Self::Response => "input",
        }
    }
}

/// What the reply continues.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Messages for the chat template, and the template's extra variables.
    Chat(Vec<Value>, Map<String, Value>),
    /// Text; special tokens in it are read as such.
    Text(String),
    /// Token ids, taken as they are.
    Ids(Vec<u32>),
}

/// A request as the client meant it.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// Where it came in.
    pub endpoint: Endpoint,
    /// What to continue.
    pub prompt: Prompt,
    /// How.
    pub options: Options,
}

impl Asked {
    /// Reads a body.
    pub fn read(endpoint: Endpoint, body: &[u8], limits: &Limits) -> Result<Self, ApiError> {
        let body = parse(body, limits)?;
        Self::of(endpoint, &body, limits)
    }

    /// Reads a body that is parsed, in the form of a chat or a completion.
    pub fn of(endpoint: Endpoint, body: &Value, limits: &Limits) -> Result<Self, ApiError> {
        let fields = Fields::of(body, "")?;
        let (prompt, options) = match endpoint {
            Endpoint::Completion => {
                (read_prompt(&fields)?, Options::read(endpoint, &fields, limits)?)
            }
            _ => {
                let extra = fields.object("chat_template_kwargs")?;
                let mut extra = extra.map(|extra| extra.map().clone()).unwrap_or_default();
                let messages = read_messages(&fields)?;
                let options = Options::read(endpoint, &fields, limits)?;
                options.thinking.tell(&mut extra);
                (Prompt::Chat(messages, extra), options)
            }
        };
        refuse_unserved(&fields)?;
        Ok(Self { endpoint, prompt, options })
    }

    /// The prompt's tokens, and what to look for in the reply. Takes time and memory in proportion
    /// to the prompt's length, so a text that can't fit into `context_max` positions is refused by
    /// its length alone.
    pub fn encode(&self, text: &Text, context_max: u32) -> Result<(Vec<u32>, Manner), ApiError> {
        let mut manner = Manner::default();
        let param = self.endpoint.prompt_param();
        let refuse = |e: text::TextError| ApiError::invalid(param, e.to_string());
        let encode = |prompt: &str| {
            let prompt_min = text.tokens_min(prompt.len()) as u64;
            if prompt_min > u64::from(context_max) {
                return Err(ApiError::ContextLength { param, context_max, prompt: prompt_min });
            }
            text.encode(prompt).map_err(refuse)
        };
        let tokens = match &self.prompt {
            Prompt::Chat(messages, extra) => {
                let rendered = self.render(text, messages, extra).map_err(refuse)?;
                manner = self.manner(text, &rendered);
                encode(&rendered)?
            }
            Prompt::Text(prompt) => encode(prompt)?,
            Prompt::Ids(ids) => {
                if let Some(i) = ids.iter().position(|&id| id as usize >= text.vocab()) {
                    let reason =
                        format!("token {} is outside the vocabulary of {}", ids[i], text.vocab());
                    return Err(ApiError::invalid(format!("{param}[{i}]"), reason));
                }
                ids.clone()
            }
        };
        if tokens.is_empty() {
            return Err(ApiError::invalid(param, "the prompt has no tokens"));
        }
        Ok((tokens, manner))
    }

    fn render(
        &self,
        text: &Text,
        messages: &[Value],
        extra: &Map<String, Value>,
    ) -> Result<String, text::TextError> {
        let Some(tools) = &self.options.tools else {
            return text.render(messages, true, extra);
        };
        if text.template_mentions("tools") {
            let mut extra = extra.clone();
            extra.insert("tools".into(), tools.list.clone().into());
            return text.render(messages, true, &extra);
        }
        let mut messages = messages.to_vec();
        introduce(&mut messages, &tools.list);
        text.render(&messages, true, extra)
    }

    /// What the reply to a rendered prompt may hold beside content.
    fn manner(&self, text: &Text, rendered: &str) -> Manner {
        let end = rendered.trim_end();
        let reasons = if !text.template_mentions(THINK) && !text.template_mentions(THOUGHT) {
            Reasons::Never
        } else if end.ends_with(THINK) {
            Reasons::Open
        } else if end.ends_with(THOUGHT) || self.options.thinking.enabled == Some(false) {
            Reasons::Never
        } else {
            Reasons::Maybe
        };
        let tools = self.options.tools.as_ref();
        Manner {
            reasons,
            calls: tools.map(|tools| (call_form(text), tools.functions())),
            one_call: tools.is_some_and(|tools| !tools.parallel),
        }
    }

    /// What the reply must look like, with the field that says so.
    pub(crate) fn form(&self, manner: &Manner) -> Result<Option<(Form, String)>, ApiError> {
        let must = match (&self.options.tools, &manner.calls) {
            (Some(tools), Some((form, _))) => tools.must(*form),
            _ => None,
        };
        let (body, param) = match (must, self.options.format.clone()) {
            (None, None) => return Ok(None),
            (Some(body), None) => (body, "tool_choice".to_owned()),
            (None, Some(format)) => format,
            (Some(_), Some((_, param))) => {
                return Err(ApiError::invalid(
                    param,
                    "beside a 'tool_choice' that must be followed",
                ));
            }
        };
        let (open, after) = match manner.reasons {
            Reasons::Never => (None, None),
            Reasons::Maybe => (Some(THINK.to_owned()), Some(THOUGHT.to_owned())),
            Reasons::Open => (None, Some(THOUGHT.to_owned())),
        };
        Ok(Some((Form { open, after, body }, param)))
    }

    /// The scheduler's form. The reply ends at `context_max` positions whatever was asked for.
    pub fn schedule(
        &self,
        tokens: Vec<u32>,
        context_max: u32,
        text: &Text,
    ) -> Result<sched::Request, ApiError> {
        let options = &self.options;
        let room = usize::try_from(context_max).unwrap_or(usize::MAX).saturating_sub(tokens.len());
        if room == 0 {
            return Err(ApiError::ContextLength {
                param: self.endpoint.prompt_param(),
                context_max,
                prompt: tokens.len() as u64,
            });
        }
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let guide = options.draws.guide(text.vocab())?;
        let seed = options.seed.unwrap_or_else(|| sched::sample::default_seed(&tokens, SEED_SALT));
        let stop_tokens = if options.ignore_eos { Vec::new() } else { text.stop_tokens().to_vec() };
        Ok(sched::Request {
            marks: text.message_starts(&tokens),
            cached: options.cache_prompt,
            prompt: tokens,
            max_tokens: options.max_tokens.unwrap_or(room).clamp(1, room),
            stop_tokens,
            sampling: Sampling {
                temperature: options.temperature,
                top_k: options.top_k,
                top_p: options.top_p,
                min_p: options.min_p,
                seed,
            },
            guide,
            draft: options.draft,
            ..sched::Request::default()
        })
    }
}

/// A body's JSON, within its limits.
pub(crate) fn parse(body: &[u8], limits: &Limits) -> Result<Value, ApiError> {
    if values(body) > limits.values_max {
        let reason = format!("more than the limit of {} JSON values", limits.values_max);
        return Err(ApiError::invalid("body", reason));
    }
    serde_json::from_slice(body).map_err(|e| ApiError::NotJson(e.to_string()))
}

/// Most values that a JSON text can hold: one, and one more for each bracket that opens and each
/// comma. A value takes many times its bytes once it is parsed.
fn values(json: &[u8]) -> usize {
    let (mut count, mut in_text, mut escaped) = (1, false, false);
    for &byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'[' | b'{' | b',' if !in_text => count += 1,
            _ => {}
        }
    }
    count
}

/// A string, an array of one string, an array of ids, or an array of one array of ids.
fn read_prompt(body: &Fields<'_>) -> Result<Prompt, ApiError> {
    let path = body.path("prompt");
    let expected = "a string, an array of one string or an array of token ids";
    let list = match body.need("prompt")? {
        Value::String(text) => return Ok(Prompt::Text(text.clone())),
        Value::Array(list) => list,
        other => return Err(wrong_type(path, expected, other)),
    };
    let several = || Err(ApiError::unsupported(path.clone(), "one prompt a request"));
    match list.as_slice() {
        [] => Err(ApiError::invalid(path, "the prompt has no tokens")),
        [Value::String(text)] => Ok(Prompt::Text(text.clone())),
        [Value::Array(ids)] => read_ids(ids, &format!("{path}[0]")).map(Prompt::Ids),
        [Value::String(_) | Value::Array(_), ..] => several(),
        ids => read_ids(ids, &path).map(Prompt::Ids),
    }
}

pub(crate) fn read_ids(ids: &[Value], path: &str) -> Result<Vec<u32>, ApiError> {
    let read = |(i, value): (usize, &Value)| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| wrong_type(format!("{path}[{i}]"), "a token id", value))
    };
    ids.iter().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use serde_json::json;

    fn prompt(prompt: Value) -> Result<Prompt, ApiError> {
        let body = json!({ "prompt": prompt }).to_string();
        Asked::read(Endpoint::Completion, body.as_bytes(), &Limits::default())
            .map(|asked| asked.prompt)
    }

    #[test]
    fn a_prompt_is_text_or_ids() {
        let hello = || Prompt::Text("hello".into());
        assert_eq!(prompt(json!("hello")).unwrap(), hello());
        assert_eq!(prompt(json!(["hello"])).unwrap(), hello());
        assert_eq!(prompt(json!([1, 2])).unwrap(), Prompt::Ids(vec![1, 2]));
        assert_eq!(prompt(json!([[1, 2]])).unwrap(), Prompt::Ids(vec![1, 2]));
    }

    #[test]
    fn several_prompts_are_refused_by_name() {
        for several in [json!(["a", "b"]), json!([[1], [2]])] {
            let error = prompt(several).unwrap_err();
            assert_eq!((error.code(), error.param()), ("unsupported", Some("prompt")));
        }
    }

    #[test]
    fn a_body_of_too_many_values_is_refused_before_it_is_parsed() {
        let limits = Limits { values_max: 4, ..Limits::default() };
        let read = |body: &str| Asked::read(Endpoint::Completion, body.as_bytes(), &limits);
        assert!(read(r#"{"prompt": [1, 2]}"#).is_ok());
        assert!(read(r#"{"prompt": "a, [{,,,\\", "user": "\",,,,{"}"#).is_ok());
        for body in [r#"{"prompt": [1, 2, 3]}"#, "[[[[[[", r#"{"prompt": "a", "user": {}, "b": []"#]
        {
            let error = read(body).unwrap_err();
            assert_eq!((error.code(), error.param()), ("invalid_value", Some("body")), "{body}");
        }
    }

    #[test]
    fn a_text_that_cannot_fit_is_refused_by_its_length() {
        let longest = "<|im_start|>".len();
        let error = schedule(json!({"prompt": "a".repeat(3 * longest * 10 + 1)}), 10).unwrap_err();
        let counted = matches!(error, ApiError::ContextLength { prompt: 11, .. });
        assert!(counted, "{error}");
        let error = schedule(json!({"prompt": "a".repeat(3 * longest * 10)}), 10).unwrap_err();
        let counted = matches!(error, ApiError::ContextLength { prompt: 360, .. });
        assert!(counted, "{error}");
    }

    #[test]
    fn a_bad_id_is_named_by_its_place() {
        for (value, param) in [
            (json!([1, "a"]), "prompt[1]"),
            (json!([1, -1]), "prompt[1]"),
            (json!([1, 2, 3.5]), "prompt[2]"),
            (json!([[1, 1_u64 << 32]]), "prompt[0][1]"),
            (json!([]), "prompt"),
            (json!({}), "prompt"),
            (json!(null), "prompt"),
        ] {
            assert_eq!(prompt(value).unwrap_err().param(), Some(param));
        }
    }

    fn schedule(body: Value, context_max: u32) -> Result<sched::Request, ApiError> {
        let text = Text::byte_level();
        let body = body.to_string();
        let asked = Asked::read(Endpoint::Completion, body.as_bytes(), &Limits::default())?;
        asked.schedule(asked.encode(&text, context_max)?.0, context_max, &text)
    }

    #[test]
    fn the_reply_is_bounded_by_the_context() {
        let max = |body| schedule(body, 10).map(|request| request.max_tokens);
        assert_eq!(max(json!({"prompt": [1, 2, 3]})).unwrap(), 7);
        assert_eq!(max(json!({"prompt": [1, 2, 3], "max_tokens": 5})).unwrap(), 5);
        assert_eq!(max(json!({"prompt": [1, 2, 3], "max_tokens": 50})).unwrap(), 7);
        let error = max(json!({"prompt": vec![1; 10]})).unwrap_err();
        assert_eq!(error.code(), "context_length_exceeded");
    }

    #[test]
    fn ids_outside_the_vocabulary_and_empty_prompts_are_refused() {
        let vocab = Text::byte_level().vocab();
        let error = schedule(json!({"prompt": [1, vocab]}), 10).unwrap_err();
        assert_eq!(error.param(), Some("prompt[1]"));
        assert_eq!(schedule(json!({"prompt": ""}), 10).unwrap_err().param(), Some("prompt"));
    }

    #[test]
    fn ignore_eos_leaves_no_stop_token() {
        let stops = |ignore| {
            let body = json!({"prompt": "a", "ignore_eos": ignore});
            schedule(body, 10).unwrap().stop_tokens
        };
        assert!(!stops(false).is_empty());
        assert!(stops(true).is_empty());
    }

    #[test]
    fn an_absent_seed_follows_from_the_prompt_alone() {
        let seed = |body| schedule(body, 10).unwrap().sampling.seed;
        assert_eq!(seed(json!({"prompt": [1, 2]})), seed(json!({"prompt": [1, 2], "top_k": 3})));
        assert_ne!(seed(json!({"prompt": [1, 2]})), seed(json!({"prompt": [1, 3]})));
        assert_eq!(seed(json!({"prompt": [1], "seed": 9})), 9);
    }
}
