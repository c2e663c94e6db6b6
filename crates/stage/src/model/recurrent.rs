//! Gated DeltaNet: a mixer whose past is one state of fixed size.
//!
//! ```text
//! m = Qkv n,  [beta | decay] = gates(Beta n, Alpha n),      n = rms_norm(x)
//! o = delta(convolve(m), beta, decay),  x = x + Out(norm(o) * silu(Z n))
//! ```
//!
//! A state can't be cut back to a position, so a slot has two: a window reads one and writes the
//! other. Settled whole or not at all, one of the two is the state that the stream goes on from.
//! Settled in part, the accepted rows run once more, from the state before the window: a layer
//! keeps `m` and the gates of windows that may settle so, and a replay is convolution and delta
//! rule over them, no matrix read: 0.4 ms a layer for 4 rows at the 27B's shape on two cores with
//! AVX2, of a forward whose weights take tens. Keeping a state a row instead would need no replay
//! and, at the 27B's shape, 151 MB a row and stream over 48 layers (and as much written to memory
//! each row); the kept rows are 2 MB a row and stream. Windows of at most `WINDOW_ROWS_MAX` rows
//! are kept, a fifth of what the two states take: drafts are shorter, and who sends a longer
//! window, a chunk of a prompt, knows all its tokens.

use std::collections::BTreeSet;

use backend::{Backend, BackendError, Normed, Walk};

use super::division::Division;
use super::group::{Closing, ClosingRows, Parcel};
use super::loader::Loader;
use super::shape::Shape;
use super::trunk::Residual;
use super::{Piece, Replay, Sizes};
use crate::StageError;
use crate::slots::WINDOW_ROWS_MAX;

/// Its weights.
pub(super) struct Recurrent<B: Backend> {
    norm: B::Vector,
    qkv: B::Linear,
    z: B::Linear,
    beta: B::Linear,
    alpha: B::Linear,
    taps: B::Vector,
    amplitude: B::Vector,
    dt_bias: B::Vector,
    out_norm: B::Vector,
    out: Closing<B>,
}

/// Its row buffers.
pub(super) struct RecurrentRows<B: Backend> {
    /// Queries, keys and values before the convolution, and after it: channels.
    m: B::Rows,
    c: B::Rows,
    /// The output's gate, and the output: value width.
    z: B::Rows,
    o: B::Rows,
    /// Value heads.
    b: B::Rows,
    a: B::Rows,
    /// `[beta | decay]`, value heads each.
    gates: B::Rows,
    end: ClosingRows<B>,
}

/// What a layer remembers between rounds.
pub(super) struct Memory<B: Backend> {
    /// Two places a slot.
    pub(super) state: B::State,
    /// Rows of each slot's last window, `WINDOW_ROWS_MAX` a slot: channels before the convolution,
    /// and gates.
    m: B::Rows,
    gates: B::Rows,
}

impl<B: Backend> RecurrentRows<B> {
    pub(super) fn new(
        backend: &B,
        division: &Division,
        rows_max: usize,
    ) -> Result<Self, BackendError> {
        let gdn = division.own.gdn.expect("a recurrent layer has a shape");
        let rows = |width| backend.rows(rows_max, width);
        Ok(Self {
            m: rows(gdn.channels())?,
            c: rows(gdn.channels())?,
            z: rows(gdn.value_width())?,
            o: rows(gdn.value_width())?,
            b: rows(gdn.values)?,
            a: rows(gdn.values)?,
            gates: rows(2 * gdn.values)?,
            end: ClosingRows::new(backend, &division.out, division.share.index, rows_max)?,
        })
    }
}

impl<B: Backend> Memory<B> {
    pub(super) fn new(backend: &B, shape: &Shape, sizes: Sizes) -> Result<Self, BackendError> {
        let gdn = shape.gdn.expect("a recurrent layer has a shape");
        let kept = sizes.slots * WINDOW_ROWS_MAX as usize;
        Ok(Self {
            state: backend.state(gdn, 2 * sizes.slots)?,
            m: backend.rows(kept, gdn.channels())?,
            gates: backend.rows(kept, 2 * gdn.values)?,
        })
    }
}

