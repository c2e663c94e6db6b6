//! Recurrent layers on the card: their states, the convolution and the delta rule.

use std::sync::Arc;

use arith::gdn::query_scale;
use backend::recurrent::{self, Owners};
use backend::{BackendError, Gdn, HeadOrder, Walk};

use crate::device::{Buffer, Device, Params};
use crate::fuse::{self, Op};
use crate::rows::{Rows, Vector, blocks, run};
use crate::twice::Twice;

/// Most taps of a convolution.
pub const TAPS_MAX: usize = 8;
/// Threads of a block of the delta rule, four a column, of which each may have two.
const DELTA_THREADS: usize = 128;
/// Most dims of a key head.
pub const KEY_DIM_MAX: usize = 256;

/// The recurrent state of one layer: places of S `[values, key_dim, value_dim]` and of a tail
/// `[taps - 1, channels]`, oldest row first.
pub struct State {
    shape: Gdn,
    places: usize,
    s: Buffer,
    tails: Buffer,
    /// When each was last written to, in the device's barriers.
    written: [Option<u64>; 2],
}

impl State {
    pub(crate) fn new(
        device: &Arc<Device>,
        shape: Gdn,
        places: usize,
    ) -> Result<Self, BackendError> {
        recurrent::check(&shape, TAPS_MAX, Some(KEY_DIM_MAX))?;
        let take = |values: usize| {
            let what = format!("recurrent state of {places} places");
            Buffer::new(device, &what, places as u128 * values as u128 * 4)
        };
        let (s, tails) = (take(shape.state_values())?, take(shape.tail_values())?);
        Ok(Self { shape, places, s, tails, written: [None; 2] })
    }

    pub(crate) fn copy_from(&mut self, from: &Self, place: usize, to: usize) {
        assert_eq!(self.shape, from.shape, "states of one shape");
        let (s, tail) = (4 * self.shape.state_values(), 4 * self.shape.tail_values());
        self.s.copy_from(&from.s, place * s, to * s, s);
        self.tails.copy_from(&from.tails, place * tail, to * tail, tail);
    }

    pub(crate) fn download(&self, place: usize, s: &mut [f32], tail: &mut [f32]) {
        self.s.download(place * size_of_val(s), s);
        self.tails.download(place * size_of_val(tail), tail);
    }
}

