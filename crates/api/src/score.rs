//! Log probabilities as JSON: a chat's form and a completion's.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use text::Text;

use crate::Scored;

/// Writes tokens with their log probabilities.
pub(crate) struct Scores {
    text: Arc<Text>,
}

impl Scores {
    pub fn new(text: Arc<Text>) -> Self {
        Self { text }
    }

    fn word(&self, id: u32) -> String {
        String::from_utf8_lossy(self.text.token_bytes(id)).into_owned()
    }

    /// `{"content": [{token, logprob, bytes, top_logprobs}]}`.
    pub fn chat(&self, scored: &[Scored]) -> Value {
        let entry = |id: u32, value: f32| {
            let bytes = self.text.token_bytes(id);
            json!({"token": self.word(id), "logprob": value, "bytes": bytes})
        };
        let tokens = scored.iter().filter_map(|(id, logprobs)| {
            let logprobs = logprobs.as_ref()?;
            let mut token = entry(*id, logprobs.own);
            let top: Vec<Value> = logprobs.top.iter().map(|(id, x)| entry(*id, *x)).collect();
            token["top_logprobs"] = top.into();
            Some(token)
        });
        json!({"content": tokens.collect::<Vec<_>>(), "refusal": null})
    }

    /// `{tokens, token_logprobs, top_logprobs, text_offset}`, offsets in characters.
    pub fn completion(&self, scored: &[Scored], from: usize) -> Value {
        let (mut tokens, mut values, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
        let mut at = from;
        for (id, logprobs) in scored {
            let word = self.word(*id);
            offsets.push(at);
            at += if self.text.is_control(*id) { 0 } else { word.chars().count() };
            tokens.push(word);
            values.push(logprobs.as_ref().map(|l| l.own));
            tops.push(logprobs.as_ref().map_or(Value::Null, |logprobs| {
                let mut top = Map::new();
                for (id, value) in &logprobs.top {
                    top.entry(self.word(*id)).or_insert_with(|| json!(value));
                }
                top.insert(self.word(*id), json!(logprobs.own));
                top.into()
            }));
        }
        json!({
            "tokens": tokens, "token_logprobs": values, "top_logprobs": tops,
            "text_offset": offsets,
        })
    }
}
