//! Seeded runs of the ring's own cores over a clock, a network and a device that are made up.
//!
//! A run is a function of its seed: [`setting`] draws a ring, its requests and its faults;
//! [`world`] moves [`ring::step::Leading`] and [`ring::step::Following`], the same code that the
//! threads of a rank drive, from one event to the next. [`net`] carries `wire`'s bytes, late, in
//! bursts or never; [`device`] is [`stage::Fake`], whose rows are a function of the tokens. What
//! must hold is checked outside the ranks: [`check`] for their tables, [`client`] for the replies,
//! which [`oracle`] knows from one stage alone.
#![forbid(unsafe_code)]

pub mod campaign;
mod check;
mod client;
mod device;
mod net;
mod node;
mod oracle;
mod plant;
mod rng;
mod setting;
mod trace;
mod work;
mod world;

pub use plant::Plant;
pub use setting::Size;
pub use world::{Report, run};
