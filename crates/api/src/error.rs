//! What a client is told when a request can't be answered, in OpenAI's error shape.

use ring::head::RingState;
use sched::{Failure, Refusal};
use serde_json::{Value, json};

/// Seconds that a refused client is asked to wait while the queue is full.
const QUEUE_RETRY_S: u32 = 5;
/// Seconds that a refused client is asked to wait while the ring is not ready.
const RING_RETRY_S: u32 = 2;

/// An answer that is an error. One variant a cause; the HTTP form follows from it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApiError {
    /// The body is no JSON.
    #[error("the request body is not valid JSON: {0}")]
    NotJson(String),
    /// A required field is absent.
    #[error("missing required parameter: '{param}'")]
    Missing {
        /// The field's path.
        param: String,
    },
    /// A field of another type.
    #[error("invalid type for '{param}': expected {expected}, but got {found} instead")]
    WrongType {
        /// The field's path.
        param: String,
        /// What the field holds.
        expected: &'static str,
        /// What was sent.
        found: &'static str,
    },
    /// A value outside its range.
    #[error("invalid value for '{param}': {reason}")]
    Invalid {
        /// The field's path.
        param: String,
        /// What is wrong, with the limit.
        reason: String,
    },
    /// A feature that would change the reply and is not served.
    #[error("'{param}' is not supported by this server: {reason}")]
    Unsupported {
        /// The field's path.
        param: String,
        /// Which part of it.
        reason: String,
    },
    /// The prompt leaves no room for a reply.
    #[error(
        "this server's maximum context length is {context_max} tokens, but the prompt has \
         {prompt} tokens and a reply needs at least one"
    )]
    ContextLength {
        /// The field that holds the prompt.
        param: &'static str,
        /// Most positions of a stream.
        context_max: u32,
        /// Prompt tokens.
        prompt: u64,
    },
    /// No key, or none that is known.
    #[error("this server takes requests with one of its API keys only")]
    Unauthorized,
    /// The reply took too long.
    #[error("the reply was not complete within {limit_ms} ms")]
    ReplyTimeout {
        /// Limit.
        limit_ms: u64,
    },
    /// No such path.
    #[error("unknown request URL: {method} {path}")]
    UnknownPath {
        /// Method asked with.
        method: String,
        /// Path asked for.
        path: String,
    },
    /// A response that was not kept, or has made room.
    #[error("there is no response '{0}' on this server: it was not stored, or has made room")]
    UnknownResponse(String),
    /// A model that is not served.
    #[error("the model '{0}' does not exist on this server")]
    UnknownModel(String),
    /// The path exists, the method does not.
    #[error("method {method} is not allowed for {path}")]
    WrongMethod {
        /// Method asked with.
        method: String,
        /// Path asked for.
        path: String,
    },
    /// The body did not come in time.
    #[error("the request body did not arrive within {limit_ms} ms")]
    BodyTimeout {
        /// Limit.
        limit_ms: u64,
    },
    /// The body ended early or broke its framing.
    #[error("the request body could not be read: {0}")]
    BodyBroken(String),
    /// The body is larger than the limit.
    #[error("the request body is larger than this server's limit of {limit} bytes")]
    BodyTooLarge {
        /// Limit.
        limit: usize,
    },
    /// Too many requests wait.
    #[error("{0}; try again later")]
    QueueFull(String),
    /// The ring can't take requests now, or failed before the reply's first byte.
    #[error("the ring is not ready: {0}")]
    NotReady(String),
    /// The ring failed during the reply.
    #[error("the ring failed: {0}")]
    RingFailed(String),
    /// The server shuts down.
    #[error("the server is shutting down")]
    Draining,
    /// The reply can't be computed, or a defect of this server.
    #[error("{0}")]
    Internal(String),
}

impl ApiError {
    /// A field's value is outside what is allowed.
    pub fn invalid(param: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Invalid { param: param.into(), reason: reason.into() }
    }

    /// A feature that is not served.
    pub fn unsupported(param: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Unsupported { param: param.into(), reason: reason.into() }
    }

    /// The scheduler's refusal; `param` is the field that holds the prompt.
    pub fn refused(refusal: Refusal, param: &'static str) -> Self {
        match refusal {
            Refusal::TooLong { prompt, context_max } => {
                Self::ContextLength { param, context_max, prompt: u64::from(prompt) }
            }
            Refusal::QueueFull { .. } => Self::QueueFull(refusal.to_string()),
            Refusal::Empty | Refusal::OtherToken { .. } => {
                Self::invalid(param, refusal.to_string())
            }
            Refusal::NotReady(reason) => Self::NotReady(reason),
            other => Self::Internal(other.to_string()),
        }
    }

