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
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// Set where the test below is the only one of its process.
    const ALONE: &str = "BATON_RESIDENT_ALONE";

    #[test]
    fn what_is_held_is_told_and_code_is_told_apart() {
        // Tests beside it take and give back memory too.
        if std::env::var_os(ALONE).is_none() {
            let name = "resident::tests::what_is_held_is_told_and_code_is_told_apart";
            let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
            let ran = alone.args(["--exact", name]).env(ALONE, "1").output().unwrap();
            let said = String::from_utf8_lossy(&ran.stdout);
            assert!(ran.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let before = resident();
        assert!(before.own_bytes > 0 && before.code_bytes > 0, "{before:?}");
        let held = std::hint::black_box(vec![1_u8; 64 << 20]);
        let more = resident().own_bytes - before.own_bytes;
        assert!(more >= 60 << 20, "{more} of {}", held.len());
    }
}
