//! Linear layers: the rows are quantised once, the outputs of all matrices cut into jobs.

use std::cell::RefCell;
use std::ops::Range;
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

use arith::base::{Arith, SLICE_VALUES};

use crate::Level;
use crate::elementwise::{silu_mul, silu_mul_values};
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::floats_vector;
#[cfg(target_arch = "aarch64")]
use crate::linear_neon;
use crate::norm::norm_row;
use crate::pack::{LANES, Linear};
use crate::pool::Pool;
use crate::quantise::Activations;
use crate::quantise_a8::ActivationsA8;
use crate::rows::{Cells, Rows};
#[cfg(target_arch = "x86_64")]
use crate::{gemm_a8_avx2, gemm_a8_avx512, gemm_avx2, gemm_avx512};
#[cfg(target_arch = "x86_64")]
use crate::{gemv_a8_avx2, gemv_a8_avx512, gemv_avx2, gemv_avx512, unpacked_avx512};
use crate::{project_a8_scalar, project_scalar};

/// Rows up to which block formats are multiplied straight from their codes.
const GEMV_ROWS: usize = 8;
/// The same where AVX-512 unpacks them: more rows are needed to pay for what is written and read.
#[cfg(target_arch = "x86_64")]
const GEMV_ROWS_AVX512: usize = 16;
/// The same where 512 bits are taken in two halves: codes cost as many instructions, dots twice the
/// time, so that unpacking them pays earlier (measured at 8 and 16 rows).
#[cfg(target_arch = "x86_64")]
const GEMV_ROWS_HALVES: usize = 10;
/// Panels of a job of more rows than that, which share their broadcasts.
pub(crate) const GEMM_PANELS: usize = 2;
/// Rows of such a job.
const JOB_ROWS: usize = 128;
/// Panels of a job on the float path; a multiple of what its kernels take at once.
const FLOAT_PANELS: usize = 4;
/// Multiply-adds that a job should have, at least.
const JOB_MACS: usize = 1 << 15;
/// Multiply-adds below which nothing is handed to other threads.
const POOL_MACS: usize = 1 << 17;
/// Matrices of one cut; more go in several.
const MATRICES: usize = 8;

thread_local! {
    static ACTIVATIONS: RefCell<(Activations, ActivationsA8)> = RefCell::default();
}

/// What a kernel reads: the rows as they came, and quantised by the arithmetic in use.
pub(crate) struct Inputs<'a> {
    pub(crate) x: &'a Rows,
    /// In arith 2 filled for float formats alone, without integers.
    pub(crate) a16: &'a Activations,
    pub(crate) a8: &'a ActivationsA8,
}

/// Which kernels a matrix and a row count want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A float format.
    Floats,
    /// A block format, few rows.
    Gemv,
    /// A block format, more rows.
    Gemm,
}

impl Kind {
    fn of(how: (Level, Arith), linear: &Linear, rows: usize) -> Self {
        let few = match how {
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512, Arith::One) if takes_halves() => GEMV_ROWS_HALVES,
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512, _) => GEMV_ROWS_AVX512,
            _ => GEMV_ROWS,
        };
        match () {
            () if linear.format.is_float() => Self::Floats,
            () if rows <= few => Self::Gemv,
            () => Self::Gemm,
        }
    }
}

/// Whether this CPU takes 512 bits in two halves, as AMD's family 19h (Zen 4) does.
#[cfg(target_arch = "x86_64")]
fn takes_halves() -> bool {
    use std::arch::x86_64::__cpuid;
    static HALVES: OnceLock<bool> = OnceLock::new();
    *HALVES.get_or_init(|| {
        let (vendor, version) = (__cpuid(0), __cpuid(1).eax);
        let family = (version >> 8 & 0xf) + (version >> 20 & 0xff);
        vendor.ebx.to_le_bytes() == *b"Auth" && family == 0x19
    })
}

/// Whether kernels of arith 2 take the rows' integers with a bias.
fn multiplies_biased(level: Level, linear: &Linear, rows: usize) -> bool {
    let wide = match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => true,
        _ => false,
    };
    wide && Kind::of((level, Arith::Two), linear, rows) == Kind::Gemm && !linear.layout().offsets
}

