//! Blocks of a mixer and an MLP, one a layer, between the ends: every family's program.

use std::ops::Range;
use std::sync::Arc;

use arith::attention::KvDtype;
use arith::format::Format;
use arith::gdn::HeadOrder;
use backend::{Backend, BackendError, Offer, Over, RowMap};
use weights::Checkpoint;
use weights::config::Mixer as Kind;

use super::attention::Attention;
use super::berths::Berths;
use super::division::Division;
use super::ends::Ends;
use super::group::Group;
use super::keeps::Keeps;
use super::lane::{Cursor, Kinds, Lane, Stack};
use super::loader::Loader;
use super::mlp::Mlp;
use super::mtp::{self, Mtp};
use super::recurrent::{Memory, Recurrent};
use super::shape::Shape;
use super::{Part, Piece, Program, Replay, Sizes};
use crate::{Exchange, ExchangeError, Fault, StageError};

/// Fewest rows of half of a piece that goes in two where devices give each other rows by
/// themselves: on a card two halves of 1,024 cost more than the exchanges that they hide.
const DIRECT_ROWS_MIN: usize = 2_048;

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
    berths: Berths<B>,
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
    pub(super) lane: Lane<B>,
    /// Where the other half of a paired piece goes.
    twin: Option<Lane<B>>,
}

