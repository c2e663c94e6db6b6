//! What a reply may say: JSON schemas, regular expressions, choices and Lark grammars as token
//! masks for [`sched::sample::Grammar`]. The one crate that knows `llguidance`.
//!
//! [`Grammars`] holds a tokenizer's trie, built once a model; [`Grammars::compile`] makes a
//! [`Form`] a grammar. Masks are computed on threads of their own, from the token before on, while
//! the round that needs them is in the ring.
#![forbid(unsafe_code)]

mod budget;
mod compile;
mod form;
mod guided;
mod worker;

pub use budget::Budget;
pub use compile::{GrammarError, Grammars, SOURCE_BYTES_MAX};
pub use form::{Body, CallForm, Form, Function};
pub use worker::Cost;
