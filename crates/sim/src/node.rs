//! A rank that is made up but for its core: it asks the core what it wants and does that, as the
//! threads of `ring::lead` and `ring::follow` do, one small step after another.

use std::collections::VecDeque;

use arith::base::{Epoch, Rank};
use ring::error::RingError;
use ring::inbox;
use ring::link::{Inbound, LinkError};
use ring::step::{Action, Asked, Following, Leading, Now, Stepped, Want};
use sched::Carried;
use stage::Offer;
use wire::frame::Kind;

use crate::device::Device;
use crate::plant::Plant;
use crate::setting::{S, US};
use crate::work::Outcome;
use crate::world::{Broken, Happening, World};

/// What a rank runs.
pub enum Core {
    Lead(Box<Leading>),
    Follow(Box<Following>),
}

/// What a rank does now.
pub enum State {
    /// Asks its core.
    Awake,
    /// Waits for links.
    Joining,
    /// Has links, and is about to notice.
    Linked,
    /// Waits for its inbox.
    Sleeping,
    /// Waits for commands.
    Paused,
    /// Waits for its device.
    Busy(Outcome),
    Ended,
}

/// A rank.
pub struct Node {
    pub rank: usize,
    pub core: Core,
    pub device: Device,
    pub state: State,
    /// Changes when the rank dies: what was to happen to it does not.
    pub life: u64,
    /// Changes with each wait: its deadline is none of the next.
    pub token: u64,
    pub is_alive: bool,
    /// What its I/O side has, and what its compute side.
    pub active: Option<usize>,
    pub held: Option<usize>,
    /// The newest epoch there was.
    pub last: Epoch,
    pub rows_bytes_max: usize,
    /// By what the rank before is to find its berths.
    pub offer: Option<Offer>,
    /// Its device takes so many times as long, until then.
    pub slow: (u64, u64),
    /// Its next round takes so long on top.
    pub hang: u64,
}

impl Node {
    /// One that has just started.
    pub fn new(rank: usize, core: Core, device: Device, life: u64) -> Self {
        Self {
            rank,
            core,
            device,
            state: State::Awake,
            life,
            token: 0,
            is_alive: true,
            active: None,
            held: None,
            last: Epoch(0),
            rows_bytes_max: 0,
            offer: None,
            slow: (1, 0),
            hang: 0,
        }
    }

    /// Rank 0's core.
    pub fn lead(&mut self) -> &mut Leading {
        match &mut self.core {
            Core::Lead(core) => core,
            Core::Follow(_) => panic!("rank {} does not lead", self.rank),
        }
    }
}

impl World {
    /// The time, as cores are told it.
    pub fn clock(&self) -> Now {
        Now::from_nanos(self.now)
    }

    /// Whether a rank waits for links.
    pub fn is_joining(&self, rank: usize) -> bool {
        matches!(self.nodes[rank].state, State::Joining)
    }

    /// Has a rank ask its core, soon.
    pub fn rouse(&mut self, rank: usize) {
        let node = &mut self.nodes[rank];
        node.state = State::Awake;
        node.token += 1;
        let life = node.life;
        let soon = self.rng.below(3 * US);
        self.after(soon, Happening::Turn(rank, life));
    }

    /// Something lies in an inbox.
    pub fn wake(&mut self, end: usize) {
        let rank = self.ends[end].rank;
        if self.nodes[rank].held == Some(end) && matches!(self.nodes[rank].state, State::Sleeping) {
            self.rouse(rank);
        }
    }

    /// A rank goes on until it waits for something, or until something else happens.
    pub fn turn(&mut self, rank: usize) -> Result<(), Broken> {
        while matches!(self.nodes[rank].state, State::Awake) {
            self.steps += 1;
            if rank == 0 && self.drains {
                self.nodes[0].lead().drains();
            }
            let now = self.clock();
            let want = match &mut self.nodes[rank].core {
                Core::Lead(core) => core.want(now),
                Core::Follow(core) => core.want(now),
            };
            if let Some(stepped) = self.answer(rank, want)? {
                self.stepped(rank, stepped)?;
            }
            if !matches!(self.nodes[rank].state, State::Awake) {
                break;
            }
            let soon = self.rng.below(2 * US);
            if self.is_next_before(self.now + soon) {
                let life = self.nodes[rank].life;
                self.after(soon, Happening::Turn(rank, life));
                break;
            }
            self.now += soon;
        }
        Ok(())
    }

    /// Performs what a step gave, or ends the epoch.
    pub fn stepped(&mut self, rank: usize, stepped: Stepped) -> Result<(), Broken> {
        let error = match stepped {
            Ok(actions) => match self.perform(rank, actions)? {
                Ok(()) => return Ok(()),
                Err(error) => error,
            },
            Err(error) => error,
        };
        self.broke(rank, error)
    }

