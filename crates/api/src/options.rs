//! The fields that both endpoints share: how to draw, when to stop, how to answer.

use grammar::Body;
use serde_json::Value;

use crate::draws::Draws;
use crate::fields::{Fields, wrong_type};
use crate::format::read_format;
use crate::thinking::Thinking;
use crate::tools::Tools;
use crate::{ApiError, Endpoint, Limits};

/// Options of one request, checked against the [`Limits`].
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The name that the client used; echoed.
    pub model: Option<String>,
    /// Most reply tokens; the rest of the context when absent.
    pub max_tokens: Option<u32>,
    /// 0 (greedy) to 2; 1 when absent.
    pub temperature: f64,
    /// Candidates kept by cumulative probability; 1 keeps all.
    pub top_p: f64,
    /// Candidates kept by rank; 0 keeps all.
    pub top_k: u32,
    /// Candidates kept by probability relative to the best; 0 keeps all.
    pub min_p: f64,
    /// Key of the noise; taken from the prompt when absent.
    pub seed: Option<u64>,
    /// Answer as server-sent events.
    pub stream: bool,
    /// End a stream with the usage.
    pub include_usage: bool,
    /// Texts that end the reply.
    pub stop: Vec<String>,
    /// Go on past the model's stop tokens.
    pub ignore_eos: bool,
    /// Put the reply's ids into `choices[0].token_ids`.
    pub return_token_ids: bool,
    /// Whether tokens may be guessed ahead; true when absent. It moves no byte of the reply.
    pub draft: bool,
    /// Whether the prompt may go on from what others have left, and leave something; true when
    /// absent. It moves no byte of the reply.
    pub cache_prompt: bool,
    /// Penalties, bias, log probabilities, and how many replies.
    pub draws: Draws,
    /// Functions that may be called.
    pub tools: Option<Tools>,
    /// What the reply must look like, and the field that says so.
    pub format: Option<(Body, String)>,
    /// Reasoning.
    pub thinking: Thinking,
}

impl Options {
    /// Reads them from a request's body.
    pub(crate) fn read(
        endpoint: Endpoint,
        body: &Fields<'_>,
        limits: &Limits,
    ) -> Result<Self, ApiError> {
        body.text("user")?;
        let draws = Draws::read(body, endpoint, limits)?;
        // A prompt that is only to be scored.
        let least = i64::from(!draws.echo);
        let longest = read_max_tokens(body, "max_completion_tokens", least)?;
        let max_tokens = longest.or(read_max_tokens(body, "max_tokens", least)?);
        let chat = endpoint != Endpoint::Completion;
        let tools = if chat { Tools::read(body, limits)? } else { None };
        // -1 is how several clients write "all".
        let top_k = body.integer("top_k", -1)?.unwrap_or(0).max(0);
        let include_usage = match body.object("stream_options")? {
            Some(options) => options.flag("include_usage")?.unwrap_or(false),
            None => false,
        };
        Ok(Self {
            model: read_model(body, limits)?,
            max_tokens,
            temperature: body.number("temperature", 0.0, 2.0)?.unwrap_or(1.0),
            top_p: body.number("top_p", 0.0, 1.0)?.unwrap_or(1.0),
            top_k: u32::try_from(top_k).unwrap_or(u32::MAX),
            min_p: body.number("min_p", 0.0, 1.0)?.unwrap_or(0.0),
            seed: read_seed(body)?,
            stream: body.flag("stream")?.unwrap_or(false),
            include_usage,
            stop: read_stop(body, limits)?,
            ignore_eos: body.flag("ignore_eos")?.unwrap_or(false),
            return_token_ids: body.flag("return_token_ids")?.unwrap_or(false),
            draft: body.flag("draft")?.unwrap_or(true),
            cache_prompt: body.flag("cache_prompt")?.unwrap_or(true),
            draws,
            tools,
            format: read_format(body, limits)?,
            thinking: if chat { Thinking::read(body)? } else { Thinking::default() },
        })
    }
}

fn read_max_tokens(body: &Fields<'_>, name: &str, least: i64) -> Result<Option<u32>, ApiError> {
    let value = body.integer(name, least)?;
    Ok(value.map(|n| u32::try_from(n).unwrap_or(u32::MAX)))
}

fn read_model(body: &Fields<'_>, limits: &Limits) -> Result<Option<String>, ApiError> {
    let Some(model) = body.text("model")? else {
        return Ok(None);
    };
    if model.len() > limits.model_bytes_max {
        let reason =
            format!("{} bytes, more than the limit of {}", model.len(), limits.model_bytes_max);
        return Err(ApiError::invalid(body.path("model"), reason));
    }
    Ok(Some(model.to_owned()))
}

/// Any 64-bit integer; a negative one keeps its bits.
fn read_seed(body: &Fields<'_>) -> Result<Option<u64>, ApiError> {
    let Some(value) = body.get("seed") else {
        return Ok(None);
    };
    let signed = || value.as_i64().map(i64::cast_unsigned);
    match value.as_u64().or_else(signed) {
        Some(seed) => Ok(Some(seed)),
        None => Err(wrong_type(body.path("seed"), "a 64-bit integer", value)),
    }
}

