//! The gated MLP: `x = x + Down(silu(Gate n) * Up n)`, `n = rms_norm(x)`.

use backend::{Backend, BackendError, Normed};

use super::division::Division;
use super::group::{Closing, ClosingRows, Parcel};
use super::loader::Loader;
use super::trunk::Residual;
use crate::StageError;

/// Its weights.
pub(super) struct Mlp<B: Backend> {
    norm: B::Vector,
    gate: B::Linear,
    up: B::Linear,
    down: Closing<B>,
}

/// Its row buffers, intermediate.
pub(super) struct MlpRows<B: Backend> {
    gate: B::Rows,
    up: B::Rows,
    act: B::Rows,
    end: ClosingRows<B>,
}

impl<B: Backend> MlpRows<B> {
    pub(super) fn new(
        backend: &B,
        division: &Division,
        rows_max: usize,
    ) -> Result<Self, BackendError> {
        let rows = || backend.rows(rows_max, division.own.intermediate);
        let end = ClosingRows::new(backend, &division.down, division.share.index, rows_max)?;
        Ok(Self { gate: rows()?, up: rows()?, act: rows()?, end })
    }
}

impl<B: Backend> Mlp<B> {
    /// `norm` is the name of the norm's tensor.
    pub(super) fn load(
        loader: &mut Loader<'_, B>,
        division: &Division,
        layer: u32,
        norm: &str,
    ) -> Result<Self, StageError> {
        let name = |tensor: &str| format!("blk.{layer}.{tensor}.weight");
        let (runs, index) = (division.middle_rows(), division.share.index);
        Ok(Self {
            norm: loader.vector(&name(norm))?,
            gate: loader.rows(&name("ffn_gate"), &runs)?,
            up: loader.rows(&name("ffn_up"), &runs)?,
            down: Closing::load(loader, &name("ffn_down"), &division.down, index)?,
        })
    }

    /// Everything before its last projection.
    pub(super) fn mix(
        &self,
        (backend, division): (&B, &Division),
        rows: usize,
        residual: &mut Residual<B>,
        b: &mut MlpRows<B>,
    ) {
        let Residual { x, n, .. } = residual;
        let from = Normed { x, w: &self.norm, eps: division.whole.eps, n };
        let (weights, outs) = ([&self.gate, &self.up], [&mut b.gate, &mut b.up]);
        backend.norm_gated(from, rows, weights, outs, &mut b.act);
    }

    /// Its last projection up to exchange `met`, and the sum once there is none.
    pub(super) fn end(
        &self,
        (backend, division): (&B, &Division),
        (rows, met): (usize, usize),
        Residual { x, y, .. }: &mut Residual<B>,
        b: &mut MlpRows<B>,
        parcel: &mut Parcel,
    ) -> bool {
        let to = (&mut b.end, parcel);
        let waits = self.down.step(backend, (&division.down, met), (&b.act, rows), to, y);
        if !waits {
            backend.add(x, y, rows);
        }
        waits
    }
}
