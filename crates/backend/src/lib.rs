//! What a device must be able to do: buffers, weights and the ops that a layer program is made of.
//!
//! A backend computes `arith`'s functions bit for bit, whatever its row count, tiling or thread
//! count; [`conformance`] holds it to that. It knows no model names and allocates nothing inside
//! an op. Row counts are explicit: buffers hold `rows_max` rows and an op touches the first `rows`.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use arith::base::{Arith, TILE_KEYS};
use arith::candidates;
use arith::format::Matrix;
use arith::linear::Groups;

pub mod berths;
pub mod conformance;
pub mod recurrent;
pub mod scalar;

pub use arith::attention::{Heads, KvDtype};
pub use arith::gdn::{Gdn, HeadOrder};
pub use arith::rope::{Pairing, RopeRows};
pub use berths::{Offer, Over};

/// Where a row of a round stands: its stream's page table and its absolute position. The row
/// sees keys 0 ..= position of that table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowAt {
    /// Index into [`RowMap::tables`].
    pub table: usize,
    /// Absolute position of the row.
    pub position: u32,
}

/// The rows of one stream among those of a round, in order, and where its recurrent state stands:
/// places of a layer's [`Backend::State`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Its rows.
    pub rows: Range<usize>,
    /// Where the state before the first row is; `None` for a stream's start, whose state is zero.
    pub from: Option<usize>,
    /// Where the state after the last row goes; may be `from`. No two walks share a place.
    pub to: usize,
}

/// The rows of one round, in plan order. Page `p` of a table holds the keys of positions
/// `64 p .. 64 p + 64`; page numbers index every layer's cache alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowMap {
    /// One entry a row.
    pub rows: Vec<RowAt>,
    /// A page table a stream of the round.
    pub tables: Vec<Arc<[u32]>>,
}

impl RowMap {
    /// Of each row, where its table starts among [`RowMap::pages`].
    pub fn starts(&self) -> impl Iterator<Item = u32> {
        let mut end = 0;
        let start = |table: &Arc<[u32]>| {
            let start = end;
            end += table.len() as u32;
            start
        };
        let starts: Vec<u32> = self.tables.iter().map(start).collect();
        self.rows.iter().map(move |row| starts[row.table])
    }

    /// The pages of all tables, one table after the other.
    pub fn pages(&self) -> impl Iterator<Item = u32> {
        self.tables.iter().flat_map(|table| table.iter().copied())
    }

    /// Asserts that every row stands in its table, and that a cache of `pages` pages has all.
    pub fn check(&self, pages: usize) {
        for row in &self.rows {
            let table = &self.tables[row.table];
            assert!((row.position as usize) < table.len() * TILE_KEYS, "{row:?} of {table:?}");
        }
        for page in self.pages() {
            assert!((page as usize) < pages, "page {page} of {pages}");
        }
    }
}

/// How what the members of a group give each other becomes rows again.
#[derive(Clone, Copy, Debug)]
pub enum Together<'a> {
    /// Each of `members` gives a node of the tree of every value, and they are added in its order
    /// ([`arith::linear::join`]).
    Nodes {
        /// Values of a row.
        width: usize,
        /// Members; a power of two.
        members: usize,
    },
    /// Each gives its piece of a row.
    Pieces {
        /// Values of a whole row.
        width: usize,
        /// The runs that each member has, in the order in which it has them.
        members: &'a [Vec<Range<usize>>],
    },
}

impl Together<'_> {
    /// Values of a whole row.
    pub fn width(&self) -> usize {
        match self {
            Self::Nodes { width, .. } | Self::Pieces { width, .. } => *width,
        }
    }

    /// Members of the group.
    pub fn members(&self) -> usize {
        match self {
            Self::Nodes { members, .. } => *members,
            Self::Pieces { members, .. } => members.len(),
        }
    }

    /// Values that a member gives of a row.
    pub fn values(&self, member: usize) -> usize {
        match self {
            Self::Nodes { width, .. } => *width,
            Self::Pieces { members, .. } => {
                members[member].iter().map(ExactSizeIterator::len).sum()
            }
        }
    }
}

/// Rows that are normed on their way into a projection.
pub struct Normed<'a, B: Backend + ?Sized> {
    /// The rows.
    pub x: &'a B::Rows,
    /// The norm's weights.
    pub w: &'a B::Vector,
    /// Its epsilon.
    pub eps: f32,
    /// Where the normed rows go.
    pub n: &'a mut B::Rows,
}