/// Where a kernel writes: rows of a matrix's outputs.
pub(crate) struct Outputs<'a> {
    pub(crate) cells: Cells<'a, f32>,
    pub(crate) width: usize,
}

impl<'a> Outputs<'a> {
    /// The `lanes` outputs from panel `panel` on in row `row`.
    ///
    /// # Safety
    /// No other thread may write the same outputs of the same row.
    #[inline]
    pub(crate) unsafe fn panel(&self, row: usize, panel: usize, lanes: usize) -> &'a mut [f32] {
        // SAFETY: panels of rows are disjoint; the rest is the caller's promise.
        unsafe { self.cells.slice(row * self.width + panel * LANES, lanes) }
    }
}

/// The cut of one matrix's work: columns of panels by blocks of rows.
#[derive(PartialEq, Eq)]
struct Cut {
    panels: usize,
    columns: usize,
    rows: usize,
    jobs: usize,
}

impl Cut {
    /// Panels and rows of job `index`, of all there are.
    fn part(&self, index: usize, (panels, rows): (usize, usize)) -> (Range<usize>, Range<usize>) {
        let (block, column) = (index / self.columns, index % self.columns);
        let (first, row) = (column * self.panels, block * self.rows);
        (first..panels.min(first + self.panels), row..rows.min(row + self.rows))
    }
}

/// The cut depends on the shape and on how many panels the kernels take at once.
fn cut(how: (Level, Arith), linear: &Linear, rows: usize) -> Cut {
    let (few, many) = match how {
        #[cfg(target_arch = "x86_64")]
        (Level::Avx512, _) => (gemv_avx512::PANELS, unpacked_avx512::PANELS),
        _ => (1, GEMM_PANELS),
    };
    let (panels, job_rows) = match Kind::of(how, linear, rows) {
        Kind::Floats => (FLOAT_PANELS, JOB_ROWS),
        Kind::Gemv => {
            let panels = JOB_MACS.div_ceil(linear.cols * LANES * rows);
            (panels.next_multiple_of(few), rows)
        }
        Kind::Gemm => (many, JOB_ROWS),
    };
    let columns = linear.panels.div_ceil(panels);
    Cut { panels, columns, rows: job_rows, jobs: columns * rows.div_ceil(job_rows) }
}

/// `outs[i] = x W_i^T` for the first `rows` rows.
pub(crate) fn project(
    pool: &Pool,
    how: (Level, Arith),
    x: &Rows,
    rows: usize,
    weights: &[&Linear],
    outs: &mut [&mut Rows],
) {
    check(x, rows, weights, outs);
    if rows == 0 {
        return;
    }
    quantise((pool, how), (rows, x.width), |r| x.row(r), weights);
    multiply_all((pool, how), x, rows, weights, outs);
}

/// The norm of [`norm_project`]: rows, weights, epsilon and where normed rows go.
pub(crate) struct Normed<'a> {
    pub(crate) x: &'a Rows,
    pub(crate) w: &'a [f32],
    pub(crate) eps: f32,
    pub(crate) n: &'a mut Rows,
}

impl<'a> Normed<'a> {
    /// The normed rows, each quantised by the thread that normed it.
    fn quantise(self, on: (&Pool, (Level, Arith)), rows: usize, weights: &[&Linear]) -> &'a Rows {
        let Self { x, w, eps, n } = self;
        let width = x.width;
        assert!(w.len() == width && n.width == width, "{x:?} by {} weights to {n:?}", w.len());
        assert!(rows <= x.rows_max, "{rows} rows of {x:?}");
        let cells = Cells::new(&mut n.data);
        let normed = |r: usize| {
            // SAFETY: one job has each row.
            let out = unsafe { cells.slice(r * width, width) };
            norm_row(on.1.0, x.row(r), w, eps, out);
            &*out
        };
        quantise(on, (rows, width), normed, weights);
        n
    }
}

/// [`project`] of normed rows.
pub(crate) fn norm_project(
    on: (&Pool, (Level, Arith)),
    from: Normed<'_>,
    rows: usize,
    weights: &[&Linear],
    outs: &mut [&mut Rows],
) {
    check(from.n, rows, weights, outs);
    if rows == 0 {
        return;
    }
    let x = from.quantise(on, rows, weights);
    multiply_all(on, x, rows, weights, outs);
}

