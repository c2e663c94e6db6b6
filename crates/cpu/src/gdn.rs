//! Gated DeltaNet ([`arith::gdn`]): convolution, gates and delta rule of a round's walks.
//!
//! A prompt's rows follow each other through S, but its value heads and their columns don't meet:
//! a job is a strip of columns of one value head, kept at hand over all rows of a walk.

use std::cell::RefCell;
use std::ops::Range;

use arith::gdn::{Gates, query_scale};
use backend::recurrent::Owners;
use backend::{Gdn, Walk};

use crate::Level;
#[cfg(target_arch = "x86_64")]
use crate::gdn_avx512;
use crate::gdn_scalar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::gdn_vector;
use crate::norm;
use crate::pool::Pool;
use crate::rows::{Cells, Rows, for_rows};
use crate::state::{State, TAPS_MAX, for_jobs};

/// Channels of a job of the convolution, about; whole heads.
const SPAN_CHANNELS: usize = 2048;
/// Columns of a strip, at most.
const STRIP_COLUMNS: usize = 32;
/// The same of AVX-512.
#[cfg(target_arch = "x86_64")]
const STRIP_COLUMNS_AVX512: usize = 64;

thread_local! {
    static OWNERS: RefCell<Owners> = RefCell::default();
    /// A strip of S, kept by its thread, grown at first use.
    static STRIP: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// One row's inputs of the convolution: those of its oldest tap first.
pub(crate) type Window<'a> = [&'a [f32]; TAPS_MAX];

/// What a walk's rows follow: row `i` of "the tail, then the walk's rows".
#[derive(Clone, Copy)]
struct History<'a> {
    x: &'a Rows,
    shape: &'a Gdn,
    tails: Cells<'a, f32>,
    zeros: &'a [f32],
    walk: &'a Walk,
}

impl<'a> History<'a> {
    /// Channels `span` of row `i`.
    ///
    /// # Safety
    /// While the result lives nothing may write these channels of the tail at the walk's `from`.
    unsafe fn row(&self, i: usize, span: &Range<usize>) -> &'a [f32] {
        let before = self.shape.taps - 1;
        if i >= before {
            return &self.x.row(self.walk.rows.start + i - before)[span.clone()];
        }
        let Some(from) = self.walk.from else { return &self.zeros[span.clone()] };
        let at = from * self.shape.tail_values() + i * self.shape.channels() + span.start;
        // SAFETY: the caller's promise.
        unsafe { self.tails.shared(at, span.len()) }
    }

    /// Moves channels `span` of the last `taps - 1` rows to the tail at the walk's `to`.
    ///
    /// # Safety
    /// Nothing else may read or write these channels of the walk's tails.
    unsafe fn keep(&self, span: &Range<usize>) {
        let Gdn { taps, .. } = *self.shape;
        let to = self.walk.to * self.shape.tail_values() + span.start;
        // In place, every row goes where an older one was, so that none is lost before its turn.
        for j in 0..taps - 1 {
            let i = self.walk.rows.len() + j;
            let at = to + j * self.shape.channels();
            // SAFETY: the caller's promise. Where a row stays in place nothing is done; else source
            // and target are different rows.
            unsafe {
                if i == j && self.walk.from == Some(self.walk.to) {
                    continue;
                }
                let row = self.row(i, span);
                self.tails.slice(at, span.len()).copy_from_slice(row);
            }
        }
    }
}

