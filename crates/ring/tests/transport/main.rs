//! Links over real sockets on loopback.
#![allow(clippy::unwrap_used, reason = "tests")]

extern crate baton_ring as ring;

mod failures;
mod joins;
#[path = "../support/listener.rs"]
mod listener;
mod measures;
mod probes;
mod refusals;
mod strangers;
mod support;
mod waits;
