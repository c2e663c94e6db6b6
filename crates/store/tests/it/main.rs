//! Stores on loopback: real sockets, real files.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../../weights/tests/it/folder.rs"]
mod folder;
mod limits;
mod machine;
mod moves;
mod resume;
mod strangers;
mod wrong;
