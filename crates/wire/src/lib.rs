//! Messages between ranks, without I/O.
#![forbid(unsafe_code)]
pub mod plan;
