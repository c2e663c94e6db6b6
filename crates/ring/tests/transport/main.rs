//! Links over real sockets on loopback.
#![allow(clippy::unwrap_used, reason = "tests")]

extern crate baton_ring as ring;

mod failures;
mod joins;
mod measures;
mod probes;
mod refusals;
mod strangers;
mod support;
mod waits;
