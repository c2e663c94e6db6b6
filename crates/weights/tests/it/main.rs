//! Checkpoints as files: what opens, what is refused, and the one real model.
#![allow(clippy::unwrap_used, reason = "tests")]

mod folder;
mod folders;
mod header;
mod made;
mod open;
mod oracles;
mod part;
mod smollm2;
mod synthetic;
mod tiny;
