//! Fuzzing: one build of all targets in `fuzz/`, then each for a while, as many at once as there
//! are cores. Nothing is installed here; what is missing is said, and the step is skipped.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context, Result, anyhow, ensure};

use crate::step::{self, Steps};

/// The targets, with the largest single allocation that each may make, in MiB.
const TARGETS: [(&str, u32); 9] = [
    ("folders", 16),
    ("gguf", 16),
    ("header", 16),
    ("templates", 256),
    ("handshake", 16),
    ("tokens", 64),
    ("requests", 64),
    ("messages", 16),
    ("frames", 16),
];
/// Most resident memory of a target, the sanitizer's own included.
const RSS_MIB_MAX: u32 = 512;
/// Longest time for one input; unoptimised and instrumented code is tens of times slower.
const INPUT_SECONDS_MAX: u32 = 25;
const SECONDS: u32 = 30;
const NIGHTLY: [&str; 3] = ["run", "nightly", "cargo"];

/// `[--seconds N]`, each target's time.
pub fn run(steps: &mut Steps, arguments: &[String]) -> Result<()> {
    let seconds = match arguments {
        [] => SECONDS,
        [flag, seconds] if flag == "--seconds" => seconds.parse().context("--seconds")?,
        other => return Err(anyhow!("expected [--seconds N], found {other:?}")),
    };
    if let Some(missing) = missing() {
        println!("skipped: fuzzing: {missing}");
        return Ok(());
    }
    let bench = Bench::new(steps.root())?;
    steps.run("fuzz build", &mut bench.build())?;
    steps.time("fuzz", || bench.run_all(seconds))
}

/// What this machine lacks.
fn missing() -> Option<&'static str> {
    let nightly = Command::new("rustup")
        .args(["run", "nightly", "rustc", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !nightly.is_ok_and(|status| status.success()) {
        return Some("no nightly toolchain (rustup toolchain install nightly)");
    }
    (!step::installed("cargo-fuzz"))
        .then_some("cargo-fuzz is not installed (cargo install --locked cargo-fuzz)")
}

/// Where everything lies.
struct Bench {
    manifest: PathBuf,
    /// Builds, corpora and what broke.
    folder: PathBuf,
    host: String,
}

impl Bench {
    fn new(root: &Path) -> Result<Self> {
        let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        let output = Command::new("rustc").arg("-vV").output();
        let output = output.context("can't run rustc")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let host = text.lines().find_map(|line| line.strip_prefix("host: "));
        Ok(Self {
            manifest: root.join("fuzz"),
            folder: root.join(target).join("fuzz"),
            host: host.context("rustc names no host")?.to_owned(),
        })
    }

    fn build(&self) -> Command {
        let mut command = Command::new("rustup");
        command
            .args(NIGHTLY)
            .args(["fuzz", "build", "--codegen-units", "16"])
            .arg("--fuzz-dir")
            .arg(&self.manifest)
            .arg("--target-dir")
            .arg(&self.folder)
            .stderr(Stdio::inherit());
        command
    }

    fn run_all(&self, seconds: u32) -> Result<()> {
        let left = Mutex::new(TARGETS.iter());
        let next = || left.lock().ok().and_then(|mut left| left.next());
        let work = || {
            std::iter::from_fn(next)
                .filter_map(|&(name, malloc_mib)| self.one(name, malloc_mib, seconds).err())
                .collect::<Vec<_>>()
        };
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let broken: Vec<anyhow::Error> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
            let join = |worker: std::thread::ScopedJoinHandle<'_, Vec<_>>| {
                worker.join().unwrap_or_else(|_| vec![anyhow!("a worker broke")])
            };
            workers.into_iter().flat_map(join).collect()
        });
        for error in &broken {
            eprintln!("{error:#}");
        }
        ensure!(broken.is_empty(), "{} targets broke", broken.len());
        Ok(())
    }

    /// Runs a target; prints what it did in a line, or what broke it.
    fn one(&self, name: &str, malloc_mib: u32, seconds: u32) -> Result<()> {
        let corpus = self.folder.join("corpus").join(name);
        let artifacts = self.folder.join("artifacts").join(name);
        for folder in [&corpus, &artifacts] {
            std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
        }
        let mut prefix = OsString::from("-artifact_prefix=");
        prefix.push(artifacts.join(""));
        let binary = self.folder.join(&self.host).join("release").join(name);
        let mut command = Command::new(&binary);
        let words = self.manifest.join("words").join(format!("{name}.dict"));
        if words.is_file() {
            command.arg(format!("-dict={}", words.display()));
        }
        let output = command
            .arg(&corpus)
            .arg(prefix)
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-malloc_limit_mb={malloc_mib}"))
            .arg(format!("-rss_limit_mb={RSS_MIB_MAX}"))
            .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
            .arg("-print_final_stats=1")
            .env("BATON_FUZZ_SEEDS", &corpus)
            .env("ASAN_OPTIONS", "detect_leaks=0:quarantine_size_mb=8")
            .output()
            .with_context(|| format!("can't run {}", binary.display()))?;
        let log = String::from_utf8_lossy(&output.stderr);
        let statistic = |name: &str| {
            let found = log.lines().find_map(|line| line.strip_prefix(name));
            found.unwrap_or("?").trim().to_owned()
        };
        let runs = statistic("stat::number_of_executed_units:");
        let mib = statistic("stat::peak_rss_mb:");
        if output.status.success() {
            println!("{name:>10}: {runs} inputs, at most {mib} MiB");
            return Ok(());
        }
        let from = log.lines().count().saturating_sub(60);
        let tail: Vec<&str> = log.lines().skip(from).collect();
        Err(anyhow!(
            "{}\nfuzz target {name}: {}; again: {} FILE of {}",
            tail.join("\n"),
            output.status,
            binary.display(),
            artifacts.display()
        ))
    }
}
