//! Stores on loopback: real sockets, real files.
#![allow(clippy::unwrap_used, reason = "tests")]

mod folder;
mod limits;
mod machine;
mod moves;
mod resume;
mod strangers;
mod wrong;
