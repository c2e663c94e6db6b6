//! The draft head of a qwen3_5 (multi-token prediction): one block of gated attention over the
//! trunk's normed residual and the token after it.
//!
//! ```text
//! x = Join [norm(embed(token after)) | norm(h)],   h = final_norm(residual), or the last y
//! y = norm(block(x)),                              logits = Head y
//! ```
//!
//! Its keys lie in pages of the same numbers as the trunk's, so they follow their stream, its keeps
//! and its resumes. A guess may write past its stream's last page: each slot has one more here.

use backend::{Backend, BackendError, RopeRows, RowMap};
use weights::Checkpoint;

use super::loader::Loader;
use super::shape::Shape;
use super::trunk::{Block, Mixer, Trunk, Work};
use super::{Part, Sizes, qwen3_5};
use crate::StageError;

/// What the head goes on from, `hidden` values a row.
#[derive(Clone, Copy, Debug)]
pub enum Past<'a> {
    /// Residuals as the last layer left them.
    Residual(&'a [f32]),
    /// What the head made of the row before.
    Guessed(&'a [f32]),
}

/// Its weights.
pub(super) struct Mtp<B: Backend> {
    join: B::Linear,
    token_norm: B::Vector,
    past_norm: B::Vector,
    out_norm: B::Vector,
    block: Block<B>,
    rows: Option<MtpRows<B>>,
}

/// What is allocated for the agreed sizes.
struct MtpRows<B: Backend> {
    kv: B::Kv,
    /// `[rows_max, 2 * hidden]`.
    joined: B::Rows,
}

impl<B: Backend> Mtp<B> {
    pub(super) fn load(
        backend: &B,
        checkpoint: &Checkpoint,
        shape: &Shape,
    ) -> Result<Self, StageError> {
        let mut loader = Loader::new(backend, checkpoint, None);
        let layer = shape.mixers.len() as u32;
        let name = |tensor: &str| format!("blk.{layer}.nextn.{tensor}.weight");
        Ok(Self {
            join: loader.linear(&name("eh_proj"))?,
            token_norm: loader.vector(&name("enorm"))?,
            past_norm: loader.vector(&name("hnorm"))?,
            out_norm: loader.vector(&name("shared_head_norm"))?,
            block: qwen3_5::attention_block(&mut loader, shape, layer)?,
            rows: None,
        })
    }

    pub(super) fn allocate(
        &mut self,
        backend: &B,
        shape: &Shape,
        part: &Part,
        sizes: Sizes,
    ) -> Result<(), BackendError> {
        self.rows = None;
        self.rows = Some(MtpRows {
            kv: backend.kv(part.kv, sizes.pages + sizes.slots, shape.heads)?,
            joined: backend.rows(sizes.rows_max, 2 * shape.hidden)?,
        });
        Ok(())
    }

    pub(super) fn copy_page(&mut self, backend: &B, from: u32, to: u32) {
        if let Some(rows) = &mut self.rows {
            backend.copy_page(&mut rows.kv, from, to);
        }
    }
}

impl<B: Backend> Trunk<B> {
    /// The head's `y` of rows whose next tokens are `ids` and that stand where `map` says.
    pub(super) fn run_draft(&mut self, past: Past<'_>, ids: &[u32], map: &RowMap) -> Vec<f32> {
        let Self { backend, shape, ends, work, mtp, .. } = self;
        let (Some(mtp), Some(ends), Some(work)) = (mtp, ends, work) else {
            panic!("a draft head is loaded and allocated before it guesses");
        };
        let Mtp { join, token_norm, past_norm, out_norm, block, rows: Some(own) } = mtp else {
            panic!("allocate comes first");
        };
        let Work { residual, attention: Some(attention), mlp, .. } = work else {
            panic!("a draft head has attention rows");
        };
        let (count, eps, hidden) = (ids.len(), shape.eps, shape.hidden);
        match past {
            Past::Residual(rows) => {
                backend.upload(rows, &mut residual.x);
                ends.norm(backend, eps, count, &residual.x, &mut residual.n);
                backend.rms_norm(&residual.n, past_norm, eps, count, &mut residual.y);
            }
            Past::Guessed(rows) => {
                backend.upload(rows, &mut residual.x);
                backend.rms_norm(&residual.x, past_norm, eps, count, &mut residual.y);
            }
        }
        ends.embed(backend, ids, &mut residual.x);
        backend.rms_norm(&residual.x, token_norm, eps, count, &mut residual.n);
        let mut halves = [vec![0.0; count * hidden], vec![0.0; count * hidden]];
        backend.download(&residual.n, 0, &mut halves[0]);
        backend.download(&residual.y, 0, &mut halves[1]);
        let pairs = halves[0].chunks_exact(hidden).zip(halves[1].chunks_exact(hidden));
        let joined: Vec<f32> = pairs.flat_map(|(a, b)| a.iter().chain(b)).copied().collect();
        backend.upload(&joined, &mut own.joined);
        backend.project(&own.joined, count, &[join], &mut [&mut residual.x]);
        let positions: Vec<u32> = map.rows.iter().map(|row| row.position).collect();
        let rope = RopeRows::new(shape.theta, shape.rope_dims, &positions);
        let Mixer::Attention(mixer) = &block.mixer else { panic!("a draft head is attention") };
        mixer.run(backend, shape, (map, &rope), residual, attention, &mut own.kv);
        block.mlp.run(backend, eps, count, residual, mlp);
        backend.rms_norm(&residual.x, out_norm, eps, count, &mut residual.n);
        let [mut y, _] = halves;
        backend.download(&residual.n, 0, &mut y);
        y
    }

    /// Logits of `y` rows.
    pub(super) fn run_draft_head(&mut self, y: &[f32], logits: &mut [f32]) {
        let Self { backend, shape, ends, work, .. } = self;
        let (Some(ends), Some(work)) = (ends, work) else {
            panic!("a draft head is loaded and allocated before it guesses");
        };
        backend.upload(y, &mut work.residual.n);
        ends.project(backend, y.len() / shape.hidden, &work.residual.n, logits);
    }
}
