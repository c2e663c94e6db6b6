//! Rank 0's rounds in one epoch: issued as the streams and the depth allow, landed in order, turned
//! into tokens.

use std::collections::VecDeque;
use std::time::Duration;

use arith::base::{Epoch, Rank, Round as Number, StreamId};
use sched::{Limits, Pace, Refusal, Request, RequestId, Round, Scheduler};
use wire::cancel::Cancel;
use wire::control::Agree;
use wire::frame::{Frame, Kind};
use wire::plan::{Mode, Plan};

use super::timing::Timing;
use super::{Action, Computed, Event, Now, Rows, Stepped};
use crate::error::RingError;
use crate::hop::{self, Hop};

/// A round is late after this many times the slowest round so far, and never before
/// [`STALL_FLOOR`].
const STALL_ROUNDS: u32 = 50;
/// Least patience with a round.
const STALL_FLOOR: Duration = Duration::from_secs(60);

/// What rank 0 knows of its ring and model.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// Ranks.
    pub world: u32,
    /// The ring's life.
    pub epoch: Epoch,
    /// Values of a boundary row.
    pub hidden: usize,
    /// Logits of a row.
    pub vocab: usize,
    /// Rows whose time a chunk takes rank 0's device beside that of its own rows.
    pub chunk_cost_rows: u32,
}

/// Rank 0's state in one epoch.
#[derive(Debug)]
pub struct Lead {
    /// Who computes what when.
    pub sched: Scheduler,
    ring: Ring,
    flying: VecDeque<Flight>,
    device: Device,
    timing: Timing,
    /// When a round came back last.
    came: Option<Now>,
    landed: u64,
    /// Rounds with rows that came back, and what they took in all.
    trips: (u64, Duration),
    slowest: Duration,
}

/// What rank 0's device does.
#[derive(Debug, PartialEq, Eq)]
enum Device {
    Idle,
    /// The newest flight, since then.
    Stage(Now),
    /// The oldest flight's rows.
    Head,
    /// Jobs of the draft head, since then: their streams, and the tokens that they guess in all.
    Draft(Now, Vec<StreamId>, u32),
}

/// One round in the air.
#[derive(Debug)]
struct Flight {
    round: Round,
    /// Given to rank 0's stage.
    since: Now,
    /// Sent to the next rank.
    sent: Option<Now>,
    /// Alone in the ring when it was.
    is_alone: bool,
    back: Back,
}

/// What of a flight has come back.
#[derive(Debug, PartialEq)]
enum Back {
    Nothing,
    Plan,
    Rows(Vec<f32>),
    /// Everything; rows that are on the device.
    Taken(Vec<f32>),
}

impl Lead {
    /// An epoch before its first round.
    pub fn new(ring: Ring, agree: &Agree, queue_max: u32) -> Self {
        let mut lead = Self {
            sched: Scheduler::new(limits(agree, queue_max)),
            ring,
            flying: VecDeque::new(),
            device: Device::Idle,
            timing: Timing::default(),
            came: None,
            landed: 0,
            trips: (0, Duration::ZERO),
            slowest: Duration::ZERO,
        };
        lead.sched.set_pace(lead.pace());
        lead
    }

    fn pace(&self) -> Pace {
        self.timing.pace(self.ring.world, self.ring.chunk_cost_rows)
    }

    /// Takes a request in; an [`Event::Look`] has it computed.
    ///
    /// # Errors
    /// The scheduler's refusals, and tokens outside the vocabulary.
    pub fn submit(&mut self, id: RequestId, request: Request) -> Result<(), Refusal> {
        let vocab = u32::try_from(self.ring.vocab).unwrap_or(u32::MAX);
        match request.prompt.iter().find(|&&id| id >= vocab) {
            Some(&id) => Err(Refusal::OtherToken { id, vocab }),
            None => self.sched.submit(id, request),
        }
    }

    /// Takes a request back; its rows in rounds still queued need no computing. Its owner, if
    /// still there, hears that it is over.
    pub fn cancel(&mut self, id: RequestId) -> Vec<Action> {
        let ended = self.sched.cancel(id).map(|event| Action::Tell(id, event));
        let cancel = |stream| Cancel { origin: Rank(0), stream, epoch: self.ring.epoch };
        let streams = self.sched.cancelled().into_iter();
        let frames = streams.map(|stream| Action::Send(Frame::cancel(&cancel(stream))));
        frames.chain(ended).collect()
    }

    /// Rounds that came back.
    pub fn landed(&self) -> u64 {
        self.landed
    }

