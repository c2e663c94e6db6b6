//! The OpenAI-compatible endpoint over a ring.
//!
//! The modules beside [`server`] are pure: a body to a checked request ([`Asked`]), tokens to
//! text ([`Transcript`]), text to JSON ([`Shape`]), causes to error bodies ([`ApiError`]).
//! [`server`] alone touches sockets and clocks; it knows no layers, only a [`ring::head::Handle`].

#![forbid(unsafe_code)]

mod error;
mod features;
mod fields;
mod limits;
mod message;
mod options;
mod request;
pub mod server;
mod shape;
mod transcript;

pub use error::ApiError;
pub use limits::Limits;
pub use options::Options;
pub use request::{Asked, Endpoint, Prompt};
pub use server::{App, ServeError, serve};
pub use shape::Shape;
pub use transcript::{Ending, Piece, Transcript};
