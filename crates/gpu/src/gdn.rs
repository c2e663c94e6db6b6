//! Recurrent layers on the device: their states, the convolution and the delta rule.

use std::sync::Arc;

use arith::gdn::{L2_EPS, query_scale};
use backend::recurrent::{self, Owners};
use backend::{BackendError, Gdn, HeadOrder, Walk};

use crate::buffer::Buffer;
use crate::built::Kernel;
use crate::device::Device;
use crate::forms::Unit;
use crate::rows::{Rows, Vector, each};

/// Most taps of a convolution.
pub const TAPS_MAX: usize = 8;
/// Columns of a workgroup of the delta rule.
const DELTA_COLUMNS: usize = 64;
/// Most dims of a key head.
pub const KEY_DIM_MAX: usize = 256;

/// The recurrent state of one layer: places of S `[values, key_dim, value_dim]` and of a tail
/// `[taps - 1, channels]`, oldest row first.
pub struct State {
    shape: Gdn,
    places: usize,
    s: Buffer,
    tails: Buffer,
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
        Ok(Self { shape, places, s, tails })
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

    /// Places of the state.
    pub(crate) fn places(&self) -> usize {
        self.places
    }
}

/// A round's walks on the device: four numbers a walk, then the walk of each row. Uploaded when
/// they change.
pub(crate) struct Walks {
    buffer: Buffer,
    words: Vec<u32>,
    count: usize,
    rows: usize,
}

impl Walks {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, BackendError> {
        let buffer = Buffer::new(device, "walks", 4096)?;
        Ok(Self { buffer, words: Vec::new(), count: 0, rows: 0 })
    }

    /// Makes them these walks, asserting that none meets another.
    pub(crate) fn take(
        &mut self,
        device: &Arc<Device>,
        walks: &[Walk],
        places: usize,
    ) -> Result<(), BackendError> {
        let mut owners = Owners::default();
        owners.fill(walks, places);
        let words = owners.words(walks);
        (self.count, self.rows) = (walks.len(), owners.end());
        if words != self.words {
            if words.len() * 4 > self.buffer.bytes() {
                let bytes = (words.len() * 4).next_power_of_two();
                self.buffer = Buffer::new(device, "walks", bytes as u128)?;
            }
            self.buffer.upload(0, &words);
            self.words = words;
        }
        Ok(())
    }

    /// The parameters of kernels/gdn.wgsl.
    fn params(&self, shape: &Gdn, [count, across]: [u32; 2]) -> Vec<u32> {
        let tiled = usize::from(shape.order == HeadOrder::Tiled);
        let mut params = vec![count, across];
        let Gdn { keys, values, key_dim, value_dim, taps, .. } = *shape;
        let sizes = [self.count, shape.channels(), taps, keys, values, key_dim, value_dim, tiled];
        params.extend(sizes.map(|n| n as u32));
        params
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
    if walks.count == 0 {
        return;
    }
    let (grid, sizes) = each(walks.rows * channels);
    let buffers = [
        (0, &out.buffer),
        (1, &walks.buffer),
        (2, &x.buffer),
        (3, &taps.buffer),
        (4, &state.tails),
    ];
    if walks.rows > 0 {
        let kernel = Kernel::new(Unit::Gdn, "convolve");
        device.launch(&kernel, &buffers, &walks.params(&shape, sizes), grid);
    }
    // After every row has read the tails that these replace.
    let (grid, sizes) = each(walks.count * channels);
    let buffers = [(1, &walks.buffer), (2, &x.buffer), (4, &state.tails)];
    let kernel = Kernel::new(Unit::Gdn, "tails");
    device.launch(&kernel, &buffers, &walks.params(&shape, sizes), grid);
    unit_heads(device, &shape, walks.rows, out);
}

/// The L2 norms of query and key heads, in place.
fn unit_heads(device: &Device, shape: &Gdn, rows: usize, out: &mut Rows) {
    let heads = 2 * shape.keys;
    let (grid, across) = Device::spread(rows * heads);
    let mut params = vec![(rows * heads) as u32, across, shape.key_dim as u32];
    params.extend([L2_EPS.to_bits(), 0, heads as u32, out.width as u32, shape.keys as u32]);
    params.push(query_scale(shape.key_dim).to_bits());
    if rows > 0 {
        device.launch(&Kernel::new(Unit::Norm, "unit"), &[(0, &out.buffer)], &params, grid);
    }
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
    let columns = shape.value_dim.div_ceil(DELTA_COLUMNS);
    let grid = [columns, shape.values, walks.count].map(|n| n as u32);
    let buffers =
        [(0, &out.buffer), (1, &walks.buffer), (2, &x.buffer), (3, &gates.buffer), (4, &state.s)];
    let kernel = Kernel::new(Unit::Gdn, "delta");
    device.launch(&kernel, &buffers, &walks.params(&shape, [0, 0]), grid);
}
