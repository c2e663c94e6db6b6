//! A layer range of a real model on a device.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use arith::attention::KvDtype;
use arith::base::{Round, StreamId};
use arith::format::Format;
use backend::{Backend, RowAt, RowMap, Walk};
use weights::Checkpoint;
use wire::plan::Plan;

use crate::exchange::Alone;
use crate::model::{self, Part, Piece, Program, Replay, Share, Sizes, Split};
use crate::pairs::{self, PAIR_ROWS_MIN};
use crate::pass::{Out, live_rows, runs};
use crate::slots::{Effects, KeepEffect, Settled, Slots, WINDOW_ROWS_MAX};
use crate::{Exchange, Fault, Input, Member, Over, StageError};

mod engine;
mod need;

pub use need::{choices, draft_need_bytes, need_bytes, share_draft_need_bytes, share_need_bytes};

use need::check_range;

/// Most rows that pass through the layers at once; a larger round runs in pieces. Bounds the row
/// buffers, never bits.
pub const PIECE_ROWS_MAX: usize = 2_048;
/// Most rows that the head takes at once; bounds the logits buffer.
pub const HEAD_ROWS_MAX: usize = 32;
/// Most bytes of kept recurrent states of a stage; beyond, keeps are answered as not held.
pub const KEEP_BYTES_MAX: u64 = 1 << 30;

/// What a stage holds and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageConfig {
    /// Layers, half-open.
    pub range: Range<u32>,
    /// Whether it holds the embeddings, the final norm and the head (rank 0).
    pub ends: bool,
    /// How keys and values are stored.
    pub kv: KvDtype,
    /// Sends the rows through the boundary's codec after every layer, as if each layer were a
    /// rank of its own.
    pub loop_mode: bool,
}

impl StageConfig {
    fn part(&self, share: Share, fault: Option<Fault>) -> Part {
        Part { range: self.range.clone(), ends: self.ends, kv: self.kv, share, fault }
    }
}

/// A stage: see [`crate::Engine`].
pub struct Stage<B> {
    backend: Arc<B>,
    program: Box<dyn Program>,
    config: StageConfig,
    hidden: usize,
    vocab: usize,
    /// Whether it is a member other than the first, which alone has logits.
    is_other: bool,
    /// Whether it holds the model's last layer.
    is_last: bool,
    /// Whether it gives the rows alone that somebody needs.
    spares: bool,
    sizes: Option<Sizes>,
    slots: Slots,
    held: Vec<bool>,
    keep_bytes_max: u64,
    /// Fewest rows of the second half of a pair; `None` where no prompt goes in pairs.
    prompt_pair: Option<usize>,
    /// Whether this step's may: chosen once, before its first piece.
    pairs: bool,
    /// Rows of a piece on their way in or out.
    scratch: Vec<f32>,
    /// Whether it may give rows to the rank after, and take them, by its device alone.
    moors: bool,
    /// Berths of the rank after.
    reached: Option<u32>,
    /// Whether the epoch is over.
    over: Over,
    #[cfg(any(test, feature = "faults"))]
    plant: crate::fault::Plant,
}

impl<B: Backend> Stage<B> {
    /// Loads the range, and nothing else of the checkpoint.
    pub fn open(
        backend: Arc<B>,
        checkpoint: &Checkpoint,
        config: StageConfig,
    ) -> Result<Self, StageError> {
        Self::load(backend, checkpoint, config, Split::default(), Box::new(Alone), None)
    }

    /// Loads a member's share of the range, and nothing else of the checkpoint. Every member of the
    /// group is called alike from then on, and [`crate::Engine::prepare`], [`crate::Engine::step`]
    /// and [`crate::Engine::logits`] meet the others in `exchange`. A draft head meets nobody: it
    /// is for the member that is asked for guesses.
    ///
    /// # Errors
    /// As [`Stage::open`].
    pub fn open_share(
        backend: Arc<B>,
        checkpoint: &Checkpoint,
        config: StageConfig,
        split: Split,
        exchange: Box<dyn Exchange>,
    ) -> Result<Self, StageError> {
        Self::load(backend, checkpoint, config, split, exchange, None)
    }

