//! A response as one object and as events.

use std::sync::Arc;

use serde_json::{Value, json};

use super::ask::call_on;
use super::{Kept, Session, Store};
use crate::{ApiError, Asked, Dialect, Ending, Part, Piece, Place, Sse};

/// What the newest item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Nothing,
    Message,
    Reasoning,
}

/// Writes one response.
pub(crate) struct Writer {
    id: String,
    created: u64,
    model: String,
    prompt_tokens: u32,
    session: Session,
    store: Arc<Store>,
    output: Vec<Value>,
    open: Open,
    ending: Option<Ending>,
    sequence: u64,
    place: Place,
}

impl Writer {
    pub fn new(
        asked: &Asked,
        session: Session,
        store: Arc<Store>,
        (id, created): (&str, u64),
        model: &str,
        prompt_tokens: u32,
    ) -> Self {
        Self {
            id: format!("resp_{id}"),
            created,
            model: asked.options.model.clone().unwrap_or_else(|| model.to_owned()),
            prompt_tokens,
            session,
            store,
            output: Vec::new(),
            open: Open::Nothing,
            ending: None,
            sequence: 0,
            place: Place::default(),
        }
    }

    /// The same response, computed there.
    pub fn at(self, place: Place) -> Self {
        Self { place, ..self }
    }

    fn response(&self) -> Value {
        let long = self.ending.is_some_and(|ending| ending.finish_reason == "length");
        let status = match self.ending {
            None => "in_progress",
            Some(_) if long => "incomplete",
            Some(_) => "completed",
        };
        let mut response = json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status,
            "error": null, "model": self.model, "output": self.output, "usage": null,
            "incomplete_details": long.then(|| json!({"reason": "max_output_tokens"})),
            "store": self.session.store,
        });
        if let Some(ending) = self.ending {
            response["baton"] = ending.run.proof(&self.place);
            response["usage"] = json!({
                "input_tokens": self.prompt_tokens,
                "input_tokens_details": {"cached_tokens": ending.run.cached_tokens},
                "output_tokens": ending.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": ending.reasoning_tokens},
                "total_tokens": self.prompt_tokens + ending.completion_tokens,
            });
        }
        if let Value::Object(map) = &mut response {
            map.extend(self.session.repeated.clone());
        }
        response
    }

    fn event(&mut self, name: &'static str, mut data: Value) -> Sse {
        data["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        Sse::named(name, data)
    }

    fn item_id(&self, kind: &str) -> String {
        let id = self.id.trim_start_matches("resp_");
        format!("{kind}_{id}_{}", self.output.len())
    }

    /// Begins an item; its events.
    fn begin(&mut self, item: Value, events: &mut Vec<Sse>) {
        let index = self.output.len();
        self.output.push(item.clone());
        let data = json!({"output_index": index, "item": item});
        events.push(self.event("response.output_item.added", data));
    }

    /// Where an item's events belong.
    fn place(&self) -> Value {
        let index = self.output.len() - 1;
        json!({"item_id": self.output[index]["id"], "output_index": index, "content_index": 0})
    }

    fn say(&mut self, part: Part, events: &mut Vec<Sse>) {
        match part {
            Part::Content(text) => self.speak(Open::Message, &text, events),
            Part::Reasoning(text) => self.speak(Open::Reasoning, &text, events),
            Part::Call { name, arguments } => {
                self.close(events);
                let id = self.item_id("fc");
                let call_id = self.item_id("call");
                let mut item = json!({
                    "id": id, "type": "function_call", "status": "in_progress",
                    "call_id": call_id, "name": name, "arguments": "",
                });
                self.begin(item.clone(), events);
                let mut place = self.place();
                place["delta"] = arguments.clone().into();
                events.push(self.event("response.function_call_arguments.delta", place.clone()));
                place["arguments"] = arguments.clone().into();
                place["name"] = name.into();
                events.push(self.event("response.function_call_arguments.done", place));
                item["arguments"] = arguments.into();
                self.end_item(item, events);
            }
        }
    }

    fn speak(&mut self, open: Open, text: &str, events: &mut Vec<Sse>) {
        let message = open == Open::Message;
        if self.open != open {
            self.close(events);
            self.open = open;
            let item = if message {
                json!({
                    "id": self.item_id("msg"), "type": "message", "status": "in_progress",
                    "role": "assistant", "content": [],
                })
            } else {
                json!({
                    "id": self.item_id("rs"), "type": "reasoning", "status": "in_progress",
                    "summary": [], "content": [],
                })
            };
            self.begin(item, events);
            let mut place = self.place();
            place["part"] = part(open, "");
            events.push(self.event("response.content_part.added", place));
            if let Some(item) = self.output.last_mut() {
                item["content"] = json!([part(open, "")]);
            }
        }
        if let Some(Value::String(said)) =
            self.output.last_mut().and_then(|item| item["content"][0].get_mut("text"))
        {
            said.push_str(text);
        }
        let mut place = self.place();
        place["delta"] = text.into();
        let name = if message {
            place["logprobs"] = json!([]);
            "response.output_text.delta"
        } else {
            "response.reasoning_text.delta"
        };
        events.push(self.event(name, place));
    }

    /// Ends the item that is open.
    fn close(&mut self, events: &mut Vec<Sse>) {
        let open = std::mem::replace(&mut self.open, Open::Nothing);
        let Some(item) = self.output.last().filter(|_| open != Open::Nothing).cloned() else {
            return;
        };
        let mut place = self.place();
        place["text"] = item["content"][0]["text"].clone();
        let name = if open == Open::Message {
            place["logprobs"] = json!([]);
            "response.output_text.done"
        } else {
            "response.reasoning_text.done"
        };
        events.push(self.event(name, place));
        let mut place = self.place();
        place["part"] = item["content"][0].clone();
        events.push(self.event("response.content_part.done", place));
        self.end_item(item, events);
    }

    fn end_item(&mut self, mut item: Value, events: &mut Vec<Sse>) {
        item["status"] = "completed".into();
        let index = self.output.len() - 1;
        self.output[index] = item.clone();
        let data = json!({"output_index": index, "item": item});
        events.push(self.event("response.output_item.done", data));
    }

    /// Keeps it, where it is to be kept.
    fn keep(&self) {
        if !self.session.store {
            return;
        }
        let mut messages = self.session.messages.clone();
        for item in &self.output {
            match item["type"].as_str() {
                Some("message") => {
                    let content = item["content"][0]["text"].clone();
                    messages.push(json!({"role": "assistant", "content": content}));
                }
                Some("function_call") => {
                    let function = json!({"name": item["name"], "arguments": item["arguments"]});
                    let id = item["call_id"].clone();
                    let call = json!({"id": id, "type": "function", "function": function});
                    call_on(&mut messages, call);
                }
                _ => {}
            }
        }
        let kept = Kept { response: self.response(), messages };
        self.store.put(&self.session.owner, &self.id, kept);
    }
}

