//! Memory that processes of one machine share: words, and waits on them.
//!
//! A segment is a file that only memory holds, sealed against shrinking, so that no process can
//! take pages away under another. Whoever made it names its place to those that it trusts; only
//! processes of the same user can open it there.

use std::io;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Most bytes of a segment.
pub const SEGMENT_BYTES_MAX: usize = 64 << 20;
/// Longest place.
pub const PLACE_BYTES_MAX: usize = 64;

/// A number of shared words.
#[derive(Debug)]
pub struct Segment {
    words: &'static [AtomicU64],
    #[cfg(target_os = "linux")]
    file: std::fs::File,
}

#[cfg(all(target_os = "linux", target_endian = "little"))]
impl Segment {
    /// A new one of `words` words, all 0.
    ///
    /// # Errors
    /// The system has none to give; more than [`SEGMENT_BYTES_MAX`] bytes.
    pub fn create(words: usize) -> io::Result<Self> {
        use std::os::fd::FromRawFd;
        let bytes = bytes_of(words)?;
        // SAFETY: the name ends in a zero, and the descriptor is checked before it is used.
        let descriptor = unsafe {
            libc::memfd_create(c"baton".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was just opened, and nobody else has it.
        let file = unsafe { std::fs::File::from_raw_fd(descriptor) };
        file.set_len(bytes as u64)?;
        // SAFETY: the call takes a descriptor and flags, no memory.
        if unsafe { libc::fcntl(descriptor, libc::F_ADD_SEALS, SEALS) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Self::map(file, bytes)
    }

    /// Where another process of this user finds it, while this one has it.
    pub fn place(&self) -> String {
        use std::os::fd::AsRawFd;
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// The segment of `words` words at a place.
    ///
    /// # Errors
    /// Nothing is there, or something else: a file, another size, no seals.
    pub fn open(place: &str, words: usize) -> io::Result<Self> {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::OpenOptionsExt;
        let bytes = bytes_of(words)?;
        let other = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
        if !place.starts_with("/proc/") || place.len() > PLACE_BYTES_MAX {
            return Err(other("not the place of a segment"));
        }
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(place)?;
        // SAFETY: the call takes a descriptor and no memory.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS || file.metadata()?.len() != bytes as u64 {
            return Err(other("not a segment of this size"));
        }
        Self::map(file, bytes)
    }

    fn map(file: std::fs::File, bytes: usize) -> io::Result<Self> {
        use std::os::fd::AsRawFd;
        // SAFETY: a new mapping of our own choice of place; its result is checked.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: pages are aligned beyond a word, as long as said, zero at first, and stay until
        // the drop, which outlives what `words` lends; the seals keep the file from shrinking. All
        // processes use the words as atomics alone.
        let words = unsafe { std::slice::from_raw_parts(at.cast::<AtomicU64>(), bytes / 8) };
        Ok(Self { words, file })
    }

    /// Waits until [`Segment::wake`] for the word at `index`, for `limit` at most; not at all where
    /// the word's lower half is no more that of `seen`.
    pub fn wait(&self, index: usize, seen: u64, limit: Duration) {
        let limit = libc::timespec {
            tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let word = std::ptr::from_ref(&self.words[index]).cast::<u32>();
        // SAFETY: the word is mapped and aligned, its lower half comes first, and the kernel only
        // reads it and the time.
        unsafe {
            libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, seen as u32, &raw const limit)
        };
    }

    /// Wakes whoever waits for the word at `index`.
    pub fn wake(&self, index: usize) {
        let word = std::ptr::from_ref(&self.words[index]).cast::<u32>();
        // SAFETY: the word is mapped; the call takes its address and reads no memory.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX) };
    }
}

#[cfg(all(target_os = "linux", target_endian = "little"))]
impl Drop for Segment {
    fn drop(&mut self) {
        let at = self.words.as_ptr().cast_mut().cast();
        // SAFETY: it was mapped with this length, and nothing borrows the words any more.
        unsafe { libc::munmap(at, size_of_val(self.words)) };
    }
}

/// Neither shorter nor longer, for good.
#[cfg(target_os = "linux")]
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

#[cfg(not(all(target_os = "linux", target_endian = "little")))]
impl Segment {
    /// Refuses: this system has no such memory here.
    ///
    /// # Errors
    /// Always.
    pub fn create(words: usize) -> io::Result<Self> {
        bytes_of(words).and_then(|_| Err(io::ErrorKind::Unsupported.into()))
    }

    /// Refuses, as [`Segment::create`].
    ///
    /// # Errors
    /// Always.
    pub fn open(_place: &str, words: usize) -> io::Result<Self> {
        Self::create(words)
    }

    /// Nowhere.
    pub fn place(&self) -> String {
        String::new()
    }

    /// Does not wait.
    pub fn wait(&self, _index: usize, _seen: u64, _limit: Duration) {}

    /// Wakes nobody.
    pub fn wake(&self, _index: usize) {}
}

impl Segment {
    /// The words.
    pub fn words(&self) -> &[AtomicU64] {
        self.words
    }
}

fn bytes_of(words: usize) -> io::Result<usize> {
    let bytes = words.checked_mul(8).filter(|bytes| (1..=SEGMENT_BYTES_MAX).contains(bytes));
    bytes.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no size of a segment"))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::atomic::Ordering;
    use std::time::Instant;

    use super::*;

    #[test]
    fn what_one_writes_another_reads_and_wakes_up_for() {
        let made = Segment::create(4_096).unwrap();
        let opened = Segment::open(&made.place(), 4_096).unwrap();
        let waiting = std::thread::spawn(move || {
            let since = Instant::now();
            while opened.words()[9].load(Ordering::Acquire) == 0 {
                opened.wait(9, 0, Duration::from_secs(10));
            }
            (opened.words()[4_095].load(Ordering::Relaxed), since.elapsed())
        });
        std::thread::sleep(Duration::from_millis(20));
        made.words()[4_095].store(7, Ordering::Relaxed);
        made.words()[9].store(1, Ordering::Release);
        made.wake(9);
        let (found, waited) = waiting.join().unwrap();
        assert!(found == 7 && waited < Duration::from_secs(5), "{waited:?}");
        // A wait for what has changed already is none, and another ends in time.
        let since = Instant::now();
        made.wait(9, 0, Duration::from_secs(10));
        made.wait(9, 1, Duration::from_millis(10));
        assert!(since.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn what_is_no_segment_of_the_size_is_refused() {
        let made = Segment::create(512).unwrap();
        let place = made.place();
        assert!(Segment::open(&place, 512).is_ok());
        for (place, words) in [
            (place.as_str(), 511),
            ("/proc/self/exe", 512),
            ("/etc/passwd", 512),
            ("/proc/1/fd/99999", 512),
        ] {
            assert!(Segment::open(place, words).is_err(), "{place}");
        }
        assert!(Segment::create(0).is_err());
        assert!(Segment::create(SEGMENT_BYTES_MAX / 8 + 1).is_err());
        // Nobody takes its pages away.
        assert!(made.file.set_len(8).is_err());
        drop(made);
        assert!(Segment::open(&place, 512).is_err());
    }
}
