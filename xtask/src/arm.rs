//! 64-bit ARM, emulated: the binary is cross-built with Rust's own linker and C library, the CPU
//! crate's tests run under qemu, and rings of both kinds of machine give one reply.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::report;
use crate::step::{self, Steps, cargo};

const TARGET: &str = "aarch64-unknown-linux-musl";
/// Compiles what is not ours without much optimisation: the build is most of the time.
const PROFILE: &str = "arm";
const EMULATOR: &str = "qemu-aarch64";
/// The tests of the CPU crate that compare bytes: the conformance suite and what it leaves out.
const KERNELS: [&str; 3] = ["conformance", "linear", "vector"];

/// Builds and tests, or says what is missing.
pub fn run(steps: &mut Steps) -> Result<()> {
    let Some(binary) = build(steps)? else { return Ok(()) };
    let mut command = cargo(&["test", "--locked", "-p", "baton", "--test", "it", "arm::"]);
    command.args(["--", "--show-output"]).current_dir(steps.root()).env("BATON_ARM", binary);
    let report = steps.time("arm rings", || report::run(&mut command))?;
    ensure!(report.success() && report.skipped().is_empty(), "{}", report.verdict());
    println!("{}", report.verdict());
    Ok(())
}

/// Builds the binary and runs the kernels' tests; where the binary lies, for the tests of rings.
pub fn build(steps: &mut Steps) -> Result<Option<PathBuf>> {
    if let Some(missing) = missing() {
        println!("skipped: aarch64: {missing}");
        return Ok(None);
    }
    let common = ["--locked", "--target", TARGET, "--profile", PROFILE];
    // A static binary loads no driver, so it goes without what would ask for one.
    let mut command =
        cargo(&["build", "-p", "baton", "--no-default-features", "--features", "otlp"]);
    steps.run("arm build", command.args(common))?;
    let mut command = cargo(&["test", "-p", "baton-cpu", "--lib", "--test", "it"]);
    steps.run("arm test", command.args(common).arg("--").args(KERNELS))?;
    let own = std::env::current_exe().context("this program's own path")?;
    let target = own.ancestors().nth(2).context("a target folder")?;
    Ok(Some(target.join(TARGET).join(PROFILE).join("baton")))
}

/// What this machine lacks.
fn missing() -> Option<String> {
    if !step::installed(EMULATOR) {
        return Some(format!("no {EMULATOR} (Debian: qemu-user)"));
    }
    let query = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", TARGET])
        .stderr(Stdio::null())
        .output();
    let found = query.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    let found = found.is_some_and(|path| std::path::Path::new(path.trim_end()).is_dir());
    (!found).then(|| format!("no {TARGET} (rustup target add {TARGET})"))
}
