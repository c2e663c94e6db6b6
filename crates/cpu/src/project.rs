//! Linear layers: the rows are quantised once, the outputs of all matrices cut into jobs.

use std::cell::RefCell;
use std::ops::Range;

use arith::base::SLICE_VALUES;

use crate::Level;
use crate::pack::{LANES, Linear};
use crate::pool::Pool;
use crate::project_scalar;
use crate::quantise::Activations;
use crate::rows::{Cells, Rows};
#[cfg(target_arch = "x86_64")]
use crate::{floats_avx2, gemm_avx2, gemv_avx2};

/// Rows up to which block formats are multiplied straight from their codes.
const GEMV_ROWS: usize = 8;
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
    static ACTIVATIONS: RefCell<Activations> = RefCell::default();
}

/// What a kernel reads: the rows as they came, and quantised.
pub(crate) struct Inputs<'a> {
    pub(crate) x: &'a Rows,
    pub(crate) a16: &'a Activations,
}

/// Where a kernel writes: rows of a matrix's outputs.
pub(crate) struct Outputs<'a> {
    pub(crate) cells: Cells<'a, f32>,
    pub(crate) width: usize,
}

impl<'a> Outputs<'a> {
    /// The `lanes` outputs of panel `panel` in row `row`.
    ///
    /// # Safety
    /// No other thread may write the same panel of the same row.
    #[inline]
    pub(crate) unsafe fn panel(&self, row: usize, panel: usize, lanes: usize) -> &'a mut [f32] {
        // SAFETY: panels of rows are disjoint; the rest is the caller's promise.
        unsafe { self.cells.slice(row * self.width + panel * LANES, lanes) }
    }
}

/// The cut of one matrix's work: columns of panels by blocks of rows.
struct Cut {
    panels: usize,
    columns: usize,
    rows: usize,
    jobs: usize,
}

/// The cut depends on the shape alone.
fn cut(linear: &Linear, rows: usize) -> Cut {
    let (panels, job_rows) = if linear.format.is_float() {
        (FLOAT_PANELS, JOB_ROWS)
    } else if rows <= GEMV_ROWS {
        let macs = linear.cols * LANES * rows;
        (JOB_MACS.div_ceil(macs), rows)
    } else {
        (GEMM_PANELS, JOB_ROWS)
    };
    let columns = linear.panels.div_ceil(panels);
    Cut { panels, columns, rows: job_rows, jobs: columns * rows.div_ceil(job_rows) }
}

/// `outs[i] = x W_i^T` for the first `rows` rows.
pub(crate) fn project(
    pool: &Pool,
    level: Level,
    x: &Rows,
    rows: usize,
    weights: &[&Linear],
    outs: &mut [&mut Rows],
) {
    assert_eq!(weights.len(), outs.len(), "a buffer a matrix");
    assert!(rows <= x.rows_max, "{rows} rows of {x:?}");
    for (w, out) in weights.iter().zip(outs.iter()) {
        assert_eq!(w.cols, x.width, "K of the matrix and of the rows");
        assert_eq!(w.outputs, out.width, "outputs of the matrix and width of its buffer");
        assert!(rows <= out.rows_max, "{rows} rows of {out:?}");
    }
    if rows == 0 {
        return;
    }
    ACTIVATIONS.with_borrow_mut(|a16| {
        let blocks = weights.iter().filter(|w| !w.format.is_float());
        a16.fill(pool, level, x, rows, blocks.map(|w| w.format.block_values()));
        let inputs = Inputs { x, a16 };
        for (weights, outs) in weights.chunks(MATRICES).zip(outs.chunks_mut(MATRICES)) {
            multiply(pool, level, &inputs, rows, weights, outs);
        }
    });
}

fn multiply(
    pool: &Pool,
    level: Level,
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
            let cut = cut(linear, rows);
            if index < cut.jobs {
                let (block, column) = (index / cut.columns, index % cut.columns);
                let first = column * cut.panels;
                let panels = first..linear.panels.min(first + cut.panels);
                let rows = block * cut.rows..rows.min((block + 1) * cut.rows);
                // SAFETY: the jobs of a matrix are disjoint in panels or rows, and every buffer
                // belongs to one matrix.
                unsafe { compute(level, linear, inputs, panels, rows, out) };
                return;
            }
            index -= cut.jobs;
        }
    };
    let jobs = weights.iter().map(|w| cut(w, rows).jobs).sum();
    let macs: usize = weights.iter().map(|w| w.panels * LANES * w.cols * rows).sum();
    if macs < POOL_MACS {
        (0..jobs).for_each(job);
    } else {
        pool.run(jobs, &job);
    }
}

/// Outputs of `panels` for `rows`.
///
/// # Safety
/// No other thread may write the same panels of the same rows.
unsafe fn compute(
    level: Level,
    linear: &Linear,
    inputs: &Inputs<'_>,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    // SAFETY: the caller's promise; `level` says that the CPU has the features.
    unsafe {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => {
                if linear.format.is_float() {
                    floats_avx2::project_f32_floats_avx2(linear, inputs, panels, rows, out);
                } else if rows.len() <= GEMV_ROWS {
                    gemv_avx2::gemv_a16_blocks_avx2(linear, inputs, panels, rows, out);
                } else {
                    gemm_avx2::gemm_a16_blocks_avx2(linear, inputs, panels, rows, out);
                }
            }
            Level::Scalar => {
                if linear.format.is_float() {
                    project_scalar::project_f32_floats_scalar(linear, inputs, panels, rows, out);
                } else {
                    project_scalar::project_a16_blocks_scalar(linear, inputs, panels, rows, out);
                }
            }
        }
    }
}

/// Values of slice `slice` of a row of `cols`.
pub(crate) fn slice_values(slice: usize, cols: usize) -> Range<usize> {
    let from = slice * SLICE_VALUES;
    from..cols.min(from + SLICE_VALUES)
}
