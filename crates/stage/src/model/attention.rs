//! Rotary grouped attention, plain or gated, with norms of queries and keys where it is gated.
//!
//! ```text
//! x = x + O(attention(rope(Q n), rope(K n), V n)),                                n = rms_norm(x)
//! x = x + O(attention(rope(norm(Q n)), rope(norm(K n)), V n) * sigmoid(Gate n)),  n = rms_norm(x)
//! ```

use backend::{Backend, BackendError, Normed, RopeRows, RowMap};

use super::division::Division;
use super::group::{Closing, ClosingRows, Parcel};
use super::loader::Loader;
use super::trunk::Residual;
use crate::StageError;

/// Its weights.
pub(super) struct Attention<B: Backend> {
    norm: B::Vector,
    q: B::Linear,
    k: B::Linear,
    v: B::Linear,
    o: Closing<B>,
    gated: Option<Gated<B>>,
}

struct Gated<B: Backend> {
    gate: B::Linear,
    q_norm: B::Vector,
    k_norm: B::Vector,
}

/// Its row buffers.
pub(super) struct AttentionRows<B: Backend> {
    /// Queries, then attention's output in `a`: heads * dim, as the gate.
    q: B::Rows,
    a: B::Rows,
    gate: Option<B::Rows>,
    /// Keys and values, kv heads * dim.
    k: B::Rows,
    v: B::Rows,
    end: ClosingRows<B>,
}

impl<B: Backend> AttentionRows<B> {
    pub(super) fn new(
        backend: &B,
        division: &Division,
        rows_max: usize,
    ) -> Result<Self, BackendError> {
        let (shape, index) = (&division.own, division.share.index);
        let rows = |width| backend.rows(rows_max, width);
        Ok(Self {
            q: rows(shape.query_width())?,
            a: rows(shape.query_width())?,
            gate: shape.gated.then(|| rows(shape.query_width())).transpose()?,
            k: rows(shape.kv_width())?,
            v: rows(shape.kv_width())?,
            end: ClosingRows::new(backend, &division.o, index, rows_max)?,
        })
    }
}

impl<B: Backend> Attention<B> {
    pub(super) fn load(
        loader: &mut Loader<'_, B>,
        division: &Division,
        layer: u32,
    ) -> Result<Self, StageError> {
        let (shape, index) = (&division.own, division.share.index);
        let name = |tensor: &str| format!("blk.{layer}.{tensor}.weight");
        let norm = loader.vector(&name("attn_norm"))?;
        let (q, gated) = if shape.gated {
            let (q, gate) =
                loader.split(&name("attn_q"), &division.query_rows(2), shape.heads.dim)?;
            let q_norm = loader.vector(&name("attn_q_norm"))?;
            let k_norm = loader.vector(&name("attn_k_norm"))?;
            (q, Some(Gated { gate, q_norm, k_norm }))
        } else {
            (loader.rows(&name("attn_q"), &division.query_rows(1))?, None)
        };
        Ok(Self {
            norm,
            q,
            k: loader.rows(&name("attn_k"), &division.kv_rows())?,
            v: loader.rows(&name("attn_v"), &division.kv_rows())?,
            o: Closing::load(loader, &name("attn_output"), &division.o, index)?,
            gated,
        })
    }

    /// Everything before its last projection.
    pub(super) fn mix(
        &self,
        backend: &B,
        division: &Division,
        (map, rope): (&RowMap, &RopeRows),
        residual: &mut Residual<B>,
        b: &mut AttentionRows<B>,
        kv: &mut B::Kv,
    ) {
        let shape = &division.own;
        let (rows, heads, eps) = (map.rows.len(), shape.heads, shape.eps);
        let Residual { x, n, .. } = residual;
        let from = Normed { x, w: &self.norm, eps, n };
        if let (Some(gated), Some(gate)) = (&self.gated, &mut b.gate) {
            let weights = [&self.q, &gated.gate, &self.k, &self.v];
            backend.norm_project(from, rows, &weights, &mut [&mut b.q, gate, &mut b.k, &mut b.v]);
            backend.head_norm(&mut b.q, &gated.q_norm, eps, rows);
            backend.head_norm(&mut b.k, &gated.k_norm, eps, rows);
        } else {
            let weights = [&self.q, &self.k, &self.v];
            backend.norm_project(from, rows, &weights, &mut [&mut b.q, &mut b.k, &mut b.v]);
        }
        backend.rope(&mut b.q, heads.query, heads.dim, shape.pairing, rope);
        backend.rope(&mut b.k, heads.kv, heads.dim, shape.pairing, rope);
        backend.kv_write(kv, &b.k, &b.v, map);
        backend.attention(&b.q, kv, map, &mut b.a);
        if let Some(gate) = &b.gate {
            backend.gate(&mut b.a, gate, rows);
        }
    }

    /// Its last projection up to exchange `met`, and the sum once there is none.
    pub(super) fn end(
        &self,
        (backend, division): (&B, &Division),
        (rows, met): (usize, usize),
        Residual { x, y, .. }: &mut Residual<B>,
        b: &mut AttentionRows<B>,
        parcel: &mut Parcel,
    ) -> bool {
        let to = (&mut b.end, parcel);
        let waits = self.o.step(backend, (&division.o, met), (&b.a, rows), to, y);
        if !waits {
            backend.add(x, y, rows);
        }
        waits
    }
}
