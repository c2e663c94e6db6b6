//! The `baton` binary as its users see it: real processes, sockets, signals and files.
//!
//! Tests run on a tiny checkpoint that they make themselves; a few run on SmolLM2 where it is on
//! this machine, and say so where it is not.

#![allow(clippy::unwrap_used, reason = "tests")]

mod arm;
mod cache;
mod cards;
mod check;
mod churn;
mod client;
mod columns;
mod demo;
mod doctor;
mod drain;
mod faults;
mod groups;
mod hops;
mod http;
mod inspect;
mod leaving;
mod lines;
mod links;
mod machines;
mod memory;
mod model;
mod needle;
mod netns;
mod nodes;
#[cfg(target_os = "linux")]
mod notify;
mod oracle;
mod output;
mod parts;
mod plan;
mod process;
mod proxy;
mod push;
mod replan;
mod rig;
mod ring;
#[cfg(target_os = "linux")]
mod scarce;
mod serve;
mod shaped;
mod siege;
mod soak;
mod strangers;
mod surface;
mod table;
mod turn;
mod vitals;
mod ways;
mod weather;