    /// Does what a core wants; `None` while it waits.
    fn answer(&mut self, rank: usize, want: Want) -> Result<Option<Stepped>, Broken> {
        let now = self.clock();
        let held = self.nodes[rank].held;
        Ok(match want {
            Want::Join => {
                self.join(rank)?;
                None
            }
            Want::Command => {
                let command = self.take_command()?;
                Some(self.nodes[rank].lead().command(command))
            }
            Want::Pause(until) => match self.take_command()? {
                Some(command) => Some(self.nodes[rank].lead().command(Some(command))),
                None => {
                    self.waits(rank, State::Paused, Some(until));
                    None
                }
            },
            Want::Inbox => {
                let inbox = &mut self.ends[held.expect("links")].inbox;
                let mut item = inbox.pop_front();
                if rank == 0 && self.plant == Some(Plant::LostWakeup) {
                    while item == Some(Inbound::Poke) {
                        item = inbox.pop_front();
                    }
                }
                Some(self.heard(rank, item))
            }
            Want::Sleep(until) => {
                self.check_quiet(rank)?;
                match self.ends[held.expect("links")].inbox.pop_front() {
                    Some(item) => Some(self.heard(rank, Some(item))),
                    None if until.is_some_and(|until| until <= now) => Some(self.heard(rank, None)),
                    None => {
                        self.waits(rank, State::Sleeping, until);
                        None
                    }
                }
            }
            Want::Prepare(agree) => {
                self.prepare(rank, &agree);
                None
            }
            Want::Compute(work) => {
                self.compute(rank, work)?;
                None
            }
            Want::Carried => {
                let carried = self.patience.take().unwrap_or_default();
                if carried.is_empty() {
                    self.broke_at = 0;
                }
                Some(Ok(self.nodes[rank].lead().resume(carried)))
            }
            Want::End => {
                self.nodes[rank].state = State::Ended;
                None
            }
        })
    }

    fn heard(&mut self, rank: usize, item: Option<Inbound>) -> Stepped {
        let now = self.clock();
        match &mut self.nodes[rank].core {
            Core::Lead(core) => core.inbox(now, item),
            Core::Follow(core) => core.inbox(item),
        }
    }

    fn waits(&mut self, rank: usize, state: State, until: Option<Now>) {
        let node = &mut self.nodes[rank];
        node.state = state;
        node.token += 1;
        let (token, life) = (node.token, node.life);
        if let Some(until) = until {
            self.at(until.as_nanos() as u64, Happening::Late(rank, life, token));
        }
    }

    /// Nothing came in time.
    pub fn late(&mut self, rank: usize) -> Result<(), Broken> {
        let stepped = match self.nodes[rank].state {
            State::Sleeping => self.heard(rank, None),
            State::Paused => self.nodes[rank].lead().command(None),
            _ => return Ok(()),
        };
        self.nodes[rank].state = State::Awake;
        self.stepped(rank, stepped)?;
        self.turn(rank)
    }

    fn join(&mut self, rank: usize) -> Result<(), Broken> {
        self.nodes[rank].state = State::Joining;
        if rank > 0 {
            if let Some(end) = self.nodes[rank].active.filter(|end| self.ends[*end].taken) {
                self.fail(end, LinkError::Closed);
            }
            self.hand_over(rank);
            return Ok(());
        }
        let looks = self.nodes[0].lead().joining();
        let _ = self.perform(0, looks)?;
        let epoch = Epoch(self.rng.next() | 1);
        self.epoch_began = self.now;
        self.begin(0, epoch, LinkError::Closed);
        if let Some(end) = self.nodes[0].active {
            self.after(10 * S, Happening::NotJoined(end));
        }
        self.hand_over(0);
        Ok(())
    }

    /// Rank 0's neighbours can't be had.
    pub fn not_joined(&mut self, end: usize) -> Result<(), Broken> {
        if !self.is_joining(0) || self.ends[end].taken || self.ends[end].epoch != self.nodes[0].last
        {
            return Ok(());
        }
        let gone = LinkError::NoNeighbour { rank: Rank(1), waited_ms: 10_000 };
        let error = self.ends[end].failure.clone().unwrap_or(gone);
        self.fail(end, error.clone());
        self.nodes[0].state = State::Awake;
        if self.drains {
            self.nodes[0].lead().drains();
        }
        self.broke(0, error.into())?;
        self.turn(0)
    }

    /// A rank's compute side has its links.
    pub fn joined(&mut self, rank: usize) {
        let end = self.nodes[rank].held.expect("links");
        if rank == 0 {
            self.ends[end].inbox.push_back(Inbound::Poke);
        }
        let life = self.nodes[rank].life;
        self.nodes[rank].state = State::Linked;
        self.after(US, Happening::Joined(rank, life));
    }

