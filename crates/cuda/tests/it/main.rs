//! The CUDA backend against the reference where there is a card, and what is said where there is
//! none.
#![allow(clippy::unwrap_used, reason = "tests")]

use backend::conformance::{self, Level};
use baton_cuda::{Cuda, CudaError};

/// A card, or a line that says what was skipped, past the harness's capture.
fn card(test: &str) -> Option<Cuda> {
    match Cuda::open(0, None) {
        Ok(cuda) => Some(cuda),
        Err(error) => {
            let line = format!("skipped: {test}: {error}\n");
            let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
            None
        }
    }
}

#[test]
fn the_conformance_suite_passes_on_the_card() {
    let Some(cuda) = card("the conformance suite on a CUDA card") else { return };
    let report = conformance::run(&cuda, Level::Quick);
    assert!(report.ok(), "{report}");
}

#[test]
fn a_machine_without_a_driver_is_told_so_in_one_line() {
    match Cuda::open(0, None) {
        Err(error @ CudaError::NoDriver { .. }) => {
            let line = error.to_string();
            assert!(line.contains("libcuda") && line.contains("--device cpu"), "{line}");
            assert!(!line.contains('\n'), "{line}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(_) => {
            let error = Cuda::open(4096, None).err().unwrap().to_string();
            assert!(error.contains("cuda:4096: this machine has"), "{error}");
        }
    }
}
