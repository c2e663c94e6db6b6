//! Rank 0, on its threads: [`Leading`] between the server, the links, the stage and the owners of
//! the requests.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use arith::base::{Epoch, Rank};
use sched::{Caching, DraftJob, Drafters, Event as Heard, Refusal, RequestId};
use stage::{Chain, Engine, StageError};
use tokio::sync::oneshot;
use wire::control::{Describe, Shapes};
use wire::describe::ARITH_OWN;
use wire::layout::Layout;

pub use crate::boot::ModelFacts;
use crate::boot::{BootTimes, Terms};
use crate::canary::Canary;
use crate::carry::{Carry, Owners};
use crate::error::RingError;
use crate::follow;
use crate::head::{Command, Driver, Facts, RingState, Seat, Tally};
use crate::inbox;
use crate::join::Join;
use crate::link::Neighbours;
use crate::span::Spans;
use crate::step::{self, Action, Asked, Computed, Leading, Now, Stepped, Want};
use crate::tally::{TALLY_EVERY, resident_bytes};

/// Rank 0's facts and its way to its neighbours.
pub struct Leader<J> {
    /// What it says of itself.
    pub describe: Describe,
    /// Who holds what.
    pub layout: Layout,
    /// What it knows of the model.
    pub model: ModelFacts,
    /// Its wishes; the ring agrees on the minimum over ranks.
    pub shapes: Shapes,
    /// Rounds in flight.
    pub depth: u32,
    /// Whether ranks may compute functions of their own.
    pub mixed: bool,
    /// Deadlines of a boot.
    pub times: BootTimes,
    /// Most requests waiting.
    pub queue_max: u32,
    /// Who guesses tokens ahead; the draft head only where the engine has one.
    pub drafters: Drafters,
    /// The token that proves the ring before it serves.
    pub canary: Canary,
    /// What is kept of prompts for later ones.
    pub caching: Caching,
    /// How long requests wait for a ring that broke; 0 fails them at once.
    pub patience: Duration,
    /// Makes links.
    pub join: J,
    /// Commands in, state out.
    pub driver: Driver,
}

/// Rank 0 at work.
struct Desk<'a, J> {
    leader: Leader<J>,
    engine: &'a mut dyn Engine,
    core: Leading,
    /// Of the epoch.
    links: Option<Neighbours>,
    carry: Carry,
    owners: Owners,
    /// Requests whose verdict is due.
    asked: HashMap<RequestId, Owner>,
    /// How long the device has computed, and how long there was work in the ring.
    computed: Duration,
    /// What of it was before this epoch.
    computed_before: Duration,
    at_work: Duration,
    start: Instant,
    /// The ranks of this epoch.
    seats: Arc<[Seat]>,
    /// Bytes that this process had in memory, and when.
    memory: Option<(Instant, u64)>,
    /// Of this epoch's streams.
    spans: Spans,
}

/// How a new request's owner hears its verdict, and what follows.
struct Owner {
    events: tokio::sync::mpsc::Sender<Heard>,
    answer: oneshot::Sender<Result<(), Refusal>>,
}

impl<J: Join> Leader<J> {
    /// Serves until drained. A broken epoch is followed by a new one, in which its replies go on;
    /// they fail by name where none comes in time. A ring that is left
    /// ([`crate::head::Handle::leave`]) gives the driver back, and what is not answered with it,
    /// for the next leader.
    pub fn run(mut self, engine: &mut dyn Engine) -> Option<Driver> {
        let facts = step::Facts {
            own: self.describe.clone(),
            terms: Terms {
                layout: self.layout.clone(),
                model: self.model.clone(),
                shapes: self.shapes,
                depth: self.depth,
                mixed: self.mixed,
            },
            times: self.times,
            queue_max: self.queue_max,
            caching: self.caching,
            drafters: Drafters { mtp: self.drafters.mtp && engine.drafts(), ..self.drafters },
            waits: !self.patience.is_zero(),
            hidden: engine.hidden(),
            vocab: engine.vocab(),
            chunk_cost_rows: engine.chunk_cost_rows(),
            canary: self.canary.prompt.clone(),
            known: self.canary.known(),
        };
        let carry = self.driver.carry.take();
        let carry = carry.unwrap_or_else(|| Carry::new(self.patience, self.driver.published()));
        let desk = Desk {
            leader: self,
            engine,
            core: Leading::new(facts),
            links: None,
            carry,
            owners: Owners::new(),
            asked: HashMap::new(),
            computed: Duration::ZERO,
            computed_before: Duration::ZERO,
            at_work: Duration::ZERO,
            start: Instant::now(),
            seats: Arc::default(),
            memory: None,
            spans: Spans::default(),
        };
        desk.run()
    }
}

