//! The simulator's seeds.

use std::process::Command;

use anyhow::{Context, Result};

use crate::step::{Steps, cargo};

/// Runs seeds of the simulator, or what the arguments ask for; the last line is the summary.
///
/// # Errors
/// A seed that fails.
pub fn run(steps: &mut Steps, arguments: &[String]) -> Result<()> {
    let mut command = cargo(&["run", "--quiet", "--locked", "--package", "baton-sim", "--"]);
    steps.run("sim", command.args(arguments))
}

/// As many seeds as CI runs, with the binary that the tests have built; it lies beside us.
///
/// # Errors
/// As [`run`]'s.
pub fn built(steps: &mut Steps) -> Result<()> {
    let own = std::env::current_exe().context("this program's own path")?;
    steps.run("sim", &mut Command::new(own.with_file_name("baton-sim")))
}
