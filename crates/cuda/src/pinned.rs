//! Memory of the host that the card reads and writes by itself: what comes and goes passes through
//! it, and on a machine whose memory is the card's too, rows lie in it.

use std::ffi::c_void;

use crate::library::{Driver, Handle};

/// Bytes of the memory that copies pass through; larger ones go as they are.
pub(crate) const PINNED_BYTES: usize = 4 << 20;
/// Where copies begin.
const ALIGN: usize = 256;
/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
const FLAGS: u32 = 1 | 2;

/// Takes `bytes` bytes of such memory, whose address is the card's too.
pub(crate) fn allocate(driver: &Driver, bytes: usize) -> Option<*mut u8> {
    let mut at: Handle = std::ptr::null_mut();
    // SAFETY: a place for an address; the context is current.
    let code = unsafe { (driver.host_allocate)(&mut at, bytes.max(16), FLAGS) };
    (code == 0).then_some(at.cast())
}

/// What copies pass through, and how much of it those take that may not be done yet.
#[derive(Default)]
pub(crate) struct Pinned {
    at: Option<*mut u8>,
    used: usize,
    refused: bool,
}

impl Pinned {
    /// Room for a copy of `bytes` bytes, which waits for those before it by `wait` if they take all
    /// of it; none for a large copy, or where the machine has no such memory.
    pub(crate) fn room(
        &mut self,
        driver: &Driver,
        bytes: usize,
        wait: impl FnOnce(),
    ) -> Option<*mut c_void> {
        if bytes == 0 || bytes > PINNED_BYTES || self.refused {
            return None;
        }
        if self.at.is_none() {
            self.at = allocate(driver, PINNED_BYTES);
            self.refused = self.at.is_none();
        }
        let at = self.at?;
        if self.used + bytes > PINNED_BYTES {
            wait();
            self.used = 0;
        }
        // SAFETY: within the memory that was taken, by the check above.
        let room = unsafe { at.add(self.used) };
        self.used += bytes.next_multiple_of(ALIGN);
        Some(room.cast())
    }

    /// All copies are done.
    pub(crate) fn done(&mut self) {
        self.used = 0;
    }
}
