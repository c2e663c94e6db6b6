//! Where the members of a group meet inside a layer: rows leave the device, are gathered, and come
//! back whole.

use arith::linear::join;
use backend::{Backend, BackendError};

use super::choice::Way;
use super::division::{Close, Pieces};
use super::loader::Loader;
use crate::{Exchange, ExchangeError, Fault, StageError};

/// A member's way to the others, and room for rows on their way.
pub(super) struct Group {
    exchange: Box<dyn Exchange>,
    fault: Option<Fault>,
    own: Vec<f32>,
    all: Vec<f32>,
    whole: Vec<f32>,
    sizes: Vec<usize>,
}

impl Group {
    pub(super) fn new(exchange: Box<dyn Exchange>, fault: Option<Fault>) -> Self {
        let (own, all, whole, sizes) = Default::default();
        Self { exchange, fault, own, all, whole, sizes }
    }

    /// Takes as many values from the device as `rows` rows of `width`, and gathers; `all` becomes
    /// every member's rows, one member after the other.
    fn gather<B: Backend>(
        &mut self,
        backend: &B,
        from: &B::Rows,
        rows: usize,
        widths: impl Iterator<Item = usize>,
    ) -> Result<(), ExchangeError> {
        self.sizes.clear();
        self.sizes.extend(widths.map(|width| rows * width));
        self.own.resize(self.sizes[self.exchange.member().index], 0.0);
        backend.download(from, 0, &mut self.own);
        self.exchange.gather(&self.own, &self.sizes, &mut self.all)
    }

    /// The whole of `rows` rows, of which `from` holds this member's pieces.
    pub(super) fn collect<B: Backend>(
        &mut self,
        backend: &B,
        (from, rows): (&B::Rows, usize),
        pieces: &Pieces,
        to: &mut [f32],
    ) -> Result<(), ExchangeError> {
        if !pieces.is_divided() {
            backend.download(from, 0, to);
            return Ok(());
        }
        let widths = (0..pieces.members().len()).map(|member| pieces.values(member));
        self.gather(backend, from, rows, widths)?;
        if self.fault == Some(Fault::SwappedPieces) {
            self.all.rotate_left(self.sizes[0]);
        }
        let mut rest = &self.all[..];
        for (runs, size) in pieces.members().iter().zip(&self.sizes) {
            let (mut piece, others) = rest.split_at(*size);
            rest = others;
            for to in to.chunks_exact_mut(pieces.width).take(rows) {
                for run in runs {
                    let (values, later) = piece.split_at(run.len());
                    to[run.clone()].copy_from_slice(values);
                    piece = later;
                }
            }
        }
        Ok(())
    }

    /// The same, back onto the device.
    fn pieces<B: Backend>(
        &mut self,
        backend: &B,
        from: (&B::Rows, usize),
        pieces: &Pieces,
        to: &mut B::Rows,
    ) -> Result<(), ExchangeError> {
        let mut whole = std::mem::take(&mut self.whole);
        whole.resize(from.1 * pieces.width, 0.0);
        let collected = self.collect(backend, from, pieces, &mut whole);
        if collected.is_ok() {
            backend.upload(&whole, to);
        }
        self.whole = whole;
        collected
    }

    /// Adds every member's nodes of `rows` rows of `width` outputs, in the tree's order.
    fn nodes<B: Backend>(
        &mut self,
        backend: &B,
        y: &mut B::Rows,
        rows: usize,
        width: usize,
    ) -> Result<(), ExchangeError> {
        let count = self.exchange.member().count;
        self.gather(backend, y, rows, (0..count).map(|_| width))?;
        if self.fault == Some(Fault::OtherTree) {
            self.all.rotate_left(rows * width);
        }
        self.whole.resize(rows * width, 0.0);
        join(&self.all, &mut self.whole);
        backend.upload(&self.whole, y);
        Ok(())
    }

    /// Whether all members say yes.
    pub(super) fn agree(&mut self, yes: bool) -> Result<bool, ExchangeError> {
        let count = self.exchange.member().count;
        if count == 1 {
            return Ok(yes);
        }
        self.exchange.gather(&[f32::from(u8::from(yes))], &vec![1; count], &mut self.all)?;
        Ok(self.all.iter().all(|said| *said == 1.0))
    }
}

/// The projection that ends a block, divided as its [`Close`] says.
pub(super) struct Closing<B: Backend> {
    linear: B::Linear,
}

/// Its row buffers, where it needs some.
pub(super) struct ClosingRows<B: Backend> {
    /// The whole input, and this member's outputs.
    input: Option<B::Rows>,
    output: Option<B::Rows>,
}

impl<B: Backend> ClosingRows<B> {
    pub(super) fn new(
        backend: &B,
        close: &Close,
        index: usize,
        rows_max: usize,
    ) -> Result<Self, BackendError> {
        let rows = |divided: bool, width: usize| match close.way == Way::Outputs && divided {
            true => backend.rows(rows_max, width).map(Some),
            false => Ok(None),
        };
        Ok(Self {
            input: rows(close.input.is_divided(), close.input.width)?,
            output: rows(close.output.is_divided(), close.output.values(index))?,
        })
    }
}

impl<B: Backend> Closing<B> {
    pub(super) fn load(
        loader: &mut Loader<'_, B>,
        name: &str,
        close: &Close,
        index: usize,
    ) -> Result<Self, StageError> {
        let linear = match close.way {
            Way::Whole => loader.linear(name)?,
            Way::Nodes => loader.groups(name, close.input.width, close.groups(index))?,
            Way::Outputs => loader.rows(name, &close.output.runs(index))?,
        };
        Ok(Self { linear })
    }

    /// `y` becomes the outputs of `rows` rows of `x`, of which each member has its piece.
    pub(super) fn run(
        &self,
        (backend, group): (&B, &mut Group),
        close: &Close,
        (x, rows): (&B::Rows, usize),
        b: &mut ClosingRows<B>,
        y: &mut B::Rows,
    ) -> Result<(), ExchangeError> {
        let linear = [&self.linear];
        if close.way != Way::Outputs {
            backend.project(x, rows, &linear, &mut [&mut *y]);
            return match close.way {
                Way::Nodes => group.nodes(backend, y, rows, close.output.width),
                _ => Ok(()),
            };
        }
        let x = match &mut b.input {
            Some(input) => {
                group.pieces(backend, (x, rows), &close.input, input)?;
                &*input
            }
            None => x,
        };
        match &mut b.output {
            Some(output) => {
                backend.project(x, rows, &linear, &mut [&mut *output]);
                group.pieces(backend, (output, rows), &close.output, y)
            }
            None => {
                backend.project(x, rows, &linear, &mut [y]);
                Ok(())
            }
        }
    }
}
