//! Speeds beside the card's limits, measured in the same run: medians of twenty and their spread.

use std::sync::Arc;
use std::time::Instant;

use arith::format::{Format, Mlx, Scales};
use backend::{Backend, BackendError};
use baton_cuda::Cuda;

use crate::gaps::{self, Tracer};
use crate::model::{Model, Part, Round, SIZES, Size};

const RUNS: usize = 20;
pub const MLX: Format = Format::Mlx(Mlx { bits: 4, group: 64, scales: Scales::Bf16 });
const PROMPT_ROWS: usize = 4096;

/// Median, least and most of some seconds.
struct Times([f64; 3]);

impl Times {
    fn of(runs: usize, mut run: impl FnMut() -> f64) -> Self {
        for _ in 0..2 {
            run();
        }
        let mut all: Vec<f64> = (0..runs).map(|_| run()).collect();
        all.sort_by(f64::total_cmp);
        Self([all[runs / 2], all[0], all[runs - 1]])
    }

    fn median(&self) -> f64 {
        self.0[0]
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [median, least, most] = self.0.map(|s| s * 1e3);
        write!(f, "{median:.3} ms ({least:.3} to {most:.3})")
    }
}

/// What the card can do.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Bytes read and written by a copy, a second.
    pub copy: f64,
    /// bf16 operations of a matrix product of the vendor's library, a second.
    pub matrix: f64,
    /// f32 operations a second, by the card's clock and cores.
    pub float: f64,
}

/// Runs everything; `matrix_tflops` is measured beside it by the vendor's library.
///
/// # Errors
/// A model that the card has no room for.
pub fn run(
    cuda: &Arc<Cuda>,
    matrix_tflops: f64,
    wanted: &str,
    part: &str,
) -> Result<(), BackendError> {
    let copy = copy_rate(cuda)?;
    let limits = Limits { copy, matrix: matrix_tflops * 1e12, float: 67e12 };
    println!(
        "limits: copy {:.2} TB/s, bf16 matrix {matrix_tflops:.0} TFLOP/s, f32 {:.0} TFLOP/s",
        copy / 1e12,
        limits.float / 1e12
    );
    let sizes = || SIZES.iter().filter(|size| ["all", size.name].contains(&wanted));
    for size in sizes().filter(|_| ["all", "decode", "steps"].contains(&part)) {
        for format in [MLX, Format::Q4K] {
            decode(cuda, *size, format, limits, part != "steps")?;
        }
    }
    for size in sizes().filter(|_| ["all", "prompt"].contains(&part)) {
        for format in [MLX, Format::Q4K] {
            prompt(cuda, *size, format, limits)?;
        }
    }
    Ok(())
}

fn copy_rate(cuda: &Arc<Cuda>) -> Result<f64, BackendError> {
    let rows = 1 << 16;
    let (from, mut to) = (cuda.rows(rows, 8192)?, cuda.rows(rows, 8192)?);
    let times = Times::of(RUNS, || cuda.timed(|| cuda.copy_rows(&from, 0, rows, &mut to, 0)));
    Ok(2.0 * (rows * 8192 * 4) as f64 / times.median())
}

/// Seconds of one replay of what `work` launches.
fn replayed(cuda: &Arc<Cuda>, mut work: impl FnMut()) -> Times {
    work();
    cuda.wait();
    let graph = cuda.record(&mut work);
    Times::of(RUNS, || cuda.timed(|| graph.launch()))
}

/// Seconds of one step as a stage asks for it, op by op, from rows that come to logits that go.
fn stepped(cuda: &Arc<Cuda>, model: &mut Model, round: &mut Round, on: bool) -> Times {
    cuda.set_replays(on);
    let times = Times::of(RUNS, || {
        let start = Instant::now();
        model.step(round);
        start.elapsed().as_secs_f64()
    });
    cuda.set_replays(true);
    times
}

