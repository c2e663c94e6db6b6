//! How a reply is written: one trait, one implementation an API.

use serde_json::Value;

use crate::{ApiError, Ending, Piece};

/// One server-sent event.
#[derive(Clone, Debug, PartialEq)]
pub struct Sse {
    /// Its name, where the API names events.
    pub event: Option<&'static str>,
    /// Its data.
    pub data: Value,
}

impl Sse {
    /// An event without a name.
    pub fn data(data: Value) -> Self {
        Self { event: None, data }
    }

    /// An event named by its own `type`.
    pub fn named(event: &'static str, mut data: Value) -> Self {
        data["type"] = event.into();
        Self { event: Some(event), data }
    }
}

/// Writes the replies to one request.
pub trait Dialect: Send {
    /// What a stream begins with.
    fn opening(&mut self) -> Vec<Sse>;
    /// What one reply says.
    fn piece(&mut self, choice: usize, piece: Piece) -> Vec<Sse>;
    /// The end of one reply.
    fn closing(&mut self, choice: usize, piece: Piece, ending: Ending) -> Vec<Sse>;
    /// The end of all.
    fn end(&mut self) -> Vec<Sse>;
    /// A failure after the stream has begun.
    fn failed(&mut self, error: &ApiError) -> Vec<Sse>;
    /// What closes a stream after its end.
    fn last(&self) -> &'static str {
        ""
    }
    /// The replies as one object, in order.
    fn whole(&mut self, choices: Vec<(Piece, Ending)>) -> Value;
}
