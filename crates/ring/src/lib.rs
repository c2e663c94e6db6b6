//! The ring: links between ranks, the boot, rank 0's rounds and every other rank's loop.
//!
//! What a rank does from its first boot on is [`step`], without I/O. [`lead`] drives rank 0's and
//! [`follow`] every other rank's, over [`link`], which is sockets (`tcp`) or memory alike. [`head`]
//! is how the server reaches rank 0.

pub mod address;
pub mod backoff;
pub mod boot;
pub mod canary;
pub(crate) mod carry;
pub mod error;
pub mod follow;
pub mod head;
pub mod hop;
pub mod inbox;
pub mod join;
pub mod key;
pub mod lead;
pub mod link;
pub mod memory;
pub(crate) mod offers;
pub mod segment;
pub mod session;
pub mod span;
pub mod step;
mod tally;
pub mod tcp;
pub mod timed;
