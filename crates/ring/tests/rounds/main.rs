//! Whole rings in one process: fake stages, real boot, real rounds.
#![allow(clippy::unwrap_used, reason = "tests")]

mod berths;
mod bytes;
mod cached;
mod cancels;
mod depth;
mod ring;
mod scripts;
mod told;
mod traffic;
mod waits;
