//! Memory of emulated cards, and of the host where a card reads it. Every buffer ends at a page
//! that nobody may touch and is full of [`POISON`] when it is taken. All of a process' device
//! memory lies in one file without a name, which others open by the process' table of files.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::code::{Code, INVALID_CONTEXT, INVALID_VALUE, MAP_FAILED, OUT_OF_MEMORY};

/// What fresh memory is full of: no number that a kernel could take for one of its own.
const POISON: u8 = 0xcb;
const PAGE: usize = 4096;
/// Where buffers begin.
const ALIGN: usize = 256;
/// Buffers that were freed and are still known, so that a late access is named.
const FREED_MAX: usize = 256;
/// A real driver shares smaller pieces among several buffers, so that what it opens by such a
/// one's name begins elsewhere.
const NAMED_BYTES_MIN: usize = 2 << 20;

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// A card's, of this process.
    Card(usize),
    /// The host's, which cards see.
    Host,
    /// A card's, taken by another process.
    Other,
}

/// A buffer and the pages that it lies in.
#[derive(Clone, Copy, Debug)]
struct Piece {
    of: Of,
    bytes: usize,
    pages: usize,
    pages_bytes: usize,
    /// Where its pages lie in the file.
    offset: u64,
    freed: bool,
}

#[derive(Default)]
struct All {
    pieces: BTreeMap<usize, Piece>,
    freed: VecDeque<usize>,
}

impl All {
    /// The last buffer that begins at or before an address.
    fn before(&self, at: usize) -> Option<(usize, Piece)> {
        self.pieces.range(..=at).next_back().map(|(&at, &piece)| (at, piece))
    }
}

fn all() -> MutexGuard<'static, All> {
    static ALL: Mutex<All> = Mutex::new(All { pieces: BTreeMap::new(), freed: VecDeque::new() });
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The file of this process' device memory, and how much of it was ever given out.
struct Store {
    file: File,
    end: Mutex<u64>,
}

/// What tells this process' file from others.
fn token() -> [u8; 16] {
    static TOKEN: OnceLock<[u8; 16]> = OnceLock::new();
    *TOKEN.get_or_init(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let ns = now.map_or(0, |now| now.as_nanos());
        (ns << 32 | u128::from(std::process::id())).to_le_bytes()
    })
}

fn store() -> Result<&'static Store, Code> {
    static STORE: OnceLock<Option<Store>> = OnceLock::new();
    let made = STORE.get_or_init(|| {
        // SAFETY: a terminated name; the file that comes of it is this one's alone.
        let file = unsafe {
            let number = libc::memfd_create(c"emulated card".as_ptr(), libc::MFD_CLOEXEC);
            (number >= 0).then(|| File::from_raw_fd(number))?
        };
        file.write_all_at(&token(), 0).ok()?;
        Some(Store { file, end: Mutex::new(PAGE as u64) })
    });
    made.as_ref().ok_or(OUT_OF_MEMORY)
}

/// Maps `bytes` bytes of a file, or of nothing, between two pages that nobody may touch.
fn map(bytes: usize, file: Option<(&File, u64)>) -> Result<usize, Code> {
    // SAFETY: fresh address space, then pages within it.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let space = libc::mmap(ptr::null_mut(), bytes + 2 * PAGE, libc::PROT_NONE, flags, -1, 0);
        if space == libc::MAP_FAILED {
            return Err(OUT_OF_MEMORY);
        }
        let (flags, number, offset) = match file {
            Some((file, offset)) => (libc::MAP_SHARED, file.as_raw_fd(), offset as i64),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
        };
        let (flags, may) = (flags | libc::MAP_FIXED, libc::PROT_READ | libc::PROT_WRITE);
        if libc::mmap(space.byte_add(PAGE), bytes, may, flags, number, offset) == libc::MAP_FAILED {
            libc::munmap(space, bytes + 2 * PAGE);
            return Err(OUT_OF_MEMORY);
        }
        Ok(space as usize + PAGE)
    }
}