    /// As [`Stage::open_share`], with a defect from the start.
    #[cfg(any(test, feature = "faults"))]
    #[doc(hidden)]
    pub fn open_faulty_share(
        backend: Arc<B>,
        checkpoint: &Checkpoint,
        config: StageConfig,
        split: Split,
        exchange: Box<dyn Exchange>,
        fault: Fault,
    ) -> Result<Self, StageError> {
        Self::load(backend, checkpoint, config, split, exchange, Some(fault))
    }

    /// As [`Stage::open`], with a defect from the start.
    #[cfg(any(test, feature = "faults"))]
    #[doc(hidden)]
    pub fn open_faulty(
        backend: Arc<B>,
        checkpoint: &Checkpoint,
        config: StageConfig,
        fault: Fault,
    ) -> Result<Self, StageError> {
        let alone = Box::new(Alone);
        let split = Split::default();
        let mut stage = Self::load(backend, checkpoint, config, split, alone, Some(fault))?;
        stage.plant(fault);
        Ok(stage)
    }

    fn load(
        backend: Arc<B>,
        checkpoint: &Checkpoint,
        config: StageConfig,
        split: Split,
        exchange: Box<dyn Exchange>,
        fault: Option<Fault>,
    ) -> Result<Self, StageError> {
        let model = checkpoint.config();
        check_range(model.layers(), &config.range)?;
        let Member { index, count } = exchange.member();
        let part = config.part(Share { index, count, split }, fault);
        let program = model::open(backend.clone(), checkpoint, &part, exchange)?;
        Ok(Self {
            backend,
            program,
            hidden: model.hidden(),
            vocab: if config.ends { model.vocab() } else { 0 },
            is_other: index > 0,
            is_last: config.range.end == model.layers(),
            spares: false,
            config,
            sizes: None,
            slots: Slots::default(),
            held: Vec::new(),
            keep_bytes_max: KEEP_BYTES_MAX,
            prompt_pair: (count > 1).then_some(PAIR_ROWS_MIN),
            pairs: false,
            scratch: Vec::new(),
            moors: false,
            reached: None,
            over: Arc::new(|| false),
            #[cfg(any(test, feature = "faults"))]
            plant: crate::fault::Plant::default(),
        })
    }

    /// Loads the model's draft head too, where it has one; whether it has. Before it is prepared.
    ///
    /// # Errors
    /// A tensor that can't be read, or that the device refuses.
    pub fn add_draft_head(&mut self, checkpoint: &Checkpoint) -> Result<bool, StageError> {
        self.add_draft_head_in(checkpoint, None)
    }

    /// The same with its matrices in `format`, each value by the nearest code: smaller and faster,
    /// and right less often. It moves no byte of a reply.
    ///
    /// # Errors
    /// As [`Stage::add_draft_head`]'s.
    pub fn add_draft_head_in(
        &mut self,
        checkpoint: &Checkpoint,
        format: Option<Format>,
    ) -> Result<bool, StageError> {
        assert!(self.sizes.is_none(), "a draft head comes before the shapes");
        self.program.add_draft_head(checkpoint, format)
    }

    /// The device.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// What the stage was opened with.
    pub fn config(&self) -> &StageConfig {
        &self.config
    }

    /// Bounds the bytes of kept recurrent states, from the next [`crate::Engine::prepare`] on;
    /// [`KEEP_BYTES_MAX`] unless set.
    pub fn set_keep_bytes_max(&mut self, keep_bytes_max: u64) {
        self.keep_bytes_max = keep_bytes_max;
        self.sizes = None;
    }