    /// Rounds with rows that came back, and what they took in all, from their start on rank 0.
    pub fn trips(&self) -> (u64, Duration) {
        self.trips
    }

    /// Whether nothing waits, runs or flies.
    pub fn is_idle(&self) -> bool {
        self.sched.idle() && self.flying.is_empty()
    }

    /// The round on the device (0 when idle) and the rounds done.
    pub fn progress(&self) -> (Number, u64) {
        let at_work = match &self.device {
            Device::Idle => None,
            Device::Stage(_) => self.flying.back(),
            Device::Head => self.flying.front(),
            Device::Draft(..) => None,
        };
        (at_work.map_or(Number(0), |flight| flight.round.number), self.landed)
    }

    /// When the oldest round in the air counts as stalled.
    pub fn deadline(&self) -> Option<Now> {
        self.flying.front().map(|flight| flight.since + self.patience())
    }

    /// The error of a deadline that has passed.
    pub fn stalled(&self) -> RingError {
        let round = self.flying.front().map_or(Number(0), |flight| flight.round.number);
        RingError::StageStalled { round, waited: self.patience() }
    }

    fn patience(&self) -> Duration {
        STALL_FLOOR.max(self.slowest * STALL_ROUNDS)
    }

    /// Moves by one event. Rows that are back go before new rounds: their tokens are what others
    /// wait for.
    ///
    /// # Errors
    /// What ends the epoch: a frame out of turn, of another round or not of this protocol.
    pub fn step(&mut self, now: Now, event: Event) -> Stepped {
        let mut actions = Vec::new();
        match event {
            Event::Frame(frame) => self.frame(now, frame)?,
            Event::Computed(computed) => match std::mem::replace(&mut self.device, Device::Idle) {
                Device::Stage(since) => actions.extend(self.sent(now, since, computed)?),
                Device::Head => self.finish(now, computed.values, &mut actions),
                other => panic!("the device was given {other:?}"),
            },
            Event::Drafted(guesses) => self.drafted(now, guesses),
            Event::Look => {}
        }
        if self.device == Device::Idle {
            self.land(now, &mut actions);
        }
        if self.device == Device::Idle {
            self.issue(now, &mut actions);
        }
        Ok(actions)
    }

    /// Takes a frame that came back.
    fn frame(&mut self, now: Now, frame: Frame) -> Result<(), RingError> {
        if frame.kind == Kind::Cancel {
            return Ok(());
        }
        let is_idle = self.device == Device::Idle;
        let at_work = usize::from(matches!(self.device, Device::Stage(_)));
        let sent = self.flying.len() - at_work;
        let out = |flight: &&mut Flight| match &flight.back {
            Back::Nothing => true,
            Back::Plan => !flight.round.wanted.is_empty(),
            Back::Rows(_) | Back::Taken(_) => false,
        };
        let Some(flight) = self.flying.iter_mut().take(sent).find(out) else {
            return Err(RingError::OutOfTurn {
                expected: "no frame, since no round is in flight".into(),
                found: format!("{:?} of round {}", frame.kind, frame.round),
            });
        };
        let number = flight.round.number;
        let wanted = flight.round.plan.wanted().len();
        if flight.back == Back::Plan {
            hop::expect(&frame, Kind::Rows, number)?;
            flight.back = Back::Rows(frame.into_rows(wanted, self.ring.hidden)?);
        } else {
            hop::expect(&frame, Kind::Plan, number)?;
            let echo = Plan::decode(&frame.payload)?;
            if !echo.echoes(&flight.round.plan) {
                return Err(RingError::OutOfTurn {
                    expected: format!("the echo of round {number}"),
                    found: "a changed plan".into(),
                });
            }
            // What some stage could not keep comes back as not held.
            flight.round.plan.keeps = echo.keeps;
            flight.back = Back::Plan;
        }
        let is_whole = wanted == 0 || flight.back != Back::Plan;
        let (rows, sent, is_alone) =
            (flight.round.plan.rows(), flight.sent.unwrap_or(now), flight.is_alone);
        if is_whole && rows > 0 {
            let before = self.came.replace(now);
            if is_alone && is_idle {
                self.timing.rest(rows, now.saturating_sub(sent));
            } else if let Some(before) = before.filter(|before| sent < *before) {
                self.timing.flow(rows, now.saturating_sub(before));
            }
            self.sched.set_pace(self.pace());
        }
        Ok(())
    }