/// What a device refuses. Bugs of ours assert instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// An allocation that the device can't hold.
    #[error("{device}: {what} needs {need_bytes} bytes, {free_bytes} are free")]
    OutOfMemory {
        /// Device name.
        device: String,
        /// What was to be allocated.
        what: String,
        /// Bytes asked.
        need_bytes: u64,
        /// Bytes free.
        free_bytes: u64,
    },
    /// A CPU or card without what the kernels need.
    #[error("{device} lacks {feature}; {hint}")]
    Unsupported {
        /// Device name.
        device: String,
        /// What is missing.
        feature: String,
        /// What to do.
        hint: String,
    },
    /// A device that failed at its work; nothing on it can be used any more.
    #[error("{device} failed: {words}; this rank must be started again")]
    Failed {
        /// Device name.
        device: String,
        /// The call that failed, and the driver's words.
        words: String,
    },
    /// A shape or format that this backend can't hold.
    #[error("{what}: expected {expected}, found {found}")]
    Shape {
        /// The operand.
        what: String,
        /// What fits.
        expected: String,
        /// What came.
        found: String,
    },
}

/// A device and its ops. Ops are synchronous in meaning: an op sees all results of earlier ones.
/// All f32 unless said; every op states its formula in `arith`.
pub trait Backend: Send + Sync + 'static {
    /// `[rows_max, width]` f32 on the device.
    type Rows: Send + fmt::Debug;
    /// A weight matrix, packed for the device; also serves row lookup (embeddings).
    type Linear: Send + Sync;
    /// An f32 vector of weights (norms).
    type Vector: Send + Sync;
    /// The paged keys and values of one layer.
    type Kv: Send;
    /// The recurrent state of one layer, a number of places: S and the convolution's tail each.
    type State: Send;
    /// Berths of this device or of another rank's; [`berths::None`] where there are none.
    type Berths: Send;

    /// Short name: `cpu`.
    fn name(&self) -> &'static str;
    /// Which arithmetic it computes.
    fn arith(&self) -> Arith;
    /// The device in words, for describe and logs.
    fn device(&self) -> String;
    /// Why the device can't be used any more, if an op failed since it was opened: what was
    /// downloaded since then is not to be believed.
    fn failure(&self) -> Option<BackendError> {
        None
    }

    /// Rows whose time a prompt's chunk takes this device beside that of its own rows, where that
    /// is more than a round takes whatever its rows: prompts are cut the less for it.
    fn chunk_cost_rows(&self) -> u32 {
        0
    }

    /// A zeroed buffer.
    fn rows(&self, rows_max: usize, width: usize) -> Result<Self::Rows, BackendError>;
    /// Host to device: rows `0 .. data.len() / width`.
    fn upload(&self, data: &[f32], to: &mut Self::Rows);
    /// Device to host: rows `first ..` as many as `to` holds.
    fn download(&self, from: &Self::Rows, first: usize, to: &mut [f32]);

    /// Puts behind `to` what [`candidates::pack`] makes of the first rows of logits, one for each
    /// of `best`, which have `width` of them and begin at id `first` of the whole row; a device
    /// may do it itself.
    fn candidates(
        &self,
        (logits, width): (&Self::Rows, usize),
        first: u32,
        best: &[u32],
        to: &mut Vec<f32>,
    ) {
        let mut whole = vec![0.0; best.len() * width];
        self.download(logits, 0, &mut whole);
        for (row, &best) in whole.chunks_exact(width).zip(best) {
            candidates::pack(row, first, best, to);
        }
    }

    /// Packs a matrix. Called at load, from several layers in turn; may use all threads.
    fn linear(&self, matrix: &Matrix<'_>) -> Result<Self::Linear, BackendError>;
    /// Whether [`Backend::linear_share`] takes shares.
    fn has_shares(&self) -> bool {
        false
    }
    /// Packs a share of a matrix along K, which holds the groups `groups` of K alone: what
    /// [`Backend::project`] gives are nodes of the tree ([`arith::linear::linear_share`]).
    ///
    /// # Errors
    /// As [`Backend::linear`]; `Shape` from devices that know no shares of K, whose layers can
    /// still be split over their outputs.
    fn linear_share(
        &self,
        matrix: &Matrix<'_>,
        groups: Groups,
    ) -> Result<Self::Linear, BackendError> {
        if !groups.is_node() {
            return self.linear(matrix);
        }
        Err(BackendError::Shape {
            what: format!("K of a {} matrix on {}", matrix.format, self.device()),
            expected: "all of its groups; a layout of `rows` has them".into(),
            found: "a share".into(),
        })
    }
    /// Reads a float matrix row by row as one vector, flushed.
    fn vector(&self, matrix: &Matrix<'_>) -> Result<Self::Vector, BackendError>;
    /// A cache of `pages` pages of 64 keys each.
    fn kv(&self, dtype: KvDtype, pages: usize, heads: Heads) -> Result<Self::Kv, BackendError>;
    /// Room for `places` recurrent states of a layer of this shape.
    fn state(&self, shape: Gdn, places: usize) -> Result<Self::State, BackendError>;

    /// Whether so many rows can be given by [`Backend::give`], where members' devices have met. The
    /// same on all of them.
    fn gives(&self, rows: usize, together: Together<'_>) -> bool {
        let _ = (rows, together);
        false
    }
    /// Gives the first `rows` rows of `own`, this member's, to the devices of all others, and waits
    /// for nothing. `lane` is 0 or 1, which of two that may be on their way at once. `own` is not
    /// to change until the lane has taken what came.
    fn give(&self, lane: usize, own: &Self::Rows, rows: usize, together: Together<'_>) {
        let _ = (lane, own, rows, together);
        unreachable!("a device that gives nothing by itself");
    }
    /// Puts `rows` rows of `to` together of what all members gave in `lane`; `to` may be what was
    /// given, where that were nodes.
    fn take(&self, lane: usize, to: &mut Self::Rows, rows: usize, together: Together<'_>) {
        let _ = (lane, to, rows, together);
        unreachable!("a device that gives nothing by itself");
    }

    /// `count` berths of `rows` rows of `width` values, and by what the device of the rank before
    /// finds them. Whatever waits for that one, here or by [`Backend::come`], gives up soon after
    /// `over` says so.
    ///
    /// # Errors
    /// A device that takes rows from the host alone, or without room for them, in words.
    fn berths(
        &self,
        count: usize,
        rows: usize,
        width: usize,
        over: Over,
    ) -> Result<(Self::Berths, Offer), String> {
        let _ = (count, rows, width, over);
        Err(format!("{} gives its rows to the host alone", self.device()))
    }
    /// Berths of the rank after, each of `rows` rows of `width` values, and how many they are;
    /// `over` as for [`Backend::berths`].
    ///
    /// # Errors
    /// Berths that this device does not find and those of another size, in words.
    fn reach(
        &self,
        offer: &Offer,
        rows: usize,
        width: usize,
        over: Over,
    ) -> Result<(Self::Berths, u32), String> {
        let _ = (offer, rows, width, over);
        Err(format!("{} gives its rows to the host alone", self.device()))
    }
    /// Copies rows `first .. first + rows` of `from` to rows `at ..` of a berth, before
    /// [`Backend::send`] of them.
    ///
    /// # Errors
    /// A rank after that has not taken the berth's rows before, in words.
    fn put(
        &self,
        from: &Self::Rows,
        (first, rows): (usize, usize),
        to: &Self::Berths,
        (berth, at): (u32, usize),
    ) -> Result<(), String> {
        let _ = (from, first, rows, to, berth, at);
        unreachable!("a device without berths");
    }
    /// Has the first `values` values of a berth, all of which were put, go on their way. They are
    /// computed when it returns; it does not wait for the rank after.
    ///
    /// # Errors
    /// A way that is broken, in words.
    fn send(&self, to: &Self::Berths, berth: u32, values: usize) -> Result<(), String> {
        let _ = (to, berth, values);
        unreachable!("a device without berths");
    }
    /// Waits until the first `values` values of a berth of this device, which the rank before sent,
    /// are there.
    ///
    /// # Errors
    /// A rank before that is waited for no more, in words.
    fn come(&self, own: &Self::Berths, berth: u32, values: usize) -> Result<(), String> {
        let _ = (own, berth, values);
        unreachable!("a device without berths");
    }
    /// Ends whatever is on its way to berths. Whether nobody can write to them any more, so that
    /// they may be freed.
    fn part(&self, berths: &Self::Berths) -> bool {
        let _ = berths;
        false
    }
    /// Copies rows `first .. first + rows` of a berth to rows `at ..` of `to`.
    fn fetch(
        &self,
        from: &Self::Berths,
        berth: u32,
        (first, rows): (usize, usize),
        to: &mut Self::Rows,
        at: usize,
    ) {
        let _ = (from, berth, first, rows, to, at);
        unreachable!("a device without berths");
    }

    /// Copies rows `first .. first + rows` of `from` to rows `at ..` of `to`.
    fn copy_rows(
        &self,
        from: &Self::Rows,
        first: usize,
        rows: usize,
        to: &mut Self::Rows,
        at: usize,
    );
    /// Copies page `from` of a cache to page `to`.
    fn copy_page(&self, kv: &mut Self::Kv, from: u32, to: u32);
    /// Copies a place of `from` to a place of `to`, a state of the same shape.
    fn copy_state(&self, from: &Self::State, place: usize, to: &mut Self::State, to_place: usize);
    /// Device to host: S `[values, key_dim, value_dim]` and the tail `[taps - 1, channels]`, oldest
    /// row first, of a place.
    fn download_state(&self, state: &Self::State, place: usize, s: &mut [f32], tail: &mut [f32]);

    /// `out[r] = W[ids[r]]`, dequantised by one fma a value.
    fn embed(&self, table: &Self::Linear, ids: &[u32], out: &mut Self::Rows);
    /// `out = rms_norm(x) * w` for the first `rows` rows ([`arith::norm::rms_norm`]).
    fn rms_norm(
        &self,
        x: &Self::Rows,
        w: &Self::Vector,
        eps: f32,
        rows: usize,
        out: &mut Self::Rows,
    );
    /// Each `outs[i] = x W_i^T`; the activation rows are quantised once for all of them
    /// ([`arith::linear`]). Widths of `outs` are the matrices' outputs.
    fn project(
        &self,
        x: &Self::Rows,
        rows: usize,
        weights: &[&Self::Linear],
        outs: &mut [&mut Self::Rows],
    );
    /// [`Backend::rms_norm`] of the first `rows` rows, then [`Backend::project`] of what it gives;
    /// a device may do them at once.
    fn norm_project(
        &self,
        from: Normed<'_, Self>,
        rows: usize,
        weights: &[&Self::Linear],
        outs: &mut [&mut Self::Rows],
    ) {
        let Normed { x, w, eps, n } = from;
        self.rms_norm(x, w, eps, rows, n);
        self.project(n, rows, weights, outs);
    }
    /// [`Backend::norm_project`] to a gate and a factor of it, in this order, then
    /// [`Backend::silu_mul`] of both to `out`.
    fn norm_gated(
        &self,
        from: Normed<'_, Self>,
        rows: usize,
        weights: [&Self::Linear; 2],
        [gate, up]: [&mut Self::Rows; 2],
        out: &mut Self::Rows,
    ) {
        self.norm_project(from, rows, &weights, &mut [&mut *gate, &mut *up]);
        self.silu_mul(gate, up, rows, out);
    }
    /// Rotates the first `rope.dims` dims of each of `heads` heads of `dim` values, in place.
    fn rope(&self, x: &mut Self::Rows, heads: usize, dim: usize, pairing: Pairing, rope: &RopeRows);
    /// Stores the keys and values of every row of the round (all rows, before any attention of
    /// that round), rounded to the cache's dtype.
    fn kv_write(&self, kv: &mut Self::Kv, k: &Self::Rows, v: &Self::Rows, map: &RowMap);
    /// Attention of every row of the round over its stream's keys ([`arith::attention`]).
    fn attention(&self, q: &Self::Rows, kv: &Self::Kv, map: &RowMap, out: &mut Self::Rows);
    /// Norms every head of `w.len()` values in place ([`arith::norm::rms_norm`]).
    fn head_norm(&self, x: &mut Self::Rows, w: &Self::Vector, eps: f32, rows: usize);
    /// `x = x * sigmoid(gate)`.
    fn gate(&self, x: &mut Self::Rows, gate: &Self::Rows, rows: usize);
    /// The causal convolution of every walk's rows, with silu and the norms of queries and keys
    /// ([`arith::gdn::convolve`]). Rows before a walk's first are the tail at its `from`; the tail
    /// after its last goes to its `to`. `taps` is `[taps, channels]`, oldest first.
    fn convolve(
        &self,
        x: &Self::Rows,
        taps: &Self::Vector,
        state: &mut Self::State,
        walks: &[Walk],
        out: &mut Self::Rows,
    );
    /// `out[r] = [beta | decay]`, one of each a value head ([`arith::gdn::beta`],
    /// [`arith::gdn::decay`]).
    fn gates(
        &self,
        b: &Self::Rows,
        a: &Self::Rows,
        dt_bias: &Self::Vector,
        amplitude: &Self::Vector,
        rows: usize,
        out: &mut Self::Rows,
    );
    /// The delta rule over every walk's rows in order ([`arith::gdn::step`]), from the S at its
    /// `from` to the S at its `to`. `x` is what [`Backend::convolve`] gave, `gates` what
    /// [`Backend::gates`] gave; `out` is `[rows, values * value_dim]`.
    fn delta(
        &self,
        x: &Self::Rows,
        gates: &Self::Rows,
        state: &mut Self::State,
        walks: &[Walk],
        out: &mut Self::Rows,
    );
    /// Norms every head of `w.len()` values and multiplies by silu of the same place of `z`, in
    /// place ([`arith::gdn::gated_norm`]).
    fn gated_norm(
        &self,
        x: &mut Self::Rows,
        w: &Self::Vector,
        z: &Self::Rows,
        eps: f32,
        rows: usize,
    );
    /// `out = silu(gate) * up`.
    fn silu_mul(&self, gate: &Self::Rows, up: &Self::Rows, rows: usize, out: &mut Self::Rows);
    /// `x = x + y`.
    fn add(&self, x: &mut Self::Rows, y: &Self::Rows, rows: usize);
}
