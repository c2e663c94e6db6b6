//! A message as one object and as events.

use serde_json::{Value, json};

use crate::{ApiError, Asked, Dialect, Ending, Part, Piece, Place, Sse};

/// Writes one message.
pub(crate) struct Writer {
    id: String,
    model: String,
    prompt_tokens: u32,
    stop: Vec<String>,
    /// Blocks begun.
    blocks: usize,
    /// Type of the newest, while it is open.
    open: Option<&'static str>,
    ending: Option<Ending>,
    place: Place,
}

/// An error in Anthropic's shape.
pub(crate) fn error_body(error: &ApiError) -> Value {
    let kind = match error.status() {
        401 => "authentication_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    let message = error.to_string();
    json!({"type": "error", "error": {"type": kind, "message": message, "param": error.param()}})
}

impl Writer {
    pub fn new(asked: &Asked, id: &str, model: &str, prompt_tokens: u32) -> Self {
        Self {
            id: format!("msg_{id}"),
            model: asked.options.model.clone().unwrap_or_else(|| model.to_owned()),
            prompt_tokens,
            stop: asked.options.stop.clone(),
            blocks: 0,
            open: None,
            ending: None,
            place: Place::default(),
        }
    }

    /// The same message, computed there.
    pub fn at(self, place: Place) -> Self {
        Self { place, ..self }
    }

    /// Anthropic's `input_tokens` are those that no cache had.
    fn usage(&self) -> Value {
        let cached = self.ending.map_or(0, |ending| ending.run.cached_tokens);
        json!({
            "input_tokens": self.prompt_tokens - cached.min(self.prompt_tokens),
            "cache_read_input_tokens": cached,
            "output_tokens": self.ending.map_or(0, |ending| ending.completion_tokens),
        })
    }

    fn proof(&self) -> Option<Value> {
        self.ending.map(|ending| ending.run.proof(&self.place))
    }

    fn message(&self, content: Vec<Value>) -> Value {
        let (reason, sequence) = self.stopped();
        let mut message = json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model,
            "content": content, "stop_reason": reason, "stop_sequence": sequence,
            "usage": self.usage(),
        });
        if let Some(proof) = self.proof() {
            message["baton"] = proof;
        }
        message
    }

    /// Why it ended; a stop sequence by name where only one was asked for.
    fn stopped(&self) -> (Option<&'static str>, Option<&String>) {
        let Some(ending) = self.ending else {
            return (None, None);
        };
        match ending.finish_reason {
            "length" => (Some("max_tokens"), None),
            "tool_calls" => (Some("tool_use"), None),
            _ if ending.by_string => {
                let only = if self.stop.len() == 1 { self.stop.first() } else { None };
                (Some("stop_sequence"), only)
            }
            _ => (Some("end_turn"), None),
        }
    }

    fn call_id(&self) -> String {
        format!("toolu_{}_{}", self.id.trim_start_matches("msg_"), self.blocks)
    }

    /// A part's block as it begins, and its delta.
    fn block(&self, part: Part) -> (&'static str, Value, Value) {
        match part {
            Part::Content(text) => (
                "text",
                json!({"type": "text", "text": ""}),
                json!({"type": "text_delta", "text": text}),
            ),
            Part::Reasoning(text) => (
                "thinking",
                json!({"type": "thinking", "thinking": "", "signature": ""}),
                json!({"type": "thinking_delta", "thinking": text}),
            ),
            Part::Call { name, arguments } => (
                "tool_use",
                json!({"type": "tool_use", "id": self.call_id(), "name": name, "input": {}}),
                json!({"type": "input_json_delta", "partial_json": arguments}),
            ),
        }
    }

    fn close(&mut self, events: &mut Vec<Sse>) {
        if self.open.take().is_some() {
            let data = json!({"index": self.blocks - 1});
            events.push(Sse::named("content_block_stop", data));
        }
    }
}

impl Dialect for Writer {
    fn opening(&mut self) -> Vec<Sse> {
        let data = json!({"message": self.message(Vec::new())});
        vec![Sse::named("message_start", data), Sse::named("ping", json!({}))]
    }

    fn piece(&mut self, _: usize, piece: Piece) -> Vec<Sse> {
        let mut events = Vec::new();
        for part in piece.parts {
            let (kind, begun, delta) = self.block(part);
            if self.open != Some(kind) || kind == "tool_use" {
                self.close(&mut events);
                let data = json!({"index": self.blocks, "content_block": begun});
                events.push(Sse::named("content_block_start", data));
                self.blocks += 1;
                self.open = Some(kind);
            }
            let data = json!({"index": self.blocks - 1, "delta": delta});
            events.push(Sse::named("content_block_delta", data));
        }
        events
    }

    fn closing(&mut self, choice: usize, piece: Piece, ending: Ending) -> Vec<Sse> {
        let mut events = self.piece(choice, piece);
        self.close(&mut events);
        self.ending = Some(ending);
        events
    }

    fn end(&mut self) -> Vec<Sse> {
        let (reason, sequence) = self.stopped();
        let data = json!({
            "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": self.usage(),
            "baton": self.proof(),
        });
        vec![Sse::named("message_delta", data), Sse::named("message_stop", json!({}))]
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Sse> {
        vec![Sse::named("error", error_body(error))]
    }

    fn whole(&mut self, choices: Vec<(Piece, Ending)>) -> Value {
        let mut content = Vec::new();
        for (piece, ending) in choices {
            for part in piece.parts {
                let (_, mut block, _) = self.block(part.clone());
                match part {
                    Part::Content(text) => block["text"] = text.into(),
                    Part::Reasoning(text) => block["thinking"] = text.into(),
                    Part::Call { arguments, .. } => {
                        block["input"] = serde_json::from_str(&arguments).unwrap_or_default();
                    }
                }
                self.blocks += 1;
                content.push(block);
            }
            self.ending = Some(ending);
        }
        self.message(content)
    }
}
