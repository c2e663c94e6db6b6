//! What a request's owner asks for, and what it hears.

use crate::sample;

/// What a client asked for, in tokens.
#[derive(Clone, Debug)]
pub struct Request {
    /// Prompt, at least one token.
    pub prompt: Vec<u32>,
    /// Most reply tokens, at least one.
    pub max_tokens: u32,
    /// Tokens that end the reply (not part of it); empty with `ignore_eos`.
    pub stop_tokens: Vec<u32>,
    /// How tokens are drawn.
    pub sampling: sample::Sampling,
    /// What else shapes the draws, and what is told about them.
    pub guide: sample::Guide,
    /// Asks for the logits of every prompt row, as [`Event::PromptLogits`] (checks and oracles).
    pub prompt_logits: bool,
    /// Asks for a running hash of every logits row that a token was drawn from.
    pub hash_logits: bool,
    /// Whether tokens may be guessed ahead. The reply's bytes are the same either way.
    pub draft: bool,
    /// Where messages of the prompt start, ascending: places that other prompts may share up to.
    pub marks: Vec<u32>,
    /// Whether it may start from kept states, and leave some. The bytes are the same either way.
    pub cached: bool,
}

impl Default for Request {
    /// An empty prompt, greedy, one token.
    fn default() -> Self {
        let sampling =
            sample::Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };
        Self {
            prompt: Vec::new(),
            max_tokens: 1,
            stop_tokens: Vec::new(),
            sampling,
            guide: sample::Guide::default(),
            prompt_logits: false,
            hash_logits: false,
            draft: true,
            marks: Vec::new(),
            cached: true,
        }
    }
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop token.
    Stop,
    /// `max_tokens`, or the context is full.
    Length,
    /// Cancelled by whoever asked.
    Cancelled,
}

/// What a request's owner hears. `Done` or `Failed` is the last.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// Logits of prompt rows `first ..`, `rows * vocab` values.
    PromptLogits {
        /// Position of the first row.
        first: u32,
        /// Values.
        logits: Vec<f32>,
    },
    /// The next token of the reply. A stop token is not announced.
    Token {
        /// Its id.
        id: u32,
        /// Where asked for.
        logprobs: Option<Box<sample::Logprobs>>,
    },
    /// Log probabilities of the prompt's tokens at positions `first ..`, in order; no token but
    /// the first is left out in the end.
    PromptLogprobs {
        /// Position of the first of them.
        first: u32,
        /// One a token.
        logprobs: Vec<sample::Logprobs>,
    },
    /// The reply is complete.
    Done {
        /// Why.
        finish: Finish,
        /// Prompt tokens.
        prompt_tokens: u32,
        /// Reply tokens announced.
        reply_tokens: u32,
        /// SHA-256 of the logits rows (f32 little-endian, in order), where asked for.
        logits_sha256: Option<[u8; 32]>,
        /// Prompt tokens that were not computed, since a kept state had them.
        cached: u32,
        /// Tokens that were guessed ahead and computed.
        drafted: u32,
        /// Those of them that the reply has.
        accepted: u32,
    },
    /// The reply can't be completed.
    Failed(Failure),
}

/// Why a stream failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The stream's logits hold NaN or infinity.
    #[error("NonfiniteLogits: position {position}")]
    NonfiniteLogits {
        /// Position of the row.
        position: u32,
    },
    /// The reply can't follow its grammar.
    #[error("the reply can't follow its grammar: {0}")]
    Grammar(String),
    /// The ring broke; the text names the rank and the reason.
    #[error("{0}")]
    Ring(String),
    /// The server shuts down.
    #[error("the server is shutting down")]
    Draining,
}

/// Why a request was not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Prompt and reply can never fit.
    #[error(
        "this server's maximum context length is {context_max} tokens; the prompt has {prompt}"
    )]
    TooLong {
        /// Prompt tokens.
        prompt: u32,
        /// Limit.
        context_max: u32,
    },
    /// The queue is full.
    #[error("{waiting} requests are waiting, as many as this server allows")]
    QueueFull {
        /// Requests waiting.
        waiting: u32,
    },
    /// An empty prompt.
    #[error("the prompt has no tokens")]
    Empty,
    /// A token outside the vocabulary.
    #[error("token {id} is outside the vocabulary of {vocab}")]
    OtherToken {
        /// The token.
        id: u32,
        /// Size of the vocabulary.
        vocab: u32,
    },
    /// The ring is not ready; the text says why.
    #[error("{0}")]
    NotReady(String),
}