pub(crate) fn convolve(
    pool: &Pool,
    level: Level,
    x: &Rows,
    taps: &[f32],
    state: &mut State,
    walks: &[Walk],
    out: &mut Rows,
) {
    let shape = state.shape;
    let channels = shape.channels();
    assert!(x.width == channels && out.width == channels, "{x:?} to {out:?} of {shape:?}");
    assert_eq!(taps.len(), shape.taps * channels, "taps of {shape:?}");
    let span = (SPAN_CHANNELS / shape.key_dim).max(1) * shape.key_dim;
    let spans = channels.div_ceil(span);
    let span_of = |i: usize| i * span..channels.min((i + 1) * span);
    let (tails, zeros) = (Cells::new(&mut state.tails), &state.zeros[..]);
    let history = |walk| History { x, shape: &shape, tails, zeros, walk };
    let rows_max = x.rows_max.min(out.rows_max);
    let cells = Cells::new(&mut out.data);
    OWNERS.with_borrow_mut(|owners| {
        owners.fill(walks, state.places);
        assert!(owners.end() <= rows_max, "{} rows of {rows_max}", owners.end());
        for_jobs(pool, owners.end() * spans, owners.end() * channels, |job| {
            let (r, span) = (job / spans, span_of(job % spans));
            let Some(walk) = owners.of(r) else { return };
            let walk = &walks[walk];
            let history = history(walk);
            let mut window: Window<'_> = [&[]; TAPS_MAX];
            for (j, row) in window[..shape.taps].iter_mut().enumerate() {
                // SAFETY: no tail is written before all rows are done.
                *row = unsafe { history.row(r - walk.rows.start + j, &span) };
            }
            // SAFETY: one job has each span of a row.
            let out = unsafe { cells.slice(r * channels + span.start, span.len()) };
            convolve_span(level, &shape, taps, &window, span, out);
        });
        let jobs = walks.len() * spans;
        for_jobs(pool, jobs, walks.len() * shape.tail_values(), |job| {
            // SAFETY: one job has each span of a walk, and no walk a tail of another.
            unsafe { history(&walks[job / spans]).keep(&span_of(job % spans)) };
        });
    });
}

/// [`arith::gdn::convolve`] of some whole heads of one row.
fn convolve_span(
    level: Level,
    shape: &Gdn,
    taps: &[f32],
    window: &Window<'_>,
    span: Range<usize>,
    out: &mut [f32],
) {
    let mut each: Window<'_> = [&[]; TAPS_MAX];
    for (j, tap) in each[..shape.taps].iter_mut().enumerate() {
        *tap = &taps[j * shape.channels()..][span.clone()];
    }
    let (each, window) = (&each[..shape.taps], &window[..shape.taps]);
    match level {
        Level::Scalar => gdn_scalar::convolve_f32_scalar(each, window, out),
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        // SAFETY: the level says that the CPU has the features.
        _ => unsafe { gdn_vector::convolve_f32_vector(each, window, out) },
    }
    let (width, scale) = (shape.key_width(), query_scale(shape.key_dim));
    for (i, head) in out.chunks_exact_mut(shape.key_dim).enumerate() {
        let at = span.start + i * shape.key_dim;
        if at >= 2 * width {
            break;
        }
        let scale = (at < width).then_some(scale);
        match level {
            Level::Scalar => norm::l2_norm_f32_scalar(head, scale),
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            // SAFETY: the level says that the CPU has the features.
            _ => unsafe { norm::l2_norm_f32_vector(head, scale) },
        }
    }
}

/// What [`gates`] makes its outputs of, one value a head.
#[derive(Clone, Copy)]
pub(crate) struct Heads<'a> {
    pub(crate) b: &'a [f32],
    pub(crate) a: &'a [f32],
    pub(crate) dt_bias: &'a [f32],
    pub(crate) amplitude: &'a [f32],
}

pub(crate) fn gates(
    pool: &Pool,
    level: Level,
    [b, a]: [&Rows; 2],
    dt_bias: &[f32],
    amplitude: &[f32],
    rows: usize,
    out: &mut Rows,
) {
    let heads = dt_bias.len();
    assert!(
        b.width == heads && a.width == heads && out.width == 2 * heads,
        "{b:?}, {a:?}, {out:?}"
    );
    assert!(amplitude.len() == heads && rows <= b.rows_max && rows <= a.rows_max);
    let cells = Cells::new(&mut out.data);
    for_rows(pool, rows, 2 * heads, |r| {
        // SAFETY: one job has each row.
        let out = unsafe { cells.slice(r * 2 * heads, 2 * heads) };
        let (beta, decay) = out.split_at_mut(heads);
        let heads = Heads { b: b.row(r), a: a.row(r), dt_bias, amplitude };
        match level {
            Level::Scalar => gdn_scalar::gates_f32_scalar(heads, beta, decay),
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            // SAFETY: the level says that the CPU has the features.
            _ => unsafe { gdn_vector::gates_f32_vector(heads, beta, decay) },
        }
    });
}