/// Takes a buffer; it is full of poison.
///
/// # Errors
/// `INVALID_VALUE` for none, `OUT_OF_MEMORY` where the machine has no more.
pub fn take(of: Of, bytes: usize) -> Result<usize, Code> {
    if bytes == 0 || bytes > isize::MAX as usize / 2 {
        return Err(INVALID_VALUE);
    }
    let pages_bytes = bytes.next_multiple_of(PAGE);
    let (pages, offset) = match of {
        Of::Host | Of::Other => (map(pages_bytes, None)?, 0),
        Of::Card(_) => {
            let store = store()?;
            let mut end = store.end.lock().unwrap_or_else(PoisonError::into_inner);
            let offset = *end;
            store.file.set_len(offset + pages_bytes as u64).map_err(|_| OUT_OF_MEMORY)?;
            *end += pages_bytes as u64;
            (map(pages_bytes, Some((&store.file, offset)))?, offset)
        }
    };
    // SAFETY: pages that were mapped just now.
    unsafe { ptr::write_bytes(pages as *mut u8, POISON, pages_bytes) };
    let at = pages + pages_bytes - bytes.next_multiple_of(ALIGN);
    all().pieces.insert(at, Piece { of, bytes, pages, pages_bytes, offset, freed: false });
    Ok(at)
}

/// Bytes that a buffer takes of a card.
pub fn taken_bytes(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE)
}

/// Gives a buffer of such memory back; how large it was, and whether nobody wrote behind its end.
/// Nothing may use it any more.
///
/// # Errors
/// `INVALID_VALUE` for what is no buffer's beginning.
pub fn give_back(of: impl Fn(Of) -> bool, at: usize) -> Result<(usize, bool), Code> {
    let mut all = all();
    let piece = all.pieces.get_mut(&at).filter(|piece| !piece.freed && of(piece.of));
    let piece = piece.ok_or(INVALID_VALUE)?;
    piece.freed = true;
    let piece = *piece;
    let end = at + piece.bytes;
    let tail = piece.pages + piece.pages_bytes - end;
    // SAFETY: pages of the buffer; what another process took is not looked at.
    let clean = piece.of == Of::Other
        || unsafe { std::slice::from_raw_parts(end as *const u8, tail) }
            .iter()
            .all(|&byte| byte == POISON);
    // SAFETY: as above; its addresses stay reserved, so that late accesses fault.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let at = piece.pages as *mut libc::c_void;
        libc::mmap(at, piece.pages_bytes, libc::PROT_NONE, flags, -1, 0);
    }
    if let (Of::Card(_), Ok(store)) = (piece.of, store()) {
        let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (offset, bytes) = (piece.offset as i64, piece.pages_bytes as i64);
        // SAFETY: pages of the file that only this buffer had.
        unsafe { libc::fallocate(store.file.as_raw_fd(), how, offset, bytes) };
    }
    all.freed.push_back(at);
    if all.freed.len() > FREED_MAX
        && let Some(oldest) = all.freed.pop_front()
        && let Some(piece) = all.pieces.remove(&oldest)
    {
        let space = (piece.pages - PAGE) as *mut libc::c_void;
        // SAFETY: reserved addresses that nothing is known of any more.
        unsafe { libc::munmap(space, piece.pages_bytes + 2 * PAGE) };
    }
    Ok((piece.bytes, clean))
}

/// Whose memory `bytes` bytes are, all in one buffer.
pub fn owner(at: usize, bytes: usize) -> Option<Of> {
    let (begin, piece) = all().before(at)?;
    let within = at.checked_add(bytes)? <= begin + piece.bytes;
    (within && !piece.freed).then_some(piece.of)
}

/// What is known of an address that a kernel should not have touched.
#[must_use]
pub fn words(at: usize) -> String {
    let all = all();
    let after = all.pieces.range(at..).next().map(|(&begin, &piece)| (begin, piece));
    let near = all.before(at).into_iter().chain(after).find(|(_, piece)| {
        (piece.pages - PAGE..piece.pages + piece.pages_bytes + PAGE).contains(&at)
    });
    let Some((begin, piece)) = near else {
        return format!("{at:#x} is in no buffer");
    };
    let Piece { of, bytes, freed, .. } = piece;
    let freed = if freed { ", which was freed" } else { "" };
    match at.checked_sub(begin) {
        None => format!("{at:#x} is {} bytes before a buffer of {bytes}{freed}", begin - at),
        Some(in_it) if in_it < bytes => {
            format!("{at:#x} is byte {in_it} of a buffer of {bytes} ({of:?}){freed}")
        }
        Some(past) => {
            format!("{at:#x} is {} bytes past a buffer of {bytes} ({of:?}){freed}", past - bytes)
        }
    }
}

