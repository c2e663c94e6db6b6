//! Blocks of a mixer and an MLP, one a layer, between the ends: every family's program.

use std::sync::Arc;

use arith::attention::KvDtype;
use arith::gdn::HeadOrder;
use backend::{Backend, BackendError, RopeRows, RowMap};
use weights::Checkpoint;
use weights::config::Mixer as Kind;

use super::attention::{Attention, AttentionRows};
use super::division::Division;
use super::ends::Ends;
use super::group::Group;
use super::keeps::Keeps;
use super::loader::Loader;
use super::mlp::{Mlp, MlpRows};
use super::mtp::{self, Mtp};
use super::recurrent::{Memory, Recurrent, RecurrentRows};
use super::shape::Shape;
use super::{Part, Piece, Program, Replay, Sizes};
use crate::{Exchange, ExchangeError, Fault, StageError};

/// A range of layers on a device.
pub(super) struct Trunk<B: Backend> {
    pub(super) backend: Arc<B>,
    pub(super) division: Division,
    group: Group,
    part: Part,
    blocks: Vec<Block<B>>,
    pub(super) ends: Option<Ends<B>>,
    pub(super) mtp: Option<Mtp<B>>,
    pub(super) work: Option<Work<B>>,
    piece: Piece,
    rope: RopeRows,
}

/// One layer.
pub(super) struct Block<B: Backend> {
    pub(super) mixer: Mixer<B>,
    pub(super) mlp: Mlp<B>,
}

/// What mixes a layer's rows with those before them.
pub(super) enum Mixer<B: Backend> {
    Attention(Attention<B>),
    Recurrent(Recurrent<B>),
}

/// The residual rows, hidden.
pub(super) struct Residual<B: Backend> {
    /// The residual.
    pub(super) x: B::Rows,
    /// Normed.
    pub(super) n: B::Rows,
    /// What is added to the residual.
    pub(super) y: B::Rows,
}

/// What is allocated for the agreed sizes.
pub(super) struct Work<B: Backend> {
    sizes: Sizes,
    /// One a layer.
    pasts: Vec<Past<B>>,
    keeps: Keeps<B>,
    pub(super) residual: Residual<B>,
    pub(super) attention: Option<AttentionRows<B>>,
    recurrent: Option<RecurrentRows<B>>,
    pub(super) mlp: MlpRows<B>,
}

/// What a layer remembers of its streams.
enum Past<B: Backend> {
    Keys(B::Kv),
    Memory(Memory<B>),
}

impl<B: Backend> Past<B> {
    fn new(
        backend: &B,
        shape: &Shape,
        kv: KvDtype,
        sizes: Sizes,
        mixer: &Mixer<B>,
    ) -> Result<Self, BackendError> {
        Ok(match mixer {
            Mixer::Attention(_) => Self::Keys(backend.kv(kv, sizes.pages, shape.heads)?),
            Mixer::Recurrent(_) => Self::Memory(Memory::new(backend, shape, sizes)?),
        })
    }

    fn state(&self) -> Option<&B::State> {
        match self {
            Self::Memory(memory) => Some(&memory.state),
            Self::Keys(_) => None,
        }
    }

    fn state_mut(&mut self) -> Option<&mut B::State> {
        match self {
            Self::Memory(memory) => Some(&mut memory.state),
            Self::Keys(_) => None,
        }
    }
}

