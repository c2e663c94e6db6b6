//! `wgmma`: products of a warp's 16 rows by columns that lie in shared memory.

use super::block::Block;
use super::fault::{Fault, What};
use super::thread::Thread;

/// # Safety
/// `thread` must be the one that runs.
pub(super) unsafe fn product(
    thread: *mut Thread,
    line: u32,
    _columns: u32,
    _: (*mut u32, *const u32),
    right: u64,
    _adds: bool,
) {
    // SAFETY: the caller's promise.
    unsafe { Block::fail(thread, Fault::at(thread, line, What::Descriptor(right))) }
}