    /// From the next [`crate::Engine::prepare`] on, the fewest rows of the second half of a
    /// prompt's piece that goes in a pair, one half's exchange under the other's compute; `None`
    /// for no pairs. The same on every member of a group. [`PAIR_ROWS_MIN`] unless set; a group of
    /// one has no pairs.
    pub fn set_prompt_pair(&mut self, rows_min: Option<usize>) {
        self.prompt_pair = rows_min.filter(|_| self.program.is_shared());
        self.sizes = None;
    }

    /// From the next step on, gives the rows alone that go on from here, the others as zeros: of a
    /// ring's last stage those that the plan wants, of a member other than the first none.
    pub fn spare(&mut self) {
        self.spares = true;
    }

    /// From the next epoch on, has berths for the rank before and puts rows to those of the rank
    /// after, where their devices find each other.
    pub fn moor(&mut self) {
        self.moors = true;
    }

    /// The berth of the rank after for a round's rows, where all of them go there.
    fn berth(&self, round: Round, effects: &Effects) -> Option<u32> {
        let count = self.reached?;
        // The rows of a stream that is skipped are zeros, which no berth has.
        let is_whole = effects.spans.iter().all(|span| !span.skipped);
        (is_whole && !effects.origins.is_empty()).then(|| (round.0 % u64::from(count)) as u32)
    }

    /// Whether a row of the plan goes on from here.
    fn needs(&self, plan: &Plan) -> impl Fn(usize) -> bool + use<B> {
        let (none, last) = (self.spares && self.is_other, self.spares && self.is_last);
        let wanted: HashSet<usize> = match last {
            true => plan.wanted().into_iter().collect(),
            false => HashSet::new(),
        };
        move |row| !none && (!last || wanted.contains(&row))
    }

    /// As [`crate::Engine::state`].
    pub fn state(&self, id: StreamId, layer: u32) -> Option<(Vec<f32>, Vec<f32>)> {
        self.program.state(layer, self.slots.place(id)?)
    }

    /// Plants a defect from the next round on.
    #[cfg(any(test, feature = "faults"))]
    #[doc(hidden)]
    pub fn plant(&mut self, fault: crate::Fault) {
        self.plant = crate::fault::Plant::new(fault);
    }

    fn apply(&mut self, plan: &Plan) -> Result<Effects, StageError> {
        #[cfg(any(test, feature = "faults"))]
        let plan = &*self.plant.before(plan, &self.slots);
        #[cfg_attr(not(any(test, feature = "faults")), expect(unused_mut, reason = "planting"))]
        let mut effects = self.slots.apply(plan)?;
        #[cfg(any(test, feature = "faults"))]
        self.plant.after(&mut effects, &mut self.slots);
        Ok(effects)
    }

    /// Rolls recurrent states back to what was accepted.
    fn settle(&mut self, settled: &[Settled]) {
        let replays: Vec<Replay> =
            settled.iter().filter(|settled| settled.replays()).map(replay).collect();
        if !replays.is_empty() {
            self.program.replay(&replays);
        }
    }

    /// Does one keep; whether it is held.
    fn keep(&mut self, keep: &KeepEffect) -> Result<bool, StageError> {
        match *keep {
            KeepEffect::Save { key, place, skipped, .. } => {
                let held = !skipped && self.program.save(key, place)?;
                if !held {
                    self.slots.lose(key);
                }
                return Ok(held);
            }
            KeepEffect::Drop { key } => self.program.forget(key),
            KeepEffect::Restore { key, place, .. } => self.program.restore(key, place),
        }
        Ok(true)
    }

