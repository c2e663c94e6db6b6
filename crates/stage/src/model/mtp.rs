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

use arith::format::Format;
use backend::{Backend, BackendError, RopeRows, RowMap};
use weights::Checkpoint;

use super::attention::AttentionRows;
use super::division::Division;
use super::ends::Ends;
use super::group::Parcel;
use super::lane::Lane;
use super::loader::Loader;
use super::mlp::MlpRows;
use super::trunk::{Block, Mixer, Trunk};
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
    /// Whole on every member that has it: guesses exchange nothing.
    division: Division,
    rows: Option<MtpRows<B>>,
}

/// What is allocated for the agreed sizes.
struct MtpRows<B: Backend> {
    kv: B::Kv,
    /// `[rows_max, 2 * hidden]`.
    joined: B::Rows,
    /// Where those of the layers are of a share.
    whole: Option<(AttentionRows<B>, MlpRows<B>)>,
}

impl<B: Backend> Mtp<B> {
    pub(super) fn load(
        backend: &B,
        checkpoint: &Checkpoint,
        layers: &Division,
        ends: &mut Ends<B>,
        format: Option<Format>,
    ) -> Result<Self, StageError> {
        let mut loader = Loader::new(backend, checkpoint, None);
        ends.add_guesses(&mut loader, layers)?;
        loader.set_format(format);
        let division = Division::alone(layers.whole.clone());
        let layer = division.whole.mixers.len() as u32;
        let name = |tensor: &str| format!("blk.{layer}.nextn.{tensor}.weight");
        Ok(Self {
            join: loader.linear(&name("eh_proj"))?,
            token_norm: loader.vector(&name("enorm"))?,
            past_norm: loader.vector(&name("hnorm"))?,
            out_norm: loader.vector(&name("shared_head_norm"))?,
            block: qwen3_5::attention_block(&mut loader, &division, layer)?,
            division,
            rows: None,
        })
    }

    pub(super) fn allocate(
        &mut self,
        backend: &B,
        part: &Part,
        sizes: Sizes,
    ) -> Result<(), BackendError> {
        let (division, shape) = (&self.division, &self.division.whole);
        let whole = || {
            let attention = AttentionRows::new(backend, division, sizes.rows_max)?;
            Ok::<_, BackendError>((attention, MlpRows::new(backend, division, sizes.rows_max)?))
        };
        self.rows = None;
        self.rows = Some(MtpRows {
            kv: backend.kv(part.kv, sizes.pages + sizes.slots, shape.heads)?,
            joined: backend.rows(sizes.rows_max, 2 * shape.hidden)?,
            whole: (part.share.count > 1).then(whole).transpose()?,
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
        let Self { backend, ends, work, mtp, .. } = self;
        let (Some(mtp), Some(ends), Some(work)) = (mtp, ends, work) else {
            panic!("a draft head is loaded and allocated before it guesses");
        };
        let Mtp { join, token_norm, past_norm, out_norm, block, .. } = mtp;
        let (division, Some(own)) = (&mtp.division, &mut mtp.rows) else {
            panic!("allocate comes first");
        };
        let Lane { residual, attention, mlp, .. } = &mut work.lane;
        let (attention, mlp) = match (&mut own.whole, attention) {
            (Some((attention, mlp)), _) => (attention, mlp),
            (None, Some(attention)) => (attention, mlp),
            (None, None) => panic!("a draft head has attention rows"),
        };
        let shape = &division.whole;
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
        let (on, first, parcel) =
            ((&**backend, division), (count, 0), &mut Parcel::new(0, 0, None));
        mixer.mix(backend, division, (map, &rope), residual, attention, &mut own.kv);
        let waits = mixer.end(on, first, residual, attention, parcel);
        block.mlp.mix(on, count, residual, mlp);
        let waits = waits | block.mlp.end(on, first, residual, mlp, parcel);
        assert!(!waits, "a group of one meets nobody");
        backend.rms_norm(&residual.x, out_norm, eps, count, &mut residual.n);
        let [mut y, _] = halves;
        backend.download(&residual.n, 0, &mut y);
        y
    }

    /// Logits of `y` rows.
    pub(super) fn run_draft_head(&mut self, y: &[f32], logits: &mut [f32]) {
        let Self { backend, division, ends, work, .. } = self;
        let (Some(ends), Some(work)) = (ends, work) else {
            panic!("a draft head is loaded and allocated before it guesses");
        };
        let n = &mut work.lane.residual.n;
        backend.upload(y, n);
        ends.guess(backend, y.len() / division.whole.hidden, n, logits);
    }
}
