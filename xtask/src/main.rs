//! `cargo xtask`: the chores of this repository, each the same by hand and in CI.

mod arm;
mod ci;
mod clients;
mod device_test;
mod docs;
mod emulate;
mod faults;
mod fuzz;
mod gpu_check;
mod kernels;
mod lane;
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
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use step::Steps;

const USAGE: &str = "\
cargo xtask check   formatting, tidy, lints, documentation (and cargo-deny where it is installed)
cargo xtask test    every test; says which were skipped and why
cargo xtask ci      check, fetch SmolLM2, test, arm, sim, short races, fuzz; what .ci/run calls
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
cargo xtask arm     [--build]
                    kernels on emulated ARM, and rings of both machines unless --build; skipped
                    without qemu-user
cargo xtask gpu-check [--short]
                    a GPU beside the CPU: the conformance suite, rings of both with one hash
cargo xtask kernels [--short] [--keep FOLDER]
                    CUDA kernels compiled for every architecture: registers, spills
cargo xtask emulate [-- COMMAND..]
                    a command, or CI's ring, on emulated CUDA cards: exact bytes, no speed
cargo xtask device-test
                    a folder that tests and measures a card, or two, where it is carried
cargo xtask docs    [DOCUMENT..] every command of the documents, run; outputs compared
cargo xtask page    the page in a headless Chromium on a ring of 3: used, photographed
cargo xtask packaging
                    units, Dockerfile, compose file and manifest: checked, their rings started
cargo xtask tidy    the rules of this house that no other tool knows
cargo xtask synthetic --bytes 1GiB|--shape shard-tiny|27b [--family llama] [--format Q8_0]
    [--seed 1] [--vocab 248320] OUT.gguf
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
        [one] if one == "check" => ci::check(&mut steps),
        [one] if one == "test" => ci::test(&mut steps).map(|verdict| println!("{verdict}")),
        [one] if one == "ci" => ci::run(&mut steps),
        [one, rest @ ..] if one == "arm" => arm::run(&mut steps, rest),
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
        [one, rest @ ..] if one == "emulate" => emulate::run(&mut steps, rest),
        [one] if one == "device-test" => device_test::run(&mut steps),
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