    /// Runs the rows `piece` of the round's map, those of skipped streams left out; rows of the
    /// plan that `needs` says come to their places of `out`.
    fn run(
        &mut self,
        effects: &Effects,
        piece: Range<usize>,
        input: Input<'_>,
        (needs, out): (&impl Fn(usize) -> bool, &mut Out<'_>),
    ) -> Result<(), StageError> {
        let hidden = self.hidden;
        let (piece, live) = live_rows(effects, piece);
        if live.is_empty() {
            return Ok(());
        }
        let live: Vec<usize> = live.into_iter().map(|row| effects.origins[row]).collect();
        match input {
            Input::Tokens(ids) => {
                let ids: Vec<u32> = live.iter().map(|&row| ids[row]).collect();
                self.program.embed(&ids);
            }
            Input::Berth(berth) => {
                for run in runs(&live, &|_| true) {
                    self.program.fetch(berth, live[run.start], run.len(), run.start);
                }
            }
            Input::Rows(rows) => match runs(&live, &|_| true).as_slice() {
                [_] => {
                    let end = live[0] + live.len();
                    self.program.load(&rows[live[0] * hidden..end * hidden]);
                }
                _ => {
                    self.scratch.clear();
                    for &row in &live {
                        self.scratch.extend_from_slice(&rows[row * hidden..(row + 1) * hidden]);
                    }
                    self.program.load(&self.scratch);
                }
            },
        }
        self.layers(piece)?;
        let runs = runs(&live, needs);
        for run in &runs {
            let (first, last) = (live[run.start], live[run.end - 1]);
            match out.berth {
                Some(berth) => self.program.put(run.start, run.len(), berth, first)?,
                None => {
                    let to = &mut out.rows()[first * hidden..(last + 1) * hidden];
                    self.program.store(run.start, to);
                }
            }
        }
        if runs.is_empty() {
            // A step is done when it ends.
            self.scratch.resize(hidden, 0.0);
            self.program.store(live.len() - 1, &mut self.scratch);
        }
        Ok(self.program.settled()?)
    }

    fn layers(&mut self, piece: Piece) -> Result<(), StageError> {
        let rows = piece.map.rows.len();
        if self.pairs && pairs::twin_rows(rows, self.prompt_pair) > 0 && piece.records.is_empty() {
            self.program.begin(piece);
            return Ok(self.program.layers_paired()?);
        }
        self.program.begin(piece);
        for layer in self.config.range.clone() {
            #[cfg(any(test, feature = "faults"))]
            if self.plant.skips(layer) {
                continue;
            }
            self.program.layer(layer)?;
            if self.config.loop_mode {
                self.cross(rows);
            }
        }
        Ok(())
    }

    /// Takes the residual over a boundary and back.
    fn cross(&mut self, rows: usize) {
        self.scratch.resize(rows * self.hidden, 0.0);
        self.program.store(0, &mut self.scratch);
        let bytes = wire::rows::encode(&self.scratch);
        wire::rows::decode_into(&bytes, rows, self.hidden, &mut self.scratch)
            .expect("a row's own encoding decodes");
        self.program.load(&self.scratch);
    }

    /// Runs every kernel once over a row that belongs to no stream.
    fn warm(&mut self) -> Result<(), StageError> {
        let row = vec![0.0; self.hidden];
        if self.config.ends {
            self.program.embed(&[0]);
            self.program.head(&row, &[0], &mut Vec::new())?;
        }
        self.program.load(&row);
        let rows = vec![RowAt { table: 0, position: 0 }];
        self.layers(Piece {
            map: RowMap { rows, tables: vec![Arc::from([0])] },
            walks: vec![Walk { rows: 0..1, from: None, to: 0 }],
            records: Vec::new(),
        })?;
        self.program.store(0, &mut vec![0.0; self.hidden]);
        Ok(self.program.settled()?)
    }
}

pub(crate) fn kept_row(slot: u32, at: u32) -> usize {
    (slot * WINDOW_ROWS_MAX + at) as usize
}

fn replay(settled: &Settled) -> Replay {
    let Settled { accepted, at, track, .. } = *settled;
    Replay { at: kept_row(track.slot, at), rows: accepted as usize, from: track.from, to: track.to }
}
