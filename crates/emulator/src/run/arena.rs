//! The memory that an OS thread runs blocks in, kept from launch to launch.

use super::block::Block;
use super::fault::Stacks;
use super::options::Options;
use super::thread::Thread;

/// Stacks, threads, blocks and their shared memory.
#[derive(Default)]
pub(super) struct Arena {
    stacks: Region,
    threads: Region,
    shared: Region,
    pub(super) blocks: Vec<Block>,
    /// Bytes from one stack to the next.
    stride: usize,
    shared_bytes: usize,
    made: usize,
}

/// Bytes by which stacks lie apart from a power of two, so that their ends share no line of cache.
const STAGGER: usize = 64 * 5;

impl Arena {
    /// Has room for `blocks` blocks of `threads` threads.
    ///
    /// # Errors
    /// If the system gives no memory.
    pub(super) fn prepare(
        &mut self,
        (blocks, threads): (usize, usize),
        stack_bytes: usize,
        shared_bytes: usize,
        options: Options,
    ) -> Result<(), String> {
        let all = blocks * threads;
        self.stride = stack_bytes.next_multiple_of(1024) + STAGGER;
        self.shared_bytes = shared_bytes.next_multiple_of(128);
        self.stacks.reserve(all * self.stride)?;
        if self.threads.reserve(all * size_of::<Thread>())? {
            self.made = 0;
        }
        self.shared.reserve(blocks * self.shared_bytes)?;
        self.blocks.truncate(blocks);
        self.blocks.resize_with(blocks, || Block::new(options));
        self.blocks.iter_mut().for_each(|block| block.options = options);
        Ok(())
    }

    pub(super) fn stacks(&self, count: usize) -> Stacks {
        let base = self.stacks.at as usize;
        Stacks { base, stride: self.stride, threads: self.threads.at.cast(), count }
    }

    /// The end of a thread's stack.
    pub(super) fn stack_end(&self, index: usize) -> *mut u8 {
        self.stacks.at.wrapping_add((index + 1) * self.stride)
    }

    /// The low end of a thread's stack, where a word shows whether it was too small.
    pub(super) fn stack_guard(&self, index: usize) -> *mut u64 {
        self.stacks.at.wrapping_add(index * self.stride).cast()
    }

    /// A place for a thread, which is one already if it is not the first launch.
    pub(super) fn thread(&mut self, index: usize) -> (*mut Thread, bool) {
        let is_new = index >= self.made;
        self.made = self.made.max(index + 1);
        (self.threads.at.cast::<Thread>().wrapping_add(index), is_new)
    }

    /// A block's shared memory, as nobody left it.
    pub(super) fn shared(&mut self, block: usize) -> *mut u8 {
        let at = self.shared.at.wrapping_add(block * self.shared_bytes);
        // SAFETY: as much was reserved.
        unsafe { at.write_bytes(POISON, self.shared_bytes) };
        at
    }
}

/// What memory holds that nothing was written to: as a float, none that sums hide.
const POISON: u8 = 0xf7;

/// Memory of the system.
struct Region {
    at: *mut u8,
    bytes: usize,
}

impl Default for Region {
    fn default() -> Self {
        Self { at: std::ptr::null_mut(), bytes: 0 }
    }
}

impl Region {
    /// Has room for so many bytes; whether it is new, and holds zeros.
    fn reserve(&mut self, bytes: usize) -> Result<bool, String> {
        if bytes <= self.bytes {
            return Ok(false);
        }
        self.release();
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let allowed = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: as mmap(2) says.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, allowed, kind, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(format!("the system gives no {bytes} bytes for a launch's stacks"));
        }
        (self.at, self.bytes) = (at.cast(), bytes);
        Ok(true)
    }

    fn release(&mut self) {
        if self.bytes > 0 {
            // SAFETY: a mapping of our own, that nothing points into any more.
            unsafe { libc::munmap(self.at.cast(), self.bytes) };
            (self.at, self.bytes) = (std::ptr::null_mut(), 0);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.release();
    }
}
