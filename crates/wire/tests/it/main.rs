//! The wire's black box: golden files, random messages, hostile bytes.
#![allow(clippy::unwrap_used, reason = "tests")]

extern crate baton_wire as wire;

mod cases;
mod cases_control;
mod cases_frame;
mod cases_group;
mod cases_plan;
mod golden;
mod hostile;
mod kind;
mod random;
mod roundtrip;