/// [`norm_project`] to a gate and a factor, and silu and product of both, each job those of the
/// outputs that it has computed.
pub(crate) fn norm_gated(
    on: (&Pool, (Level, Arith)),
    from: Normed<'_>,
    rows: usize,
    weights: [&Linear; 2],
    outs: [&mut Rows; 2],
    out: &mut Rows,
) {
    let (pool, how) = on;
    let cuts = weights.map(|w| cut(how, w, rows));
    let [gate, up] = outs;
    if cuts[0] != cuts[1] || weights[0].outputs != weights[1].outputs {
        norm_project(on, from, rows, &weights, &mut [&mut *gate, &mut *up]);
        return silu_mul(pool, how.0, gate, up, rows, out);
    }
    check(from.n, rows, &weights, &[&mut *gate, &mut *up]);
    let (width, outputs) = (gate.width, weights[0].outputs);
    assert!(out.width == width && rows <= out.rows_max, "{rows} rows of {gate:?} to {out:?}");
    if rows == 0 {
        return;
    }
    let x = from.quantise(on, rows, &weights);
    let ends = [gate, up, out].map(|rows| Outputs { cells: Cells::new(&mut rows.data), width });
    with_inputs(x, |inputs| {
        let job = |index: usize| {
            let (panels, block) = cuts[0].part(index, (weights[0].panels, rows));
            // SAFETY: jobs are disjoint in panels or rows, and every buffer belongs to one matrix
            // or to the product.
            unsafe {
                for (linear, end) in weights.iter().zip(&ends) {
                    compute(how, linear, inputs, panels.clone(), block.clone(), end);
                }
                let lanes = outputs.min(panels.end * LANES) - panels.start * LANES;
                for row in block {
                    let [gate, up, out] =
                        ends.each_ref().map(|end| end.panel(row, panels.start, lanes));
                    silu_mul_values(how.0, gate, up, out);
                }
            }
        };
        run(pool, (&weights, rows), cuts[0].jobs, &job);
    });
}

fn check(x: &Rows, rows: usize, weights: &[&Linear], outs: &[&mut Rows]) {
    assert_eq!(weights.len(), outs.len(), "a buffer a matrix");
    assert!(rows <= x.rows_max, "{rows} rows of {x:?}");
    for (w, out) in weights.iter().zip(outs.iter()) {
        assert_eq!(w.cols, x.width, "K of the matrix and of the rows");
        assert_eq!(w.outputs, out.width, "outputs of the matrix and width of its buffer");
        assert!(rows <= out.rows_max, "{rows} rows of {out:?}");
    }
}

/// Quantises the first `rows` rows for `weights`; `row` gives a row of `cols` values.
fn quantise<'x>(
    (pool, (level, arith)): (&Pool, (Level, Arith)),
    (rows, cols): (usize, usize),
    row: impl Fn(usize) -> &'x [f32] + Sync,
    weights: &[&Linear],
) {
    let (on, size) = ((pool, level), (rows, cols));
    let blocks = weights.iter().filter(|w| !w.format.is_float());
    ACTIVATIONS.with_borrow_mut(|(a16, a8)| match arith {
        Arith::One => a16.fill(on, size, row, blocks.map(|w| w.format.block_values())),
        Arith::Two => {
            let mut blocks = blocks.peekable();
            if blocks.peek().is_some() {
                let biased = blocks.any(|w| multiplies_biased(level, w, rows));
                a8.fill(on, size, &row, biased);
            }
            if weights.iter().any(|w| w.format.is_float()) {
                a16.fill(on, size, &row, std::iter::empty());
            }
        }
    });
}

