//! Bytes that mean nothing: refused by name, without a panic, and within memory.

use std::process::Command;

use proptest::prelude::*;
use wire::frame::Reader;

use crate::kind::{KINDS, recode};
use crate::{cases, random};

/// A decoder takes only what its encoder writes.
fn holds(kind: &str, bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(Some(again)) = recode(kind, bytes) {
        prop_assert!(again == bytes, "{} took bytes that nobody writes", kind);
    }
    Ok(())
}

/// Mostly zeros and small numbers, so that counts are often plausible.
fn small_byte() -> impl Strategy<Value = u8> {
    prop_oneof![3 => Just(0u8), 1 => 0u8..8, 1 => any::<u8>()]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_refused_or_canonical(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        for kind in KINDS {
            holds(kind, &bytes)?;
        }
    }

    #[test]
    fn random_bytes_after_a_true_prefix_are_refused_or_canonical(
        message in 1u8..=5,
        bytes in prop::collection::vec(small_byte(), 0..300),
    ) {
        let bytes = [&b"TFSP\x01\0"[..], &[message, 0], &bytes].concat();
        holds("control", &bytes)?;
        holds("plan", &bytes)?;
    }

    #[test]
    fn a_flipped_bit_is_refused_or_means_something_else(
        (kind, bytes) in random::valid(),
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let mut flipped = bytes;
        let at = at.index(flipped.len());
        flipped[at] ^= 1 << bit;
        if kind != "frame" {
            holds(kind, &flipped)?;
        } else {
            // A flipped payload bit is the message's affair, and so are split parts.
            let _ = recode("parts", &flipped);
        }
    }

    #[test]
    fn a_cut_message_is_refused(
        (kind, bytes) in random::valid(),
        at in any::<prop::sample::Index>(),
    ) {
        let cut = &bytes[..at.index(bytes.len())];
        let found = recode(kind, cut);
        match kind {
            // Reasons may end between characters, calls between values, frames between two.
            "stop" | "frame" | "call" => holds(kind, cut)?,
            _ => prop_assert!(found.is_err(), "{} took {} bytes", kind, cut.len()),
        }
    }

    #[test]
    fn a_reader_is_broken_for_good_by_its_first_error(
        bytes in prop::collection::vec(any::<u8>(), 32..200),
    ) {
        let (mut reader, mut frames) = (Reader::new(), Vec::new());
        let first = reader.push(&bytes, &mut frames);
        prop_assert!(first.is_err());
        let beat = cases::all().into_iter().find(|case| case.name == "frame_beat.hex").unwrap();
        prop_assert_eq!(reader.push(&beat.bytes, &mut frames), first.clone());
        prop_assert_eq!(reader.finish(), first);
        prop_assert!(frames.is_empty());
    }
}

/// Every golden message with 0xff over each run of four bytes: all counts are huge at some time.
#[test]
fn huge_counts_are_refused() {
    for case in cases::all().iter().filter(|case| case.error.is_none()) {
        for at in 0..case.bytes.len().saturating_sub(3).min(256) {
            let _ = recode(case.kind, &cases::poke(&case.bytes, at, &[0xff; 4]));
        }
    }
}

/// Runs [`huge_counts_are_refused`] in a process that may map 512 MiB: an allocation by an
/// unchecked count would end it.
#[test]
#[cfg(target_os = "linux")]
fn huge_counts_allocate_nothing() {
    let mut child = Command::new("sh");
    child.arg("-c").arg("ulimit -v 524288 && exec \"$0\" \"$@\"");
    child.arg(std::env::current_exe().unwrap());
    child.args(["--exact", "hostile::huge_counts_are_refused", "--test-threads=1"]);
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
