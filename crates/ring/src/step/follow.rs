//! Every rank but 0: rounds in, rounds out, in order.

use std::collections::VecDeque;

use arith::base::{Epoch, Rank, Round};
use wire::cancel::Cancel;
use wire::frame::{Frame, Kind};
use wire::plan::Plan;
use wire::{Fault, WireError};

use super::{Action, Computed, Event, Rows, Stepped};
use crate::error::RingError;
use crate::hop::{self, Hop};

/// A rank's place and what was agreed.
#[derive(Clone, Copy, Debug)]
struct Terms {
    rank: Rank,
    world: u32,
    epoch: Epoch,
    hidden: usize,
    depth: u32,
    /// Berths of this rank's device.
    berths: u32,
}

/// A follower's state in one epoch.
#[derive(Debug)]
pub struct Follow {
    terms: Terms,
    /// Rounds that came whole and wait for the device.
    waiting: VecDeque<Item>,
    /// A plan whose rows are on the way.
    half: Option<Item>,
    /// The round on the device.
    at_work: Option<Item>,
    /// The last round that came.
    came: u64,
    /// The last round that is done.
    done: u64,
}

#[derive(Debug)]
struct Item {
    round: Round,
    plan: Plan,
    /// The plan's bytes, which go on as they came.
    payload: Vec<u8>,
    rows: Rows,
}

impl Follow {
    /// A rank of `world` before its first round; `hidden` values a row, `depth` rounds at most.
    pub fn new(rank: Rank, world: u32, epoch: Epoch, hidden: usize, depth: u32) -> Self {
        Self {
            terms: Terms { rank, world, epoch, hidden, depth, berths: 0 },
            waiting: VecDeque::new(),
            half: None,
            at_work: None,
            came: 0,
            done: 0,
        }
    }

    /// With so many berths, which the rank before was told of.
    #[must_use]
    pub fn with_berths(mut self, berths: u32) -> Self {
        self.terms.berths = berths;
        self
    }

    /// The round on the device (0 when idle) and the rounds done.
    pub fn progress(&self) -> (Round, u64) {
        (self.at_work.as_ref().map_or(Round(0), |item| item.round), self.done)
    }

    /// Moves by one event.
    ///
    /// # Errors
    /// What ends the epoch: a frame out of turn, of another round or not of this protocol; more
    /// rounds than the depth.
    pub fn step(&mut self, event: Event) -> Stepped {
        let mut actions = Vec::new();
        match event {
            Event::Frame(frame) if frame.kind == Kind::Cancel => {
                if let Ok(cancel) = Cancel::decode(&frame.payload)
                    && cancel.epoch == self.terms.epoch
                {
                    actions.push(Action::Skip(cancel.stream));
                }
            }
            Event::Frame(frame) => self.frame(frame)?,
            Event::Computed(computed) => actions.extend(self.computed(computed)?),
            Event::Look | Event::Drafted(_) => {}
        }
        if self.at_work.is_none()
            && let Some(mut item) = self.waiting.pop_front()
        {
            let rows = std::mem::replace(&mut item.rows, Rows::Values(Vec::new()));
            actions.push(Action::Stage { round: item.round, plan: item.plan.clone(), rows });
            self.at_work = Some(item);
        }
        Ok(actions)
    }

    fn frame(&mut self, frame: Frame) -> Result<(), RingError> {
        if let Some(mut item) = self.half.take() {
            let rows = match frame.kind {
                Kind::Berth => {
                    hop::expect(&frame, Kind::Berth, item.round)?;
                    self.berth(item.round, item.plan.rows(), frame).map(Rows::Berth)
                }
                _ => {
                    hop::expect(&frame, Kind::Rows, item.round)?;
                    frame.into_rows(item.plan.rows(), self.terms.hidden).map(Rows::Values)
                }
            };
            item.rows = rows.map_err(|error| RingError::Wire { from: self.before(), error })?;
            return self.whole(item);
        }
        hop::expect(&frame, Kind::Plan, Round(self.came + 1))?;
        self.came += 1;
        let plan = Plan::decode(&frame.payload)
            .map_err(|error| RingError::Wire { from: Rank(0), error })?;
        let rows = Rows::Values(Vec::new());
        let item = Item { round: frame.round, plan, payload: frame.payload, rows };
        if item.plan.rows() == 0 {
            return self.whole(item);
        }
        self.half = Some(item);
        Ok(())
    }

    /// The berth that a frame names, which is the round's.
    fn berth(&self, round: Round, rows: usize, frame: Frame) -> Result<u32, WireError> {
        let found = frame.into_berth(rows)?;
        let due = round.0.checked_rem(self.terms.berths.into());
        if due == Some(found.into()) {
            return Ok(found);
        }
        let due = due.map_or("rows over the link".into(), |due| format!("berth {due}"));
        Err(WireError::OutOfTurn(Fault::new("berth.number", due, found)))
    }

    fn whole(&mut self, item: Item) -> Result<(), RingError> {
        let held = self.waiting.len() + usize::from(self.at_work.is_some());
        if held >= self.terms.depth as usize {
            return Err(RingError::OutOfTurn {
                expected: format!("at most {} rounds in flight", self.terms.depth),
                found: format!("round {} beside {held} others", item.round),
            });
        }
        self.waiting.push_back(item);
        Ok(())
    }

    fn computed(&mut self, computed: Computed) -> Stepped {
        let mut item = self.at_work.take().expect("the device was given a round");
        if !item.plan.keeps.is_empty() {
            for (keep, held) in item.plan.keeps.iter_mut().zip(&computed.held) {
                keep.held &= held;
            }
            item.payload = item.plan.encode()?;
        }
        self.done = item.round.0;
        let Terms { rank, world, hidden, .. } = self.terms;
        let hop = Hop::of(rank.0, world);
        Ok(hop::onward(item.round, &item.plan, item.payload, hop, computed, hidden))
    }

    /// The rank whose frames arrive here.
    fn before(&self) -> Rank {
        Rank((self.terms.rank.0 + self.terms.world - 1) % self.terms.world)
    }
}

#[cfg(test)]
mod tests;
