//! Rank 0: boots the ring, turns requests into rounds, rounds into tokens, and starts over with a
//! new epoch whenever a link breaks.

use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use arith::base::{Epoch, Rank};
use sched::{Failure, Refusal};
use stage::Engine;
use wire::control::{Describe, Shapes};
use wire::describe::{Digest, Ends};
use wire::layout::Layout;
use wire::ring_check::Expected;

use crate::backoff::Backoff;
use crate::boot::{self, BootTimes, Terms};
use crate::canary::{self, Canary};
use crate::carry::Carry;
use crate::error::RingError;
use crate::head::{Command, Driver, Facts, RingState};
use crate::inbox;
use crate::join::Join;
use crate::link::Neighbours;
use crate::rounds::Rounds;

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
    /// Deadlines of a boot.
    pub times: BootTimes,
    /// Most requests waiting.
    pub queue_max: u32,
    /// The token that proves the ring before it serves.
    pub canary: Canary,
    /// How long requests wait for a ring that broke; 0 fails them at once.
    pub patience: Duration,
    /// Makes links.
    pub join: J,
    /// Commands in, state out.
    pub driver: Driver,
}

/// What rank 0 knows of the model and holds the others to.
#[derive(Clone, Debug)]
pub struct ModelFacts {
    /// Layers of the trunk.
    pub layers: u32,
    /// A digest a layer; empty where rank 0 has only its own.
    pub layer_digests: Vec<Digest>,
    /// The ends' digests.
    pub ends: Option<Ends>,
}

/// How an epoch ended.
enum End {
    Drained,
    Broken(RingError),
}

impl<J: Join> Leader<J> {
    /// Serves until drained. A broken epoch is followed by a new one, in which its replies go on;
    /// they fail by name where none comes in time.
    pub fn run(mut self, engine: &mut dyn Engine) {
        let mut backoff = Backoff::default();
        let mut carry = Carry::new(self.patience, self.driver.published());
        loop {
            match self.epoch(engine, &mut backoff, &mut carry) {
                End::Drained => {
                    self.driver.set_state(RingState::Draining);
                    carry.fail(&Failure::Draining);
                    return;
                }
                End::Broken(error) => {
                    carry.because(&error.to_string());
                    tracing::warn!("rank 0: the ring broke: {error}; weights stay loaded");
                    self.driver.set_state(RingState::Waiting(error.to_string()));
                }
            }
            engine.reset();
            if self.pause(backoff.next_pause(), &carry) {
                carry.fail(&Failure::Draining);
                return;
            }
        }
    }

