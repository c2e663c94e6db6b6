//! A stage without a model: the same contract and the same table, and layers that mix the layer's
//! index and a per-stream recurrent state into small rows.
//!
//! Every value is an integer below 2^16 held in an f32, so rows cross any codec unchanged. A row
//! depends on all rows of its stream so far; a window that is rolled back in name only, a layer
//! that is left out or rows of another stream change every later row and every logit.

use std::collections::BTreeMap;
use std::ops::Range;

use arith::base::{Round, StreamId};
use arith::sample::mix;
use backend::berths::Shared;
use wire::plan::Plan;

use crate::fault::missed_rollback;
use crate::slots::{Effects, KeepEffect, Settled, Slots};
use crate::{Chain, Engine, Fault, Input, Offer, Pick, Shapes, SlotState, StageError};

/// What a [`Fake`] pretends to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeConfig {
    /// Layers held.
    pub range: Range<u32>,
    /// Whether this rank holds the embeddings and the head.
    pub ends: bool,
    /// Width of a boundary row.
    pub hidden: usize,
    /// Logits a row.
    pub vocab: usize,
}

impl FakeConfig {
    /// A range of a model of width 8 and 64 tokens.
    pub fn small(range: Range<u32>, ends: bool) -> Self {
        Self { range, ends, hidden: 8, vocab: 64 }
    }
}

/// An [`Engine`] that computes hashes.
#[derive(Debug)]
pub struct Fake {
    config: FakeConfig,
    slots: Slots,
    fault: Option<Fault>,
    /// A stream's states, a layer each.
    streams: BTreeMap<StreamId, Vec<Trail>>,
    /// Kept states, a layer each.
    kept: BTreeMap<u64, Vec<u64>>,
    held: Vec<bool>,
    keeps_max: usize,
    /// Pages that [`Fault::FreedTwice`] gives back once more.
    stale: Vec<u32>,
    /// Its berths, and those of the rank after.
    berths: Option<Shared>,
    reached: Option<Shared>,
    round_rows: usize,
}

/// The states of one layer after 0, 1, .. rows of the last window, path by path of a tree.
type Trail = Vec<u64>;

impl Fake {
    /// A stage of `config`; it takes plans once it is prepared.
    pub fn new(config: FakeConfig) -> Self {
        Self {
            config,
            slots: Slots::default(),
            fault: None,
            streams: BTreeMap::new(),
            kept: BTreeMap::new(),
            held: Vec::new(),
            keeps_max: usize::MAX,
            stale: Vec::new(),
            berths: None,
            reached: None,
            round_rows: 0,
        }
    }

    /// The same stage with a device that others of this process may write to.
    #[must_use]
    pub fn with_berths(mut self) -> Self {
        self.berths = Some(Shared::new(0, 0));
        self
    }

    /// The same stage with room for so many kept states.
    #[must_use]
    pub fn with_keeps_max(mut self, keeps_max: usize) -> Self {
        self.keeps_max = keeps_max;
        self
    }

    /// The streams' table.
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Kept states that it has.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// The same stage with a defect.
    #[must_use]
    pub fn with_fault(mut self, fault: Fault) -> Self {
        self.fault = Some(fault);
        self
    }

    fn berth_values(&self) -> usize {
        LABEL_VALUES + self.round_rows * self.config.hidden
    }

    fn settle(&mut self, settled: &Settled) {
        let stays = matches!(
            self.fault,
            Some(Fault::PositionOnly | Fault::StateStays | Fault::DropRollback)
        );
        let keep = match settled.accepted {
            _ if stays => u32::MAX,
            0 => 0,
            accepted => settled.at + accepted,
        };
        for trail in self.streams.get_mut(&settled.id).into_iter().flatten() {
            // A skipped stream's trail is short: its rows were never computed.
            let state = trail[(keep as usize).min(trail.len() - 1)];
            *trail = vec![state];
        }
    }