/// What a layer remembers of its streams.
pub(super) enum Past<B: Backend> {
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
            berths: Berths::new(backend.clone()),
            backend,
            division,
            group: Group::new(exchange, part.fault),
        })
    }

    fn work(&self, sizes: Sizes) -> Result<Work<B>, BackendError> {
        let (backend, division, part) = (&*self.backend, &self.division, &self.part);
        let shape = &division.own;
        let past = |block: &Block<B>| Past::new(backend, shape, part.kv, sizes, &block.mixer);
        let kinds = Kinds {
            attention: shape.count(part, Kind::Attention) > 0 || self.mtp.is_some(),
            recurrent: shape.count(part, Kind::Recurrent) > 0,
        };
        let lane = |at, rows_max| Lane::new(backend, division, (at, kinds), rows_max, part.fault);
        Ok(Work {
            sizes,
            pasts: self.blocks.iter().map(past).collect::<Result<_, _>>()?,
            keeps: Keeps::new(shape.keep_bytes(part), sizes.keep_bytes_max),
            lane: lane(0, sizes.rows_max)?,
            twin: match sizes.twin_rows {
                0 => None,
                rows => Some(lane(1, rows)?),
            },
        })
    }

    /// Runs the lane's piece through layers of the part.
    fn through(&mut self, layers: Range<usize>) -> Result<(), ExchangeError> {
        let Self { backend, group, division, blocks, work, .. } = self;
        let Work { lane, pasts, .. } = allocated(work);
        let stack = Stack { backend: &**backend, division, blocks, end: layers.end };
        let mut at = Cursor::at(layers.start);
        group.begin([&mut lane.parcel])?;
        while lane.advance(&stack, pasts, &mut at) {
            group.meet(&mut lane.parcel)?;
        }
        Ok(())
    }

    /// The same in two halves, one's exchange under the other's compute. The second follows the
    /// first by one exchange, so that it finds its keys and states, and they meet the others in
    /// turn, on every member alike.
    fn through_paired(&mut self, layers: Range<usize>) -> Result<(), ExchangeError> {
        let Self { backend, group, division, blocks, part, work, .. } = self;
        let Work { lane, twin, pasts, .. } = allocated(work);
        let twin = twin.as_mut().expect("a pair has a twin");
        let rows = lane.piece.map.rows.len();
        let cut = rows - rows / 2;
        let [first, second] = lane.piece.split(cut);
        lane.begin(&division.whole, first);
        twin.begin(&division.whole, second);
        if part.fault != Some(Fault::StaleTwin) {
            backend.copy_rows(&lane.residual.x, cut, rows - cut, &mut twin.residual.x, 0);
        }
        let stack = Stack { backend: &**backend, division, blocks, end: layers.end };
        let start = Cursor::at(layers.start);
        group.begin([&mut lane.parcel, &mut twin.parcel])?;
        group.aside(lane.parcel.is_direct(), |aside| {
            let mut lanes = [(&mut *lane, start, false), (&mut *twin, start, false)];
            let mut over = 0;
            while over < lanes.len() {
                over = 0;
                for (lane, at, waits) in &mut lanes {
                    if std::mem::take(waits) {
                        aside.finish(&mut lane.parcel)?;
                    }
                    *waits = lane.advance(&stack, pasts, at);
                    match *waits {
                        true => aside.start(&mut lane.parcel),
                        false => over += 1,
                    }
                }
            }
            Ok(())
        })?;
        backend.copy_rows(&twin.residual.x, 0, rows - cut, &mut lane.residual.x, cut);
        Ok(())
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

    fn add_draft_head(
        &mut self,
        checkpoint: &Checkpoint,
        format: Option<Format>,
    ) -> Result<bool, StageError> {
        if let Some(ends) = self.ends.as_mut().filter(|_| checkpoint.config().mtp()) {
            self.mtp = Some(Mtp::load(&*self.backend, checkpoint, &self.division, ends, format)?);
        }
        Ok(self.drafts())
    }

    fn is_shared(&self) -> bool {
        self.division.share.count > 1
    }

    fn chunk_cost_rows(&self) -> u32 {
        self.backend.chunk_cost_rows()
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
        ends.embed(&self.backend, ids, &mut allocated(&mut self.work).lane.residual.x);
    }

    fn load(&mut self, rows: &[f32]) {
        self.backend.upload(rows, &mut allocated(&mut self.work).lane.residual.x);
    }

    fn store(&self, first: usize, rows: &mut [f32]) {
        let work = self.work.as_ref().expect("allocate comes first");
        self.backend.download(&work.lane.residual.x, first, rows);
    }

    fn berths(&mut self, count: usize, rows: usize, over: Over) -> Result<Offer, String> {
        self.berths.have((count, rows, self.division.whole.hidden), over)
    }

    fn reach(&mut self, offer: &Offer, rows: usize, over: Over) -> Result<u32, String> {
        self.berths.reach(offer, (rows, self.division.whole.hidden), over)
    }

    fn leave(&mut self) {
        self.berths.leave();
    }

    fn come(&mut self, berth: u32, rows: usize) -> Result<(), StageError> {
        self.berths.come(berth, rows * self.division.whole.hidden)
    }

    fn fetch(&mut self, berth: u32, first: usize, rows: usize, at: usize) {
        let x = &mut allocated(&mut self.work).lane.residual.x;
        self.backend.fetch(self.berths.own(), berth, (first, rows), x, at);
    }

    fn put(&self, first: usize, rows: usize, berth: u32, at: usize) -> Result<(), StageError> {
        let work = self.work.as_ref().expect("allocate comes first");
        self.berths.put(&work.lane.residual.x, (first, rows), (berth, at))
    }

    fn send(&self, berth: u32, rows: usize) -> Result<(), StageError> {
        self.berths.send(berth, rows * self.division.whole.hidden)
    }

    fn settled(&mut self) -> Result<(), ExchangeError> {
        self.group.settled()
    }

    fn begin(&mut self, piece: Piece) {
        allocated(&mut self.work).lane.begin(&self.division.whole, piece);
    }

    fn layer(&mut self, layer: u32) -> Result<(), ExchangeError> {
        let index = (layer - self.part.range.start) as usize;
        self.through(index..index + 1)
    }

    fn layers_paired(&mut self) -> Result<(), ExchangeError> {
        let layers = 0..self.blocks.len();
        let half = allocated(&mut self.work).lane.piece.map.rows.len() / 2;
        match half < DIRECT_ROWS_MIN && self.group.is_direct()? {
            true => self.through(layers),
            false => self.through_paired(layers),
        }
    }

    fn head(
        &mut self,
        rows: &[f32],
        best: &[u32],
        logits: &mut Vec<f32>,
    ) -> Result<(), ExchangeError> {
        let ends = self.ends.as_mut().expect("logits leave at the ends");
        let residual = &mut allocated(&mut self.work).lane.residual;
        let count = rows.len() / self.division.whole.hidden;
        self.backend.upload(rows, &mut residual.x);
        let to = (&*self.backend, &mut self.group);
        ends.run(to, &self.division, (count, best), residual, logits)
    }

    fn replay(&mut self, replays: &[Replay]) {
        let work = allocated(&mut self.work);
        let Some(rows) = &mut work.lane.recurrent else { return };
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
