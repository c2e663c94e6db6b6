//! The table of faults on rings of real processes.

use anyhow::Result;

use crate::step::{Steps, cargo};

/// The test that prints it.
const TEST: &str = "table::every_fault_in_every_phase_at_every_rank";

/// Runs every fault in every phase at every rank, which takes about ten minutes; prints a table in
/// markdown and the worst times.
///
/// # Errors
/// A cell that shows anything else than it must, or too late.
pub fn run(steps: &mut Steps) -> Result<()> {
    let mut command = cargo(&["test", "--quiet", "--locked", "--package", "baton"]);
    command.args(["--test", "it", "--", "--ignored", "--exact", TEST, "--nocapture"]);
    steps.run("faults", &mut command)
}