/// Calls `then` with rows that have just been quantised.
fn with_inputs(x: &Rows, then: impl FnOnce(&Inputs<'_>)) {
    ACTIVATIONS.with_borrow(|(a16, a8)| then(&Inputs { x, a16, a8 }));
}

/// Products of quantised rows with all matrices, some at a time.
fn multiply_all(
    on: (&Pool, (Level, Arith)),
    x: &Rows,
    rows: usize,
    weights: &[&Linear],
    outs: &mut [&mut Rows],
) {
    with_inputs(x, |inputs| {
        for (weights, outs) in weights.chunks(MATRICES).zip(outs.chunks_mut(MATRICES)) {
            multiply(on, inputs, rows, weights, outs);
        }
    });
}

fn multiply(
    (pool, how): (&Pool, (Level, Arith)),
    inputs: &Inputs<'_>,
    rows: usize,
    weights: &[&Linear],
    outs: &mut [&mut Rows],
) {
    let mut cells: [Option<Outputs<'_>>; MATRICES] = [const { None }; MATRICES];
    for (cells, out) in cells.iter_mut().zip(outs) {
        let width = out.width;
        *cells = Some(Outputs { cells: Cells::new(&mut out.data), width });
    }
    let job = |mut index: usize| {
        for (linear, out) in weights.iter().zip(cells.iter().flatten()) {
            let cut = cut(how, linear, rows);
            if index < cut.jobs {
                let (panels, rows) = cut.part(index, (linear.panels, rows));
                // SAFETY: the jobs of a matrix are disjoint in panels or rows, and every buffer
                // belongs to one matrix.
                unsafe { compute(how, linear, inputs, panels, rows, out) };
                return;
            }
            index -= cut.jobs;
        }
    };
    let jobs = weights.iter().map(|w| cut(how, w, rows).jobs).sum();
    run(pool, (weights, rows), jobs, &job);
}

/// Runs all jobs, on the pool if they have enough to do.
fn run(
    pool: &Pool,
    (weights, rows): (&[&Linear], usize),
    jobs: usize,
    job: &(impl Fn(usize) + Sync),
) {
    let macs: usize = weights.iter().map(|w| w.panels * LANES * w.cols * rows).sum();
    if macs < POOL_MACS {
        (0..jobs).for_each(job);
    } else {
        pool.run(jobs, job);
    }
}

/// Outputs of `panels` for `rows`.
///
/// # Safety
/// No other thread may write the same panels of the same rows.
unsafe fn compute(
    how: (Level, Arith),
    linear: &Linear,
    inputs: &Inputs<'_>,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    let kind = Kind::of(how, linear, rows.len());
    let kernel = match (how, kind) {
        ((Level::Scalar, _), Kind::Floats) => project_scalar::project_f32_floats_scalar,
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        (_, Kind::Floats) => floats_vector::project_f32_floats_vector,
        #[cfg(target_arch = "x86_64")]
        ((Level::Avx2, Arith::One), Kind::Gemv) => gemv_avx2::gemv_a16_blocks_avx2,
        #[cfg(target_arch = "x86_64")]
        ((Level::Avx2, Arith::One), Kind::Gemm) => gemm_avx2::gemm_a16_blocks_avx2,
        #[cfg(target_arch = "x86_64")]
        ((Level::Avx512, Arith::One), Kind::Gemv) => gemv_avx512::gemv_a16_blocks_avx512,
        #[cfg(target_arch = "x86_64")]
        ((Level::Avx512, Arith::One), Kind::Gemm) => gemm_avx512::gemm_a16_blocks_avx512,
        #[cfg(target_arch = "x86_64")]
        ((Level::Avx512, Arith::Two), Kind::Gemv) => gemv_a8_avx512::gemv_a8_blocks_avx512,
        #[cfg(target_arch = "x86_64")]
        ((Level::Avx512, Arith::Two), Kind::Gemm) => gemm_a8_avx512::gemm_a8_blocks_avx512,
        #[cfg(target_arch = "x86_64")]
        ((Level::Avx2, Arith::Two), Kind::Gemv) => gemv_a8_avx2::gemv_a8_blocks_avx2,
        #[cfg(target_arch = "x86_64")]
        ((Level::Avx2, Arith::Two), Kind::Gemm) => gemm_a8_avx2::gemm_a8_blocks_avx2,
        #[cfg(target_arch = "aarch64")]
        ((Level::Neon(product), arith), _) => linear_neon::kernel(product, arith),
        ((_, Arith::One), _) => project_scalar::project_a16_blocks_scalar,
        ((_, Arith::Two), _) => project_a8_scalar::project_a8_blocks_scalar,
    };
    // SAFETY: the caller's promise; the level says that the CPU has the features.
    unsafe { kernel(linear, inputs, panels, rows, out) };
}

/// Values of slice `slice` of a row of `cols`.
pub(crate) fn slice_values(slice: usize, cols: usize) -> Range<usize> {
    let from = slice * SLICE_VALUES;
    from..cols.min(from + SLICE_VALUES)
}
