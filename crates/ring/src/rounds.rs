//! Rank 0's rounds in one epoch, on its threads: [`Lead`] between the links, the device and the
//! owners of the requests.

use std::collections::HashMap;
use std::time::Instant;

use arith::base::Rank;
use sched::{Event as Heard, Refusal, Request, RequestId};
use stage::{Engine, Input};
use wire::control::Agree;

use crate::error::RingError;
use crate::inbox::{self, Wake};
use crate::link::Neighbours;
use crate::step::{Action, Event, Lead, Now, Ring, Rows};

/// Who hears of which request.
pub(crate) type Owners = HashMap<RequestId, tokio::sync::mpsc::Sender<Heard>>;

/// The rounds of one epoch: what is in the air, and who hears of it.
pub(crate) struct Rounds<'a> {
    pub(crate) links: &'a Neighbours,
    pub(crate) engine: &'a mut dyn Engine,
    pub(crate) lead: Lead,
    pub(crate) pages: u32,
    pub(crate) owners: Owners,
    /// Some reply got a token.
    pub(crate) progressed: bool,
    start: Instant,
    /// What the device is to do next.
    work: Option<Action>,
    /// A poke was taken from the inbox, and commands may have come since they were last looked at.
    poked: bool,
}

impl<'a> Rounds<'a> {
    pub(crate) fn new(
        links: &'a Neighbours,
        engine: &'a mut dyn Engine,
        world: u32,
        agree: &Agree,
        queue_max: u32,
    ) -> Self {
        let (hidden, vocab) = (engine.hidden(), engine.vocab());
        let ring = Ring { world, epoch: links.epoch, hidden, vocab };
        Self {
            links,
            engine,
            lead: Lead::new(ring, agree, queue_max),
            pages: agree.shapes.pages,
            owners: HashMap::new(),
            progressed: false,
            start: Instant::now(),
            work: None,
            poked: false,
        }
    }

    pub(crate) fn submit(&mut self, id: RequestId, request: Request) -> Result<(), Refusal> {
        self.lead.submit(id, request)
    }

    /// Takes a request back; its rows in rounds still queued need no computing.
    pub(crate) fn cancel(&mut self, id: RequestId) -> Result<(), RingError> {
        let actions = self.lead.cancel(id);
        self.owners.remove(&id);
        self.perform(actions)
    }

    /// Takes what is there and finds the device something to do.
    pub(crate) fn look(&mut self) -> Result<(), RingError> {
        self.receive()?;
        if self.work.is_none() {
            self.step(self.now(), Event::Look)?;
        }
        Ok(())
    }

    /// Has the device do what was found, or waits for something to happen.
    pub(crate) fn turn(&mut self) -> Result<(), RingError> {
        if let Some(work) = self.work.take() {
            let (values, held) = self.compute(work)?;
            let now = self.now();
            // What came meanwhile is known before the next work is chosen.
            self.receive()?;
            return self.step(now, Event::Computed { values, held });
        }
        if std::mem::take(&mut self.poked) {
            return Ok(());
        }
        let deadline = self.lead.deadline().map(|at| self.start + at);
        match inbox::wait(&self.links.inbound, deadline)? {
            Wake::Frame(frame) => self.step(self.now(), Event::Frame(frame)),
            Wake::Poke => Ok(()),
            Wake::Late => Err(self.lead.stalled()),
        }
    }

    fn now(&self) -> Now {
        self.start.elapsed()
    }

    fn receive(&mut self) -> Result<(), RingError> {
        while let Some(wake) = inbox::poll(&self.links.inbound)? {
            match wake {
                Wake::Frame(frame) => self.step(self.now(), Event::Frame(frame))?,
                Wake::Poke | Wake::Late => self.poked = true,
            }
        }
        Ok(())
    }

    fn step(&mut self, now: Now, event: Event) -> Result<(), RingError> {
        let actions = self.lead.step(now, event)?;
        let (round, done) = self.lead.progress();
        self.links.set_progress(round, done);
        self.perform(actions)
    }

    fn perform(&mut self, actions: Vec<Action>) -> Result<(), RingError> {
        for action in actions {
            match action {
                Action::Send(frame) => self.links.outbound.send(frame)?,
                Action::Skip(stream) => self.engine.skip(stream),
                Action::Tell(id, event) => self.tell(id, event),
                work => {
                    assert!(self.work.is_none(), "the device does one thing at a time");
                    self.work = Some(work);
                }
            }
        }
        Ok(())
    }

    fn compute(&mut self, work: Action) -> Result<(Vec<f32>, Vec<bool>), RingError> {
        let mut values = Vec::new();
        let done = match &work {
            Action::Stage { plan, rows: Rows::Tokens(tokens), .. } => {
                self.engine.step(plan, Input::Tokens(tokens), &mut values)
            }
            Action::Head { rows, .. } => self.engine.logits(rows, &mut values),
            other => unreachable!("rank 0's device has no {other:?}"),
        };
        done.map_err(|error| RingError::Stage { rank: Rank(0), error })?;
        Ok((values, self.engine.held().to_vec()))
    }

    /// Hands an event to its owner; a channel holds a whole reply, so none ever waits.
    fn tell(&mut self, id: RequestId, event: Heard) {
        let is_last = matches!(event, Heard::Done { .. } | Heard::Failed(_));
        self.progressed |= matches!(event, Heard::Token { .. });
        if let Some(owner) = self.owners.get(&id) {
            let _ = owner.try_send(event);
        }
        if is_last {
            self.owners.remove(&id);
        }
    }

    /// Hands events to their owners.
    pub(crate) fn tell_all(&mut self, events: Vec<(RequestId, Heard)>) {
        events.into_iter().for_each(|(id, event)| self.tell(id, event));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use arith::base::Epoch;
    use stage::{Fake, FakeConfig};
    use wire::control::{Fields, Shapes};

    use super::*;
    use crate::memory;

    #[test]
    fn a_command_that_comes_while_frames_are_taken_is_not_slept_over() {
        let (done, heard) = mpsc::channel();
        std::thread::spawn(move || {
            let links = memory::ring(1, Epoch(1)).remove(0);
            let mut engine = Fake::new(FakeConfig::small(0..8, true));
            let shapes = Shapes {
                chunk_rows_max: 8,
                round_rows_max: 8,
                streams_max: 1,
                context_max: 64,
                pages: 4,
            };
            let agree = Agree { shapes, depth: 1, settings: Fields::new() };
            let mut rounds = Rounds::new(&links, &mut engine, 1, &agree, 1);
            // A command comes after the leader has looked for commands.
            links.waker.wake();
            rounds.look().unwrap();
            rounds.turn().unwrap();
            done.send(()).unwrap();
        });
        heard.recv_timeout(Duration::from_secs(20)).expect("rank 0 waits for ever");
    }
}