    /// Refuses commands while the ring is down; true when a drain was asked for.
    fn pause(&mut self, pause: Duration, carry: &Carry) -> bool {
        let until = Instant::now() + pause;
        loop {
            if self.driver.draining() {
                return true;
            }
            match self.driver.commands.recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                Ok(Command::Submit { answer, .. }) => {
                    let _ = answer.send(Err(Refusal::NotReady(self.driver.state().to_string())));
                }
                Ok(Command::Cancel(id)) => carry.cancel(id),
                Ok(Command::Drain) => return true,
                Err(_) => return false,
            }
        }
    }

    fn epoch(&mut self, engine: &mut dyn Engine, backoff: &mut Backoff, carry: &mut Carry) -> End {
        let epoch = match new_epoch() {
            Ok(epoch) => epoch,
            Err(error) => return End::Broken(error),
        };
        let next = Rank(1 % self.layout.world());
        self.booting(format!("connecting to rank {next}"));
        let links = match self.join.join(Some(epoch)) {
            Ok(links) => links,
            Err(_) if self.driver.draining() => return End::Drained,
            Err(error) => return End::Broken(error.into()),
        };
        self.driver.wake_through(links.waker.clone());
        let ended = self.boot_and_serve(&links, engine, backoff, carry);
        let error = ended.err().unwrap_or(RingError::Shutdown);
        tracing::debug!("rank 0: table {:?}", engine.table());
        error.tell(&links, Rank(0));
        match error {
            RingError::Shutdown => End::Drained,
            error => End::Broken(error),
        }
    }

    fn boot_and_serve(
        &mut self,
        links: &Neighbours,
        engine: &mut dyn Engine,
        backoff: &mut Backoff,
        carry: &mut Carry,
    ) -> Result<(), RingError> {
        self.booting("the ranks describe themselves and load");
        let agree = boot::lead(links, &self.describe, &self.terms(), engine)?;
        self.booting("the canary is on its way");
        let mut rounds = Rounds::new(links, engine, self.layout.world(), &agree, self.queue_max);
        self.canary.expected = Some(canary::fly(&mut rounds, &self.canary)?);
        canary::probe(&mut rounds, &self.canary)?;
        backoff.reset();
        tracing::info!("rank 0: ready, layout {}", self.layout);
        resume(&mut rounds, carry);
        self.driver.set_facts(self.facts(&rounds));
        self.driver.set_state(RingState::Ready);
        carry.over();
        let served = self.serve(&mut rounds);
        let served = served.map_err(|error| inbox::first_cause(&links.inbound, error));
        match &served {
            Ok(()) => {
                let failed = rounds.lead.sched.fail_all(&Failure::Draining);
                rounds.tell_all(failed);
            }
            Err(error) => self.broke(&mut rounds, carry, &error.to_string()),
        }
        served
    }

    /// The requests of an epoch that broke wait for the next one, or fail.
    fn broke(&mut self, rounds: &mut Rounds<'_>, carry: &mut Carry, reason: &str) {
        let waits = carry.is_on() && !self.driver.draining();
        let replies = rounds.lead.sched.carry();
        let owners = std::mem::take(&mut rounds.owners);
        let waiting = RingState::Waiting(reason.into());
        if waits {
            // No request is refused in between.
            let count = replies.len();
            carry.hold(replies, owners, reason, rounds.progressed);
            self.driver.set_state(waiting);
            tracing::info!("rank 0: {count} requests wait for the ring");
            return;
        }
        // The state changes first, so that whoever hears of the failure finds /ready at 503.
        self.driver.set_state(waiting);
        rounds.owners = owners;
        rounds.tell_all(replies.fail(&Failure::Ring(reason.into())));
    }

    /// Rounds until the drain is over or something breaks.
    fn serve(&mut self, rounds: &mut Rounds<'_>) -> Result<(), RingError> {
        loop {
            let draining = self.take_commands(rounds)?;
            rounds.look()?;
            self.driver.set_facts(self.facts(rounds));
            if draining && rounds.lead.is_idle() {
                return Ok(());
            }
            rounds.turn()?;
        }
    }

    /// Takes every waiting command; true once draining.
    fn take_commands(&mut self, rounds: &mut Rounds<'_>) -> Result<bool, RingError> {
        loop {
            match self.driver.commands.try_recv() {
                Ok(Command::Submit { id, request, events, answer }) => {
                    let verdict = rounds.submit(id, *request);
                    if verdict.is_ok() {
                        rounds.owners.insert(id, events);
                    }
                    // An owner that is gone already has dropped its Reply, which cancels.
                    let _ = answer.send(verdict);
                }
                Ok(Command::Cancel(id)) => rounds.cancel(id)?,
                Ok(Command::Drain) | Err(TryRecvError::Disconnected) => {
                    self.driver.set_state(RingState::Draining);
                    let refused = rounds.lead.sched.drain();
                    rounds.tell_all(refused);
                    return Ok(true);
                }
                Err(TryRecvError::Empty) => return Ok(self.driver.draining()),
            }
        }
    }

    fn booting(&self, what: impl Into<String>) {
        self.driver.set_state(RingState::Booting(what.into()));
    }

    fn terms(&self) -> Terms<'_> {
        let own = &self.describe;
        Terms {
            expected: Expected {
                layout: &self.layout,
                layers: self.model.layers,
                engine: &own.engine,
                arith: own.arith,
                mixed: false,
                hidden: own.hidden,
                planes: own.planes,
                row_dtype: own.row_dtype,
                kv: own.kv,
                context_min: self.shapes.context_max,
                streams_min: self.shapes.streams_max,
                layer_digests: &self.model.layer_digests,
                ends: self.model.ends,
            },
            shapes: self.shapes,
            depth: self.depth,
            times: self.times,
        }
    }

    fn facts(&self, rounds: &Rounds<'_>) -> Facts {
        Facts {
            layout: self.layout.to_string(),
            world: self.layout.world(),
            context_max: rounds.lead.sched.context_max(),
            vocab: u32::try_from(rounds.engine.vocab()).unwrap_or(u32::MAX),
            running: rounds.lead.sched.running(),
            waiting: rounds.lead.sched.waiting(),
            rounds: rounds.lead.landed(),
            pages_used: rounds.lead.sched.pages_used(),
            pages: rounds.pages,
        }
    }
}

/// The requests of the epoch before go on.
fn resume(rounds: &mut Rounds<'_>, carry: &Carry) {
    rounds.progressed = false;
    let Some((replies, owners)) = carry.take() else { return };
    if !replies.is_empty() {
        tracing::info!("rank 0: {} requests go on", replies.len());
    }
    rounds.owners.extend(owners);
    let ended = rounds.lead.sched.adopt(replies);
    rounds.tell_all(ended);
}

fn new_epoch() -> Result<Epoch, RingError> {
    let mut bytes = [0u8; 8];
    getrandom::fill(&mut bytes).map_err(|e| RingError::Random(e.to_string()))?;
    // 0 means "none yet" in a hello.
    Ok(Epoch(u64::from_le_bytes(bytes).max(1)))
}