/// Some columns of one value head over the rows of a walk.
#[derive(Clone)]
pub(crate) struct Strip<'a> {
    pub(crate) shape: &'a Gdn,
    pub(crate) x: &'a Rows,
    pub(crate) gates: &'a Rows,
    /// S of all places.
    pub(crate) s: Cells<'a, f32>,
    pub(crate) out: Cells<'a, f32>,
    pub(crate) walk: &'a Walk,
    pub(crate) head: usize,
    pub(crate) columns: Range<usize>,
}

/// One row of a strip.
#[derive(Clone, Copy)]
pub(crate) struct Step<'a> {
    pub(crate) query: &'a [f32],
    pub(crate) key: &'a [f32],
    pub(crate) value: &'a [f32],
    pub(crate) gates: Gates,
}

impl<'a> Strip<'a> {
    /// Where the first column begins in `s` at a place.
    pub(crate) fn at(&self, place: usize) -> usize {
        let head = self.shape.key_dim * self.shape.value_dim;
        place * self.shape.state_values() + self.head * head + self.columns.start
    }

    #[inline]
    pub(crate) fn step(&self, row: usize) -> Step<'a> {
        let (x, gates) = (self.x.row(row), self.gates.row(row));
        let (queries, rest) = x.split_at(self.shape.key_width());
        let (keys, values) = rest.split_at(self.shape.key_width());
        let key = self.shape.key_of(self.head) * self.shape.key_dim;
        let value = self.head * self.shape.value_dim + self.columns.start;
        Step {
            query: &queries[key..][..self.shape.key_dim],
            key: &keys[key..][..self.shape.key_dim],
            value: &values[value..][..self.columns.len()],
            gates: Gates { beta: gates[self.head], decay: gates[self.shape.values + self.head] },
        }
    }

    /// Where the outputs of a row go.
    ///
    /// # Safety
    /// No other thread may have the strip, and no other result may live.
    #[inline]
    pub(crate) unsafe fn out(&self, row: usize) -> &'a mut [f32] {
        let at = self.head * self.shape.value_dim + self.columns.start;
        // SAFETY: the caller's promise: strips of a row are disjoint.
        unsafe { self.out.slice(row * self.shape.value_width() + at, self.columns.len()) }
    }
}

pub(crate) fn delta(
    pool: &Pool,
    level: Level,
    x: &Rows,
    gates: &Rows,
    state: &mut State,
    walks: &[Walk],
    out: &mut Rows,
) {
    let shape = state.shape;
    assert!(x.width == shape.channels() && gates.width == 2 * shape.values, "{x:?}, {gates:?}");
    assert_eq!(out.width, shape.value_width(), "{out:?} of {shape:?}");
    let end = OWNERS.with_borrow_mut(|owners| {
        owners.fill(walks, state.places);
        owners.end()
    });
    assert!(end <= x.rows_max && end <= gates.rows_max && end <= out.rows_max, "{end} of {x:?}");
    let width = match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => STRIP_COLUMNS_AVX512,
        _ => STRIP_COLUMNS,
    };
    let strips = shape.value_dim.div_ceil(width);
    let (s, out) = (Cells::new(&mut state.s), Cells::new(&mut out.data));
    let job = |job: usize| {
        let (walk, rest) = (job / (shape.values * strips), job % (shape.values * strips));
        let column = rest % strips * width;
        let columns = column..shape.value_dim.min(column + width);
        // Prompts stand after the rows that decode, and take longest.
        let walk = &walks[walks.len() - 1 - walk];
        let head = rest / strips;
        let strip = Strip { shape: &shape, x, gates, s, out, walk, head, columns };
        STRIP.with_borrow_mut(|tile| {
            let values = shape.key_dim * width;
            if tile.len() < values {
                tile.resize(values, 0.0);
            }
            match level {
                // SAFETY: one job has each strip.
                Level::Scalar => unsafe { gdn_scalar::delta_f32_scalar(&strip, tile) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: one job has each strip; the level says that the CPU has the features.
                Level::Avx512 => unsafe { gdn_avx512::delta_f32_avx512(&strip, tile) },
                #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
                // SAFETY: one job has each strip; the level says that the CPU has the features.
                _ => unsafe { gdn_vector::delta_f32_vector(&strip, tile) },
            }
        });
    };
    let jobs = walks.len() * shape.values * strips;
    for_jobs(pool, jobs, end.max(walks.len()) * shape.state_values(), job);
}
