//! 64-bit ARM, emulated: the binary is cross-built with Rust's own linker and C library, the CPU
//! crate's tests run under qemu, and rings of both kinds of machine give one reply.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::report::{self, Report};
use crate::step::{self, Steps, cargo};

const TARGET: &str = "aarch64-unknown-linux-musl";
/// Compiles what is not ours without much optimisation: the build is most of the time.
const PROFILE: &str = "arm";
const EMULATOR: &str = "qemu-aarch64";
/// The tests of the CPU crate that compare bytes: the conformance suite and what it leaves out.
const KERNELS: [&str; 3] = ["conformance", "linear", "vector"];
/// The tests of rings.
pub const RINGS: &str = "arm::";

/// Builds the binary and runs the kernels' tests, then rings unless told `--build`; or says what is
/// missing.
///
/// # Errors
/// What does not build, a test that fails.
pub fn run(steps: &mut Steps, arguments: &[String]) -> Result<()> {
    let rings_too = match arguments {
        [] => true,
        [one] if one == "--build" => false,
        _ => bail!("cargo xtask arm [--build]"),
    };
    if let Some(missing) = missing() {
        println!("skipped: aarch64: {missing}");
        return Ok(());
    }
    build(steps)?;
    if rings_too {
        println!("{}", rings(steps)?.verdict());
    }
    Ok(())
}

/// Builds the binary and runs the kernels' tests.
fn build(steps: &mut Steps) -> Result<()> {
    let common = ["--locked", "--target", TARGET, "--profile", PROFILE];
    // A static binary loads no driver, so it goes without what would ask for one.
    let mut command =
        cargo(&["build", "-p", "baton", "--no-default-features", "--features", "otlp"]);
    steps.run("arm build", command.args(common))?;
    let mut command = cargo(&["test", "-p", "baton-cpu", "--lib", "--test", "it"]);
    steps.run("arm test", command.args(common).arg("--").args(KERNELS))
}

/// Runs rings of this machine and of the binary that [`run`] left; none where it could not, and
/// said so.
///
/// # Errors
/// A test that fails.
pub fn rings(steps: &mut Steps) -> Result<Report> {
    if missing().is_some() {
        return Ok(Report::default());
    }
    let own = std::env::current_exe().context("this program's own path")?;
    let target = own.ancestors().nth(2).context("a target folder")?;
    let binary = target.join(TARGET).join(PROFILE).join("baton");
    // The whole workspace, so that nothing is built with other features than its tests were.
    let mut command = cargo(&["test", "--workspace", "--locked", "--test", "it", RINGS]);
    command.args(["--", "--show-output"]).current_dir(steps.root()).env("BATON_ARM", binary);
    let report = steps.time("arm rings", || report::run(&mut command))?;
    ensure!(report.success() && report.skipped().is_empty(), "{}", report.verdict());
    Ok(report)
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
