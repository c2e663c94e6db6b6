//! The recurrent state of a layer, and what the walks of a round take of it.

use backend::{BackendError, Gdn, Walk};

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
        check(&shape)?;
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

/// What the kernels ask of a shape.
fn check(shape: &Gdn) -> Result<(), BackendError> {
    let refused = |what: &str, expected: String, found: usize| {
        let (what, found) = (what.to_owned(), found.to_string());
        Err(BackendError::Shape { what, expected, found })
    };
    if !(2..=TAPS_MAX).contains(&shape.taps) {
        return refused("taps of a convolution", format!("2 to {TAPS_MAX}"), shape.taps);
    }
    if shape.key_dim == 0 || !shape.key_dim.is_multiple_of(arith::gdn::KEY_LANES) {
        return refused("dims of a key head", "a multiple of 4".to_owned(), shape.key_dim);
    }
    if shape.keys == 0 || !shape.values.is_multiple_of(shape.keys) {
        return refused("value heads", format!("a multiple of {}", shape.keys), shape.values);
    }
    Ok(())
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

/// Which walk each row of a round is of. Grown at first use, then kept.
#[derive(Default)]
pub(crate) struct Owners {
    rows: Vec<Option<usize>>,
    written: Vec<bool>,
}

impl Owners {
    /// Takes the walks of a round.
    ///
    /// Asserts that no row is in two of them, and that none writes a place of another.
    pub(crate) fn fill(&mut self, walks: &[Walk], places: usize) {
        self.rows.clear();
        self.rows.resize(walks.iter().map(|walk| walk.rows.end).max().unwrap_or(0), None);
        self.written.clear();
        self.written.resize(places, false);
        for (w, walk) in walks.iter().enumerate() {
            assert!(!self.written[walk.to], "{walk:?} writes the place of another");
            self.written[walk.to] = true;
            for owner in &mut self.rows[walk.rows.clone()] {
                assert!(owner.is_none(), "{walk:?} has a row of another");
                *owner = Some(w);
            }
        }
        for walk in walks {
            let own = |from: usize| from == walk.to || !self.written[from];
            assert!(walk.from.is_none_or(own), "{walk:?} reads what another writes");
        }
    }

    /// The last row of any walk, and one.
    pub(crate) fn end(&self) -> usize {
        self.rows.len()
    }

    /// The walk of a row.
    pub(crate) fn of(&self, row: usize) -> Option<usize> {
        self.rows[row]
    }
}

/// Calls `f` for each of `jobs` jobs, on the pool if they handle enough values together.
pub(crate) fn for_jobs(pool: &Pool, jobs: usize, values: usize, f: impl Fn(usize) + Sync) {
    if values < VALUES_MIN {
        return (0..jobs).for_each(f);
    }
    pool.run(jobs, &f);
}
