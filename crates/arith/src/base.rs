//! Ids, units and limits that every other crate shares.
//!
//! Ids are newtypes so that a rank can't be passed where a round is meant. Limits are named here
//! once; the error that a limit raises quotes the constant's value.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $int:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $int);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A process of the ring, 0 .. world-1. Rank 0 serves.
    Rank, u32
);
id!(
    /// A stream as the stages know it: an id that is reused only after its close has echoed.
    StreamId, u32
);
id!(
    /// The number of a round, ascending from 1 in each epoch.
    Round, u64
);
id!(
    /// One life of the ring: rank 0 draws a new random epoch at every boot.
    Epoch, u64
);
id!(
    /// Counts the changes of a stream's state, on rank 0 and on every stage alike.
    Generation, u32
);

/// The number of this arithmetic. A change of any bit of any op raises it.
pub const ARITH: u32 = 1;
/// Most ranks of a ring.
pub const WORLD_MAX: u32 = 64;
/// Keys of a tile of attention, and rows of a page of the KV cache.
pub const TILE_KEYS: usize = 64;
/// Keys of a chunk of attention: eight tiles.
pub const CHUNK_KEYS: usize = 512;
/// Values along K that share one activation scale.
pub const SLICE_VALUES: usize = 256;

/// Pages of [`TILE_KEYS`] that `positions` keys take.
pub fn pages_of(positions: u32) -> u32 {
    positions.div_ceil(TILE_KEYS as u32)
}