    /// Finishes the oldest rounds that are back, up to one that the device has to do with.
    fn land(&mut self, now: Now, actions: &mut Vec<Action>) {
        while self.device == Device::Idle
            && let Some(flight) = self.flying.front_mut()
        {
            match std::mem::replace(&mut flight.back, Back::Nothing) {
                Back::Plan if flight.round.wanted.is_empty() => {
                    self.finish(now, Vec::new(), actions);
                }
                Back::Rows(rows) => {
                    let heads = head_rows(&flight.round, &rows, self.ring.hidden);
                    flight.back = Back::Taken(rows);
                    if heads.is_empty() {
                        self.finish(now, Vec::new(), actions);
                    } else {
                        let (round, best) = (flight.round.number, flight.round.best());
                        actions.push(Action::Head { round, rows: heads, best });
                        self.device = Device::Head;
                    }
                }
                back => {
                    flight.back = back;
                    return;
                }
            }
        }
    }

    fn finish(&mut self, now: Now, logits: Vec<f32>, actions: &mut Vec<Action>) {
        let is_plain = |flight: &Flight| flight.round.plan.mode == Mode::Window;
        let is_window = self.flying.iter().all(is_plain);
        let flight = self.flying.pop_front().expect("a round is back");
        self.landed = flight.round.number.0;
        let taken = now.saturating_sub(flight.since);
        self.slowest = self.slowest.max(taken);
        let rows = flight.round.plan.rows();
        if rows > 0 {
            self.trips = (self.trips.0 + 1, self.trips.1 + taken);
        }
        if is_window && rows > 0 {
            self.sched.prices().round(rows as u32, nanos(taken));
        }
        self.sched.echo(&flight.round.plan.keeps);
        let events = self.sched.complete(flight.round.number, &logits, self.ring.vocab);
        actions.extend(events.into_iter().map(|(id, event)| Action::Tell(id, event)));
        let jobs = self.sched.draft_jobs();
        if let (Back::Taken(rows), false) = (flight.back, jobs.is_empty()) {
            let ids = jobs.iter().map(|job| job.id).collect();
            let steps = jobs.iter().map(|job| job.chain).sum();
            self.device = Device::Draft(now, ids, steps);
            actions.push(Action::Draft { jobs, rows });
        }
    }

    /// The draft head is done.
    fn drafted(&mut self, now: Now, guesses: Vec<Vec<u32>>) {
        let device = std::mem::replace(&mut self.device, Device::Idle);
        let Device::Draft(since, ids, steps) = device else {
            panic!("the device was given {device:?}");
        };
        assert_eq!(ids.len(), guesses.len(), "guesses of each job");
        self.sched.prices().chains(steps, nanos(now.saturating_sub(since)));
        ids.into_iter().zip(guesses).for_each(|(id, tokens)| self.sched.drafted(id, tokens));
    }

    /// Gives the device the next round.
    fn issue(&mut self, now: Now, actions: &mut Vec<Action>) {
        let Some(round) = self.sched.next_round() else { return };
        let rows = Rows::Tokens(round.tokens.clone());
        actions.push(Action::Stage { round: round.number, plan: round.plan.clone(), rows });
        self.device = Device::Stage(now);
        let flight = Flight { round, since: now, sent: None, is_alone: false, back: Back::Nothing };
        self.flying.push_back(flight);
    }

    /// Rank 0's stage is done with the newest round.
    fn sent(&mut self, now: Now, since: Now, computed: Computed) -> Stepped {
        let is_alone = self.flying.len() == 1;
        let flight = self.flying.back_mut().expect("the device was given a round");
        for (keep, held) in flight.round.plan.keeps.iter_mut().zip(&computed.held) {
            keep.held &= held;
        }
        let payload = flight.round.plan.encode()?;
        let (plan, number) = (&flight.round.plan, flight.round.number);
        let hop = Hop::of(0, self.ring.world);
        let actions = hop::onward(number, plan, payload, hop, computed, self.ring.hidden);
        (flight.sent, flight.is_alone) = (Some(now), is_alone);
        if plan.rows() > 0 {
            self.timing.own(plan.rows(), now.saturating_sub(since));
            self.sched.set_pace(self.pace());
        }
        Ok(actions)
    }
}

/// Of the rows that came back those that go through the head.
fn head_rows(round: &Round, rows: &[f32], hidden: usize) -> Vec<f32> {
    let heads = round.heads().into_iter();
    heads.flat_map(|range| &rows[range.start * hidden..range.end * hidden]).copied().collect()
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
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