impl<B: Backend> Recurrent<B> {
    pub(super) fn load(
        loader: &mut Loader<'_, B>,
        division: &Division,
        layer: u32,
    ) -> Result<Self, StageError> {
        let name = |tensor: &str| format!("blk.{layer}.{tensor}");
        let gdn = division.whole.gdn.expect("a recurrent layer has a shape");
        let (heads, channels) = (division.value_rows(1), division.channel_rows());
        let index = division.share.index;
        Ok(Self {
            norm: loader.vector(&name("attn_norm.weight"))?,
            qkv: loader.rows(&name("attn_qkv.weight"), &channels)?,
            z: loader.rows(&name("attn_gate.weight"), &division.value_rows(gdn.value_dim))?,
            beta: loader.rows(&name("ssm_beta.weight"), &heads)?,
            alpha: loader.rows(&name("ssm_alpha.weight"), &heads)?,
            taps: loader.vector_part(&name("ssm_conv1d.weight"), &channels)?,
            amplitude: loader.vector_part(&name("ssm_a"), &heads)?,
            dt_bias: loader.vector_part(&name("ssm_dt.bias"), &heads)?,
            out_norm: loader.vector(&name("ssm_norm.weight"))?,
            out: Closing::load(loader, &name("ssm_out.weight"), &division.out, index)?,
        })
    }

    /// Everything before its last projection.
    pub(super) fn mix(
        &self,
        (backend, division): (&B, &Division),
        piece: &Piece,
        residual: &mut Residual<B>,
        b: &mut RecurrentRows<B>,
        memory: &mut Memory<B>,
    ) {
        let (rows, eps) = (piece.map.rows.len(), division.whole.eps);
        let Residual { x, n, .. } = residual;
        let from = Normed { x, w: &self.norm, eps, n };
        let weights = [&self.qkv, &self.z, &self.beta, &self.alpha];
        backend.norm_project(from, rows, &weights, &mut [&mut b.m, &mut b.z, &mut b.b, &mut b.a]);
        backend.gates(&b.b, &b.a, &self.dt_bias, &self.amplitude, rows, &mut b.gates);
        for record in &piece.records {
            let (first, rows) = (record.rows.start, record.rows.len());
            backend.copy_rows(&b.m, first, rows, &mut memory.m, record.at);
            backend.copy_rows(&b.gates, first, rows, &mut memory.gates, record.at);
        }
        self.walk(backend, &piece.walks, b, memory);
        backend.gated_norm(&mut b.o, &self.out_norm, &b.z, eps, rows);
    }

    /// Its last projection up to exchange `met`, and the sum once there is none.
    pub(super) fn end(
        &self,
        (backend, division): (&B, &Division),
        (rows, met): (usize, usize),
        Residual { x, y, .. }: &mut Residual<B>,
        b: &mut RecurrentRows<B>,
        parcel: &mut Parcel,
    ) -> bool {
        let to = (&mut b.end, parcel);
        let waits = self.out.step(backend, (&division.out, met), (&b.o, rows), to, y);
        if !waits {
            backend.add(x, y, rows);
        }
        waits
    }

    fn walk(&self, backend: &B, walks: &[Walk], b: &mut RecurrentRows<B>, memory: &mut Memory<B>) {
        let state = &mut memory.state;
        for walks in waves(walks) {
            backend.convolve(&b.m, &self.taps, state, walks, &mut b.c);
            backend.delta(&b.c, &b.gates, state, walks, &mut b.o);
        }
    }

    /// The tail after all rows of each walk but the last, for `Fault::StaleTail`.
    pub(super) fn spoil(
        &self,
        backend: &B,
        walks: &[Walk],
        b: &mut RecurrentRows<B>,
        memory: &mut Memory<B>,
    ) {
        let long = |walk: &&Walk| walk.rows.len() > 1 && walk.from != Some(walk.to);
        let short = |walk: &Walk| Walk { rows: walk.rows.start..walk.rows.end - 1, ..walk.clone() };
        let walks: Vec<Walk> = walks.iter().filter(long).map(short).collect();
        backend.convolve(&b.m, &self.taps, &mut memory.state, &walks, &mut b.c);
    }

    /// Runs kept rows once more for their state alone.
    pub(super) fn replay(
        &self,
        backend: &B,
        replays: &[Replay],
        b: &mut RecurrentRows<B>,
        memory: &mut Memory<B>,
    ) {
        let mut walks = Vec::with_capacity(replays.len());
        let mut first = 0;
        for &Replay { at, rows, from, to } in replays {
            backend.copy_rows(&memory.m, at, rows, &mut b.m, first);
            backend.copy_rows(&memory.gates, at, rows, &mut b.gates, first);
            walks.push(Walk { rows: first..first + rows, from, to });
            first += rows;
        }
        self.walk(backend, &walks, b, memory);
    }
}

/// Walks that go at once: the paths of a tree leave their states in one place, one after another,
/// and what stays is the last one's.
fn waves(walks: &[Walk]) -> impl Iterator<Item = &[Walk]> {
    let mut rest = walks;
    std::iter::from_fn(move || {
        let mut places = BTreeSet::new();
        let count = rest.iter().take_while(|walk| places.insert(walk.to)).count();
        let (wave, others) = rest.split_at(count);
        rest = others;
        (!wave.is_empty()).then_some(wave)
    })
}
