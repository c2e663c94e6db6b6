//! Memory for states, and the question how much is free before any is taken.

use std::ops::{Deref, DerefMut};

use backend::BackendError;

/// Buffers of this size or more ask for huge pages and are aligned to one.
pub(crate) const HUGE_BYTES: usize = 2 << 20;
/// Alignment of the rest: a cache line.
pub(crate) const LINE_BYTES: usize = 64;

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

pub(crate) fn out_of_memory(device: &str, what: &str, need: u128, free_bytes: u64) -> BackendError {
    BackendError::OutOfMemory {
        device: device.to_owned(),
        what: what.to_owned(),
        need_bytes: u64::try_from(need).unwrap_or(u64::MAX),
        free_bytes,
    }
}

/// Zeros that are memory now, and not once they are touched: a rank that has started has its
/// buffers, and its first long prompt does not fail of them.
pub(crate) fn held(len: usize) -> Vec<f32> {
    // Zeros from the system would be pages that are not there yet.
    let mut data = std::hint::black_box(Vec::with_capacity(len));
    data.resize(len, 0.0);
    data
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
pub(crate) fn advise(start: *const u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    // SAFETY: the advice changes no contents, whatever the range.
    unsafe {
        libc::madvise(start.cast_mut().cast(), bytes, libc::MADV_HUGEPAGE);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
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
}
