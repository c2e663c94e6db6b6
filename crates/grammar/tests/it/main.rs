//! Grammars over a byte-level tokenizer: whatever the model wants, what it says follows the form.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(missing_docs, reason = "tests")]

use baton_grammar::{Body, CallForm, Form, Function, GrammarError, Grammars};
use sched::sample::{Mask, Sampling, Verdict, draw};
use serde_json::{Value, json};
use text::Text;

mod cost;
mod forms;
mod limits;

/// Tokens after which a reply counts as endless.
const TOKENS_MAX: u32 = 4_000;

pub fn form(body: Body) -> Form {
    Form { open: None, after: None, body }
}

/// A model that likes `wishes` in order where it may say them, and everything a little.
pub fn reply(mask: &mut dyn Mask, vocab: usize, wishes: &str, seed: u64) -> Result<String, String> {
    let text = Text::byte_level();
    let mut wishes = wishes.bytes().peekable();
    let mut said = Vec::new();
    for position in 0..TOKENS_MAX {
        let mut logits = vec![0.0; vocab];
        // Ends are liked: quotes, braces, the end of the reply.
        for &id in b"\"}]".iter() {
            logits[usize::from(id)] = 3.0;
        }
        text.stop_tokens().iter().for_each(|&id| logits[id as usize] = 4.0);
        if let Some(&wish) = wishes.peek() {
            logits[usize::from(wish)] = 100.0;
        }
        match mask.cut(&mut logits) {
            Verdict::Over => return Ok(String::from_utf8(said).unwrap()),
            Verdict::Failed(reason) => return Err(reason),
            Verdict::Cut => {}
        }
        let sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed };
        let id = draw(&logits, &sampling, position);
        assert!(logits[id as usize].is_finite(), "a masked token");
        if text.stop_tokens().contains(&id) {
            return Ok(String::from_utf8(said).unwrap());
        }
        if wishes.peek().is_some_and(|wish| u32::from(*wish) == id) {
            wishes.next();
        }
        said.push(u8::try_from(id).unwrap());
        mask.push(id);
    }
    Err("no end".into())
}

pub fn says(form: &Form, wishes: &str, seed: u64) -> String {
    let text = Text::byte_level();
    let grammars = Grammars::new(&text).unwrap();
    let grammar = grammars.compile(form).unwrap();
    reply(&mut *grammar.start(), text.vocab(), wishes, seed).unwrap()
}

pub fn functions() -> Vec<Function> {
    let properties = json!({
        "city": {"type": "string"}, "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"], "type": "string"},
    });
    let weather = json!({
        "type": "object", "properties": properties, "required": ["city", "days"],
        "additionalProperties": false,
    });
    let clock = json!({"type": "object", "properties": {}, "additionalProperties": false});
    vec![
        Function { name: "weather".into(), parameters: weather },
        Function { name: "clock".into(), parameters: clock },
    ]
}

pub fn calls(form: CallForm, several: bool) -> Form {
    self::form(Body::Calls { form, functions: functions(), several })
}

pub fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{text:?}: {e}"))
}

pub fn refused(form: &Form) -> GrammarError {
    Grammars::new(&Text::byte_level()).unwrap().compile(form).unwrap_err()
}
