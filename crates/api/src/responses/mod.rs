//! OpenAI's `/v1/responses`: its body as a chat's, its items, its events, and what is kept of it.

mod ask;
mod store;
mod writer;

pub(crate) use ask::{Session, read};
pub(crate) use store::{Kept, Store};
pub(crate) use writer::Writer;