fn read_stop(body: &Fields<'_>, limits: &Limits) -> Result<Vec<String>, ApiError> {
    let path = body.path("stop");
    let list = match body.get("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(_)) => std::slice::from_ref(body.need("stop")?),
        Some(Value::Array(list)) => list.as_slice(),
        Some(other) => {
            return Err(wrong_type(path, "a string or an array of strings", other));
        }
    };
    if list.len() > limits.stops_max {
        let reason =
            format!("{} stop strings, more than the limit of {}", list.len(), limits.stops_max);
        return Err(ApiError::invalid(path, reason));
    }
    let mut stops = Vec::with_capacity(list.len());
    for (i, value) in list.iter().enumerate() {
        let Value::String(stop) = value else {
            return Err(wrong_type(format!("{path}[{i}]"), "a string", value));
        };
        if stop.is_empty() || stop.len() > limits.stop_bytes_max {
            let reason = format!(
                "a stop string has 1 to {} bytes, but this one has {}",
                limits.stop_bytes_max,
                stop.len()
            );
            return Err(ApiError::invalid(format!("{path}[{i}]"), reason));
        }
        stops.push(stop.clone());
    }
    Ok(stops)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use serde_json::json;

    fn read(body: Value) -> Result<Options, ApiError> {
        Options::read(Endpoint::Chat, &Fields::of(&body, "").unwrap(), &Limits::default())
    }

    #[test]
    fn absent_fields_take_openais_defaults() {
        let options = read(json!({})).unwrap();
        assert_eq!(
            (options.temperature, options.top_p, options.top_k, options.min_p),
            (1.0, 1.0, 0, 0.0)
        );
        assert_eq!((options.max_tokens, options.seed), (None, None));
        assert!(!options.stream && options.stop.is_empty() && !options.ignore_eos);
        assert!(options.draft && options.cache_prompt);
    }

    #[test]
    fn each_field_is_read() {
        let options = read(json!({
            "model": "m", "max_tokens": 5, "max_completion_tokens": 7, "temperature": 0.5,
            "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": -1, "stream": true,
            "stream_options": {"include_usage": true}, "stop": ["a", "b"], "ignore_eos": true,
            "return_token_ids": true, "draft": false,
            "cache_prompt": false, "user": "u", "metadata": {"tolerated": 1},
        }));
        let expected = Options {
            model: Some("m".into()),
            max_tokens: Some(7),
            temperature: 0.5,
            top_p: 0.9,
            top_k: 40,
            min_p: 0.05,
            seed: Some(u64::MAX),
            stream: true,
            include_usage: true,
            stop: vec!["a".into(), "b".into()],
            ignore_eos: true,
            return_token_ids: true,
            draft: false,
            cache_prompt: false,
            draws: options.as_ref().unwrap().draws.clone(),
            tools: None,
            format: None,
            thinking: Thinking::default(),
        };
        assert_eq!(options.unwrap(), expected);
        assert_eq!(read(json!({"stop": "x"})).unwrap().stop, ["x"]);
        assert_eq!(read(json!({"top_k": -1})).unwrap().top_k, 0);
        assert_eq!(read(json!({"max_tokens": 1_u64 << 40})).unwrap().max_tokens, Some(u32::MAX));
    }

    #[test]
    fn each_bad_value_is_named() {
        let long = "x".repeat(257);
        let many = vec!["s"; 17];
        for (body, param) in [
            (json!({"model": 3}), "model"),
            (json!({"model": long}), "model"),
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"max_tokens": "5"}), "max_tokens"),
            (json!({"max_completion_tokens": 1.5}), "max_completion_tokens"),
            (json!({"temperature": -0.1}), "temperature"),
            (json!({"temperature": 2.1}), "temperature"),
            (json!({"temperature": "hot"}), "temperature"),
            (json!({"top_p": 1.01}), "top_p"),
            (json!({"top_k": -2}), "top_k"),
            (json!({"min_p": -1}), "min_p"),
            (json!({"seed": 1.5}), "seed"),
            (json!({"stream": "yes"}), "stream"),
            (json!({"stream_options": true}), "stream_options"),
            (json!({"stream_options": {"include_usage": 1}}), "stream_options.include_usage"),
            (json!({"stop": 5}), "stop"),
            (json!({"stop": many}), "stop"),
            (json!({"stop": [""]}), "stop[0]"),
            (json!({"stop": ["a", long]}), "stop[1]"),
            (json!({"stop": ["a", 5]}), "stop[1]"),
            (json!({"ignore_eos": 1}), "ignore_eos"),
            (json!({"return_token_ids": 1}), "return_token_ids"),
            (json!({"draft": 1}), "draft"),
            (json!({"cache_prompt": 1}), "cache_prompt"),
            (json!({"user": 1}), "user"),
        ] {
            let error = read(body.clone()).unwrap_err();
            assert_eq!((error.status(), error.param()), (400, Some(param)), "{body}");
        }
    }
}