/// By what another process opens a buffer: this one, its file, the pages there and the buffer.
///
/// # Errors
/// `INVALID_VALUE` for what is not the beginning of a buffer that may be named.
pub fn name(at: usize) -> Result<[u8; 64], Code> {
    let all = all();
    let piece = all.pieces.get(&at).filter(|piece| {
        !piece.freed && matches!(piece.of, Of::Card(_)) && piece.bytes >= NAMED_BYTES_MIN
    });
    let piece = piece.ok_or(INVALID_VALUE)?;
    let numbers = [
        u64::from(std::process::id()),
        store()?.file.as_raw_fd() as u64,
        piece.offset,
        piece.pages_bytes as u64,
        (at - piece.pages) as u64,
        piece.bytes as u64,
    ];
    let mut name = [0; 64];
    name[..16].copy_from_slice(&token());
    let bytes = numbers.map(u64::to_le_bytes);
    name[16..].copy_from_slice(bytes.as_flattened());
    Ok(name)
}

/// Opens a buffer of another process by its name; where it is here.
///
/// # Errors
/// `INVALID_CONTEXT` for one of this process, `MAP_FAILED` for one that is gone.
pub fn open(name: &[u8; 64]) -> Result<usize, Code> {
    let number = |i: usize| u64::from_le_bytes(std::array::from_fn(|at| name[16 + 8 * i + at]));
    let [process, file, offset, pages_bytes, first, bytes] = std::array::from_fn(number);
    if process == u64::from(std::process::id()) {
        return Err(INVALID_CONTEXT);
    }
    let path = format!("/proc/{process}/fd/{file}");
    let file = File::options().read(true).write(true).open(path).map_err(|_| MAP_FAILED)?;
    let (mut found, end) = ([0; 16], offset.checked_add(pages_bytes));
    let read = file.read_exact_at(&mut found, 0);
    let large = file.metadata().map_or(0, |data| data.len());
    let inside = first.checked_add(bytes).is_some_and(|end| end <= pages_bytes);
    if read.is_err() || found != name[..16] || end.is_none_or(|end| end > large) || !inside {
        return Err(MAP_FAILED);
    }
    let (pages_bytes, bytes) = (pages_bytes as usize, bytes as usize);
    let pages = map(pages_bytes, Some((&file, offset)))?;
    let at = pages + first as usize;
    let piece = Piece { of: Of::Other, bytes, pages, pages_bytes, offset: 0, freed: false };
    all().pieces.insert(at, piece);
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_ends_at_its_guard_and_late_or_wide_accesses_are_named() {
        let at = take(Of::Card(0), 1_000).expect("memory");
        assert!(at.is_multiple_of(ALIGN));
        assert_eq!(owner(at, 1_000), Some(Of::Card(0)));
        assert_eq!(owner(at, 1_001), None);
        assert!(words(at + 1_023).contains("23 bytes past a buffer of 1000"), "{}", words(at));
        assert!(words(at + 1_024 + 8).contains("32 bytes past"), "{}", words(at + 1_032));
        assert_eq!(name(at), Err(INVALID_VALUE), "the driver shares what is so small");
        assert_eq!(give_back(|of| of == Of::Card(0), at), Ok((1_000, true)));
        assert!(words(at).contains("which was freed"), "{}", words(at));
        assert_eq!(owner(at, 1), None);
        assert_eq!(give_back(|_| true, at), Err(INVALID_VALUE));
    }

    #[test]
    fn what_is_written_behind_a_buffer_is_found_when_it_is_freed() {
        let at = take(Of::Card(0), 4).expect("memory");
        // SAFETY: behind the buffer, yet in its last page.
        unsafe { ((at + 4) as *mut u8).write(0) };
        assert_eq!(give_back(|_| true, at), Ok((4, false)));
    }

    #[test]
    fn memory_of_this_process_is_not_opened_by_name_nor_what_is_gone() {
        let at = take(Of::Card(0), NAMED_BYTES_MIN).expect("memory");
        let mut named = name(at).expect("a name");
        assert_eq!(open(&named), Err(INVALID_CONTEXT));
        named[16..24].copy_from_slice(&1_u64.to_le_bytes());
        assert_eq!(open(&named), Err(MAP_FAILED));
        assert!(give_back(|_| true, at).is_ok());
    }
}
