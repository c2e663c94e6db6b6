//! Commands on emulated cards: the emulator's library under the names of the driver, the run-time
//! compiler and NCCL, in front of all others.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::kernels;
use crate::step::{self, Steps, cargo};

/// The names that the emulator's library is found by.
const NAMES: [&str; 3] = ["libcuda.so.1", "libnvrtc.so.13", "libnccl.so.2"];

/// `cargo xtask emulate [-- COMMAND..]`: runs a command, or what CI runs, where every card is an
/// emulated one.
///
/// # Errors
/// No compiler, what does not build, a command that fails.
pub fn run(steps: &mut Steps, arguments: &[String]) -> Result<()> {
    let words = match arguments {
        [first, rest @ ..] if first == "--" => rest,
        all => all,
    };
    let [program, rest @ ..] = words else { return quick(steps) };
    let machine = Machine::lay(steps)?;
    let mut command = Command::new(program);
    let status = machine.of(command.args(rest)).status().with_context(|| program.clone())?;
    ensure!(status.success(), "{program} ended with {status}");
    Ok(())
}

/// What CI has two emulated cards do: rings whose rows go from card to card, beside one of CPUs, by
/// each way and cut in another place.
const CHECKS: [&str; 2] = [
    "--layouts 0:4,4:8 --devices cpu,cuda:0|cuda:1 --exchange cards",
    "--layouts 0:3,3:8 --devices cpu,cuda:0|cuda:1 --exchange nccl",
];
const CHECK: &str = "check baton-tiny --prompt 20 --tokens 3 --threads 1 --chunks 64 --streams 1 \
     --depths 1";

/// What a rank says once its rows go from card to card.
const WAY: &str = "rows go to the rank after";

/// Rings on two emulated cards give the bytes of the CPU's; skipped without a compiler of
/// kernels.
///
/// # Errors
/// Another hash, rows that went by another way, or what does not run.
pub fn quick(steps: &mut Steps) -> Result<()> {
    if let Err(why) = kernels::compiler(steps.root()) {
        println!("skipped: emulated cards: {why:#}");
        return Ok(());
    }
    let machine = Machine::lay(steps)?;
    CHECKS.iter().try_for_each(|cards| ring(steps, &machine, cards))
}

/// A check of rings, some of them on emulated cards.
fn ring(steps: &mut Steps, machine: &Machine, cards: &str) -> Result<()> {
    let mut command = step::baton()?;
    command.args(["--log", "info"]).args(CHECK.split_whitespace()).args(cards.split_whitespace());
    command.env("EMULATOR_CARDS", "2").current_dir(steps.root());
    steps.time("emulated", || {
        let output = machine.of(&mut command).output().context("baton")?;
        let (said, told) =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text)).into();
        print!("{told}{said}");
        ensure!(output.status.success(), "{command:?} ended with {}", output.status);
        let is_way = [&said, &told].iter().any(|text| text.contains(WAY));
        ensure!(is_way, "no rank said {WAY:?}: rows went over the link");
        Ok(())
    })
}

/// Where the emulator's library lies under its names, and what it needs.
pub struct Machine {
    folder: PathBuf,
    compiler: String,
}

impl Machine {
    /// Builds the library and lays it out beside what else was built.
    ///
    /// # Errors
    /// No compiler of kernels; what does not build.
    pub fn lay(steps: &mut Steps) -> Result<Self> {
        let compiler = kernels::compiler(steps.root())?;
        let build = ["build", "--quiet", "--locked", "-p", "baton-emulator"];
        let status = cargo(&build).current_dir(steps.root()).status().context("cargo")?;
        ensure!(status.success(), "cargo {build:?} ended with {status}");
        let own = std::env::current_exe().context("this program's own path")?;
        let library = own.with_file_name("libbaton_emulator.so");
        ensure!(library.is_file(), "{} is not there", library.display());
        let folder = own.ancestors().nth(2).context("a target folder")?.join("emulator");
        std::fs::create_dir_all(&folder)?;
        NAMES.iter().try_for_each(|name| link(&library, &folder.join(name)))?;
        Ok(Self { folder, compiler })
    }

    /// Has a command find emulated cards.
    pub fn of<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let before = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let mut paths = vec![self.folder.clone()];
        paths.extend(std::env::split_paths(&before));
        if let Ok(paths) = std::env::join_paths(paths) {
            command.env("LD_LIBRARY_PATH", paths);
        }
        command
            .env("BATON_NVRTC", self.folder.join("libnvrtc.so.13"))
            .env("BATON_NCCL", self.folder.join("libnccl.so.2"))
            .env("EMULATOR_NVRTC", &self.compiler)
            .env("EMULATOR_CACHE", self.folder.join("kernels"))
    }
}

/// Has a name lead to a file, at once whatever it led to before.
fn link(file: &Path, name: &Path) -> Result<()> {
    let beside = name.with_extension(format!("{}.part", std::process::id()));
    std::os::unix::fs::symlink(file, &beside).with_context(|| beside.display().to_string())?;
    std::fs::rename(&beside, name).with_context(|| name.display().to_string())
}
