//! The fields that shape draws beyond temperature and its like, and what is told about them.

use std::collections::BTreeMap;

use sched::sample::{Guide, Penalties};
use serde_json::Value;

use crate::fields::{Fields, wrong_type};
use crate::{ApiError, Endpoint, Limits};

/// Penalties, bias, log probabilities and how many replies.
#[derive(Clone, Debug, PartialEq)]
pub struct Draws {
    /// What a token's past does to it.
    pub penalties: Penalties,
    /// By token id.
    pub bias: BTreeMap<u32, f64>,
    /// Log probabilities with each token, and of how many of the best.
    pub logprobs: Option<u32>,
    /// Replies to the one prompt.
    pub n: u32,
    /// The prompt comes first in the reply's text.
    pub echo: bool,
}

impl Draws {
    pub(crate) fn read(
        body: &Fields<'_>,
        endpoint: Endpoint,
        limits: &Limits,
    ) -> Result<Self, ApiError> {
        let none = Penalties::NONE;
        let repetition = match body.number("repetition_penalty", 0.01, 100.0)? {
            Some(penalty) => Some(penalty),
            None => body.number("repeat_penalty", 0.01, 100.0)?,
        };
        let penalties = Penalties {
            repetition: repetition.unwrap_or(none.repetition),
            frequency: body.number("frequency_penalty", -2.0, 2.0)?.unwrap_or(none.frequency),
            presence: body.number("presence_penalty", -2.0, 2.0)?.unwrap_or(none.presence),
        };
        let completion = endpoint == Endpoint::Completion;
        Ok(Self {
            penalties,
            bias: read_bias(body, limits)?,
            logprobs: if completion { read_count(body, limits)? } else { read_top(body, limits)? },
            n: read_n(body, limits)?,
            echo: completion && body.flag("echo")?.unwrap_or(false),
        })
    }

    /// The scheduler's form. Ids outside the vocabulary are refused by name.
    pub(crate) fn guide(&self, vocab: usize) -> Result<Guide, ApiError> {
        if let Some(id) = self.bias.keys().find(|id| **id as usize >= vocab) {
            let reason = format!("token {id} is outside the vocabulary of {vocab}");
            return Err(ApiError::invalid(format!("logit_bias.{id}"), reason));
        }
        Ok(Guide {
            penalties: self.penalties,
            bias: self.bias.clone(),
            grammar: None,
            logprobs: self.logprobs,
            prompt_logprobs: self.logprobs.filter(|_| self.echo),
        })
    }
}

fn read_n(body: &Fields<'_>, limits: &Limits) -> Result<u32, ApiError> {
    let n = body.integer("n", 1)?.unwrap_or(1);
    let most = limits.choices_max;
    match u32::try_from(n) {
        Ok(n) if n <= most => Ok(n),
        _ => {
            let reason = format!("{n} choices, more than the limit of {most}");
            Err(ApiError::invalid(body.path("n"), reason))
        }
    }
}

fn read_bias(body: &Fields<'_>, limits: &Limits) -> Result<BTreeMap<u32, f64>, ApiError> {
    let Some(fields) = body.object("logit_bias")? else {
        return Ok(BTreeMap::new());
    };
    let (found, limit) = (fields.map().len(), limits.biases_max);
    if found > limit {
        let reason = format!("{found} tokens, more than the limit of {limit}");
        return Err(ApiError::invalid(body.path("logit_bias"), reason));
    }
    let mut bias = BTreeMap::new();
    for name in fields.map().keys() {
        let id = name.parse().map_err(|_| {
            let path = fields.path(&name.chars().take(32).collect::<String>());
            ApiError::invalid(path, "a key is a token id")
        })?;
        let value = fields.number(name, -100.0, 100.0)?;
        bias.insert(id, value.unwrap_or(0.0));
    }
    Ok(bias)
}

/// A chat's `logprobs` and `top_logprobs`.
fn read_top(body: &Fields<'_>, limits: &Limits) -> Result<Option<u32>, ApiError> {
    let asked = body.flag("logprobs")?.unwrap_or(false);
    let top = read_number_of(body, "top_logprobs", limits)?;
    match top {
        Some(1..) if !asked => {
            let reason = "needs 'logprobs' to be true";
            Err(ApiError::invalid(body.path("top_logprobs"), reason))
        }
        top => Ok(asked.then(|| top.unwrap_or(0))),
    }
}

/// A completion's `logprobs`, a number.
fn read_count(body: &Fields<'_>, limits: &Limits) -> Result<Option<u32>, ApiError> {
    match body.get("logprobs") {
        Some(Value::Bool(false)) => Ok(None),
        _ => read_number_of(body, "logprobs", limits),
    }
}

fn read_number_of(body: &Fields<'_>, name: &str, limits: &Limits) -> Result<Option<u32>, ApiError> {
    let Some(count) = body.integer(name, 0)? else {
        return Ok(None);
    };
    match u32::try_from(count) {
        Ok(count) if count <= limits.top_logprobs_max => Ok(Some(count)),
        _ => {
            let reason = format!("{count} is above the limit of {}", limits.top_logprobs_max);
            Err(ApiError::invalid(body.path(name), reason))
        }
    }
}

/// A list of texts within `count_max` items of 1 to `bytes_max` bytes.
pub(crate) fn read_texts(
    value: &Value,
    path: &str,
    count_max: usize,
    bytes_max: usize,
) -> Result<Vec<String>, ApiError> {
    let Value::Array(list) = value else {
        return Err(wrong_type(path, "an array of strings", value));
    };
    if list.is_empty() || list.len() > count_max {
        let reason = format!("{} texts, where 1 to {count_max} are served", list.len());
        return Err(ApiError::invalid(path, reason));
    }
    let one = |(i, value): (usize, &Value)| match value {
        Value::String(text) if text.is_empty() || text.len() > bytes_max => {
            let reason = format!("a text has 1 to {bytes_max} bytes, not {}", text.len());
            Err(ApiError::invalid(format!("{path}[{i}]"), reason))
        }
        Value::String(text) => Ok(text.clone()),
        other => Err(wrong_type(format!("{path}[{i}]"), "a string", other)),
    };
    list.iter().enumerate().map(one).collect()
}
