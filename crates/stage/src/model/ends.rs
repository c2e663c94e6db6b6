//! Embeddings, final norm and head.

use backend::{Backend, BackendError};

use super::loader::Loader;
use super::trunk::Residual;
use crate::StageError;

/// The ends on a device.
pub(super) struct Ends<B: Backend> {
    embeddings: B::Linear,
    norm: B::Vector,
    /// `None` where the head is the embedding table.
    head: Option<B::Linear>,
    /// `[head_rows_max, vocab]`.
    logits: Option<B::Rows>,
}

impl<B: Backend> Ends<B> {
    pub(super) fn load(loader: &mut Loader<'_, B>, tied: bool) -> Result<Self, StageError> {
        Ok(Self {
            embeddings: loader.linear("token_embd.weight")?,
            norm: loader.vector("output_norm.weight")?,
            head: if tied { None } else { Some(loader.linear("output.weight")?) },
            logits: None,
        })
    }

    pub(super) fn allocate(
        &mut self,
        backend: &B,
        rows_max: usize,
        vocab: usize,
    ) -> Result<(), BackendError> {
        self.logits = None;
        self.logits = Some(backend.rows(rows_max, vocab)?);
        Ok(())
    }

    pub(super) fn embed(&self, backend: &B, ids: &[u32], x: &mut B::Rows) {
        backend.embed(&self.embeddings, ids, x);
    }

    /// Logits of the first `rows` rows of `residual.x`.
    pub(super) fn run(
        &mut self,
        backend: &B,
        eps: f32,
        rows: usize,
        residual: &mut Residual<B>,
        to: &mut [f32],
    ) {
        self.norm(backend, eps, rows, &residual.x, &mut residual.n);
        self.project(backend, rows, &residual.n, to);
    }

    /// The final norm.
    pub(super) fn norm(&self, backend: &B, eps: f32, rows: usize, x: &B::Rows, n: &mut B::Rows) {
        backend.rms_norm(x, &self.norm, eps, rows, n);
    }

    /// Logits of normed rows.
    pub(super) fn project(&mut self, backend: &B, rows: usize, n: &B::Rows, to: &mut [f32]) {
        let logits = self.logits.as_mut().expect("allocate comes first");
        let head = self.head.as_ref().unwrap_or(&self.embeddings);
        backend.project(n, rows, &[head], &mut [&mut *logits]);
        backend.download(logits, 0, to);
    }
}
