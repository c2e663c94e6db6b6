//! The JSON of replies: whole objects and the chunks of a stream, as OpenAI's clients read them.

use serde_json::{Map, Value, json};

use crate::{Asked, Ending, Endpoint, Piece};

/// What every object of one reply repeats.
#[derive(Clone, Debug)]
pub struct Shape {
    endpoint: Endpoint,
    id: String,
    created: u64,
    model: String,
    prompt_tokens: u32,
    include_usage: bool,
    token_ids: bool,
}

impl Shape {
    /// For the reply to `asked`. `id` is unique, `created` in Unix seconds; `model` is named
    /// where the client named none.
    pub fn new(asked: &Asked, id: &str, created: u64, model: &str, prompt_tokens: u32) -> Self {
        let prefix = match asked.endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Completion => "cmpl",
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
        }
    }

    /// The whole reply.
    pub fn whole(&self, piece: Piece, ending: Ending) -> Value {
        let (object, content) = match self.endpoint {
            Endpoint::Chat => {
                let message = json!({
                    "role": "assistant", "content": piece.text, "refusal": null,
                });
                ("chat.completion", ("message", message))
            }
            Endpoint::Completion => ("text_completion", ("text", piece.text.into())),
        };
        let choice = self.choice(content, Some(ending.finish_reason), piece.ids);
        let mut whole = self.object(object, json!([choice]));
        whole["usage"] = self.usage(ending);
        whole
    }

    /// A stream's first chunk: the role of what follows. Completions have none.
    pub fn opening(&self) -> Option<Value> {
        let delta = json!({"role": "assistant", "content": ""});
        match self.endpoint {
            Endpoint::Chat => Some(self.chunk(("delta", delta), None, Vec::new())),
            Endpoint::Completion => None,
        }
    }

    /// A chunk of text.
    pub fn piece(&self, piece: Piece) -> Value {
        let content = match self.endpoint {
            Endpoint::Chat => ("delta", json!({"content": piece.text})),
            Endpoint::Completion => ("text", piece.text.into()),
        };
        self.chunk(content, None, piece.ids)
    }

    /// The chunks that end a stream: the finish reason, then the usage where asked for.
    pub fn closing(&self, ids: Vec<u32>, ending: Ending) -> Vec<Value> {
        let content = match self.endpoint {
            Endpoint::Chat => ("delta", json!({})),
            Endpoint::Completion => ("text", "".into()),
        };
        let mut chunks = vec![self.chunk(content, Some(ending.finish_reason), ids)];
        if self.include_usage {
            let mut usage = self.object(self.chunk_object(), json!([]));
            usage["usage"] = self.usage(ending);
            chunks.push(usage);
        }
        chunks
    }

    fn chunk(&self, content: (&str, Value), finish: Option<&str>, ids: Vec<u32>) -> Value {
        let choice = self.choice(content, finish, ids);
        let mut chunk = self.object(self.chunk_object(), json!([choice]));
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn choice(&self, content: (&str, Value), finish: Option<&str>, ids: Vec<u32>) -> Value {
        let mut choice = Map::new();
        choice.insert("index".into(), 0.into());
        choice.insert(content.0.into(), content.1);
        choice.insert("logprobs".into(), Value::Null);
        choice.insert("finish_reason".into(), json!(finish));
        if self.token_ids {
            choice.insert("token_ids".into(), json!(ids));
        }
        Value::Object(choice)
    }

    fn chunk_object(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completion => "text_completion",
        }
    }

    fn object(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "choices": choices,
        })
    }

    fn usage(&self, ending: Ending) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": ending.completion_tokens,
            "total_tokens": u64::from(self.prompt_tokens) + u64::from(ending.completion_tokens),
        })
    }
}
