//! Tests and measures a card: `device conformance [quick|full] [2]`, the arithmetic's number last,
//! `device plain`, `device unified`, `device defects [NAME]`, `device failure`, `device replay`, of
//! two cards `device meet [bits]` and `device shares memory|nccl`, and `device bench TFLOPS [SIZE
//! [decode|steps|prompt [2]]]`, with the rate of a bf16 matrix product of the vendor's library;
//! `device layers SIZE mlx|q4_k ROWS` shows a profiler four layers, `device gaps`, as it, says for
//! how much of a replayed step nothing runs. `device all TFLOPS` is a report of one card: every
//! suite, then every figure. Built by `cargo xtask device-test`, carried to a machine with a card
//! and run there. With `BATON_KERNELS` the kernels are a folder's.

mod bench;
mod berths;
mod gaps;
mod meet;
mod model;
mod stranger;

use std::num::NonZero;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use arith::base::Arith;
use backend::Backend;
use backend::conformance::{self, Level, PARTS, Report};
use baton_cuda::defects::{DEFECTS, Defect};
use baton_cuda::{Cuda, CudaError};

use crate::gaps::Tracer;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["conformance"] | ["conformance", "quick"] => suite(Level::Quick),
        ["conformance", "full"] => suite(Level::Full),
        ["conformance", "quick", "2"] => linears(Level::Quick),
        ["conformance", "full", "2"] => linears(Level::Full),
        ["plain"] => plain(),
        ["unified"] => unified(),
        ["defects"] => defects(""),
        ["defects", of] => defects(of),
        ["failure"] => failure(),
        ["replay"] => open().map(|cuda| bench::replay(&Arc::new(cuda)).unwrap_or(false)),
        ["meet"] => meet::run(&open_at, true),
        ["meet", "bits"] => meet::run(&open_at, false),
        ["berths"] => open().and_then(|cuda| berths::run(&Arc::new(cuda))),
        ["berths", "nccl"] => berths::carried(&open_at),
        ["berths", offer] => open().and_then(|cuda| berths::other(&Arc::new(cuda), offer)),
        ["shares", by] => meet::shares(&open_at, by),
        ["layers", size, format, rows] => layers(size, format, rows),
        ["gaps", size, format, rows] => step_gaps(size, format, rows),
        ["all", rate] => all(rate),
        ["bench", rate] => measure(rate, "all", "all", Arith::One),
        ["bench", rate, size] => measure(rate, size, "all", Arith::One),
        ["bench", rate, size, part] => measure(rate, size, part, Arith::One),
        ["bench", rate, size, part, "2"] => measure(rate, size, part, Arith::Two),
        _ => {
            eprintln!(
                "device conformance [quick|full [2]] | plain | unified | defects [NAME] | failure \
                 | replay | meet [bits] | berths [nccl] | shares memory|nccl | layers SIZE FORMAT \
                 ROWS | gaps SIZE FORMAT ROWS | bench TFLOPS [SIZE [PART [2]]] | all TFLOPS"
            );
            return ExitCode::FAILURE;
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("device: {error}");
            ExitCode::FAILURE
        }
    }
}

const CACHE: &str = "cubins";

fn open() -> Result<Cuda, CudaError> {
    open_at(0)
}

fn open_at(ordinal: u32) -> Result<Cuda, CudaError> {
    match std::env::var("BATON_KERNELS") {
        Ok(folder) => Cuda::from_folder(ordinal, Path::new(&folder)),
        Err(_) => Cuda::open(ordinal, Some(Path::new(CACHE))),
    }
}

fn measure(rate: &str, size: &str, part: &str, arith: Arith) -> Result<bool, CudaError> {
    let cuda = Arc::new(open()?.in_arith(arith));
    println!("{}", cuda.device());
    let Ok(rate) = rate.parse() else { return Ok(false) };
    let done = bench::run(&cuda, rate, size, part);
    if let Err(error) = &done {
        eprintln!("bench: {error}");
    }
    Ok(done.is_ok())
}

fn layers(size: &str, format: &str, rows: &str) -> Result<bool, CudaError> {
    let (cuda, Ok(rows)) = (Arc::new(open()?), rows.parse()) else { return Ok(false) };
    let done = bench::layers(&cuda, size, format, rows);
    if let Err(error) = &done {
        eprintln!("layers: {error}");
    }
    Ok(done.is_ok())
}

fn step_gaps(size: &str, format: &str, rows: &str) -> Result<bool, CudaError> {
    let tracer = match Tracer::start() {
        Ok(tracer) => tracer,
        Err(error) => {
            eprintln!("gaps: {error}");
            return Ok(false);
        }
    };
    let (cuda, Ok(rows)) = (Arc::new(open()?), rows.parse()) else { return Ok(false) };
    let done = bench::gaps(&cuda, &tracer, size, format, rows);
    if let Err(error) = &done {
        eprintln!("gaps: {error}");
    }
    Ok(done.is_ok())
}