impl<B: Backend> Trunk<B> {
    /// Loads the part's tensors, each layer by `block`.
    pub(super) fn open(
        backend: Arc<B>,
        checkpoint: &Checkpoint,
        mut shape: Shape,
        part: &Part,
        exchange: Box<dyn Exchange>,
        block: impl Fn(&mut Loader<'_, B>, &Division, u32) -> Result<Block<B>, StageError>,
    ) -> Result<Self, StageError> {
        if let (Some(Fault::OtherHeads), Some(gdn)) = (part.fault, &mut shape.gdn) {
            gdn.order = match gdn.order {
                HeadOrder::Grouped => HeadOrder::Tiled,
                HeadOrder::Tiled => HeadOrder::Grouped,
            };
        }
        let division = Division::new(shape, part.share);
        let mut loader = Loader::new(&*backend, checkpoint, part.fault);
        let ends = part.ends.then(|| Ends::load(&mut loader, &division)).transpose()?;
        let layers = part.range.clone();
        let blocks = layers.map(|layer| block(&mut loader, &division, layer));
        Ok(Self {
            blocks: blocks.collect::<Result<_, _>>()?,
            part: part.clone(),
            ends,
            mtp: None,
            work: None,
            piece: Piece::default(),
            rope: RopeRows::default(),
            backend,
            division,
            group: Group::new(exchange, part.fault),
        })
    }

    fn work(&self, sizes: Sizes) -> Result<Work<B>, BackendError> {
        let (backend, division, part) = (&*self.backend, &self.division, &self.part);
        let shape = &division.own;
        let past = |block: &Block<B>| Past::new(backend, shape, part.kv, sizes, &block.mixer);
        let rows = || backend.rows(sizes.rows_max, shape.hidden);
        let attention = shape.count(part, Kind::Attention) > 0 || self.mtp.is_some();
        let recurrent = shape.count(part, Kind::Recurrent) > 0;
        let rows_max = sizes.rows_max;
        Ok(Work {
            sizes,
            pasts: self.blocks.iter().map(past).collect::<Result<_, _>>()?,
            keeps: Keeps::new(shape.keep_bytes(part), sizes.keep_bytes_max),
            residual: Residual { x: rows()?, n: rows()?, y: rows()? },
            attention: match attention {
                true => Some(AttentionRows::new(backend, division, rows_max)?),
                false => None,
            },
            recurrent: match recurrent {
                true => Some(RecurrentRows::new(backend, division, rows_max)?),
                false => None,
            },
            mlp: MlpRows::new(backend, division, rows_max)?,
        })
    }
}

impl<B: Backend> Program for Trunk<B> {
    fn allocate(&mut self, sizes: Sizes) -> Result<(), BackendError> {
        self.work = None;
        if let Some(ends) = &mut self.ends {
            let guesses = self.mtp.is_some();
            ends.allocate(&self.backend, &self.division, (sizes.head_rows_max, guesses))?;
        }
        if let Some(mtp) = &mut self.mtp {
            mtp.allocate(&self.backend, &self.part, sizes)?;
        }
        self.work = Some(self.work(sizes)?);
        Ok(())
    }

    fn add_draft_head(&mut self, checkpoint: &Checkpoint) -> Result<bool, StageError> {
        if let Some(ends) = self.ends.as_mut().filter(|_| checkpoint.config().mtp()) {
            self.mtp = Some(Mtp::load(&*self.backend, checkpoint, &self.division, ends)?);
        }
        Ok(self.drafts())
    }

    fn drafts(&self) -> bool {
        self.mtp.is_some()
    }

    fn draft(&mut self, past: mtp::Past<'_>, ids: &[u32], map: &RowMap) -> Vec<f32> {
        self.run_draft(past, ids, map)
    }

    fn draft_head(&mut self, y: &[f32], logits: &mut [f32]) {
        self.run_draft_head(y, logits);
    }

    fn embed(&mut self, ids: &[u32]) {
        let ends = self.ends.as_ref().expect("tokens enter at the ends");
        ends.embed(&self.backend, ids, &mut allocated(&mut self.work).residual.x);
    }

    fn load(&mut self, rows: &[f32]) {
        self.backend.upload(rows, &mut allocated(&mut self.work).residual.x);
    }

    fn store(&self, rows: &mut [f32]) {
        let work = self.work.as_ref().expect("allocate comes first");
        self.backend.download(&work.residual.x, 0, rows);
    }

    fn begin(&mut self, piece: Piece) {
        let positions: Vec<u32> = piece.map.rows.iter().map(|row| row.position).collect();
        let shape = &self.division.whole;
        self.rope = RopeRows::new(shape.theta, shape.rope_dims, &positions);
        self.piece = piece;
    }

