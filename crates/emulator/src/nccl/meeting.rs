//! Memory that the ranks of a communicator share: who has come, and for each pair of ranks the
//! bytes that are on their way, in a file that has no name any more once all have come.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::RANKS_MAX;

/// Of an id, what makes the file's name.
pub const NAME_BYTES: usize = 16;
/// Bytes on their way from one rank to another.
const ROOM_BYTES: usize = 1 << 20;
const HEAD_BYTES: usize = 4096;

/// What begins the memory.
#[repr(C)]
struct Head {
    come: AtomicU32,
    /// Each rank's card and one; 0 until it has come.
    cards: [AtomicU32; RANKS_MAX],
}

/// What begins a way.
#[repr(C)]
struct Counts {
    written: AtomicU64,
    read: AtomicU64,
}

/// The memory, mapped.
pub struct Meeting {
    at: usize,
    bytes: usize,
    name: CString,
    ranks: usize,
}

impl Meeting {
    /// Opens what the first to come makes.
    ///
    /// # Errors
    /// The system's.
    pub fn open(id: &[u8; NAME_BYTES], ranks: usize) -> std::io::Result<Self> {
        let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = CString::new(format!("/emulated-nccl-{hex}"))?;
        let bytes = HEAD_BYTES + ranks * ranks * (HEAD_BYTES + ROOM_BYTES);
        // SAFETY: a terminated name, a file that is this one's, fresh pages of it.
        unsafe {
            let how = libc::O_CREAT | libc::O_RDWR | libc::O_CLOEXEC;
            let number = libc::shm_open(name.as_ptr(), how, 0o600);
            if number < 0 {
                return Err(std::io::Error::last_os_error());
            }
            let file = File::from_raw_fd(number);
            file.set_len(bytes as u64)?;
            let may = libc::PROT_READ | libc::PROT_WRITE;
            let shared = libc::MAP_SHARED;
            let at = libc::mmap(ptr::null_mut(), bytes, may, shared, file.as_raw_fd(), 0);
            if at == libc::MAP_FAILED {
                return Err(std::io::Error::last_os_error());
            }
            Ok(Self { at: at as usize, bytes, name, ranks })
        }
    }

    fn head(&self) -> &Head {
        // SAFETY: it begins the memory, which is as long as this lives; all of it are atomics.
        unsafe { &*(self.at as *const Head) }
    }

    /// Comes with a card.
    pub fn come(&self, rank: usize, card: usize) {
        self.head().cards[rank].store(card as u32 + 1, Ordering::Release);
        if self.head().come.fetch_add(1, Ordering::AcqRel) + 1 == self.ranks as u32 {
            self.forget();
        }
    }

    /// Whether all have come.
    pub fn is_full(&self) -> bool {
        self.head().come.load(Ordering::Acquire) as usize >= self.ranks
    }

    /// Whether no two ranks that have come are on one card.
    pub fn is_apart(&self) -> bool {
        let cards = self.head().cards.iter().map(|card| card.load(Ordering::Acquire));
        let mut cards: Vec<u32> = cards.filter(|&card| card > 0).collect();
        let all = cards.len();
        cards.sort_unstable();
        cards.dedup();
        cards.len() == all
    }

    /// Takes the name away.
    pub fn forget(&self) {
        // SAFETY: a terminated name; where it is gone already nothing happens.
        unsafe { libc::shm_unlink(self.name.as_ptr()) };
    }

    fn way(&self, from: usize, to: usize) -> (&Counts, usize) {
        let index = from * self.ranks + to;
        let at = self.at + HEAD_BYTES + index * (HEAD_BYTES + ROOM_BYTES);
        // SAFETY: within the memory, as both are less than the ranks.
        (unsafe { &*(at as *const Counts) }, at + HEAD_BYTES)
    }

    /// Puts as many bytes on the way as there is room for; how many.
    ///
    /// # Safety
    /// As many bytes at `data`; nobody else writes to this way.
    pub unsafe fn write(&self, (from, to): (usize, usize), data: usize, bytes: usize) -> usize {
        let (counts, room) = self.way(from, to);
        let (written, read) = (counts.written.load(Ordering::Relaxed), &counts.read);
        let free = ROOM_BYTES - (written - read.load(Ordering::Acquire)) as usize;
        let first = written as usize % ROOM_BYTES;
        let count = bytes.min(free).min(ROOM_BYTES - first);
        // SAFETY: the caller's bytes, and room that nobody reads yet.
        unsafe { ptr::copy_nonoverlapping(data as *const u8, (room + first) as *mut u8, count) };
        counts.written.store(written + count as u64, Ordering::Release);
        count
    }

    /// Takes as many bytes off the way as have come; how many.
    ///
    /// # Safety
    /// Room for as many bytes at `data`; nobody else reads of this way.
    pub unsafe fn read(&self, (from, to): (usize, usize), data: usize, bytes: usize) -> usize {
        let (counts, room) = self.way(from, to);
        let (read, written) = (counts.read.load(Ordering::Relaxed), &counts.written);
        let come = (written.load(Ordering::Acquire) - read) as usize;
        let first = read as usize % ROOM_BYTES;
        let count = bytes.min(come).min(ROOM_BYTES - first);
        // SAFETY: the caller's room, and bytes that are written.
        unsafe { ptr::copy_nonoverlapping((room + first) as *const u8, data as *mut u8, count) };
        counts.read.store(read + count as u64, Ordering::Release);
        count
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        // SAFETY: the pages that were mapped, which nothing refers to any more.
        unsafe { libc::munmap(self.at as *mut libc::c_void, self.bytes) };
    }
}
