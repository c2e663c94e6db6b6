//! Checkpoints as files: what opens, what is refused, and the one real model.
#![allow(clippy::unwrap_used, reason = "tests")]

mod folder;
mod header;
mod open;
mod oracles;
mod part;
mod smollm2;
