//! The CPU backend against the reference, byte for byte.
#![allow(clippy::unwrap_used, reason = "tests")]

mod attention;
mod gdn;
mod linear;
mod memory;
#[cfg(target_arch = "x86_64")]
mod pool;
mod rowwise;

use arith::base::Arith;
use arith::format::{Format, Matrix};
use backend::{Backend, BackendError, conformance};
use baton_cpu::{self as cpu, Cpu, Isa};

/// ARM is emulated in CI, and how threads share work has nothing to do with it.
const THREADS: &[usize] = if cfg!(target_arch = "aarch64") { &[3] } else { &[1, 2, 4] };

/// All kernels of a machine. Every 64-bit ARM has NEON, so none takes the scalar twins.
const ISAS: &[Isa] = if cfg!(target_arch = "aarch64") {
    &[Isa::Neon, Isa::NeonDot, Isa::NeonMatrix]
} else {
    &[Isa::Scalar, Isa::Avx2, Isa::Avx512]
};

/// Every way to compute arith 1: all instruction sets, several thread counts.
fn backends() -> Vec<(String, Cpu)> {
    backends_of(Arith::One)
}

fn backends_of(arith: Arith) -> Vec<(String, Cpu)> {
    let mut all = Vec::new();
    for &isa in ISAS {
        for &threads in THREADS {
            match Cpu::new(threads, isa, arith) {
                Ok(cpu) => all.push((format!("{isa:?}, {threads} threads"), cpu)),
                Err(BackendError::Unsupported { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    all
}

/// A small generator of test data; the same everywhere.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32 ^ (self.0 >> 13) as u32
    }

    fn below(&mut self, n: usize) -> usize {
        self.bits() as usize % n
    }

    /// A value in -1 .. 1.
    fn value(&mut self) -> f32 {
        (self.bits() as i32 >> 8) as f32 / 8_388_608.0
    }

    fn values(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.value() * scale).collect()
    }

    /// Stored bytes of a matrix; a few scales and values load as 0 or are subnormal in f16.
    fn stored(&mut self, format: Format, rows: usize, cols: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..rows * cols / format.unit_values() {
            let end = bytes.len() + format.unit_bytes();
            let (scales, stored) = match format {
                Format::F32 | Format::F16 | Format::Bf16 => (1, format),
                Format::Mlx(mlx) => (2, mlx.scales.format()),
                Format::Q6K => (0, Format::F16),
                _ => (1 + usize::from(format.has_offset()), Format::F16),
            };
            (0..scales).for_each(|_| self.float(stored, &mut bytes));
            if format == Format::Q6K {
                bytes.extend((bytes.len()..end - 2).map(|_| self.bits() as u8));
                self.float(stored, &mut bytes);
            }
            bytes.extend((bytes.len()..end).map(|_| self.bits() as u8));
        }
        bytes
    }

    /// A stored scale or weight.
    fn float(&mut self, format: Format, bytes: &mut Vec<u8>) {
        let x = if self.below(29) == 0 { 1e-12 } else { self.value() * 0.1 };
        match format {
            Format::F32 => bytes.extend(x.to_le_bytes()),
            Format::Bf16 => bytes.extend(((x.to_bits() >> 16) as u16).to_le_bytes()),
            _ => {
                let half = match self.below(17) {
                    0 => self.bits() as u16 & 0x83ff, // subnormal
                    1 => 0x8000,                      // -0
                    _ => arith::float::f32_to_f16(x),
                };
                bytes.extend(half.to_le_bytes());
            }
        }
    }
}

/// Where two rows of bits first differ. Spoilt rows hold the one NaN, so bits are enough.
fn assert_same(found: &[f32], expected: &[f32], case: &str) {
    assert_eq!(found.len(), expected.len(), "{case}");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        let (f, e) = (f.to_bits(), e.to_bits());
        assert_eq!(f, e, "{case}, value {i}: {f:#010x} is not {e:#010x}");
    }
}

fn upload(cpu: &Cpu, data: &[f32], width: usize) -> cpu::Rows {
    let mut rows = cpu.rows(data.len() / width, width).unwrap();
    cpu.upload(data, &mut rows);
    rows
}

fn download(cpu: &Cpu, from: &cpu::Rows, values: usize) -> Vec<f32> {
    let mut data = vec![0.0; values];
    cpu.download(from, 0, &mut data);
    data
}

#[test]
#[cfg(target_arch = "x86_64")]
fn what_this_cpu_cannot_test_is_said() {
    for isa in [Isa::Avx2, Isa::Avx512] {
        if let Err(error) = Cpu::new(1, isa, Arith::One) {
            // Past the harness's capture.
            let line = format!("skipped: {isa:?} kernels, in every test of the CPU: {error}\n");
            let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
        }
    }
}

#[test]
fn the_conformance_suite_passes_on_every_isa_and_thread_count() {
    for (name, cpu) in backends() {
        let report = conformance::run(&cpu, conformance::Level::Quick);
        assert!(report.ok(), "{name}: {report}");
    }
}

#[test]
fn the_linears_of_arith_2_pass_on_every_isa_and_thread_count() {
    for (name, cpu) in backends_of(Arith::Two) {
        let report = conformance::run_linears(&cpu, conformance::Level::Quick);
        assert!(report.ok(), "{name}: {report}");
    }
}

/// A part of the suite on a backend: arith 2 differs in the linear layers alone.
#[derive(Clone, Copy)]
struct Job {
    arith: Arith,
    isa: Isa,
    threads: usize,
    part: usize,
}

impl Job {
    /// Longest first, so that none begins when all others have ended.
    fn all() -> Vec<Self> {
        let mut jobs = Vec::new();
        for part in [conformance::LINEARS, 2, 4, 3, 5, 0] {
            for arith in Arith::ALL {
                for &isa in ISAS {
                    for &threads in THREADS {
                        if arith == Arith::One || part == conformance::LINEARS {
                            jobs.push(Self { arith, isa, threads, part });
                        }
                    }
                }
            }
        }
        jobs
    }

    fn name(&self) -> String {
        let Self { arith, isa, threads, part } = *self;
        format!("arith {arith}, {isa:?}, {threads} threads, part {part}")
    }

    /// How many checks passed.
    fn run(&self) -> u64 {
        let (name, Self { arith, isa, threads, part }) = (self.name(), *self);
        let Ok(cpu) = Cpu::new(threads, isa, arith) else {
            println!("skipped: {name}: not on this machine");
            return 0;
        };
        let report = conformance::run_part(&cpu, conformance::Level::Full, part);
        println!("{name}: {report}");
        assert!(report.ok(), "{name}");
        report.passed
    }
}

/// `CONFORMANCE="part 1,Avx512"` runs the jobs alone whose names have all of these parts.
#[test]
#[ignore = "minutes; run by hand with --ignored after a change of a kernel"]
fn the_conformance_suite_passes_in_full() {
    let words = std::env::var("CONFORMANCE").unwrap_or_default();
    let asked = |job: &Job| words.split(',').all(|word| job.name().contains(word.trim()));
    let left = std::sync::Mutex::new(Job::all().into_iter().filter(asked));
    let next = || left.lock().unwrap().next();
    let cores = std::thread::available_parallelism().unwrap().get();
    let passed: u64 = std::thread::scope(|scope| {
        let work = || std::iter::from_fn(next).map(|job| job.run()).sum::<u64>();
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    println!("conformance in full: {passed} checks passed");
    assert!(passed > 0);
}

#[test]
fn a_request_that_cannot_fit_is_refused_with_its_numbers() {
    let cpu = Cpu::new(1, Isa::Auto, Arith::One).unwrap();
    let heads = backend::Heads { query: 8, kv: 8, dim: 128 };
    let error = cpu.kv(arith::attention::KvDtype::F16, 1 << 30, heads).err().unwrap();
    assert!(matches!(error, BackendError::OutOfMemory { .. }), "{error}");
    let error = cpu.rows(1 << 30, 1 << 20).unwrap_err();
    assert!(matches!(error, BackendError::OutOfMemory { .. }), "{error}");
    let matrix = Matrix { format: Format::Q4_1, rows: 2, cols: 33, bytes: &[] };
    let error = cpu.linear(&matrix).err().unwrap().to_string();
    assert!(error.contains("a multiple of 32, found 33"), "{error}");
    let matrix = Matrix { format: Format::Q4_1, rows: 2, cols: 32, bytes: &[0; 39] };
    let error = cpu.linear(&matrix).err().unwrap().to_string();
    assert!(error.contains("expected 40, found 39"), "{error}");
}

#[test]
fn the_device_is_named_with_its_threads_and_kernels() {
    let cpu = Cpu::new(3, Isa::Scalar, Arith::One).unwrap();
    assert!(cpu.device().ends_with(", 3 threads, scalar"), "{}", cpu.device());
    assert_eq!((cpu.name(), cpu.threads()), ("cpu", 3));
}
