//! Ids, units and limits that every other crate shares.
//!
//! Ids are newtypes so that a rank can't be passed where a round is meant. Limits are named here
//! once; the error that a limit raises quotes the constant's value.

use std::fmt;
use std::str::FromStr;

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

/// Which function the ring computes; its number stands in the fingerprint. They differ in linear
/// layers over block formats alone. A change of any bit of any op takes a new number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Arith {
    /// 1: activations in 16 bits, a scale a slice of 256 ([`crate::a16`]).
    #[default]
    One,
    /// 2: activations in 8 bits, a scale a block of 32 ([`crate::a8`]).
    Two,
}

impl Arith {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::One, Self::Two];

    /// Its number.
    pub const fn number(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }
}

impl fmt::Display for Arith {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
    }
}

/// Text that is no arithmetic's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownArith;

impl fmt::Display for UnknownArith {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected 1 or 2")
    }
}

impl std::error::Error for UnknownArith {}

impl FromStr for Arith {
    type Err = UnknownArith;

    fn from_str(text: &str) -> Result<Self, UnknownArith> {
        let found = Self::ALL.into_iter().find(|arith| arith.to_string() == text);
        found.ok_or(UnknownArith)
    }
}

/// Most ranks of a ring.
pub const WORLD_MAX: u32 = 64;
/// Keys of a tile of attention, and rows of a page of the KV cache.
pub const TILE_KEYS: usize = 64;
/// Keys of a chunk of attention: eight tiles.
pub const CHUNK_KEYS: usize = 512;
/// Values of a slice along K; in arith 1 they share one activation scale.
pub const SLICE_VALUES: usize = 256;

/// Pages of [`TILE_KEYS`] that `positions` keys take.
pub fn pages_of(positions: u32) -> u32 {
    positions.div_ceil(TILE_KEYS as u32)
}
