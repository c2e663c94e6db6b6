//! The keys of a family, each read so that a bad value names its key.

use super::{Metadata, Value};
use crate::WeightsError;

/// The keys `<family>.*`.
pub(crate) struct Keys<'a> {
    metadata: &'a Metadata,
    family: &'static str,
}

impl<'a> Keys<'a> {
    pub fn new(metadata: &'a Metadata, family: &'static str) -> Self {
        Self { metadata, family }
    }

    pub fn metadata(&self) -> &'a Metadata {
        self.metadata
    }

    pub fn name(&self, name: &str) -> String {
        format!("{}.{name}", self.family)
    }

    /// The refusal of key `name`, which holds `found`.
    pub fn bad(&self, name: &str, expected: String, found: impl ToString) -> WeightsError {
        WeightsError::KeyValue { key: self.name(name), expected, found: found.to_string() }
    }

    /// A count within limits, where there is one.
    pub fn optional(&self, name: &str, min: u32, max: u32) -> Result<Option<u32>, WeightsError> {
        match self.metadata.u32(&self.name(name))? {
            Some(found) if !(min..=max).contains(&found) => {
                Err(self.bad(name, format!("{min} to {max}"), found))
            }
            found => Ok(found),
        }
    }

    /// A count of at least 1.
    pub fn required(&self, name: &str, max: u32) -> Result<u32, WeightsError> {
        self.optional(name, 1, max)?.ok_or_else(|| WeightsError::MissingKey {
            key: self.name(name),
            expected: format!("1 to {max}"),
        })
    }

    /// A key that may be absent but not contradict.
    pub fn equal(&self, name: &str, expected: u32, why: &str) -> Result<(), WeightsError> {
        match self.optional(name, 0, u32::MAX)? {
            Some(found) if found != expected => {
                Err(self.bad(name, format!("{expected} ({why})"), found))
            }
            _ => Ok(()),
        }
    }

    /// A float above 0.
    pub fn float(&self, name: &str, default: Option<f64>, max: f64) -> Result<f64, WeightsError> {
        let key = self.name(name);
        let expected = format!("a float above 0, at most {max}");
        match self.metadata.f64(&key)?.or(default) {
            Some(x) if x > 0.0 && x <= max => Ok(x),
            Some(x) => Err(WeightsError::KeyValue { key, expected, found: x.to_string() }),
            None => Err(WeightsError::MissingKey { key, expected }),
        }
    }

    /// Tokens of the vocabulary: the token list's length, which `vocab_size` must not contradict.
    pub fn vocab(&self) -> Result<u32, WeightsError> {
        let key = "tokenizer.ggml.tokens";
        let Some(tokens) = self.metadata.strings(key)? else {
            return Err(WeightsError::MissingKey {
                key: key.to_owned(),
                expected: "the list of tokens".to_owned(),
            });
        };
        let vocab = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        self.equal("vocab_size", vocab, "the token list's length")?;
        Ok(vocab)
    }

    /// Refuses each key of the family whose `refusal` is what it may hold instead: it would change
    /// what the model computes and is not implemented. A key that is not known may be such a one,
    /// so it is to be refused too.
    pub fn refuse_others(
        &self,
        refusal: impl Fn(&str, &Value) -> Option<&'static str>,
    ) -> Result<(), WeightsError> {
        for key in self.metadata.keys() {
            let name = key.strip_prefix(self.family).and_then(|rest| rest.strip_prefix('.'));
            let (Some(name), Some(value)) = (name, self.metadata.get(key)) else {
                continue;
            };
            if let Some(expected) = refusal(name, value) {
                return Err(WeightsError::UnsupportedKey {
                    key: key.to_owned(),
                    expected: expected.to_owned(),
                    found: describe(value),
                });
            }
        }
        Ok(())
    }
}

fn describe(value: &Value) -> String {
    match value {
        Value::Unsigned(n) => n.to_string(),
        Value::Signed(n) => n.to_string(),
        Value::Float(x) => x.to_string(),
        Value::Bool(b) => b.to_string(),
        Value::String(text) => format!("`{}`", text.chars().take(64).collect::<String>()),
        Value::Array(_) => value.kind().to_owned(),
    }
}