    fn apply(&mut self, plan: &Plan) -> Result<Effects, StageError> {
        if self.fault == Some(Fault::FreedTwice) {
            let stale = std::mem::replace(&mut self.stale, self.slots.pages_ended(plan));
            self.slots.free_again(&stale);
        }
        let effects = match self.fault {
            Some(Fault::DropRollback) => self.slots.apply(&missed_rollback(plan, &self.slots))?,
            _ => self.slots.apply(plan)?,
        };
        for id in &effects.closed {
            self.streams.remove(id);
        }
        for settled in &effects.settled {
            self.settle(settled);
        }
        for id in &effects.opened {
            let fresh = vec![vec![step(0, 0)]; self.config.range.len()];
            self.streams.insert(*id, fresh);
        }
        self.held = effects.keeps.iter().map(|keep| self.keep(keep)).collect();
        for span in &effects.spans {
            if self.fault == Some(Fault::DropGeneration) {
                self.slots.forget_generation(span.id);
            }
        }
        Ok(effects)
    }

    /// Does one keep; whether it is held.
    fn keep(&mut self, keep: &KeepEffect) -> bool {
        match *keep {
            KeepEffect::Save { key, id, skipped, .. } => {
                if skipped || self.kept.len() >= self.keeps_max {
                    self.slots.lose(key);
                    return false;
                }
                let trails = &self.streams[&id];
                self.kept.insert(key, trails.iter().map(|trail| trail[0]).collect());
            }
            KeepEffect::Drop { key } => {
                self.kept.remove(&key);
            }
            KeepEffect::Restore { key, id, .. } => {
                let states = self.kept[&key].iter();
                self.streams.insert(id, states.map(|&state| vec![state]).collect());
            }
        }
        true
    }

    /// `is_first`: of its path, which starts from the state before the window.
    fn layers(&mut self, id: StreamId, position: u32, is_first: bool, row: &mut [f32]) {
        let is_first = is_first && self.fault != Some(Fault::SiblingSeen);
        let trails = self.streams.get_mut(&id).expect("a stream with rows is open");
        for (trail, layer) in trails.iter_mut().zip(self.config.range.clone()) {
            if self.fault == Some(Fault::SkipLayer(layer)) {
                continue;
            }
            let last = if is_first { trail.first() } else { trail.last() };
            let last = *last.expect("a trail starts with the state before the window");
            let place = (u64::from(layer) << 32) | u64::from(position);
            let state = step(digest(row, last), place);
            trail.push(state);
            for (i, x) in row.iter_mut().enumerate() {
                *x = value(step(state, i as u64));
            }
        }
    }
}

impl Engine for Fake {
    fn hidden(&self) -> usize {
        self.config.hidden
    }

    fn vocab(&self) -> usize {
        if self.config.ends { self.config.vocab } else { 0 }
    }

    fn prepare(&mut self, shapes: &Shapes) -> Result<(), StageError> {
        self.slots = Slots::new(*shapes);
        self.round_rows = shapes.round_rows_max as usize;
        self.reset();
        Ok(())
    }

    fn berths(&mut self, count: u32) -> Result<Option<Offer>, String> {
        let values = self.berth_values();
        let Some(berths) = &mut self.berths else { return Ok(None) };
        *berths = Shared::new(count as usize, values);
        Ok(Some(berths.offer()))
    }

    fn reach(&mut self, offer: &Offer) -> Result<String, String> {
        if self.berths.is_none() {
            return Err("a device that gives its rows to nobody".into());
        }
        self.reached = Some(Shared::find(offer, self.berth_values())?);
        Ok("in this process".into())
    }

    fn step_on(
        &mut self,
        round: Round,
        plan: &Plan,
        input: Input<'_>,
        out: &mut Vec<f32>,
    ) -> Result<Option<u32>, StageError> {
        let mut came = Vec::new();
        if let (Input::Berth(berth), Some(berths)) = (input, &self.berths) {
            came.resize(LABEL_VALUES + plan.rows() * self.config.hidden, 0.0);
            let lost = |reason| StageError::BerthLost { berth, reason };
            berths.come(berth, came.len()).map_err(lost)?;
            berths.fetch(berth, 0, &mut came);
            if came[..LABEL_VALUES] != label(round) {
                return Err(StageError::OtherBerth { berth });
            }
        }
        let came = came.get(LABEL_VALUES..).unwrap_or_default();
        let input = if let Input::Berth(_) = input { Input::Rows(came) } else { input };
        self.step(plan, input, out)?;
        let Some(berths) = self.reached.as_ref().filter(|_| !out.is_empty()) else {
            return Ok(None);
        };
        let berth = (round.0 % berths.count() as u64) as u32;
        berths.put(berth, 0, &label(round));
        berths.put(berth, LABEL_VALUES, out);
        let lost = |reason| StageError::BerthLost { berth, reason };
        berths.send(berth, LABEL_VALUES + out.len()).map_err(lost)?;
        out.clear();
        Ok(Some(berth))
    }

