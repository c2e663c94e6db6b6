//! Embeddings, final norm and head.

use backend::{Backend, BackendError};

use super::division::Division;
use super::group::Group;
use super::loader::Loader;
use super::trunk::Residual;
use crate::{ExchangeError, StageError};

/// The ends on a device.
pub(super) struct Ends<B: Backend> {
    embeddings: B::Linear,
    norm: B::Vector,
    /// `None` where the head is the embedding table.
    head: Option<B::Linear>,
    /// The head of guesses, which exchange nothing, where a member's own is a share; `None` where
    /// it is the embedding table or `head`.
    guesses: Option<B::Linear>,
    /// `[head_rows_max, vocab]`, of a share its own.
    logits: Option<B::Rows>,
    /// Those of guesses, where they are of another width.
    guessed: Option<B::Rows>,
}

impl<B: Backend> Ends<B> {
    pub(super) fn load(
        loader: &mut Loader<'_, B>,
        division: &Division,
    ) -> Result<Self, StageError> {
        let (tied, divided) = (division.whole.tied, division.vocab.is_divided());
        Ok(Self {
            embeddings: loader.linear("token_embd.weight")?,
            norm: loader.vector("output_norm.weight")?,
            head: match (tied, divided) {
                (true, false) => None,
                _ => Some(loader.rows(head_name(tied), &division.vocab_rows())?),
            },
            guesses: None,
            logits: None,
            guessed: None,
        })
    }

    /// Loads what guesses need besides.
    pub(super) fn add_guesses(
        &mut self,
        loader: &mut Loader<'_, B>,
        division: &Division,
    ) -> Result<(), StageError> {
        if division.vocab.is_divided() && !division.whole.tied {
            self.guesses = Some(loader.linear(head_name(false))?);
        }
        Ok(())
    }

    pub(super) fn allocate(
        &mut self,
        backend: &B,
        division: &Division,
        (rows_max, guesses): (usize, bool),
    ) -> Result<(), BackendError> {
        (self.logits, self.guessed) = (None, None);
        let own = division.vocab.values(division.share.index);
        self.logits = Some(backend.rows(rows_max, own)?);
        if guesses && division.vocab.is_divided() {
            self.guessed = Some(backend.rows(rows_max, division.whole.vocab)?);
        }
        Ok(())
    }

    pub(super) fn embed(&self, backend: &B, ids: &[u32], x: &mut B::Rows) {
        backend.embed(&self.embeddings, ids, x);
    }

    /// Puts behind `to` the logits of the first `rows` rows of `residual.x`, of which `best` are
    /// needed of each; on the first member alone.
    pub(super) fn run(
        &mut self,
        (backend, group): (&B, &mut Group),
        division: &Division,
        (rows, best): (usize, &[u32]),
        residual: &mut Residual<B>,
        to: &mut Vec<f32>,
    ) -> Result<(), ExchangeError> {
        self.norm(backend, division.whole.eps, rows, &residual.x, &mut residual.n);
        let logits = self.logits.as_mut().expect("allocate comes first");
        let head = self.head.as_ref().unwrap_or(&self.embeddings);
        backend.project(&residual.n, rows, &[head], &mut [&mut *logits]);
        group.merge(backend, (logits, best), &division.vocab, to)
    }

    /// The final norm.
    pub(super) fn norm(&self, backend: &B, eps: f32, rows: usize, x: &B::Rows, n: &mut B::Rows) {
        backend.rms_norm(x, &self.norm, eps, rows, n);
    }

    /// Logits of normed rows, for guesses: no other member is asked.
    pub(super) fn guess(&mut self, backend: &B, rows: usize, n: &B::Rows, to: &mut [f32]) {
        let (logits, head) = match (&mut self.guessed, &self.guesses, &self.head) {
            (Some(guessed), Some(whole), _) => (guessed, whole),
            (Some(guessed), None, _) => (guessed, &self.embeddings),
            (None, _, head) => {
                let logits = self.logits.as_mut().expect("allocate comes first");
                (logits, head.as_ref().unwrap_or(&self.embeddings))
            }
        };
        backend.project(n, rows, &[head], &mut [&mut *logits]);
        backend.download(logits, 0, to);
    }
}

fn head_name(tied: bool) -> &'static str {
    if tied { "token_embd.weight" } else { "output.weight" }
}