    /// As [`World::joined`], once the rank has noticed.
    pub fn begun(&mut self, rank: usize) -> Result<(), Broken> {
        let end = self.nodes[rank].held.expect("links");
        let epoch = self.ends[end].epoch;
        self.nodes[rank].state = State::Awake;
        self.trace.note(self.now, 2, || format!("rank {rank}: epoch {:016x}", epoch.0));
        let stepped = match &mut self.nodes[rank].core {
            Core::Lead(core) => core.joined(epoch),
            Core::Follow(core) => core.joined(epoch),
        };
        self.stepped(rank, stepped)?;
        self.turn(rank)
    }

    fn broke(&mut self, rank: usize, error: RingError) -> Result<(), Broken> {
        let held = self.nodes[rank].held;
        let error = match held {
            Some(end) => inbox::first_cause(self.ends[end].inbox.drain(..), error),
            None => error,
        };
        self.trace.note(self.now, 4, || format!("rank {rank}: its epoch ends: {error}"));
        self.check_break(rank, &error)?;
        if rank == 0 {
            self.count_preemptions();
        }
        let actions = match &mut self.nodes[rank].core {
            Core::Lead(core) => core.broke(&error),
            Core::Follow(core) => core.broke(&error),
        };
        let _ = self.perform(rank, actions)?;
        self.nodes[rank].held = None;
        if rank == 0 && self.patience.deadline().is_none() && !self.owners.is_empty() {
            return Err(Broken(format!("nobody has these requests: {:?}", self.owners)));
        }
        Ok(())
    }

    /// Does actions in order, up to one that can't be done.
    pub fn perform(
        &mut self,
        rank: usize,
        actions: Vec<Action>,
    ) -> Result<Result<(), RingError>, Broken> {
        let held = self.nodes[rank].held;
        for action in actions {
            match action {
                Action::Send(frame) => {
                    let end = held.expect("links");
                    if rank == 0 && frame.kind == Kind::Cancel {
                        self.cancel_is_sent(&frame);
                    }
                    if let Err(error) = self.send(end, frame) {
                        return Ok(Err(error.into()));
                    }
                }
                Action::Skip(stream) => self.nodes[rank].device.skip(stream),
                Action::Reset => self.nodes[rank].device.reset(),
                Action::Stop(origin, reason) => {
                    let end = held.expect("links");
                    let stop = wire::stop::Stop { origin, reason };
                    let _ = self.send(end, wire::frame::Frame::stop(&stop));
                    self.close(end);
                }
                Action::Close => self.close(held.expect("links")),
                Action::Tell(id, event) => self.hears(id, event)?,
                Action::Answer(id, verdict) => self.answered(id, verdict)?,
                Action::Forget(id) => {
                    self.forgotten(id);
                    self.patience.cancel(id);
                }
                Action::State(state) => self.publishes(state),
                Action::Reach(offer) => self.nodes[rank].device.reach(&offer),
                Action::Proven(_) | Action::Free(_) => {}
                Action::Hold { reason, progressed } => {
                    let carried: Carried = self.nodes[0].lead().carried();
                    self.hold(carried, &reason, progressed);
                }
                Action::Because(reason) => self.patience.because(&reason),
                Action::Over => self.holds(false),
                Action::Fail(failure) => {
                    self.holds(false);
                    for (id, event) in self.patience.fail(&failure) {
                        self.hears(id, event)?;
                    }
                }
                Action::Stage { .. } | Action::Head { .. } | Action::Draft { .. } => {
                    return Err(Broken(format!("rank {rank}: work that nobody asked for")));
                }
            }
        }
        Ok(Ok(()))
    }

    fn take_command(&mut self) -> Result<Option<Asked>, Broken> {
        let Some((since, command)) = self.commands.pop_front() else { return Ok(None) };
        self.check_waited(since)?;
        if let Asked::Cancel(id) = &command {
            self.gone.insert(*id);
        }
        Ok(Some(command))
    }

    /// A rank dies with all that it has.
    pub fn kill(&mut self, rank: usize) {
        for end in 0..self.ends.len() {
            if self.ends[end].rank == rank {
                self.fail(end, LinkError::Closed);
            }
        }
        let node = &mut self.nodes[rank];
        node.is_alive = false;
        node.life += 1;
        node.state = State::Ended;
        (node.active, node.held) = (None, None);
    }

    /// A rank that died is back, and remembers nothing.
    pub fn restart(&mut self, rank: usize) {
        let life = self.nodes[rank].life;
        self.nodes[rank] = self.fresh(rank, life);
        self.rouse(rank);
    }
}

/// Commands on their way to rank 0, and when each was given.
pub type Commands = VecDeque<(u64, Asked)>;