fn part(open: Open, text: &str) -> Value {
    match open {
        Open::Reasoning => json!({"type": "reasoning_text", "text": text}),
        _ => json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
    }
}

impl Dialect for Writer {
    fn opening(&mut self) -> Vec<Sse> {
        let response = self.response();
        let created = self.event("response.created", json!({"response": response}));
        vec![created, self.event("response.in_progress", json!({"response": response}))]
    }

    fn piece(&mut self, _: usize, piece: Piece) -> Vec<Sse> {
        let mut events = Vec::new();
        piece.parts.into_iter().for_each(|part| self.say(part, &mut events));
        events
    }

    fn closing(&mut self, choice: usize, piece: Piece, ending: Ending) -> Vec<Sse> {
        let mut events = self.piece(choice, piece);
        self.close(&mut events);
        self.ending = Some(ending);
        events
    }

    fn end(&mut self) -> Vec<Sse> {
        self.keep();
        let response = self.response();
        let name = match response["status"].as_str() {
            Some("incomplete") => "response.incomplete",
            _ => "response.completed",
        };
        vec![self.event(name, json!({"response": response}))]
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Sse> {
        let mut response = self.response();
        response["status"] = "failed".into();
        response["error"] = json!({"code": error.code(), "message": error.to_string()});
        vec![self.event("response.failed", json!({"response": response}))]
    }

    fn whole(&mut self, choices: Vec<(Piece, Ending)>) -> Value {
        for (piece, ending) in choices {
            self.closing(0, piece, ending);
        }
        self.keep();
        self.response()
    }
}
