//! Every rank but 0: rounds in, rounds out, in order.

use std::collections::VecDeque;

use arith::base::{Epoch, Rank, Round};
use wire::cancel::Cancel;
use wire::frame::{Frame, Kind};
use wire::plan::Plan;

use super::{Action, Event, Rows, Stepped};
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
    rows: Vec<f32>,
}

impl Follow {
    /// A rank of `world` before its first round; `hidden` values a row, `depth` rounds at most.
    pub fn new(rank: Rank, world: u32, epoch: Epoch, hidden: usize, depth: u32) -> Self {
        Self {
            terms: Terms { rank, world, epoch, hidden, depth },
            waiting: VecDeque::new(),
            half: None,
            at_work: None,
            came: 0,
            done: 0,
        }
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
            Event::Computed { values, held } => self.computed(values, &held, &mut actions)?,
            Event::Look | Event::Drafted(_) => {}
        }
        if self.at_work.is_none()
            && let Some(mut item) = self.waiting.pop_front()
        {
            let rows = Rows::Values(std::mem::take(&mut item.rows));
            actions.push(Action::Stage { round: item.round, plan: item.plan.clone(), rows });
            self.at_work = Some(item);
        }
        Ok(actions)
    }

    fn frame(&mut self, frame: Frame) -> Result<(), RingError> {
        if let Some(mut item) = self.half.take() {
            hop::expect(&frame, Kind::Rows, item.round)?;
            let rows = frame.into_rows(item.plan.rows(), self.terms.hidden);
            item.rows = rows.map_err(|error| RingError::Wire { from: self.before(), error })?;
            return self.whole(item);
        }
        hop::expect(&frame, Kind::Plan, Round(self.came + 1))?;
        self.came += 1;
        let plan = Plan::decode(&frame.payload)
            .map_err(|error| RingError::Wire { from: Rank(0), error })?;
        let item = Item { round: frame.round, plan, payload: frame.payload, rows: Vec::new() };
        if item.plan.rows() == 0 {
            return self.whole(item);
        }
        self.half = Some(item);
        Ok(())
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

    fn computed(
        &mut self,
        values: Vec<f32>,
        held: &[bool],
        actions: &mut Vec<Action>,
    ) -> Result<(), RingError> {
        let mut item = self.at_work.take().expect("the device was given a round");
        if !item.plan.keeps.is_empty() {
            for (keep, held) in item.plan.keeps.iter_mut().zip(held) {
                keep.held &= held;
            }
            item.payload = item.plan.encode()?;
        }
        self.done = item.round.0;
        let hop = Hop::of(self.terms.rank.0, self.terms.world);
        let (frames, room) =
            hop::frames(item.round, &item.plan, item.payload, hop, values, self.terms.hidden);
        actions.extend(frames.into_iter().map(Action::Send).chain(room.map(Action::Free)));
        Ok(())
    }

    /// The rank whose frames arrive here.
    fn before(&self) -> Rank {
        Rank((self.terms.rank.0 + self.terms.world - 1) % self.terms.world)
    }
}

#[cfg(test)]
mod tests;