    fn step(
        &mut self,
        plan: &Plan,
        input: Input<'_>,
        out: &mut Vec<f32>,
    ) -> Result<(), StageError> {
        input.check(plan.rows(), self.config.hidden, self.vocab())?;
        let effects = self.apply(plan)?;
        let hidden = self.config.hidden;
        out.clear();
        out.resize(plan.rows() * hidden, 0.0);
        for span in effects.spans {
            if span.skipped {
                continue;
            }
            for (at, (position, row)) in (span.first..).zip(span.rows).enumerate() {
                let row = effects.origins[row];
                let values = &mut out[row * hidden..(row + 1) * hidden];
                match input {
                    Input::Tokens(ids) => {
                        let token = u64::from(ids[row]);
                        values.iter_mut().zip(0..).for_each(|(x, i)| *x = value(step(token, i)));
                    }
                    Input::Rows(rows) => {
                        values.copy_from_slice(&rows[row * hidden..(row + 1) * hidden]);
                    }
                    Input::Berth(berth) => return Err(StageError::OtherBerth { berth }),
                }
                self.layers(span.id, position, at == 0, values);
            }
        }
        Ok(())
    }

    fn logits(&mut self, rows: &[f32], out: &mut Vec<f32>) -> Result<(), StageError> {
        out.clear();
        for row in rows.chunks_exact(self.config.hidden) {
            let start = out.len();
            let state = digest(row, 1);
            out.extend((0..self.config.vocab as u64).map(|i| value(step(state, i)) / 65536.0));
            out[start + (state % self.config.vocab as u64) as usize] += 1.0;
        }
        Ok(())
    }

    fn drafts(&self) -> bool {
        self.config.ends
    }

    /// Guesses by a hash of the last row: right once in a vocabulary.
    fn draft(
        &mut self,
        chains: &[Chain<'_>],
        rows: &[f32],
        pick: Pick<'_>,
    ) -> Result<Vec<Vec<u32>>, StageError> {
        let hidden = self.config.hidden;
        let guesses = chains.iter().enumerate().map(|(at, chain)| {
            assert_eq!(chain.rows.len(), chain.tokens.len(), "a token after each row");
            let pages = self.slots.pages(chain.id, chain.accepted);
            assert!(pages.is_some(), "rows of an open stream");
            let last = chain.rows.end - 1;
            let seed = digest(&rows[last * hidden..(last + 1) * hidden], 2);
            let after = chain.first + chain.tokens.len() as u32 + 1;
            let guess = |i: u32| {
                let seed = step(seed, i.into());
                let ids = 0..self.config.vocab as u64;
                let logits: Vec<f32> = ids.map(|id| value(step(seed, id))).collect();
                pick(at, after + i, &logits)
            };
            (0..chain.length).map(guess).collect()
        });
        Ok(guesses.collect())
    }

    fn skip(&mut self, id: StreamId) {
        self.slots.skip(id);
    }

    fn reset(&mut self) {
        self.slots.reset();
        self.streams.clear();
        self.kept.clear();
        self.held.clear();
        self.stale.clear();
        self.reached = None;
    }

    fn held(&self) -> &[bool] {
        &self.held
    }

    fn table(&self) -> Vec<SlotState> {
        self.slots.table()
    }
}

/// What rows in a berth begin with, so that others are no rows of the round.
const LABEL_VALUES: usize = 4;

fn label(round: Round) -> [f32; LABEL_VALUES] {
    std::array::from_fn(|at| value(round.0 >> (16 * at)))
}

fn value(state: u64) -> f32 {
    (state & 0xffff) as f32
}

fn digest(row: &[f32], seed: u64) -> u64 {
    row.iter().fold(seed, |state, x| step(state, u64::from(x.to_bits())))
}

/// One step of splitmix64 over a pair.
fn step(a: u64, b: u64) -> u64 {
    mix(a.rotate_left(23) ^ b.wrapping_add(0x9e37_79b9_7f4a_7c15))
}
