//! Groups over real sockets, with stages that compute hashes.
#![allow(clippy::unwrap_used, reason = "tests")]

extern crate baton_shard as shard;

mod calls;
mod direct;
mod door;
mod double;
mod exchange;
mod loss;
mod pairs;
mod relay;
