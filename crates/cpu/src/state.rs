//! The recurrent state of a layer, and what the walks of a round take of it.

use backend::recurrent;
use backend::{BackendError, Gdn};

use crate::memory::{self, Floats};
use crate::pool::Pool;
use crate::rows::{Cells, VALUES_MIN};

/// Most taps of a convolution.
pub const TAPS_MAX: usize = 8;
/// Values of a job of a copy.
const COPY_VALUES: usize = 1 << 16;

/// The recurrent state of one layer: places of S `[values, key_dim, value_dim]` and of a tail
/// `[taps - 1, channels]`, oldest row first.
pub struct State {
    pub(crate) shape: Gdn,
    pub(crate) places: usize,
    pub(crate) s: Floats,
    pub(crate) tails: Vec<f32>,
    /// One row of a tail at a stream's start.
    pub(crate) zeros: Vec<f32>,
}

impl State {
    pub(crate) fn new(device: &str, shape: Gdn, places: usize) -> Result<Self, BackendError> {
        recurrent::check(&shape, TAPS_MAX, None)?;
        let (s, tail) = (shape.state_values(), shape.tail_values());
        let what = format!("recurrent state of {places} places");
        memory::check(device, &what, places as u128 * (s + tail) as u128 * 4)?;
        let zeros = vec![0.0; shape.channels()];
        Ok(Self {
            shape,
            places,
            s: Floats::zeros(places * s),
            tails: vec![0.0; places * tail],
            zeros,
        })
    }

    pub(crate) fn copy_from(&mut self, pool: &Pool, from: &Self, place: usize, to: usize) {
        assert_eq!(self.shape, from.shape, "states of one shape");
        let (s, tail) = (self.shape.state_values(), self.shape.tail_values());
        copy(pool, &from.s[place * s..][..s], &mut self.s[to * s..][..s]);
        copy(pool, &from.tails[place * tail..][..tail], &mut self.tails[to * tail..][..tail]);
    }

    pub(crate) fn download(&self, place: usize, s: &mut [f32], tail: &mut [f32]) {
        s.copy_from_slice(&self.s[place * s.len()..][..s.len()]);
        tail.copy_from_slice(&self.tails[place * tail.len()..][..tail.len()]);
    }
}

/// Copies one buffer to another, on the pool if it is large.
pub(crate) fn copy(pool: &Pool, from: &[f32], to: &mut [f32]) {
    assert_eq!(from.len(), to.len());
    if from.len() < 2 * COPY_VALUES {
        return to.copy_from_slice(from);
    }
    let cells = Cells::new(to);
    pool.run(from.len().div_ceil(COPY_VALUES), &|job| {
        let at = job * COPY_VALUES;
        let from = &from[at..from.len().min(at + COPY_VALUES)];
        // SAFETY: one job has each part.
        unsafe { cells.slice(at, from.len()) }.copy_from_slice(from);
    });
}

/// Calls `f` for each of `jobs` jobs, on the pool if they handle enough values together.
pub(crate) fn for_jobs(pool: &Pool, jobs: usize, values: usize, f: impl Fn(usize) + Sync) {
    if values < VALUES_MIN {
        return (0..jobs).for_each(f);
    }
    pool.run(jobs, &f);
}