    /// What a state other than `Ready` tells a new request; `None` when the ring is ready.
    pub fn of_state(state: RingState) -> Option<Self> {
        match state {
            RingState::Ready => None,
            RingState::Booting(step) => Some(Self::NotReady(step)),
            RingState::Waiting(reason) => Some(Self::NotReady(reason)),
            RingState::Draining => Some(Self::Draining),
        }
    }

    /// HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Self::NotJson(_)
            | Self::Missing { .. }
            | Self::WrongType { .. }
            | Self::Invalid { .. }
            | Self::Unsupported { .. }
            | Self::ContextLength { .. }
            | Self::BodyBroken(_) => 400,
            Self::Unauthorized => 401,
            Self::ReplyTimeout { .. } => 504,
            Self::UnknownPath { .. } | Self::UnknownModel(_) | Self::UnknownResponse(_) => 404,
            Self::WrongMethod { .. } => 405,
            Self::BodyTimeout { .. } => 408,
            Self::BodyTooLarge { .. } => 413,
            Self::QueueFull(_) => 429,
            Self::Internal(_) => 500,
            Self::NotReady(_) | Self::RingFailed(_) | Self::Draining => 503,
        }
    }

    /// OpenAI's `type`.
    pub fn kind(&self) -> &'static str {
        match self.status() {
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// OpenAI's `code`.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotJson(_) => "invalid_json",
            Self::Missing { .. } => "missing_required_parameter",
            Self::WrongType { .. } => "invalid_type",
            Self::Invalid { .. } => "invalid_value",
            Self::Unsupported { .. } => "unsupported",
            Self::ContextLength { .. } => "context_length_exceeded",
            Self::Unauthorized => "invalid_api_key",
            Self::ReplyTimeout { .. } => "reply_timeout",
            Self::UnknownPath { .. } => "unknown_url",
            Self::UnknownModel(_) => "model_not_found",
            Self::UnknownResponse(_) => "response_not_found",
            Self::WrongMethod { .. } => "method_not_allowed",
            Self::BodyTimeout { .. } => "body_timeout",
            Self::BodyBroken(_) => "body_broken",
            Self::BodyTooLarge { .. } => "body_too_large",
            Self::QueueFull(_) => "queue_full",
            Self::NotReady(_) => "ring_not_ready",
            Self::RingFailed(_) => "ring_failed",
            Self::Draining => "draining",
            Self::Internal(_) => "internal",
        }
    }

    /// The field that is at fault.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::Missing { param }
            | Self::WrongType { param, .. }
            | Self::Invalid { param, .. }
            | Self::Unsupported { param, .. } => Some(param),
            Self::ContextLength { param, .. } => Some(param),
            Self::UnknownModel(_) => Some("model"),
            _ => None,
        }
    }

    /// Seconds after which the same request may be answered.
    pub fn retry_after_s(&self) -> Option<u32> {
        match self.status() {
            429 => Some(QUEUE_RETRY_S),
            503 => Some(RING_RETRY_S),
            _ => None,
        }
    }

    /// The body: `{"error": {"message", "type", "param", "code"}}`.
    pub fn body(&self) -> Value {
        json!({"error": {
            "message": self.to_string(),
            "type": self.kind(),
            "param": self.param(),
            "code": self.code(),
        }})
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Ring(reason) => Self::RingFailed(reason),
            Failure::Draining => Self::Draining,
            other => Self::Internal(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_ring_failure_is_a_503_that_keeps_the_rank_in_its_message() {
        let error = ApiError::from(Failure::Ring("rank 2 closed its link".into()));
        assert_eq!(error.status(), 503);
        assert!(error.retry_after_s().is_some());
        let message = error.body()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("rank 2 closed its link"), "{message}");
    }

    #[test]
    fn a_refused_prompt_names_the_field_that_held_it() {
        let refusal = Refusal::TooLong { prompt: 70, context_max: 64 };
        let body = ApiError::refused(refusal, "messages").body();
        assert_eq!(body["error"]["param"], "messages");
        assert_eq!(body["error"]["code"], "context_length_exceeded");
    }

    #[test]
    fn a_nonfinite_row_is_a_500_and_not_a_reason_to_retry() {
        let error = ApiError::from(Failure::NonfiniteLogits { position: 7 });
        assert_eq!((error.status(), error.retry_after_s()), (500, None));
    }
}
