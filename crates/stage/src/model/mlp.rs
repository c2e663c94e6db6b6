//! The gated MLP: `x = x + Down(silu(Gate n) * Up n)`, `n = rms_norm(x)`.

use backend::{Backend, BackendError};

use super::division::Division;
use super::group::{Closing, ClosingRows, Group};
use super::loader::Loader;
use super::trunk::Residual;
use crate::{ExchangeError, StageError};

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

    pub(super) fn run(
        &self,
        (backend, group): (&B, &mut Group),
        division: &Division,
        rows: usize,
        residual: &mut Residual<B>,
        b: &mut MlpRows<B>,
    ) -> Result<(), ExchangeError> {
        let Residual { x, n, y } = residual;
        backend.rms_norm(x, &self.norm, division.whole.eps, rows, n);
        backend.project(n, rows, &[&self.gate, &self.up], &mut [&mut b.gate, &mut b.up]);
        backend.silu_mul(&b.gate, &b.up, rows, &mut b.act);
        self.down.run((backend, group), &division.down, (&b.act, rows), &mut b.end, y)?;
        backend.add(x, y, rows);
        Ok(())
    }
}