/// All of one card; the one that makes it fail comes last.
fn all(rate: &str) -> Result<bool, CudaError> {
    let suites = [
        suite(Level::Quick)?,
        suite(Level::Full)?,
        linears(Level::Quick)?,
        plain()?,
        unified()?,
        defects("")?,
        bench::replay(&Arc::new(open()?)).unwrap_or(false),
        measure(rate, "all", "all", Arith::One)?,
        measure(rate, "27B", "steps", Arith::Two)?,
        failure()?,
    ];
    Ok(suites.iter().all(|&ok| ok))
}

/// The suite, a thread a part.
fn suite(level: Level) -> Result<bool, CudaError> {
    let start = Instant::now();
    let first = open()?;
    println!("{}: opened in {:.1} s", first.device(), start.elapsed().as_secs_f64());
    let reports: Vec<Report> = std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..PARTS)
            .map(|part| {
                scope.spawn(move || {
                    let start = Instant::now();
                    let cuda = open()?;
                    let report = conformance::run_part(&cuda, level, part);
                    let seconds = start.elapsed().as_secs_f64();
                    println!("part {part} of {level:?}: {report} ({seconds:.1} s)");
                    if let Some(error) = cuda.failure() {
                        println!("part {part}: {error}");
                    }
                    Ok::<_, CudaError>(report)
                })
            })
            .collect();
        jobs.into_iter()
            .map(|job| job.join().unwrap_or_else(|_| Ok(Report { failed: 1, ..Report::default() })))
            .collect::<Result<_, _>>()
    })?;
    let passed: u64 = reports.iter().map(|report| report.passed).sum();
    let failed: u64 = reports.iter().map(|report| report.failed).sum();
    let seconds = start.elapsed().as_secs_f64();
    println!("conformance {level:?}: {passed} checks passed, {failed} failed, {seconds:.0} s");
    Ok(reports.iter().all(Report::ok))
}

/// What differs in arith 2.
fn linears(level: Level) -> Result<bool, CudaError> {
    let start = Instant::now();
    let report = conformance::run_linears(&open()?.in_arith(Arith::Two), level);
    let seconds = start.elapsed().as_secs_f64();
    println!("conformance {level:?} of arith 2's linear layers: {report}, {seconds:.0} s");
    Ok(report.ok())
}

/// The suite on the kernels that other architectures have.
fn plain() -> Result<bool, CudaError> {
    let report = conformance::run(&Cuda::plain(0, Some(Path::new(CACHE)))?, Level::Quick);
    println!("plain: {report}");
    Ok(report.ok())
}

/// The suite with rows in the host's memory.
fn unified() -> Result<bool, CudaError> {
    let report = conformance::run(&Cuda::unified(0, Some(Path::new(CACHE)))?, Level::Quick);
    println!("unified: {report}");
    Ok(report.ok())
}

/// A card that fails is named and gives no result, and asking it for more ends nothing.
fn failure() -> Result<bool, CudaError> {
    let cuda = open()?;
    let rows = cuda.rows(4, 64);
    let before = cuda.failure();
    cuda.fail();
    cuda.wait();
    let after = cuda.failure().map(|error| error.to_string());
    let mut data = vec![0.0; 64];
    rows.iter().for_each(|rows| cuda.download(rows, 0, &mut data));
    let refused = cuda.rows(4, 64).is_err();
    println!("failure: before {before:?}, after {after:?}, more memory refused: {refused}");
    Ok(before.is_none() && after.is_some_and(|words| words.contains("must be started")) && refused)
}

/// Every planted defect whose name holds `of` must turn the suite red; as many are tried at once as
/// there are processors.
fn defects(of: &str) -> Result<bool, CudaError> {
    let all: Vec<&Defect> = DEFECTS.iter().filter(|defect| defect.name.contains(of)).collect();
    let jobs = std::thread::available_parallelism().map_or(1, NonZero::get);
    let next = AtomicUsize::new(0);
    let caught_of_some = || {
        let mut caught = 0;
        while let Some(defect) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            caught += usize::from(is_caught(defect)?);
        }
        Ok::<_, CudaError>(caught)
    };
    let caught: usize = std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..jobs).map(|_| scope.spawn(caught_of_some)).collect();
        jobs.into_iter().map(|job| job.join().unwrap_or(Ok(0))).sum::<Result<_, _>>()
    })?;
    println!("defects: {caught} of {} caught", all.len());
    Ok(caught == all.len() && caught > 0)
}

/// Whether the suite is red of a defect, by values: a card that fails catches nothing.
fn is_caught(defect: &Defect) -> Result<bool, CudaError> {
    let start = Instant::now();
    let cuda = Cuda::with_defect(0, Some(Path::new(CACHE)), defect)?.in_arith(defect.arith());
    let report = conformance::run_to_failure(&cuda, Level::Quick);
    println!("{}: {report} ({:.1} s)", defect.name, start.elapsed().as_secs_f64());
    let failure = cuda.failure();
    failure.iter().for_each(|error| println!("{}: {error}", defect.name));
    Ok(report.failed > 0 && failure.is_none())
}
