//! `baton check --device gpu:0 --conformance`: every op of a device against the reference.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use backend::Backend;
use backend::conformance::{self, Level, Report};

use crate::args::{Check, Conformance};
use crate::device::Seat;

/// Parts of the suite, in its order.
const PARTS: [&str; conformance::PARTS] =
    ["rows", "linear layers", "attention", "heads", "recurrent layers", "ops in a model's order"];

/// Prints a report of the first device; the last line is the verdict.
///
/// # Errors
/// A device that does not open, and one that gives other bytes.
pub fn run(args: &Check, level: Conformance) -> Result<()> {
    let device = args.devices.first().and_then(|devices| devices.0.first());
    let device = *device.context("--conformance needs a device")?;
    let threads = args.threads.first().copied().unwrap_or(1);
    println!(
        "baton {}, {}, {}",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH
    );
    match device.open(threads, args.arith, false)? {
        Seat::Cpu(cpu) => report(&*cpu, level),
        Seat::Cuda(cuda) => report(&*cuda, level),
        #[cfg(feature = "gpu")]
        Seat::Gpu(gpu) => {
            let gpu::Adapter { driver, .. } = gpu.adapter();
            println!("driver {driver}");
            report(&*gpu, level)
        }
    }
}

fn report(backend: &impl Backend, level: Conformance) -> Result<()> {
    println!("device {}", backend.device());
    let level = match level {
        Conformance::Quick => Level::Quick,
        Conformance::Full => Level::Full,
    };
    let started = Instant::now();
    let mut all = Report::default();
    for (part, name) in PARTS.into_iter().enumerate() {
        let since = Instant::now();
        let report = conformance::run_part(backend, level, part);
        println!("{:>7.1} s  {name}: {report}", since.elapsed().as_secs_f64());
        all.passed += report.passed;
        all.failed += report.failed;
        all.first_failure = all.first_failure.or(report.first_failure);
    }
    let seconds = started.elapsed().as_secs_f64();
    let (name, arith) = (backend.name(), backend.arith());
    ensure!(all.ok(), "{name} does not compute arith {arith}: {all}");
    println!("conformance {level:?}: {name} computes arith {arith}: {all}, {seconds:.0} s");
    Ok(())
}
