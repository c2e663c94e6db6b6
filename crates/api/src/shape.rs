//! The JSON of chats and completions: whole objects and the chunks of a stream, as OpenAI's
//! clients read them.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use text::Text;

use crate::dialect::{Dialect, Sse};
use crate::score::Scores;
use crate::speech::Part;
use crate::{ApiError, Asked, Ending, Endpoint, Piece, Place, Run};

/// What every object of one request's replies repeats.
pub struct Shape {
    endpoint: Endpoint,
    id: String,
    created: u64,
    model: String,
    prompt_tokens: u32,
    include_usage: bool,
    token_ids: bool,
    choices: Vec<Choice>,
    scores: Option<Scores>,
    completion_tokens: u32,
    reasoning_tokens: u32,
    place: Place,
    /// What each reply took.
    runs: Vec<Run>,
}

/// What one object says of a choice.
struct Said {
    /// `delta`, `message` or `text`, and what it holds.
    content: (&'static str, Value),
    finish: Option<&'static str>,
    ids: Vec<u32>,
    scores: Value,
}

impl Said {
    fn of(content: (&'static str, Value)) -> Self {
        Self { content, finish: None, ids: Vec::new(), scores: Value::Null }
    }
}

/// What a stream has said of one reply.
#[derive(Clone, Default)]
struct Choice {
    calls: u32,
    /// Characters.
    length: usize,
}

impl Shape {
    /// For the replies to `asked`. `id` is unique, `created` in Unix seconds; `model` is named
    /// where the client named none.
    pub fn new(
        asked: &Asked,
        text: &Arc<Text>,
        id: &str,
        created: u64,
        model: &str,
        prompt_tokens: u32,
    ) -> Self {
        let prefix = match asked.endpoint {
            Endpoint::Completion => "cmpl",
            _ => "chatcmpl",
        };
        let options = &asked.options;
        Self {
            endpoint: asked.endpoint,
            id: format!("{prefix}-{id}"),
            created,
            model: options.model.clone().unwrap_or_else(|| model.to_owned()),
            prompt_tokens,
            include_usage: options.include_usage,
            token_ids: options.return_token_ids,
            choices: vec![Choice::default(); options.draws.n as usize],
            scores: options.draws.logprobs.map(|_| Scores::new(text.clone())),
            completion_tokens: 0,
            reasoning_tokens: 0,
            place: Place::default(),
            runs: vec![Run::default(); options.draws.n as usize],
        }
    }

    /// Says where the replies are computed.
    #[must_use]
    pub fn at(mut self, place: Place) -> Self {
        self.place = place;
        self
    }

    fn is_chat(&self) -> bool {
        self.endpoint != Endpoint::Completion
    }

    /// A chat's message.
    fn message(&mut self, index: usize, parts: Vec<Part>) -> Value {
        let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
        for part in parts {
            match part {
                Part::Content(text) => content += &text,
                Part::Reasoning(text) => reasoning += &text,
                Part::Call { name, arguments } => {
                    calls.push(json!({
                        "id": self.call_id(index, calls.len() as u32), "type": "function",
                        "function": {"name": name, "arguments": arguments},
                    }));
                }
            }
        }
        let silent = content.is_empty() && !calls.is_empty();
        let content = if silent { Value::Null } else { content.into() };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        message
    }

    fn call_id(&self, index: usize, call: u32) -> String {
        let id = self.id.rsplit('-').next().unwrap_or_default();
        format!("call_{id}_{index}_{call}")
    }

    /// The deltas of a part.
    fn deltas(&mut self, index: usize, part: Part) -> Vec<Value> {
        match part {
            Part::Content(text) => vec![json!({"content": text})],
            Part::Reasoning(text) => vec![json!({"reasoning_content": text})],
            Part::Call { name, arguments } => {
                let call = self.choices[index].calls;
                self.choices[index].calls += 1;
                let opening = json!({
                    "index": call, "id": self.call_id(index, call), "type": "function",
                    "function": {"name": name, "arguments": ""},
                });
                let rest = json!({"index": call, "function": {"arguments": arguments}});
                vec![json!({"tool_calls": [opening]}), json!({"tool_calls": [rest]})]
            }
        }
    }

    fn chunks(&mut self, index: usize, piece: Piece) -> Vec<Sse> {
        let Piece { parts, ids, scored } = piece;
        let mut contents = Vec::new();
        for part in parts {
            if self.is_chat() {
                contents.extend(self.deltas(index, part).into_iter().map(|d| ("delta", d)));
            } else if let Part::Content(text) = part {
                contents.push(("text", text.into()));
            }
        }
        if contents.is_empty() {
            if ids.is_empty() {
                return Vec::new();
            }
            contents.push(if self.is_chat() { ("delta", json!({})) } else { ("text", "".into()) });
        }
        let last = contents.len() - 1;
        let (mut ids, mut scored) = (Some(ids), Some(scored));
        let mut chunks = Vec::new();
        for (n, content) in contents.into_iter().enumerate() {
            let (ids, scored) = if n == last {
                (ids.take().unwrap_or_default(), scored.take().unwrap_or_default())
            } else {
                Default::default()
            };
            let scores = self.scores(index, &content.1, &scored);
            let said = Said { ids, scores, ..Said::of(content) };
            chunks.push(Sse::data(self.chunk(index, said)));
        }
        chunks
    }

