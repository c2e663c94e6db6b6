//! Links over real sockets on loopback.
#![allow(clippy::unwrap_used, reason = "tests")]

mod failures;
mod joins;
mod refusals;
mod strangers;
mod support;
