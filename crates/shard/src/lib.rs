//! Groups: several machines that share every layer of one stage, called as one.
//!
//! A [`Group`] is a member's links to all others: authenticated sessions as the ring's, between all
//! pairs, each with a sending and a receiving side of its own. [`Seat`] carries what members give
//! each other inside a layer ([`stage::Exchange`]). [`Leader`] is a [`stage::Engine`] that has
//! every member do what it does; the ring knows no more of a group than that. [`Follower`] is the
//! life of every other member: it joins, is called, and joins again after a break.
#![forbid(unsafe_code)]

mod config;
mod dial;
mod direct;
mod door;
mod epoch;
mod error;
mod follower;
mod group;
mod leader;
mod link;
mod memory;
mod records;
mod seat;
mod shake;

pub use config::{GroupConfig, Through, Times};
pub use direct::{Carrier, Direct, OFFER_BYTES, Offer, Stopper, Without};
pub use error::ShardError;
pub use follower::Follower;
pub use group::{Group, Traffic, probe, share_memory};
pub use leader::Leader;
pub use seat::Seat;
