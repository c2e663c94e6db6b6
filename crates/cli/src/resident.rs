//! What this process holds of the machine's memory.

/// What is taken where the system does not say.
#[cfg(not(target_os = "linux"))]
const UNKNOWN_BYTES: u64 = 64 << 20;

/// Bytes that are resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Memory of its own.
    pub own_bytes: u64,
    /// Code that has run, and other pages of files.
    pub code_bytes: u64,
}

/// What is resident now.
#[cfg(target_os = "linux")]
pub fn resident() -> Resident {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |what: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(what));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) << 10
    };
    Resident { own_bytes: of("RssAnon:") + of("RssShmem:"), code_bytes: of("RssFile:") }
}

/// A guess.
#[cfg(not(target_os = "linux"))]
pub fn resident() -> Resident {
    Resident { own_bytes: UNKNOWN_BYTES, code_bytes: 0 }
}

/// Gives the system back what the allocator keeps of buffers that are gone: those of a load are
/// large, and nothing will fill them again.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it only releases pages that the allocator holds for nobody.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_told_and_code_is_told_apart() {
        let now = resident();
        assert!(now.own_bytes > 0 && now.code_bytes > 0, "{now:?}");
        // Tests beside this one take and give back memory too, but not each time as much.
        let is_told = || {
            let before = resident().own_bytes;
            let held = std::hint::black_box(vec![1_u8; 64 << 20]);
            let more = resident().own_bytes.saturating_sub(before);
            (60..70).contains(&(more >> 20)) && held.len() == 64 << 20
        };
        assert!((0..50).any(|_| is_told()));
    }
}