fn decode(
    cuda: &Arc<Cuda>,
    size: Size,
    format: Format,
    limits: Limits,
    in_parts: bool,
) -> Result<(), BackendError> {
    let pages = (32_768 + 64) / 64;
    let mut model = Model::new(cuda, size, format, size.layers, pages)?;
    let floor = model.bytes() as f64 / limits.copy;
    println!(
        "{} {format}: {:.2} GB of weights, {:.3} ms at the copy rate",
        size.name,
        model.bytes() as f64 / 1e9,
        floor * 1e3
    );
    let mut one = 0.0;
    for (before, rows) in [(4_000, 1), (4_000, 8), (32_000, 1)] {
        let mut round = model.round(before, rows)?;
        let whole = replayed(cuda, || model.run(&mut round, Part::All, true));
        if rows == 1 && before == 4_000 {
            one = whole.median();
        }
        let (share, times) = (100.0 * floor / whole.median(), whole.median() / one);
        if !in_parts {
            println!(
                "  decode of {rows} at {before}: {whole}, {share:.1} % of the copy rate, {times:.2} x \
                 one row"
            );
            continue;
        }
        let each = [Part::Linears, Part::Attention, Part::Delta, Part::Others]
            .map(|part| replayed(cuda, || model.run(&mut round, part, true)).median());
        println!(
            "  decode of {rows} at {before}: {whole}, {share:.1} % of the copy rate, {times:.2} x one \
             row; alone: linears {:.3}, attention {:.3}, gdn {:.3}, others {:.3} ms",
            each[0] * 1e3,
            each[1] * 1e3,
            each[2] * 1e3,
            each[3] * 1e3,
        );
        let [direct, again] = [false, true].map(|on| stepped(cuda, &mut model, &mut round, on));
        println!("    op by op: {direct} launched as they come, {again} replayed");
    }
    Ok(())
}

/// Four layers, a step of `rows` rows after 4,000 others, once as it comes and then replayed, for
/// tools that look on.
///
/// # Errors
/// A card without room.
pub fn layers(cuda: &Arc<Cuda>, size: &str, format: &str, rows: usize) -> Result<(), BackendError> {
    let format = if format == "mlx" { MLX } else { Format::Q4K };
    for size in SIZES.iter().filter(|own| own.name == size) {
        let mut model = Model::new(cuda, *size, format, 4, 64)?;
        let mut round = model.round(4_000, rows)?;
        let times = replayed(cuda, || model.run(&mut round, Part::All, false));
        println!("{} {format}, four layers, {rows} rows: {times}", size.name);
    }
    Ok(())
}

/// Replays of a whole step of `rows` rows after 4,000 others, and for how much of it the card ran
/// no kernel: the least and the most of ten.
///
/// # Errors
/// A card without room.
pub fn gaps(
    cuda: &Arc<Cuda>,
    tracer: &Tracer,
    size: &str,
    format: &str,
    rows: usize,
) -> Result<(), BackendError> {
    let format = if format == "mlx" { MLX } else { Format::Q4K };
    for size in SIZES.iter().filter(|own| own.name == size) {
        let mut model = Model::new(cuda, *size, format, size.layers, 64)?;
        let mut round = model.round(4_000, rows)?;
        let mut work = || model.run(&mut round, Part::All, true);
        work();
        cuda.wait();
        let graph = cuda.record(&mut work);
        graph.launch();
        cuda.wait();
        let mut shares: Vec<f64> = Vec::new();
        let mut kernels = 0;
        for _ in 0..10 {
            let seen = tracer.seen(|| {
                graph.launch();
                cuda.wait();
            });
            kernels = seen.len();
            let [whole, idle] = gaps::idle(seen);
            shares.push(100.0 * idle as f64 / whole as f64);
        }
        shares.sort_by(f64::total_cmp);
        println!(
            "{} {format}, {rows} rows: {kernels} kernels; none of them runs for {:.2} to {:.2} % of \
             a step",
            size.name, shares[0], shares[9]
        );
    }
    Ok(())
}