    fn scores(&mut self, index: usize, content: &Value, scored: &[crate::Scored]) -> Value {
        let Some(scores) = &self.scores else {
            return Value::Null;
        };
        if scored.is_empty() {
            return Value::Null;
        }
        if self.endpoint != Endpoint::Completion {
            return scores.chat(scored);
        }
        let from = self.choices[index].length;
        self.choices[index].length += content.as_str().map_or(0, |text| text.chars().count());
        scores.completion(scored, from)
    }

    fn chunk(&self, index: usize, said: Said) -> Value {
        let choice = self.choice(index, said);
        let mut chunk = self.object(self.chunk_object(), json!([choice]));
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn choice(&self, index: usize, said: Said) -> Value {
        let Said { content, finish, ids, scores } = said;
        let mut choice = Map::new();
        choice.insert("index".into(), index.into());
        choice.insert(content.0.into(), content.1);
        choice.insert("logprobs".into(), scores);
        choice.insert("finish_reason".into(), json!(finish));
        if self.token_ids {
            choice.insert("token_ids".into(), json!(ids));
        }
        Value::Object(choice)
    }

    fn chunk_object(&self) -> &'static str {
        if self.is_chat() { "chat.completion.chunk" } else { "text_completion" }
    }

    fn object(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "choices": choices,
        })
    }

    fn count(&mut self, choice: usize, ending: Ending) {
        self.runs[choice] = ending.run;
        self.completion_tokens += ending.completion_tokens;
        self.reasoning_tokens += ending.reasoning_tokens;
    }

    /// The proof of the reply, or of each of several.
    fn proof(&self) -> Value {
        match self.runs.as_slice() {
            [run] => run.proof(&self.place),
            runs => runs.iter().map(|run| run.proof(&self.place)).collect(),
        }
    }

    fn usage(&self) -> Value {
        let cached = self.runs.iter().map(|run| run.cached_tokens).min().unwrap_or(0);
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": u64::from(self.prompt_tokens) + u64::from(self.completion_tokens),
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        })
    }
}

impl Dialect for Shape {
    fn opening(&mut self) -> Vec<Sse> {
        if !self.is_chat() {
            return Vec::new();
        }
        let delta = || ("delta", json!({"role": "assistant", "content": ""}));
        let chunk = |n| Sse::data(self.chunk(n, Said::of(delta())));
        (0..self.choices.len()).map(chunk).collect()
    }

    fn piece(&mut self, choice: usize, piece: Piece) -> Vec<Sse> {
        self.chunks(choice, piece)
    }

    fn closing(&mut self, choice: usize, mut piece: Piece, ending: Ending) -> Vec<Sse> {
        self.count(choice, ending);
        let (mut ids, mut scored) = (Vec::new(), Vec::new());
        if piece.parts.is_empty() {
            ids = std::mem::take(&mut piece.ids);
            scored = std::mem::take(&mut piece.scored);
        }
        let mut chunks = self.chunks(choice, piece);
        let content = if self.is_chat() { ("delta", json!({})) } else { ("text", "".into()) };
        let scores = self.scores(choice, &content.1, &scored);
        let finish = Some(ending.finish_reason);
        let mut last = self.chunk(choice, Said { content, finish, ids, scores });
        if !self.include_usage {
            last["baton"] = ending.run.proof(&self.place);
        }
        chunks.push(Sse::data(last));
        chunks
    }

    fn end(&mut self) -> Vec<Sse> {
        if !self.include_usage {
            return Vec::new();
        }
        let mut usage = self.object(self.chunk_object(), json!([]));
        usage["usage"] = self.usage();
        usage["baton"] = self.proof();
        vec![Sse::data(usage)]
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Sse> {
        vec![Sse::data(error.body())]
    }

    fn last(&self) -> &'static str {
        "data: [DONE]\n\n"
    }

    fn whole(&mut self, choices: Vec<(Piece, Ending)>) -> Value {
        let mut list = Vec::with_capacity(choices.len());
        for (index, (piece, ending)) in choices.into_iter().enumerate() {
            self.count(index, ending);
            let text = piece.text();
            let content = match self.endpoint {
                Endpoint::Completion => ("text", text.into()),
                _ => ("message", self.message(index, piece.parts)),
            };
            let scores = self.scores(index, &content.1, &piece.scored);
            let finish = Some(ending.finish_reason);
            list.push(self.choice(index, Said { content, finish, ids: piece.ids, scores }));
        }
        let object = if self.is_chat() { "chat.completion" } else { "text_completion" };
        let mut whole = self.object(object, list.into());
        whole["usage"] = self.usage();
        whole["baton"] = self.proof();
        whole
    }
}