impl<J: Join> Desk<'_, J> {
    fn run(mut self) -> Option<Driver> {
        loop {
            if self.leader.driver.draining() {
                self.core.drains();
            } else if self.leader.driver.leaving() {
                return Some(self.leave());
            }
            let want = self.core.want(self.now());
            if want == Want::End {
                return None;
            }
            let at_work = self.core.lead().is_some_and(|lead| !lead.is_idle());
            let since = self.now();
            let stepped = self.answer(want).and_then(|actions| self.perform(actions));
            if at_work {
                self.at_work += self.now().saturating_sub(since);
            }
            if let Err(error) = stepped {
                self.broke(error);
            }
        }
    }

    /// Ends the epoch, if there is one; its requests wait for the next ring.
    fn leave(mut self) -> Driver {
        if self.links.is_some() {
            self.broke(RingError::Replanned);
        }
        self.leader.driver.carry = Some(self.carry);
        self.leader.driver
    }

    fn now(&self) -> Now {
        self.start.elapsed()
    }

    /// Does what the core waits for.
    fn answer(&mut self, want: Want) -> Stepped {
        match want {
            Want::Join => self.join(),
            Want::Command => {
                let command = match self.leader.driver.commands.try_recv() {
                    Ok(command) => self.asked(command),
                    Err(TryRecvError::Disconnected) => Some(Asked::Drain),
                    Err(TryRecvError::Empty) => None,
                };
                self.core.command(command)
            }
            Want::Pause(until) => {
                let left = until.saturating_sub(self.now());
                let command = match self.leader.driver.commands.recv_timeout(left) {
                    Ok(command) => self.asked(command),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => Some(Asked::Drain),
                };
                self.core.command(command)
            }
            Want::Inbox => {
                let item = inbox::poll(&self.links().inbound);
                self.core.inbox(self.now(), item)
            }
            Want::Sleep(until) => {
                self.publish();
                let until = until.map(|at| self.start + at);
                let item = inbox::wait(&self.links().inbound, until);
                self.engine.check().map_err(|error| RingError::Stage { rank: Rank(0), error })?;
                self.core.inbox(self.now(), item)
            }
            Want::Prepare(agree) => {
                let links = self.links.as_ref().expect("the core is in an epoch");
                links.prepare(self.engine, Rank(0), &agree)?;
                self.core.prepared();
                Ok(Vec::new())
            }
            Want::Compute(work) => {
                self.publish();
                let since = self.now();
                self.compute(&work)?;
                let time = self.now().saturating_sub(since);
                self.computed += time;
                self.links().computed(time);
                if let (Action::Stage { round, plan, .. }, Some(lead)) = (&work, self.core.lead()) {
                    self.spans.round(*round, plan, time, |stream| lead.sched.request(stream));
                }
                Ok(Vec::new())
            }
            Want::Carried => {
                let (replies, owners) = self.carry.take().unwrap_or_default();
                if !replies.is_empty() {
                    tracing::info!("rank 0: {} requests go on", replies.len());
                }
                self.owners.extend(owners);
                Ok(self.core.resume(replies))
            }
            Want::End => Ok(Vec::new()),
        }
    }

    fn links(&self) -> &Neighbours {
        self.links.as_ref().expect("the core is in an epoch")
    }

    fn join(&mut self) -> Stepped {
        let looks = self.core.joining();
        self.perform(looks)?;
        let links = self.leader.join.join(Some(new_epoch()?));
        if self.leader.driver.draining() {
            self.core.drains();
        }
        let links = links?;
        let epoch = links.epoch;
        self.leader.driver.wake_through(links.waker.clone());
        let waker = links.waker.clone();
        self.engine.watch(Box::new(move || waker.wake()));
        self.engine.heed(links.over());
        self.links = Some(links);
        self.computed_before = self.computed;
        self.spans = Spans::new(Rank(0), epoch);
        self.core.joined(epoch)
    }

    /// As the core takes it; `None` where there is only something to look at.
    fn asked(&mut self, command: Command) -> Option<Asked> {
        Some(match command {
            Command::Submit { id, request, events, answer } => {
                self.asked.insert(id, Owner { events, answer });
                Asked::Submit(id, request)
            }
            Command::Cancel(id) => Asked::Cancel(id),
            Command::Drain => Asked::Drain,
            Command::Look => return None,
        })
    }

    fn compute(&mut self, work: &Action) -> Result<(), RingError> {
        let (mut values, mut berth) = (Vec::new(), None);
        let done = match work {
            Action::Stage { plan, rows, round } => {
                values = self.links().room();
                let stepped = self.engine.step_on(*round, plan, rows.input(), &mut values);
                stepped.map(|lies| berth = lies)
            }
            Action::Head { rows, best, .. } => self.engine.best_logits(rows, best, &mut values),
            Action::Draft { jobs, rows } => {
                let guesses = guess(self.engine, jobs, rows)
                    .map_err(|error| self.links().failed(Rank(0), error))?;
                self.core.drafted(self.start.elapsed(), guesses);
                return Ok(());
            }
            other => unreachable!("rank 0's device has no {other:?}"),
        };
        done.map_err(|error| self.links().failed(Rank(0), error))?;
        let held = self.engine.held().to_vec();
        self.core.computed(self.start.elapsed(), Computed { values, berth, held });
        Ok(())
    }

    /// The epoch is over, or could not begin.
    fn broke(&mut self, error: RingError) {
        let error = match &self.links {
            Some(links) => inbox::first_cause(links.inbound.try_iter(), error),
            None => error,
        };
        if self.links.is_some() {
            tracing::debug!("rank 0: table {:?}", self.engine.table());
        }
        let mut actions = self.core.broke(&error);
        let reset = actions.pop_if(|last| matches!(last, Action::Reset));
        // Ends with the links closed: nothing of it is sent but the stop.
        let _ = self.perform(actions);
        // After the state, so that whoever reads the line finds /ready at 503; before the reset,
        // which may have to wait for a device.
        if matches!(error, RingError::Replanned) {
            tracing::info!("rank 0: leaves its ring: {error}");
        } else if !matches!(error, RingError::Shutdown) && !self.leader.driver.draining() {
            tracing::warn!("rank 0: the ring broke: {error}; weights stay loaded");
        }
        let _ = self.perform(Vec::from_iter(reset));
        self.links = None;
        self.owners.clear();
    }

    fn perform(&mut self, actions: Vec<Action>) -> Result<(), RingError> {
        if let Some(links) = &self.links {
            let (round, done) = self.core.progress();
            links.set_progress(round, done);
        }
        for action in actions {
            self.act(action)?;
        }
        if let Some(links) = &self.links {
            links.outbound.flush();
        }
        Ok(())
    }

    fn act(&mut self, action: Action) -> Result<(), RingError> {
        match action {
            Action::Send(frame) => self.links().outbound.queue(frame)?,
            Action::Free(rows) => self.links().give_back(rows),
            Action::Reach(offer) => follow::reach(self.engine, Rank(0), &offer),
            Action::Skip(stream) => self.engine.skip(stream),
            Action::Tell(id, event) => self.tell(id, event),
            Action::Answer(id, verdict) => {
                let Some(Owner { events, answer }) = self.asked.remove(&id) else { return Ok(()) };
                if verdict.is_ok() {
                    self.owners.insert(id, events);
                }
                // An owner that is gone already has dropped its Reply, which cancels.
                let _ = answer.send(verdict);
            }
            Action::Forget(id) => {
                self.owners.remove(&id);
                self.carry.cancel(id);
            }
            Action::State(state) => {
                let is_ready = state == RingState::Ready;
                if is_ready {
                    self.seats = self.core.ranks().iter().map(seat).collect();
                    self.publish();
                }
                self.leader.driver.set_state(state);
                if is_ready {
                    // After the state, as where the ring breaks.
                    tracing::info!("rank 0: ready, layout {}", self.leader.layout);
                }
            }
            Action::Proven(hash) => self.leader.canary.keep(&hash),
            Action::Hold { reason, progressed } => {
                let (replies, owners) = (self.core.carried(), std::mem::take(&mut self.owners));
                let count = replies.len();
                self.carry.hold(replies, owners, &reason, progressed);
                tracing::info!("rank 0: {count} requests wait for the ring");
            }
            Action::Because(reason) => self.carry.because(&reason),
            Action::Over => self.carry.over(),
            Action::Fail(failure) => self.carry.fail(&failure),
            Action::Stop(origin, reason) => self.links().stop(origin, &reason),
            Action::Close => self.links().outbound.close(),
            Action::Reset => self.engine.reset(),
            Action::Stage { .. } | Action::Head { .. } | Action::Draft { .. } => {
                unreachable!("the device's work is asked for")
            }
        }
        Ok(())
    }

    /// Hands an event to its owner; a channel holds a whole reply, so none ever waits.
    fn tell(&mut self, id: RequestId, event: Heard) {
        let is_last = matches!(event, Heard::Done { .. } | Heard::Failed(_));
        if let Some(owner) = self.owners.get(&id) {
            let _ = owner.try_send(event);
        }
        if is_last {
            self.owners.remove(&id);
        }
    }

    /// What the ranks have done, rank 0 as of now.
    fn tallies(&mut self) -> Vec<Tally> {
        let Some(links) = &self.links else { return Vec::new() };
        let mut tallies = links.tallies();
        if tallies.first().is_none_or(|first| first.origin != Rank(0)) {
            let now = Instant::now();
            if self.memory.is_none_or(|(at, _)| now.duration_since(at) > TALLY_EVERY) {
                self.memory = Some((now, resident_bytes()));
            }
            let memory_bytes = self.memory.map_or(0, |(_, bytes)| bytes);
            let own = Tally { epoch: links.epoch, memory_bytes, ..Tally::default() };
            tallies.insert(0, own);
        }
        let computed = self.computed.saturating_sub(self.computed_before);
        tallies[0].done = self.core.lead().map_or(0, |lead| lead.landed());
        tallies[0].computed_us = computed.as_micros() as u64;
        tallies
    }

    fn publish(&mut self) {
        let tallies = self.tallies();
        let (Some(lead), Some(pages)) = (self.core.lead(), self.core.pages()) else { return };
        self.leader.driver.set_facts(Facts {
            layout: self.leader.layout.to_string(),
            world: self.leader.layout.world(),
            context_max: lead.sched.context_max(),
            vocab: u32::try_from(self.engine.vocab()).unwrap_or(u32::MAX),
            running: lead.sched.running(),
            waiting: lead.sched.waiting(),
            rounds: lead.landed(),
            pages_used: lead.sched.pages_used(),
            pages,
            computed_ms: self.computed.as_millis() as u64,
            at_work_ms: self.at_work.as_millis() as u64,
            pages_kept: lead.sched.pages_kept(),
            keeps: lead.sched.keeps(),
            preemptions: lead.sched.preemptions(),
            seats: self.seats.clone(),
            tallies,
            trips: lead.trips(),
        });
    }
}

