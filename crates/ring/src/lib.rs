//! The ring: links between ranks, the boot, rank 0's rounds and every other rank's loop.
//!
//! [`lead`] drives rank 0 and [`follow`] every other rank; both boot through [`boot`] and exchange
//! rounds over [`link`], which is sockets (`tcp`) or memory alike. [`head`] is how the server
//! reaches rank 0. What both do between boot and break is [`step`], without I/O.

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
pub(crate) mod rounds;
pub mod session;
pub mod step;
pub mod tcp;
