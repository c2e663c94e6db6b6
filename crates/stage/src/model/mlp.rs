//! The gated MLP: `x = x + Down(silu(Gate n) * Up n)`, `n = rms_norm(x)`.

use backend::{Backend, BackendError};

use super::loader::Loader;
use super::shape::Shape;
use super::trunk::Residual;
use crate::StageError;

/// Its weights.
pub(super) struct Mlp<B: Backend> {
    norm: B::Vector,
    gate: B::Linear,
    up: B::Linear,
    down: B::Linear,
}

/// Its row buffers, intermediate.
pub(super) struct MlpRows<B: Backend> {
    gate: B::Rows,
    up: B::Rows,
    act: B::Rows,
}

impl<B: Backend> MlpRows<B> {
    pub(super) fn new(backend: &B, shape: &Shape, rows_max: usize) -> Result<Self, BackendError> {
        let rows = || backend.rows(rows_max, shape.intermediate);
        Ok(Self { gate: rows()?, up: rows()?, act: rows()? })
    }
}

impl<B: Backend> Mlp<B> {
    /// `norm` is the name of the norm's tensor.
    pub(super) fn load(
        loader: &mut Loader<'_, B>,
        layer: u32,
        norm: &str,
    ) -> Result<Self, StageError> {
        let name = |tensor: &str| format!("blk.{layer}.{tensor}.weight");
        Ok(Self {
            norm: loader.vector(&name(norm))?,
            gate: loader.linear(&name("ffn_gate"))?,
            up: loader.linear(&name("ffn_up"))?,
            down: loader.linear(&name("ffn_down"))?,
        })
    }

    pub(super) fn run(
        &self,
        backend: &B,
        eps: f32,
        rows: usize,
        residual: &mut Residual<B>,
        b: &mut MlpRows<B>,
    ) {
        let Residual { x, n, y } = residual;
        backend.rms_norm(x, &self.norm, eps, rows, n);
        backend.project(n, rows, &[&self.gate, &self.up], &mut [&mut b.gate, &mut b.up]);
        backend.silu_mul(&b.gate, &b.up, rows, &mut b.act);
        backend.project(&b.act, rows, &[&self.down], &mut [&mut *y]);
        backend.add(x, y, rows);
    }
}
