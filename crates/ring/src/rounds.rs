//! Rank 0's rounds in one epoch: issued as the streams and the depth allow, landed in order, turned
//! into tokens.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use arith::base::Rank;
use sched::{Event, Failure, Limits, Refusal, RequestId, Round, Scheduler};
use stage::{Engine, Input};
use wire::cancel::Cancel;
use wire::control::Agree;
use wire::frame::{Frame, Kind};
use wire::plan::Plan;

use crate::error::RingError;
use crate::hop::{self, Hop};
use crate::link::Neighbours;

/// A round is late after this many times the slowest round so far, and never before
/// [`STALL_FLOOR`].
const STALL_ROUNDS: u32 = 50;
/// Least patience with a round.
const STALL_FLOOR: Duration = Duration::from_secs(60);

/// The rounds of one epoch: what is in the air, and who hears of it.
pub(crate) struct Rounds<'a> {
    pub(crate) links: &'a Neighbours,
    pub(crate) engine: &'a mut dyn Engine,
    pub(crate) sched: Scheduler,
    pub(crate) pages: u32,
    hop: Hop,
    pub(crate) owners: HashMap<RequestId, tokio::sync::mpsc::Sender<Event>>,
    pub(crate) flying: VecDeque<Flight>,
    pub(crate) landed: u64,
    slowest: Duration,
    rows: Vec<f32>,
    logits: Vec<f32>,
}

/// One round in the air.
pub(crate) struct Flight {
    round: Round,
    since: Instant,
    /// The plan has come back, its rows have not.
    echoed: bool,
}

impl<'a> Rounds<'a> {
    pub(crate) fn new(
        links: &'a Neighbours,
        engine: &'a mut dyn Engine,
        world: u32,
        agree: &Agree,
        queue_max: u32,
    ) -> Self {
        Self {
            links,
            engine,
            sched: Scheduler::new(limits(agree, queue_max)),
            pages: agree.shapes.pages,
            hop: Hop::of(0, world),
            owners: HashMap::new(),
            flying: VecDeque::new(),
            landed: 0,
            slowest: Duration::ZERO,
            rows: Vec::new(),
            logits: Vec::new(),
        }
    }

    pub(crate) fn submit(&mut self, id: RequestId, request: sched::Request) -> Result<(), Refusal> {
        let vocab = u32::try_from(self.engine.vocab()).unwrap_or(u32::MAX);
        match request.prompt.iter().find(|&&id| id >= vocab) {
            Some(&id) => Err(Refusal::OtherToken { id, vocab }),
            None => self.sched.submit(id, request),
        }
    }

    /// Takes a request back; its rows in rounds still queued need no computing.
    pub(crate) fn cancel(&mut self, id: RequestId) -> Result<(), RingError> {
        let _ = self.sched.cancel(id); // its owner is gone
        self.owners.remove(&id);
        for stream in self.sched.cancelled() {
            let cancel = Cancel { origin: Rank(0), stream, epoch: self.links.epoch };
            self.links.outbound.send(Frame::cancel(&cancel))?;
        }
        Ok(())
    }

    /// Issues every round that the streams and the depth allow.
    pub(crate) fn issue(&mut self) -> Result<(), RingError> {
        while let Some(mut round) = self.sched.next_round() {
            let since = Instant::now();
            self.engine
                .step(&round.plan, Input::Tokens(&round.tokens), &mut self.rows)
                .map_err(|error| RingError::Stage { rank: Rank(0), error })?;
            for (keep, held) in round.plan.keeps.iter_mut().zip(self.engine.held()) {
                keep.held &= held;
            }
            let payload = round.plan.encode()?;
            self.links.set_progress(round.number, self.landed);
            let (plan, number) = (&round.plan, round.number);
            let hidden = self.engine.hidden();
            hop::send(&self.links.outbound, number, plan, payload, self.hop, &self.rows, hidden)?;
            self.flying.push_back(Flight { round, since, echoed: false });
        }
        Ok(())
    }

    /// Takes a frame that came back; a whole round becomes tokens.
    pub(crate) fn land(&mut self, frame: Frame) -> Result<(), RingError> {
        if frame.kind == Kind::Cancel {
            return Ok(());
        }
        let Some(flight) = self.flying.front_mut() else {
            return Err(RingError::OutOfTurn {
                expected: "no frame, since no round is in flight".into(),
                found: format!("{:?} of round {}", frame.kind, frame.round),
            });
        };
        let wanted = flight.round.plan.wanted().len();
        let number = flight.round.number;
        if !flight.echoed {
            hop::expect(&frame, Kind::Plan, number)?;
            if !Plan::decode(&frame.payload)?.echoes(&flight.round.plan) {
                return Err(RingError::OutOfTurn {
                    expected: format!("the echo of round {number}"),
                    found: "a changed plan".into(),
                });
            }
            flight.echoed = true;
            if wanted == 0 {
                self.finish(&[]);
            }
            return Ok(());
        }
        hop::expect(&frame, Kind::Rows, number)?;
        let rows = wire::rows::decode(&frame.payload, wanted, self.engine.hidden())?;
        let mut logits = std::mem::take(&mut self.logits);
        self.engine
            .logits(&rows, &mut logits)
            .map_err(|error| RingError::Stage { rank: Rank(0), error })?;
        self.finish(&logits);
        self.logits = logits;
        Ok(())
    }

    fn finish(&mut self, logits: &[f32]) {
        let Some(flight) = self.flying.pop_front() else {
            return;
        };
        self.landed = flight.round.number.0;
        self.links.set_progress(flight.round.number, self.landed);
        self.slowest = self.slowest.max(flight.since.elapsed());
        let events = self.sched.complete(flight.round.number, logits, self.engine.vocab());
        self.tell(events);
    }

    /// Hands events to their owners; a channel holds a whole reply, so none ever waits.
    pub(crate) fn tell(&mut self, events: Vec<(RequestId, Event)>) {
        for (id, event) in events {
            let last = matches!(event, Event::Done { .. } | Event::Failed(_));
            if let Some(owner) = self.owners.get(&id) {
                let _ = owner.try_send(event);
            }
            if last {
                self.owners.remove(&id);
            }
        }
    }

    pub(crate) fn fail_all(&mut self, failure: Failure) {
        let events = self.sched.fail_all(&failure);
        self.tell(events);
    }

    /// When the oldest round in the air counts as stalled.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.flying.front().map(|f| f.since + self.patience())
    }

    fn patience(&self) -> Duration {
        STALL_FLOOR.max(self.slowest * STALL_ROUNDS)
    }

    pub(crate) fn stalled(&self) -> RingError {
        let round = self.flying.front().map_or(arith::base::Round(0), |f| f.round.number);
        RingError::StageStalled { round, waited: self.patience() }
    }
}

fn limits(agree: &Agree, queue_max: u32) -> Limits {
    let shapes = &agree.shapes;
    Limits {
        streams_max: shapes.streams_max,
        queue_max,
        chunk_rows_max: shapes.chunk_rows_max,
        round_rows_max: shapes.round_rows_max,
        context_max: shapes.context_max,
        pages: shapes.pages,
        depth: agree.depth,
    }
}
