//! `cp.async`: copies to shared memory that arrive when a wait says that they must, or at once.

use super::thread::Thread;

/// A thread's copies on their way.
#[derive(Default)]
pub(super) struct Copies {
    under_way: Vec<Copy>,
    /// Copies that were under way at each commit.
    groups: Vec<usize>,
}

struct Copy {
    to: *mut u8,
    from: *const u8,
    bytes: usize,
    /// Bytes that are read; the rest is 0.
    given: usize,
    line: u32,
}

impl Copies {
    pub(super) fn begin(&mut self) {
        self.under_way.clear();
        self.groups.clear();
    }
}

/// Begins a copy to a place of shared memory that was checked.
///
/// # Safety
/// `thread` must be the one that runs.
pub(super) unsafe fn copy(
    thread: *mut Thread,
    line: u32,
    to: *mut u8,
    (from, bytes, given): (u64, u32, u32),
    early: bool,
) {
    let (bytes, given) = (bytes as usize, given.min(bytes) as usize);
    let copy = Copy { to, from: from as *const u8, bytes, given, line };
    // SAFETY: the caller's promise.
    unsafe {
        if early {
            arrive(thread, &copy);
        } else {
            (*thread).copies.under_way.push(copy);
        }
    }
}

/// Makes a group of the copies since the last one.
///
/// # Safety
/// `thread` must be the one that runs.
pub(super) unsafe fn commit(thread: *mut Thread) {
    // SAFETY: the caller's promise.
    let copies = unsafe { &mut (*thread).copies };
    copies.groups.push(copies.under_way.len());
}

/// Waits until only `left` groups are under way; with none, so that all copies are there.
///
/// # Safety
/// `thread` must be the one that runs.
pub(super) unsafe fn wait(thread: *mut Thread, left: Option<u32>) {
    // SAFETY: the caller's promise; a copy that faults does not come back here.
    unsafe {
        let copies = &mut (*thread).copies;
        let count = match left {
            None => {
                copies.groups.clear();
                copies.under_way.len()
            }
            Some(left) => {
                let Some(last) = copies.groups.len().checked_sub(left as usize + 1) else { return };
                let count = copies.groups[last];
                copies.groups.drain(..=last);
                copies.groups.iter_mut().for_each(|group| *group -= count);
                count
            }
        };
        for i in 0..count {
            let copy = &raw const (&(*thread).copies.under_way)[i];
            arrive(thread, &*copy);
        }
        (*thread).copies.under_way.drain(..count);
    }
}

/// # Safety
/// `thread` must be the one that runs. What it reads may be none of its memory: that is a fault.
unsafe fn arrive(thread: *mut Thread, copy: &Copy) {
    // SAFETY: the caller's promise, and a place that was checked.
    unsafe {
        (*thread).line = copy.line;
        std::ptr::copy_nonoverlapping(copy.from, copy.to, copy.given);
        copy.to.add(copy.given).write_bytes(0, copy.bytes - copy.given);
    }
}
