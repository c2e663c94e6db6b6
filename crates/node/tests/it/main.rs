//! Heads and agents over a made-up network and clock, and over real sockets.

#![allow(clippy::unwrap_used, reason = "tests")]

extern crate baton_node as node;

mod agents;
mod channels;
mod ways;
mod world;
mod worlds;
