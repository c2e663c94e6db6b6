//! What one server accepts: every bound by name.

use std::time::Duration;

/// Bounds of the server; a request or connection past one is refused or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest request body.
    pub body_bytes_max: usize,
    /// Most JSON values of a body, as its brackets and commas count them.
    pub values_max: usize,
    /// Largest `model` that is echoed.
    pub model_bytes_max: usize,
    /// Most stop strings.
    pub stops_max: usize,
    /// Longest stop string.
    pub stop_bytes_max: usize,
    /// Most replies to one prompt.
    pub choices_max: u32,
    /// Most tokens of a `logit_bias`.
    pub biases_max: usize,
    /// Most alternatives with a token's log probability.
    pub top_logprobs_max: u32,
    /// Most tools.
    pub tools_max: usize,
    /// Most texts of a `guided_choice`.
    pub alternatives_max: usize,
    /// Longest of them.
    pub alternative_bytes_max: usize,
    /// Most connections at once; more wait in the listener's queue.
    pub connections_max: usize,
    /// Most responses that are kept to be continued.
    pub responses_max: usize,
    /// Most bytes of them together, with their conversations.
    pub responses_bytes_max: usize,
    /// Most requests in the making at once.
    pub requests_max: u32,
    /// Longest time from a request to its reply's end.
    pub reply_timeout_ms: u64,
    /// Most bytes buffered for one connection, in each direction; also the largest head.
    pub connection_buffer_bytes_max: usize,
    /// A body longer than this is parsed, rendered and tokenised off the network threads.
    pub inline_bytes_max: usize,
    /// Most long prompts tokenised at once.
    pub tokenising_max: usize,
    /// Longest wait for a request's head; also the longest idle time of a connection.
    pub head_timeout_ms: u64,
    /// Longest wait for a whole body.
    pub body_timeout_ms: u64,
    /// Longest time in which a client takes no byte of its reply.
    pub stall_timeout_ms: u64,
    /// Longest time that running replies get to finish after shutdown was asked for.
    pub drain_timeout_ms: u64,
    /// Longest time that finished replies get to reach their clients at shutdown.
    pub flush_timeout_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes_max: 8 << 20,
            values_max: 1 << 18,
            model_bytes_max: 256,
            stops_max: 16,
            stop_bytes_max: 256,
            choices_max: 16,
            biases_max: 1024,
            top_logprobs_max: 20,
            tools_max: 128,
            alternatives_max: 1024,
            alternative_bytes_max: 4 << 10,
            connections_max: 512,
            responses_max: 1024,
            responses_bytes_max: 64 << 20,
            requests_max: 512,
            reply_timeout_ms: 3_600_000,
            connection_buffer_bytes_max: 64 << 10,
            inline_bytes_max: 8 << 10,
            tokenising_max: 2,
            head_timeout_ms: 15_000,
            body_timeout_ms: 30_000,
            stall_timeout_ms: 30_000,
            drain_timeout_ms: 30_000,
            flush_timeout_ms: 2_000,
        }
    }
}

impl Limits {
    pub(crate) fn head_timeout(&self) -> Duration {
        Duration::from_millis(self.head_timeout_ms)
    }
    pub(crate) fn body_timeout(&self) -> Duration {
        Duration::from_millis(self.body_timeout_ms)
    }
    pub(crate) fn reply_timeout(&self) -> Duration {
        Duration::from_millis(self.reply_timeout_ms)
    }
    pub(crate) fn stall_timeout(&self) -> Duration {
        Duration::from_millis(self.stall_timeout_ms)
    }
    pub(crate) fn drain_timeout(&self) -> Duration {
        Duration::from_millis(self.drain_timeout_ms)
    }
    pub(crate) fn flush_timeout(&self) -> Duration {
        Duration::from_millis(self.flush_timeout_ms)
    }
}
