//! Rows on their way through the layers: a piece, its buffers, and how far it is.

use backend::{Backend, BackendError, RopeRows};

use super::Piece;
use super::attention::AttentionRows;
use super::division::Division;
use super::group::Parcel;
use super::mlp::MlpRows;
use super::recurrent::RecurrentRows;
use super::shape::Shape;
use super::trunk::{Block, Mixer, Past, Residual};
use crate::Fault;

/// Kinds of mixers that a part has.
#[derive(Clone, Copy)]
pub(super) struct Kinds {
    pub(super) attention: bool,
    pub(super) recurrent: bool,
}

/// A piece and its row buffers.
pub(super) struct Lane<B: Backend> {
    pub(super) piece: Piece,
    rope: RopeRows,
    pub(super) residual: Residual<B>,
    pub(super) attention: Option<AttentionRows<B>>,
    pub(super) recurrent: Option<RecurrentRows<B>>,
    pub(super) mlp: MlpRows<B>,
    pub(super) parcel: Parcel,
    fault: Option<Fault>,
}

/// The layers that a lane goes through.
pub(super) struct Stack<'a, B: Backend> {
    pub(super) backend: &'a B,
    pub(super) division: &'a Division,
    pub(super) blocks: &'a [Block<B>],
    /// One past the last.
    pub(super) end: usize,
}

/// How far a lane is: a layer, its mixer or its MLP, and the exchanges of that which are done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    layer: usize,
    mlp: bool,
    met: usize,
}

impl Cursor {
    /// Before a layer.
    pub(super) fn at(layer: usize) -> Self {
        Self { layer, mlp: false, met: 0 }
    }
}

impl<B: Backend> Lane<B> {
    /// `index` is 0 or, of a twin, 1.
    pub(super) fn new(
        backend: &B,
        division: &Division,
        (index, kinds): (usize, Kinds),
        rows_max: usize,
        fault: Option<Fault>,
    ) -> Result<Self, BackendError> {
        let rows = || backend.rows(rows_max, division.whole.hidden);
        let attention = || AttentionRows::new(backend, division, rows_max);
        let recurrent = || RecurrentRows::new(backend, division, rows_max);
        Ok(Self {
            piece: Piece::default(),
            rope: RopeRows::default(),
            residual: Residual { x: rows()?, n: rows()?, y: rows()? },
            attention: kinds.attention.then(attention).transpose()?,
            recurrent: kinds.recurrent.then(recurrent).transpose()?,
            mlp: MlpRows::new(backend, division, rows_max)?,
            parcel: Parcel::new(division.share.index, index, fault),
            fault,
        })
    }

    /// Takes the rows that go through.
    pub(super) fn begin(&mut self, shape: &Shape, piece: Piece) {
        let positions: Vec<u32> = piece.map.rows.iter().map(|row| row.position).collect();
        self.rope = RopeRows::new(shape.theta, shape.rope_dims, &positions);
        self.piece = piece;
    }

    /// Computes until a parcel is packed for the next exchange; `false` once it is through.
    pub(super) fn advance(
        &mut self,
        stack: &Stack<'_, B>,
        pasts: &mut [Past<B>],
        at: &mut Cursor,
    ) -> bool {
        while at.layer < stack.end {
            if at.met == 0 {
                self.mix(stack, &mut pasts[at.layer], *at);
            }
            if self.end(stack, *at) {
                at.met += 1;
                return true;
            }
            *at = match at.mlp {
                true => Cursor::at(at.layer + 1),
                false => Cursor { mlp: true, met: 0, ..*at },
            };
        }
        false
    }

    /// A mixer or MLP up to its last projection.
    fn mix(&mut self, stack: &Stack<'_, B>, past: &mut Past<B>, at: Cursor) {
        let Stack { backend, division, blocks, .. } = stack;
        let Self { piece, rope, residual, .. } = self;
        let (block, rows) = (&blocks[at.layer], piece.map.rows.len());
        if at.mlp {
            return block.mlp.mix((backend, division), rows, residual, &mut self.mlp);
        }
        match (&block.mixer, past) {
            (Mixer::Attention(attention), Past::Keys(kv)) => {
                let rows = self.attention.as_mut().expect("attention has rows");
                attention.mix(backend, division, (&piece.map, rope), residual, rows, kv);
            }
            (Mixer::Recurrent(recurrent), Past::Memory(memory)) => {
                let rows = self.recurrent.as_mut().expect("recurrent layers have rows");
                recurrent.mix((backend, division), piece, residual, rows, memory);
                if self.fault == Some(Fault::StaleTail) {
                    recurrent.spoil(backend, &piece.walks, rows, memory);
                }
            }
            _ => unreachable!("a past was made for its mixer"),
        }
    }

    /// Its last projection; whether that waits for an exchange.
    fn end(&mut self, stack: &Stack<'_, B>, at: Cursor) -> bool {
        let (block, rows) = (&stack.blocks[at.layer], self.piece.map.rows.len());
        let on = (stack.backend, stack.division);
        let (rows, residual, parcel) = ((rows, at.met), &mut self.residual, &mut self.parcel);
        if at.mlp {
            return block.mlp.end(on, rows, residual, &mut self.mlp, parcel);
        }
        match &block.mixer {
            Mixer::Attention(attention) => {
                let own = self.attention.as_mut().expect("attention has rows");
                attention.end(on, rows, residual, own, parcel)
            }
            Mixer::Recurrent(recurrent) => {
                let own = self.recurrent.as_mut().expect("recurrent layers have rows");
                recurrent.end(on, rows, residual, own, parcel)
            }
        }
    }
}