fn seat(rank: &Describe) -> Seat {
    let (backend, device) = (rank.backend.clone(), rank.device.clone());
    Seat { layers: rank.range.clone(), backend, device, own: rank.arith == ARITH_OWN }
}

/// Has the draft head do its jobs; it draws as each stream does.
fn guess<'a>(
    engine: &mut dyn Engine,
    jobs: &'a [DraftJob],
    rows: &[f32],
) -> Result<Vec<Vec<u32>>, StageError> {
    // The rows of each job behind one another: those of a tree's path may lie apart.
    let (hidden, mut at, mut own) = (engine.hidden(), 0, Vec::new());
    let chain = |job: &'a DraftJob| {
        let places = job.rows.iter().map(|row| &rows[row * hidden..(row + 1) * hidden]);
        own.extend(places.flatten().copied());
        at += job.rows.len();
        Chain {
            id: job.id,
            first: job.first,
            rows: at - job.rows.len()..at,
            accepted: job.accepted,
            tokens: &job.tokens,
            length: job.chain,
        }
    };
    let chains: Vec<Chain<'a>> = jobs.iter().map(chain).collect();
    let mut pick = |at: usize, position: u32, logits: &[f32]| {
        sched::sample::draw(logits, &jobs[at].sampling, position)
    };
    engine.draft(&chains, &own, &mut pick)
}

fn new_epoch() -> Result<Epoch, RingError> {
    let mut bytes = [0u8; 8];
    getrandom::fill(&mut bytes).map_err(|e| RingError::Random(e.to_string()))?;
    // 0 means "none yet" in a hello.
    Ok(Epoch(u64::from_le_bytes(bytes).max(1)))
}
