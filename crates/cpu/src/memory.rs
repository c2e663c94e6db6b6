//! Memory for packed weights, and the question how much is free before any is taken.

use std::alloc::{self, Layout};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use backend::BackendError;

/// Buffers of this size or more ask for huge pages and are aligned to one.
const HUGE_BYTES: usize = 2 << 20;
/// Alignment of the rest: a cache line.
const LINE_BYTES: usize = 64;

/// Bytes that the system can give without swapping; `None` where it doesn't say.
pub fn free_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    parse_available(&text)
}

fn parse_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|l| l.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Refuses `need` bytes for `what` if fewer are free. Small requests are not checked.
pub(crate) fn check(device: &str, what: &str, need: u128) -> Result<(), BackendError> {
    if need <= HUGE_BYTES as u128 {
        return Ok(());
    }
    match free_bytes() {
        Some(free) if need > u128::from(free) => Err(out_of_memory(device, what, need, free)),
        _ if need > isize::MAX as u128 => Err(out_of_memory(device, what, need, 0)),
        _ => Ok(()),
    }
}

fn out_of_memory(device: &str, what: &str, need: u128, free_bytes: u64) -> BackendError {
    BackendError::OutOfMemory {
        device: device.to_owned(),
        what: what.to_owned(),
        need_bytes: u64::try_from(need).unwrap_or(u64::MAX),
        free_bytes,
    }
}

/// Zeros, aligned to a cache line, or to a huge page where they fill one. Pages that are never
/// touched take no memory.
pub(crate) struct Floats {
    data: Vec<f32>,
    start: usize,
    len: usize,
}

impl Floats {
    pub(crate) fn zeros(len: usize) -> Self {
        let align = if len * size_of::<f32>() >= HUGE_BYTES { HUGE_BYTES } else { LINE_BYTES };
        let data = vec![0.0_f32; len + align / size_of::<f32>() - 1];
        let start = data.as_ptr().align_offset(align);
        let floats = Self { data, start, len };
        if align == HUGE_BYTES {
            advise(floats.as_ptr().cast(), len * size_of::<f32>());
        }
        floats
    }
}

impl Deref for Floats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.data[self.start..][..self.len]
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.data[self.start..][..self.len]
    }
}

/// Asks for huge pages from `start` on, which is aligned to one; a refusal costs speed only.
fn advise(start: *const u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    // SAFETY: the advice changes no contents, whatever the range.
    unsafe {
        libc::madvise(start.cast_mut().cast(), bytes, libc::MADV_HUGEPAGE);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
}

/// Bytes of packed weights, aligned to a cache line or a huge page.
pub(crate) struct Buffer {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the buffer owns its bytes and hands them out by the rules of `&` and `&mut`.
unsafe impl Send for Buffer {}
// SAFETY: as above; nothing inside is mutable through `&`.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `bytes` bytes, filled by `fill(part, bytes of the part)` for each of the equal `parts`;
    /// `run` calls its argument for every part, on any thread. Parts come zeroed.
    pub(crate) fn filled(
        device: &str,
        what: &str,
        part_bytes: usize,
        parts: usize,
        run: impl FnOnce(usize, &(dyn Fn(usize) + Sync)),
        fill: &(dyn Fn(usize, &mut [u8]) + Sync),
    ) -> Result<Self, BackendError> {
        let need = part_bytes as u128 * parts as u128;
        check(device, what, need)?;
        let bytes = part_bytes * parts;
        let align = if bytes >= HUGE_BYTES { HUGE_BYTES } else { LINE_BYTES };
        let refused = || out_of_memory(device, what, need, free_bytes().unwrap_or(0));
        let layout =
            Layout::from_size_align(bytes.max(LINE_BYTES), align).map_err(|_| refused())?;
        // SAFETY: the layout's size isn't zero.
        let start = NonNull::new(unsafe { alloc::alloc(layout) }).ok_or_else(refused)?;
        let buffer = Self { start, layout };
        if layout.size() >= HUGE_BYTES {
            advise(start.as_ptr(), layout.size());
        }
        let base = Parts(start.as_ptr());
        run(parts, &|part| {
            assert!(part < parts);
            // SAFETY: part `part` lies inside the allocation and each is filled by one call, so
            // the slice is exclusive; it is zeroed before it is a slice.
            let slice = unsafe {
                let at = base.at(part * part_bytes);
                at.write_bytes(0, part_bytes);
                std::slice::from_raw_parts_mut(at, part_bytes)
            };
            fill(part, slice);
        });
        Ok(buffer)
    }

    /// The bytes, tail of a small buffer excluded by the callers' own lengths.
    pub(crate) fn start(&self) -> *const u8 {
        self.start.as_ptr()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `filled` with this layout.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// The start of a buffer under construction.
struct Parts(*mut u8);

// SAFETY: the threads that share it write disjoint parts.
unsafe impl Sync for Parts {}

impl Parts {
    /// # Safety
    /// `offset` must lie inside the allocation.
    unsafe fn at(&self, offset: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(offset) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn available_memory_is_read_in_bytes() {
        let text = "MemTotal: 100 kB\nMemAvailable:   24 kB\n";
        assert_eq!(parse_available(text), Some(24 * 1024));
        assert_eq!(parse_available("MemTotal: 100 kB\n"), None);
    }

    #[test]
    fn an_impossible_request_is_refused_with_both_numbers() {
        let error = check("cpu", "weights", 1 << 60).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("weights needs 1152921504606846976 bytes"), "{text}");
    }

    #[test]
    fn zeros_begin_a_line_or_a_huge_page() {
        for (len, align) in [(1, LINE_BYTES), (HUGE_BYTES / 4, HUGE_BYTES)] {
            let mut floats = Floats::zeros(len);
            floats[len - 1] += 1.0;
            assert!(floats.as_ptr().addr().is_multiple_of(align) && floats.len() == len);
            assert_eq!(floats.iter().sum::<f32>(), 1.0);
        }
    }

    #[test]
    fn a_buffer_holds_what_its_parts_were_filled_with() {
        let serial = |n: usize, f: &(dyn Fn(usize) + Sync)| (0..n).for_each(f);
        let fill = |part: usize, bytes: &mut [u8]| {
            assert!(bytes.iter().all(|&b| b == 0));
            bytes.fill(part as u8);
        };
        let buffer = Buffer::filled("cpu", "test", 1000, 3000, serial, &fill).unwrap();
        // SAFETY: 3,000 parts of 1,000 bytes were filled.
        let bytes = unsafe { std::slice::from_raw_parts(buffer.start(), 3_000_000) };
        assert!(bytes.iter().enumerate().all(|(i, &b)| b == (i / 1000) as u8));
    }
}
