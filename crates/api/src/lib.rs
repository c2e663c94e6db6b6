//! The OpenAI-compatible endpoint over a ring.
//!
//! The modules beside [`server`] are pure: a body to a checked request ([`Asked`]), tokens to
//! text ([`Transcript`]), text to JSON ([`Shape`]), causes to error bodies ([`ApiError`]).
//! [`server`] alone touches sockets and clocks; it knows no layers, only a [`ring::head::Handle`].

#![forbid(unsafe_code)]

mod dialect;
mod draws;
mod error;
mod features;
mod fields;
mod format;
mod guided;
mod keys;
mod limits;
mod message;
mod messages;
#[cfg(test)]
mod openapi;
mod options;
mod proof;
mod request;
mod responses;
mod score;
pub mod server;
mod shape;
mod speech;
mod thinking;
mod tools;
mod transcript;

pub use dialect::{Dialect, Sse};
pub use draws::Draws;
pub use error::ApiError;
pub use keys::{KeyError, Keys};
pub use limits::Limits;
pub use options::Options;
pub use proof::{Meter, Place, Run};
pub use request::{Asked, Endpoint, Prompt};
pub use server::{App, Compared, Nodes, PromptPair, ServeError, serve};
pub use shape::Shape;
pub use speech::{Manner, Part, Reasons, Speech};
pub use thinking::Thinking;
pub use tools::{Choice, Tools};
pub use transcript::{Ending, Piece, Scored, Transcript};
