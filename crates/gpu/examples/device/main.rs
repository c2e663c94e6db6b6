//! Measures a GPU: `device products ORDINAL [GBYTE_PER_S]`, matrices of several formats by one and
//! by many rows; `device model ORDINAL`, a made model of Llama 8B's shapes, four layers of it, by
//! prompt and by step; `device profile ORDINAL MODEL`, where the time of a checkpoint's chunk and
//! step goes, kernel by kernel; `device failure ORDINAL`, that a device gone is named. To be
//! carried to a machine with a card.

mod model;
mod profile;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use arith::format::{Format, Matrix};
use backend::Backend;
use baton_gpu::Gpu;

type Failure = Box<dyn std::error::Error>;

/// Bytes of the matrices of a measurement: more than caches hold.
const BYTES: usize = 256 << 20;
/// How long one thing is timed.
const WARM: Duration = Duration::from_millis(400);
/// Outputs and K.
const SHAPES: [[usize; 2]; 3] = [[4096, 4096], [14336, 4096], [4096, 14336]];
const FORMATS: [Format; 4] = [Format::Q4_0, Format::Q8_0, Format::Q4K, Format::Q6K];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["products", ordinal] => products(ordinal, "0"),
        ["products", ordinal, rate] => products(ordinal, rate),
        ["model", ordinal] => open(ordinal).and_then(model::run),
        ["profile", ordinal, model] => open(ordinal).and_then(|gpu| profile::run(gpu, model)),
        ["failure", ordinal] => failure(ordinal),
        _ => Err("device products ORDINAL [GBYTE_PER_S] | model ORDINAL | profile ORDINAL MODEL \
              | failure ORDINAL"
            .into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("device: {error}");
            ExitCode::FAILURE
        }
    }
}

fn open(ordinal: &str) -> Result<Gpu, Failure> {
    let gpu = Gpu::open_own(ordinal.parse()?, None)?;
    println!("{}, driver {}", gpu.device(), gpu.adapter().driver);
    Ok(gpu)
}

/// Time of products on the device, by one row and by 512.
fn products(ordinal: &str, rate: &str) -> Result<(), Failure> {
    let (gpu, peak): (_, f64) = (open(ordinal)?, rate.parse()?);
    println!("one row: us, GB/s, of the memory's; in turn: us, GB/s; 512 rows: us, TMAC/s");
    for format in FORMATS {
        for [outputs, cols] in SHAPES {
            let stored = outputs * cols / format.unit_values() * format.unit_bytes();
            let many = BYTES.div_ceil(stored);
            let matrices = matrices(&gpu, format, [outputs, cols], many)?;
            let x = gpu.rows(512, cols)?;
            let all: Vec<_> = matrices.iter().collect();
            let mut out = gpu.rows(512, outputs)?;
            let mut outs =
                all.iter().map(|_| gpu.rows(1, outputs)).collect::<Result<Vec<_>, _>>()?;
            let together = best(&gpu, many, || {
                gpu.project(&x, 1, &all, &mut outs.iter_mut().collect::<Vec<_>>());
            });
            let mut each = |rows: usize, matrices: &[&_]| {
                best(&gpu, matrices.len(), || {
                    for matrix in matrices {
                        gpu.project(&x, rows, &[matrix], &mut [&mut out]);
                    }
                })
            };
            let (alone, chunk) = (each(1, &all), each(512, &all[..many.min(4)]));
            let gbytes = |seconds: f64| stored as f64 / seconds / 1e9;
            let share = 100.0 * gbytes(together) / peak.max(1.0);
            let tmacs = (512 * outputs * cols) as f64 / chunk / 1e12;
            println!(
                "{:<6} {outputs:>6} x {cols:<6} {:>8.1} {:>6.0} {share:>4.0} % {:>8.1} {:>6.0} \
                 {:>10.0} {tmacs:>6.2}",
                format.to_string(),
                together * 1e6,
                gbytes(together),
                alone * 1e6,
                gbytes(alone),
                chunk * 1e6,
            );
        }
    }
    Ok(())
}

/// The shortest of some times on the device, a matrix.
fn best(gpu: &Gpu, many: usize, mut work: impl FnMut()) -> f64 {
    // Cards take their time until their clocks are up.
    let (started, mut best) = (Instant::now(), f64::INFINITY);
    while started.elapsed() < WARM {
        best = best.min(gpu.timed(&mut work));
    }
    best / many as f64
}

/// Matrices whose bytes are made up, but for scales that are numbers; packed by several threads.
fn matrices(
    gpu: &Gpu,
    format: Format,
    [rows, cols]: [usize; 2],
    many: usize,
) -> Result<Vec<baton_gpu::Linear>, Failure> {
    let units = rows * cols / format.unit_values();
    let unit: Vec<u8> = (0..format.unit_bytes()).map(|i| (i * 37 % 59) as u8).collect();
    let bytes = unit.repeat(units);
    let matrix = Matrix { format, rows, cols, bytes: &bytes };
    let made = std::thread::scope(|scope| {
        let share = many.div_ceil(8);
        let jobs: Vec<_> = (0..8)
            .map(|job| {
                let count = share.min(many.saturating_sub(job * share));
                let matrix = &matrix;
                scope.spawn(move || (0..count).map(|_| gpu.linear(matrix)).collect::<Vec<_>>())
            })
            .collect();
        jobs.into_iter().flat_map(|job| job.join().unwrap_or_default()).collect::<Vec<_>>()
    });
    Ok(made.into_iter().collect::<Result<_, _>>()?)
}

fn failure(ordinal: &str) -> Result<(), Failure> {
    let gpu = open(ordinal)?;
    let rows = gpu.rows(4, 64)?;
    gpu.fail();
    let mut data = [0.0; 64];
    gpu.download(&rows, 0, &mut data);
    println!("failure: {:?}", gpu.failure().map(|error| error.to_string()));
    println!("more memory: {:?}", gpu.rows(4, 64).err().map(|error| error.to_string()));
    Ok(())
}
