//! Messages between ranks, without I/O: what bytes mean, and which bytes mean nothing.
//!
//! A link moves frames ([`frame`]); a frame's payload is one message. Every decoder checks each
//! count against the payload's length and its named limit ([`limit`]) before it allocates, takes
//! exactly the bytes it was given, and names what is wrong ([`WireError`]). Every encoder applies
//! the same checks, so a rank can't send what another one would refuse. All integers are
//! little-endian. `docs/wire.md` holds the layouts; `golden/wire/` holds examples, good and bad.
#![forbid(unsafe_code)]

mod bytes;

pub mod beat;
pub mod call;
pub mod cancel;
pub mod control;
pub mod describe;
pub mod error;
pub mod fingerprint;
pub mod frame;
pub mod group;
pub mod hello;
pub mod layout;
pub mod limit;
pub mod measure;
pub mod plan;
mod plan_codec;
pub mod preamble;
pub mod reader;
pub mod ring_check;
pub mod rows;
pub mod slot;
pub mod stop;
pub mod tally;

pub use error::{Fault, WireError};
