//! A thread of a block.

use super::block::Block;
use super::calls::Calls;
use super::copies::Copies;

/// A thread. What the C of a kernel sees of it comes first, as source/prelude.h declares it.
#[repr(C)]
pub(crate) struct Thread {
    pub(super) calls: *const Calls,
    pub(super) params: *const u8,
    pub(super) shared: *mut u8,
    pub(super) shared_bytes: u32,
    /// The PTX line where memory was last reached for.
    pub(super) line: u32,
    pub(super) tid: [u32; 3],
    pub(super) ntid: [u32; 3],
    pub(super) ctaid: [u32; 3],
    pub(super) nctaid: [u32; 3],
    pub(super) given: [u32; 10],
    pub(super) taken: [u32; 4],
    /// Where it goes on.
    pub(super) stack: *mut u8,
    /// The kernel.
    pub(super) entry: unsafe extern "C" fn(*mut Thread),
    pub(super) block: *mut Block,
    /// In its block.
    pub(super) index: u32,
    pub(super) waits: Waits,
    /// Where a wide product has its sums.
    pub(super) sums: *mut u32,
    pub(super) copies: Copies,
}

/// What a thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    /// Nothing: it runs or can.
    Not,
    /// The other lanes of `mask`, for the same thing.
    Warp {
        what: Meets,
        line: u32,
        mask: u32,
    },
    Barrier {
        id: u32,
        line: u32,
    },
    /// A barrier in shared memory to be through a phase.
    Phase {
        at: u32,
        parity: u32,
        line: u32,
    },
    /// Nothing any more.
    Ended,
}

/// What the lanes of a warp meet for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meets {
    Shuffle,
    Vote,
    Product,
    Nothing,
}

impl Waits {
    /// In words.
    pub(super) fn words(self) -> String {
        match self {
            Self::Not => "runs".into(),
            Self::Warp { what, line, mask } => {
                let what = match what {
                    Meets::Shuffle => "a shuffle",
                    Meets::Vote => "a vote",
                    Meets::Product => "a product",
                    Meets::Nothing => "bar.warp.sync",
                };
                format!("waits in {what} of lanes {mask:#010x} at PTX line {line}")
            }
            Self::Barrier { id, line } => format!("waits at barrier {id} at PTX line {line}"),
            Self::Phase { at, parity, line } => {
                format!("waits for phase {parity} of mbarrier {at:#x} at PTX line {line}")
            }
            Self::Ended => "has ended".into(),
        }
    }
}
