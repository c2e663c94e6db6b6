//! Placements against brute force, and the cases in which others place badly.
#![allow(clippy::unwrap_used, reason = "tests")]

extern crate baton_placement as placement;

mod brute;
mod cases;
mod made;
mod orders;
mod refusals;
mod truth;
