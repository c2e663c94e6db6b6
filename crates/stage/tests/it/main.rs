//! Stages as a ring drives them: every cut, chunk, company and rollback gives the same bytes.
#![allow(clippy::unwrap_used, reason = "tests")]

mod chain;
mod contract;
mod faults;
mod function;
mod group;
mod lives;
mod oracles;
mod pairs;
mod plain;
mod shares;
mod smollm2;
mod stage;
