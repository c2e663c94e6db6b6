//! Whole rings in one process: fake stages, real boot, real rounds.
#![allow(clippy::unwrap_used, reason = "tests")]

mod berths;
mod bytes;
mod cached;
mod cancels;
mod depth;
#[path = "../support/listener.rs"]
mod listener;
mod ring;
mod scripts;
mod traffic;
mod waits;
