//! Anthropic's `/v1/messages`: its body as a chat's, its blocks, its events.

mod ask;
mod writer;

pub(crate) use ask::read;
pub(crate) use writer::{Writer, error_body};
