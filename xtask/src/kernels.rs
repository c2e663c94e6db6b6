//! CUDA kernels without a card: every kernel compiled for every architecture by the compiler's
//! package from PyPI, with what its assembler says of registers and spills.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail, ensure};
use cuda::compile::{self, Nvrtc};
use cuda::units::{UNITS, Unit};

use crate::step::Steps;

/// The compiler, some 60 MB, into `target/`.
const PACKAGE: &str = "nvidia-cuda-nvrtc==13.0.88";
/// What cards since Ampere run. Hopper's own products are in its `a` form alone; Blackwell's stands
/// for those that will be.
const ARCHITECTURES: [&str; 8] =
    ["sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120", "sm_121"];
/// Enough for CI: the oldest, and the one with every conditional part.
const SHORT: [&str; 2] = ["sm_80", "sm_90a"];

/// `cargo xtask kernels [--short] [--keep FOLDER]`.
pub fn run(steps: &mut Steps, arguments: &[String]) -> Result<()> {
    let (mut architectures, mut folder) = (&ARCHITECTURES[..], None);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--short" => architectures = &SHORT,
            "--keep" => folder = Some(PathBuf::from(rest.next().context("--keep FOLDER")?)),
            other => bail!("{other}: expected --short or --keep FOLDER"),
        }
    }
    let library = match compiler(steps.root()) {
        Ok(library) => library,
        Err(why) => {
            println!("skipped: kernels: no {PACKAGE}: {why:#}");
            return Ok(());
        }
    };
    steps.time("kernels", || all(&library, architectures, folder.as_deref()))
}

/// Where the compiler lies: what `BATON_NVRTC` names, else the package, installed if need be.
///
/// # Errors
/// A package that can't be installed.
pub fn compiler(root: &Path) -> Result<String> {
    if let Ok(path) = std::env::var("BATON_NVRTC") {
        return Ok(path);
    }
    let folder = root.join("target/nvrtc");
    let library = folder.join("nvidia/cu13/lib/libnvrtc.so.13");
    if !library.is_file() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]);
        let status = pip.arg(&folder).arg(PACKAGE).status().context("python3 -m pip")?;
        ensure!(status.success(), "pip ended with {status}");
    }
    ensure!(library.is_file(), "{} is not there", library.display());
    Ok(library.to_string_lossy().into_owned())
}

/// What the assembler says of one kernel.
#[derive(Debug, Default, PartialEq, Eq)]
struct Use {
    kernel: String,
    registers: u32,
    spilt_bytes: u32,
}

/// Compiles every unit for every architecture on all cores; refuses spills in hot kernels.
fn all(library: &str, architectures: &[&str], folder: Option<&Path>) -> Result<()> {
    let nvrtc = Nvrtc::open(Some(library))?;
    let jobs: Vec<(&Unit, &str)> =
        UNITS.iter().flat_map(|unit| architectures.iter().map(move |arch| (unit, *arch))).collect();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || -> Result<()> {
        while let Some(&(unit, arch)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let cubin = nvrtc.compile(unit, arch)?;
            if let Some(folder) = folder {
                std::fs::create_dir_all(folder)?;
                let name = compile::file_name(unit, arch, &nvrtc.version());
                std::fs::write(folder.join(name), &cubin.bytes)?;
            }
            let uses = uses(&cubin.log);
            ensure!(uses.len() == unit.kernels.len(), "{}, {arch}: {}", unit.name, cubin.log);
            if let Ok(mut found) = found.lock() {
                found.push((unit, arch, uses));
            }
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().try_for_each(|thread| match thread.join() {
            Ok(done) => done,
            Err(_) => bail!("a compiling thread panicked"),
        })
    })?;
    let mut found = found.into_inner().unwrap_or_default();
    found.sort_by_key(|(unit, arch, _)| (unit.name, *arch));
    report(&found, &nvrtc.version())
}