/// Steps of rounds of several sizes, replayed and launched as they come: both give the same bytes.
///
/// # Errors
/// A card without room.
pub fn replay(cuda: &Arc<Cuda>) -> Result<bool, BackendError> {
    let run = |on: bool| {
        let mut model = Model::new(cuda, SIZES[2], MLX, 8, 8)?;
        cuda.set_replays(on);
        let mut rounds = Vec::new();
        for (before, rows) in [(100, 1), (200, 1), (100, 4)] {
            rounds.push(model.round(before, rows)?);
        }
        let before = cuda.replayed();
        let given: Vec<_> = [0, 0, 0, 1, 0, 2, 2, 2, 1, 1, 1, 0, 1, 2]
            .iter()
            .map(|&which| model.step(&mut rounds[which]))
            .collect();
        let graphs = cuda.replayed() - before;
        cuda.set_replays(true);
        Ok::<_, BackendError>((given, graphs))
    };
    let ((direct, none), (again, graphs)) = (run(false)?, run(true)?);
    let bits = |rows: &Vec<f32>| rows.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let equal = direct.iter().zip(&again).filter(|(a, b)| bits(a) == bits(b)).count();
    let moved = direct.windows(2).filter(|pair| bits(&pair[0]) != bits(&pair[1])).count();
    // With a fault that must be seen.
    cuda.plant_blind_replays();
    let blind = run(true)?.0;
    let blind = direct.iter().zip(&blind).filter(|(a, b)| bits(a) == bits(b)).count();
    println!(
        "replay: {equal} of {} steps equal, {moved} moved, {graphs} graphs; operands not compared: \
         {blind} equal",
        direct.len()
    );
    let seen = moved > 6 && none == 0 && graphs > 5 && blind < direct.len();
    Ok(equal == direct.len() && seen)
}

fn prompt(
    cuda: &Arc<Cuda>,
    size: Size,
    format: Format,
    limits: Limits,
) -> Result<(), BackendError> {
    // Four layers stand for all: three recurrent ones and one with attention.
    let mut model = Model::new(cuda, size, format, 4, (32_768 + PROMPT_ROWS) / 64)?;
    let rows = PROMPT_ROWS;
    for before in [4_096, 28_672] {
        let mut round = model.round(before, rows)?;
        let runs = 3;
        let mut part =
            |part| Times::of(runs, || cuda.timed(|| model.run(&mut round, part, false))).median();
        let [all, linears, attention, delta, others] =
            [Part::All, Part::Linears, Part::Attention, Part::Delta, Part::Others].map(&mut part);
        let operations = 2.0 * rows as f64 * weights_of(size);
        let seen = before as f64 + rows as f64 / 2.0;
        let width = (size.heads.query * size.heads.dim) as f64;
        let floats = 4.0 * rows as f64 * seen * width;
        println!(
            "{} {format}, {rows} rows after {before}, four layers: {:.2} ms; linears {:.2} ms, \
             {:.1} % of the matrix rate; attention {:.2} ms, {:.1} % of the f32 rate; gdn {:.2} \
             ms, {:.1} % of the chunk; others {:.2} ms",
            size.name,
            all * 1e3,
            linears * 1e3,
            100.0 * operations / linears / limits.matrix,
            attention * 1e3,
            100.0 * floats / attention / limits.float,
            delta * 1e3,
            100.0 * delta / all,
            others * 1e3,
        );
    }
    Ok(())
}

/// Weights of four layers.
fn weights_of(size: Size) -> f64 {
    let Size { hidden, intermediate, heads, gdn, .. } = size;
    let mlp = 3 * hidden * intermediate;
    let attention = hidden * heads.dim * (3 * heads.query + 2 * heads.kv);
    let recurrent = hidden * (gdn.channels() + 2 * gdn.value_width() + 2 * gdn.values);
    (4 * mlp + attention + 3 * recurrent) as f64
}
