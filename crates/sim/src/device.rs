//! A rank's device: a fake stage that takes its time, and what an onlooker sees of it.

use std::collections::{BTreeMap, BTreeSet};

use arith::base::{Round, StreamId};
use ring::step::Computed;
use stage::{Engine, Fake, Fault, Input, Offer, Shapes, SlotState, StageError};
use wire::plan::{Op, Plan};

use crate::plant::Plant;
use crate::setting::model;

/// A device.
pub struct Device {
    fake: Fake,
    /// Streams whose cancel was heard, until their end.
    skips: BTreeSet<StreamId>,
    generations: BTreeMap<StreamId, u32>,
    deaf: bool,
    boasts: bool,
    /// The pages of the epoch.
    pub pages: u32,
    /// Rounds until it fails.
    pub fails_in: Option<u32>,
}

/// What a rank holds after a round.
#[derive(Debug, PartialEq, Eq)]
pub struct Table {
    pub streams: Vec<SlotState>,
    /// Keys and positions of kept states.
    pub keeps: Vec<(u64, u32)>,
    /// Pages that nobody holds.
    pub pages_free: u32,
}

/// What a round did.
#[derive(Debug)]
pub struct Seen {
    /// What the core is told.
    pub computed: Computed,
    /// Streams of which rows were computed.
    pub streams: Vec<StreamId>,
}

impl Device {
    /// Of layers, with a planted bug.
    pub fn new(
        range: std::ops::Range<u32>,
        ends: bool,
        keeps_max: usize,
        plant: Option<Plant>,
        berths: bool,
    ) -> Self {
        let fake = Fake::new(model(range, ends)).with_keeps_max(keeps_max);
        let fake = if berths { fake.with_berths() } else { fake };
        let fault = match plant {
            Some(Plant::LostRollback) => Some(Fault::PositionOnly),
            Some(Plant::FreedTwice) => Some(Fault::FreedTwice),
            _ => None,
        };
        Self {
            fake: match fault {
                Some(fault) => fake.with_fault(fault),
                None => fake,
            },
            skips: BTreeSet::new(),
            generations: BTreeMap::new(),
            deaf: plant == Some(Plant::CancelSkipsStage),
            boasts: plant == Some(Plant::HalfKept),
            pages: 0,
            fails_in: None,
        }
    }

    /// Width of a row.
    pub fn hidden(&self) -> usize {
        self.fake.hidden()
    }

    /// Makes room.
    pub fn prepare(&mut self, shapes: &Shapes) -> Result<(), StageError> {
        self.reset();
        self.pages = shapes.pages;
        self.luck()?;
        self.fake.prepare(shapes)
    }

    /// As [`Engine::berths`].
    pub fn berths(&mut self, count: u32) -> Option<Offer> {
        self.fake.berths(count).expect("berths of a fake")
    }

    /// As [`Engine::reach`].
    pub fn reach(&mut self, offer: &Offer) {
        // Where it can't, rows go over the link.
        let _ = self.fake.reach(offer);
    }

    fn luck(&mut self) -> Result<(), StageError> {
        match &mut self.fails_in {
            Some(0) => {
                self.fails_in = None;
                Err(StageError::EmptyShape { what: "luck" })
            }
            Some(rounds) => {
                *rounds -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Computes a round.
    ///
    /// # Errors
    /// The stage's own, within the outer one: what no stage may do.
    pub fn step(
        &mut self,
        round: Round,
        plan: &Plan,
        input: Input<'_>,
    ) -> Result<Result<Seen, StageError>, String> {
        if let Err(error) = self.luck() {
            return Ok(Err(error));
        }
        let mut values = Vec::new();
        let berth = match self.fake.step_on(round, plan, input, &mut values) {
            Ok(berth) => berth,
            Err(error) => return Ok(Err(error)),
        };
        let mut streams = Vec::new();
        for entry in &plan.entries {
            match entry.op {
                Op::Close | Op::Cancel => {
                    self.skips.remove(&entry.id);
                    self.generations.remove(&entry.id);
                }
                _ if entry.rows > 0 && !self.skips.contains(&entry.id) => streams.push(entry.id),
                _ => {}
            }
        }
        for state in self.fake.table() {
            let before = self.generations.insert(state.id, state.generation.0);
            let most = before.map_or(1, |before| before + 1);
            if state.generation.0 > most || before.is_some_and(|b| b > state.generation.0) {
                let found = state.generation;
                return Err(format!("stream {}: generation {found} after {before:?}", state.id));
            }
        }
        let mut held = self.fake.held().to_vec();
        if self.boasts {
            held.fill(true);
        }
        Ok(Ok(Seen { computed: Computed { values, berth, held }, streams }))
    }

    /// Logits of rows.
    pub fn logits(&mut self, rows: &[f32], best: &[u32]) -> Vec<f32> {
        let mut out = Vec::new();
        self.fake.best_logits(rows, best, &mut out).expect("a fake head");
        out
    }

    /// As [`Engine::skip`].
    pub fn skip(&mut self, id: StreamId) {
        if !self.deaf {
            self.fake.skip(id);
            self.skips.insert(id);
        }
    }

    /// As [`Engine::reset`].
    pub fn reset(&mut self) {
        self.fake.reset();
        self.skips.clear();
        self.generations.clear();
    }

    /// What it holds.
    pub fn table(&self) -> Table {
        let slots = self.fake.slots();
        Table { streams: slots.table(), keeps: slots.keeps(), pages_free: slots.pages_free() }
    }
}