#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) struct Conv {
    pub(crate) x: u64,
    pub(crate) taps: u64,
    pub(crate) tails: u64,
    pub(crate) walk_of: u64,
    pub(crate) walks: u64,
    pub(crate) out: u64,
    pub(crate) channels: i32,
    pub(crate) count: i32,
    pub(crate) rows: i32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Unit {
    pub(crate) x: u64,
    pub(crate) walk_of: u64,
    pub(crate) rows: i32,
    pub(crate) keys: i32,
    pub(crate) dim: i32,
    pub(crate) channels: i32,
    pub(crate) scale: f32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Delta {
    pub(crate) x: u64,
    pub(crate) gates: u64,
    pub(crate) s: u64,
    pub(crate) walks: u64,
    pub(crate) out: u64,
    pub(crate) keys: i32,
    pub(crate) values: i32,
    pub(crate) key_dim: i32,
    pub(crate) value_dim: i32,
    pub(crate) tiled: i32,
}

// SAFETY: as kernels/gdn.cu declares it.
unsafe impl Params for Conv {}
// SAFETY: as above.
unsafe impl Params for Unit {}
// SAFETY: as above.
unsafe impl Params for Delta {}

/// A round's walks on the card: four numbers a walk, then the walk of each row. Uploaded when they
/// change.
pub(crate) struct Walks {
    words: Twice<Vec<u32>>,
    count: usize,
    rows: usize,
    /// Whether every row is in a walk.
    whole: bool,
    /// What they were made of, and the places that it was checked against: every layer asks again.
    given: (Vec<Walk>, usize),
}

impl Walks {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, BackendError> {
        let words = Twice::new(device, "walks")?;
        Ok(Self { words, count: 0, rows: 0, whole: true, given: Default::default() })
    }

    /// Makes them these walks, asserting that none meets another.
    pub(crate) fn take(&mut self, walks: &[Walk], places: usize) -> Result<(), BackendError> {
        if self.given.1 == places && self.given.0 == walks {
            return Ok(());
        }
        self.given = Default::default();
        let mut owners = Owners::default();
        owners.fill(walks, places);
        let words = owners.words(walks);
        self.whole = owners.is_whole();
        (self.count, self.rows) = (walks.len(), owners.end());
        self.words.take(&words, 4 * words.len(), |buffer| buffer.upload(0, &words))?;
        self.given = (walks.to_vec(), places);
        Ok(())
    }

    fn owners(&self) -> u64 {
        self.words.buffer().at() + 16 * self.count as u64
    }
}

impl State {
    /// Places of the state.
    pub(crate) fn places(&self) -> usize {
        self.places
    }
}

pub(crate) fn convolve(
    device: &Device,
    x: &Rows,
    taps: &Vector,
    state: &mut State,
    walks: &Walks,
    out: &mut Rows,
) {
    let shape = state.shape;
    let channels = shape.channels();
    assert!(x.width == channels && out.width == channels, "{x:?} to {out:?}");
    assert_eq!(taps.len, shape.taps * channels, "taps");
    x.holds(walks.rows);
    out.holds(walks.rows);
    let params = Conv {
        x: x.at(),
        taps: taps.buffer.at(),
        tails: state.tails.at(),
        walk_of: walks.owners(),
        walks: walks.words.buffer().at(),
        out: out.at(),
        channels: channels as i32,
        count: shape.taps as i32,
        rows: walks.rows as i32,
    };
    let unit = Unit {
        x: out.at(),
        walk_of: walks.owners(),
        rows: walks.rows as i32,
        keys: shape.keys as i32,
        dim: shape.key_dim as i32,
        channels: channels as i32,
        scale: query_scale(shape.key_dim),
    };
    let waits = walks.rows <= fuse::ROWS_MAX && by_heads(&shape);
    let now = Some(device.barriers());
    let settled = state.written.iter().all(|&written| written != now);
    state.written[1] = now;
    run(device, waits, Op::Convolve { conv: params, unit, walks: walks.count, settled });
}

/// Whether a block can take a value head whole.
fn by_heads(shape: &Gdn) -> bool {
    shape.key_dim == fuse::HEAD && shape.value_dim == fuse::HEAD
}

pub(crate) fn delta(
    device: &Device,
    x: &Rows,
    gates: &Rows,
    state: &mut State,
    walks: &Walks,
    out: &mut Rows,
) {
    let shape = state.shape;
    assert!(x.width == shape.channels() && gates.width == 2 * shape.values, "{x:?}, {gates:?}");
    assert_eq!(out.width, shape.value_width(), "{out:?}");
    for rows in [x, gates, &*out] {
        rows.holds(walks.rows);
    }
    let params = Delta {
        x: x.at(),
        gates: gates.at(),
        s: state.s.at(),
        walks: walks.words.buffer().at(),
        out: out.at(),
        keys: shape.keys as i32,
        values: shape.values as i32,
        key_dim: shape.key_dim as i32,
        value_dim: shape.value_dim as i32,
        tiled: i32::from(shape.order == HeadOrder::Tiled),
    };
    state.written[0] = Some(device.barriers());
    if fuse::delta(device, &params, walks.whole, query_scale(shape.key_dim)) {
        return;
    }
    let grid = |each| {
        let [columns, ..] = blocks(shape.value_dim, each * DELTA_THREADS / 4);
        [columns, shape.values as u32, walks.count as u32]
    };
    let fits = |grid: [u32; 3]| grid.iter().product::<u32>() <= device.multiprocessors();
    // A row takes a thread of one column less time; threads of two take less of a multiprocessor
    // that has several blocks.
    let (kernel, grid) = match shape.key_dim {
        ..=32 => ("delta_32", grid(1)),
        33..=64 => ("delta_64", grid(1)),
        65..=128 if fits(grid(1)) => ("delta_128", grid(1)),
        65..=128 => ("delta_128_two", grid(2)),
        _ => ("delta_256", grid(1)),
    };
    // Blocks that come while others still run would share a multiprocessor; where there is one for
    // each of them, each takes so much memory that they can't.
    let shared = if fits(grid) { u32::MAX } else { 0 };
    device.flush();
    device.launch_with(kernel, grid, DELTA_THREADS as u32, shared, &params);
}
