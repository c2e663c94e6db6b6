//! The order in which rank 0 looks at what is there: commands, frames, then the device.

use sched::Request;

use super::{Action, Computed, Event, Lead, Now, Stepped, Want};
use crate::canary::CANARY;
use crate::error::RingError;
use crate::inbox::{self, Wake};
use crate::link::Inbound;

/// What is looked at next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Commands, until there are none.
    Commands,
    /// The inbox, until it is empty.
    Inbox,
    /// The device, or sleep.
    Turn,
}

/// Rank 0's turns in one epoch.
#[derive(Debug)]
pub(super) struct Turns {
    pub(super) lead: Lead,
    /// Whether commands are taken.
    pub(super) hears: bool,
    at: At,
    /// What the device is to do next.
    work: Option<Action>,
    /// What the device has done, and when.
    done: Option<(Now, Event)>,
    /// A poke was taken from the inbox, and commands may have come since they were last looked at.
    poked: bool,
}

impl Turns {
    /// Without commands at first.
    pub(super) fn new(lead: Lead) -> Self {
        Self { lead, hears: false, at: At::Commands, work: None, done: None, poked: false }
    }

    /// Starts over by looking at everything.
    pub(super) fn look(&mut self) {
        self.at = At::Commands;
    }

    /// Has the ring's own request computed.
    ///
    /// # Errors
    /// `CanaryRefused`.
    pub(super) fn fly(&mut self, request: Request) -> Result<(), RingError> {
        let verdict = self.lead.submit(CANARY, request);
        verdict.map_err(|refusal| RingError::CanaryRefused(refusal.to_string()))?;
        self.look();
        Ok(())
    }

    pub(super) fn want(&mut self) -> Want {
        loop {
            match self.at {
                At::Commands if self.hears => return Want::Command,
                At::Commands => self.at = At::Inbox,
                At::Inbox => return Want::Inbox,
                At::Turn => match self.work.take() {
                    Some(work) => return Want::Compute(work),
                    None if std::mem::take(&mut self.poked) => self.at = At::Commands,
                    None => return Want::Sleep(self.lead.deadline()),
                },
            }
        }
    }

    /// There are no more commands.
    pub(super) fn no_command(&mut self) {
        self.at = At::Inbox;
    }

    /// Whether all that was there has been looked at.
    pub(super) fn has_looked(&self) -> bool {
        self.at == At::Turn
    }

    /// What the inbox held; `None` when it was empty, or when nothing came in time.
    ///
    /// # Errors
    /// What ends the epoch.
    pub(super) fn inbox(&mut self, now: Now, item: Option<Inbound>) -> Stepped {
        let slept = self.at == At::Turn;
        if slept {
            self.at = At::Commands;
        }
        match item.map(inbox::woken).transpose()? {
            Some(Wake::Frame(frame)) => self.step(now, Event::Frame(frame)),
            Some(Wake::Poke) => {
                self.poked |= !slept;
                Ok(Vec::new())
            }
            None if slept => Err(self.lead.stalled()),
            None => match self.done.take() {
                Some((at, computed)) => {
                    self.at = At::Commands;
                    self.step(at, computed)
                }
                None => {
                    self.at = At::Turn;
                    if self.work.is_some() {
                        return Ok(Vec::new());
                    }
                    self.step(now, Event::Look)
                }
            },
        }
    }

    /// The device is done. What came meanwhile is known before the next work is chosen.
    pub(super) fn computed(&mut self, now: Now, computed: Computed) {
        self.done = Some((now, Event::Computed(computed)));
        self.at = At::Inbox;
    }

    /// The device has guessed.
    pub(super) fn drafted(&mut self, now: Now, guesses: Vec<Vec<u32>>) {
        self.done = Some((now, Event::Drafted(guesses)));
        self.at = At::Inbox;
    }

    fn step(&mut self, now: Now, event: Event) -> Result<Vec<Action>, RingError> {
        let mut actions = self.lead.step(now, event)?;
        let is_work = |action: &Action| {
            matches!(action, Action::Stage { .. } | Action::Head { .. } | Action::Draft { .. })
        };
        if let Some(at) = actions.iter().position(is_work) {
            assert!(self.work.is_none(), "the device does one thing at a time");
            self.work = Some(actions.remove(at));
        }
        Ok(actions)
    }
}

#[cfg(test)]
mod tests {
    use arith::base::Epoch;
    use wire::control::{Agree, Fields, Shapes};

    use super::*;
    use crate::step::Ring;

    #[test]
    fn a_command_that_comes_while_frames_are_taken_is_not_slept_over() {
        let shapes = Shapes {
            chunk_rows_max: 8,
            round_rows_max: 8,
            streams_max: 1,
            context_max: 64,
            pages: 4,
        };
        let agree = Agree { shapes, depth: 1, settings: Fields::new() };
        let ring = Ring { world: 1, epoch: Epoch(1), hidden: 8, vocab: 64, chunk_cost_rows: 0 };
        let mut turns = Turns { hears: true, ..Turns::new(Lead::new(ring, &agree, 1)) };
        assert_eq!(turns.want(), Want::Command);
        turns.no_command();
        // A command comes now: its poke is the only sign of it.
        assert_eq!(turns.want(), Want::Inbox);
        assert!(turns.inbox(Now::ZERO, Some(Inbound::Poke)).is_ok());
        assert!(turns.inbox(Now::ZERO, None).is_ok());
        assert_eq!(turns.want(), Want::Command);
        turns.no_command();
        assert!(turns.inbox(Now::ZERO, None).is_ok());
        assert_eq!(turns.want(), Want::Sleep(None));
    }
}