/// The table, and what is refused.
fn report(found: &[(&Unit, &str, Vec<Use>)], version: &str) -> Result<()> {
    let mut refused = Vec::new();
    for (unit, arch, uses) in found {
        let most = uses.iter().max_by_key(|kernel| kernel.registers).context("no kernels")?;
        let spilt: u32 = uses.iter().map(|kernel| kernel.spilt_bytes).sum();
        println!(
            "{:>9} {arch:>7}: {:2} kernels, at most {:3} registers ({}), {spilt} bytes spilt",
            unit.name,
            uses.len(),
            most.registers,
            most.kernel,
        );
        let hot = uses.iter().filter(|kernel| {
            unit.hot.contains(&kernel.kernel.as_str()) && runs(unit, &kernel.kernel, arch)
        });
        refused.extend(hot.filter(|kernel| kernel.spilt_bytes > 0).map(|kernel| {
            format!("{} for {arch} spills {} bytes", kernel.kernel, kernel.spilt_bytes)
        }));
    }
    let kernels: usize = found.iter().map(|(.., uses)| uses.len()).sum();
    println!("kernels: {kernels} compiled by nvrtc {version}, {} hot ones spill", refused.len());
    ensure!(refused.is_empty(), "hot kernels spill: {}", refused.join("; "));
    Ok(())
}

/// Whether an architecture has the shared memory that a kernel is launched with; where it has not,
/// another kernel does its work.
fn runs(unit: &Unit, kernel: &str, arch: &str) -> bool {
    let most = match arch {
        "sm_80" => 163 << 10,
        "sm_86" | "sm_89" | "sm_120" | "sm_121" => 99 << 10,
        _ => 227 << 10,
    };
    let index = unit.kernels.iter().position(|name| *name == kernel);
    unit.yields
        || index.and_then(|index| unit.shared.get(index)).is_none_or(|shared| *shared <= most)
}

/// Reads an assembler's log.
fn uses(log: &str) -> Vec<Use> {
    let mut found: Vec<Use> = Vec::new();
    for line in log.lines() {
        if let Some((_, name)) = line.split_once("Compiling entry function '") {
            let kernel = name.split('\'').next().unwrap_or_default().to_owned();
            found.push(Use { kernel, ..Use::default() });
        }
        let Some(last) = found.last_mut() else { continue };
        if let Some(bytes) = number_before(line, " bytes spill stores") {
            last.spilt_bytes = bytes;
        }
        if let Some(registers) = number_before(line, " registers") {
            last.registers = registers;
        }
    }
    found
}

/// The number that stands before `what` in a line.
fn number_before(line: &str, what: &str) -> Option<u32> {
    line.split_once(what)?.0.rsplit([' ', ',']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_and_spills_are_read_of_each_kernel() {
        let log = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'a_1' for 'sm_90'
ptxas info    : Function properties for a_1
ptxas         .     8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 80 registers, used 1 barriers, 4096 bytes smem
ptxas info    : Compiling entry function 'b' for 'sm_90'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 7 registers, used 0 barriers";
        let [a, b] = &uses(log)[..] else { panic!("two kernels") };
        assert_eq!((a.kernel.as_str(), a.registers, a.spilt_bytes), ("a_1", 80, 12));
        assert_eq!((b.kernel.as_str(), b.registers, b.spilt_bytes), ("b", 7, 0));
    }

    #[test]
    fn a_kernel_runs_where_its_shared_memory_fits() {
        let unit = UNITS.iter().find(|unit| unit.name == "prompt").expect("a unit");
        assert!(runs(unit, "attend_rows_256", "sm_90") && !runs(unit, "attend_rows_256", "sm_80"));
        assert!(runs(unit, "attend_rows_64", "sm_86") && !runs(unit, "attend_rows_128", "sm_120"));
    }

    #[test]
    fn a_hot_kernel_that_spills_is_refused() {
        let unit = UNITS.iter().find(|unit| !unit.hot.is_empty()).expect("a hot kernel");
        let of = |spilt_bytes| {
            let kernel = unit.hot[0].to_owned();
            [(unit, "sm_90", vec![Use { kernel, registers: 9, spilt_bytes }])]
        };
        assert!(report(&of(0), "13.0").is_ok());
        let error = report(&of(4), "13.0").expect_err("a spill").to_string();
        assert!(error.contains("spills 4 bytes"), "{error}");
    }
}