    fn layer(&mut self, layer: u32) -> Result<(), ExchangeError> {
        let Self { backend, group, division, piece, rope, .. } = self;
        let index = (layer - self.part.range.start) as usize;
        let (block, work) = (&self.blocks[index], allocated(&mut self.work));
        let residual = &mut work.residual;
        match (&block.mixer, &mut work.pasts[index]) {
            (Mixer::Attention(attention), Past::Keys(kv)) => {
                let rows = work.attention.as_mut().expect("attention has rows");
                let at = (&piece.map, &*rope);
                attention.run((&**backend, &mut *group), division, at, residual, rows, kv)?;
            }
            (Mixer::Recurrent(recurrent), Past::Memory(memory)) => {
                let rows = work.recurrent.as_mut().expect("recurrent layers have rows");
                recurrent.run(
                    (&**backend, &mut *group),
                    division,
                    piece,
                    residual,
                    rows,
                    memory,
                )?;
                if self.part.fault == Some(Fault::StaleTail) {
                    recurrent.spoil(backend, &piece.walks, rows, memory);
                }
            }
            _ => unreachable!("a past was made for its mixer"),
        }
        let rows = piece.map.rows.len();
        block.mlp.run((&**backend, &mut *group), division, rows, residual, &mut work.mlp)
    }

    fn head(&mut self, rows: &[f32], logits: &mut [f32]) -> Result<(), ExchangeError> {
        let ends = self.ends.as_mut().expect("logits leave at the ends");
        let residual = &mut allocated(&mut self.work).residual;
        let count = rows.len() / self.division.whole.hidden;
        self.backend.upload(rows, &mut residual.x);
        let to = (&*self.backend, &mut self.group);
        ends.run(to, &self.division, count, residual, logits)
    }

    fn replay(&mut self, replays: &[Replay]) {
        let work = allocated(&mut self.work);
        let Some(rows) = &mut work.recurrent else { return };
        let mut rest = replays;
        while !rest.is_empty() {
            let (batch, others) = rest.split_at(fitting(rest, work.sizes.rows_max));
            rest = others;
            for (block, past) in self.blocks.iter().zip(&mut work.pasts) {
                if let (Mixer::Recurrent(recurrent), Past::Memory(memory)) = (&block.mixer, past) {
                    recurrent.replay(&self.backend, batch, rows, memory);
                }
            }
        }
    }

    fn copy_page(&mut self, from: u32, to: u32) {
        for past in &mut allocated(&mut self.work).pasts {
            if let Past::Keys(kv) = past {
                self.backend.copy_page(kv, from, to);
            }
        }
        if let Some(mtp) = &mut self.mtp {
            mtp.copy_page(&self.backend, from, to);
        }
    }

    fn save(&mut self, key: u64, place: usize) -> Result<bool, ExchangeError> {
        let Work { keeps, pasts, .. } = allocated(&mut self.work);
        let states = pasts.iter().filter_map(Past::state);
        let saved = keeps.save(&self.backend, key, self.division.own.gdn, states, place);
        // Kept by all members or by none: what is short of memory decides.
        let kept = self.group.agree(saved)?;
        if !kept {
            keeps.forget(key);
        }
        Ok(kept)
    }

    fn restore(&mut self, key: u64, place: usize) {
        let Work { keeps, pasts, .. } = allocated(&mut self.work);
        let states = pasts.iter_mut().filter_map(Past::state_mut);
        keeps.restore(&self.backend, key, states, place);
    }

    fn forget(&mut self, key: u64) {
        allocated(&mut self.work).keeps.forget(key);
    }

    fn forget_all(&mut self) {
        if let Some(work) = &mut self.work {
            work.keeps.clear();
        }
    }

    fn state(&self, layer: u32, place: usize) -> Option<(Vec<f32>, Vec<f32>)> {
        let gdn = self.division.own.gdn?;
        let index = layer.checked_sub(self.part.range.start)? as usize;
        let state = self.work.as_ref()?.pasts.get(index)?.state()?;
        let (mut s, mut tail) = (vec![0.0; gdn.state_values()], vec![0.0; gdn.tail_values()]);
        self.backend.download_state(state, place, &mut s, &mut tail);
        Some((s, tail))
    }
}

fn allocated<B: Backend>(work: &mut Option<Work<B>>) -> &mut Work<B> {
    work.as_mut().expect("allocate comes first")
}

/// How many of the first replays `rows_max` rows hold; one at least, since a window passed through
/// those rows.
fn fitting(replays: &[Replay], rows_max: usize) -> usize {
    let sums = replays.iter().scan(0, |sum, replay| {
        *sum += replay.rows;
        Some(*sum)
    });
    sums.take_while(|sum| *sum <= rows_max).count().max(1)
}
