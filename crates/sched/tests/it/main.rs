//! The scheduler against a model of the stages, on random and on chosen workloads.
#![allow(clippy::unwrap_used, reason = "tests")]

extern crate baton_sched as sched;

mod asks;
mod bound;
mod chosen;
mod faults;
mod guesses;
mod kept;
mod model;
mod pace;
mod patient;
mod world;
