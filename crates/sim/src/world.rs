//! A run: what happens, in the order of a made-up clock, until every request has ended and the ring
//! with them.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use arith::base::Rank;
use ring::head::RingState;
use ring::link::{Inbound, LinkError};
use ring::step::{Asked, Following, Leading, Patience};
use sched::RequestId;

use crate::check::Due;
use crate::client::{Client, Stage};
use crate::device::Device;
use crate::net::{Conn, End};
use crate::node::{Commands, Core, Node, State};
use crate::plant::Plant;
use crate::rng::Rng;
use crate::setting::{Fault, MS, S, Setting, Size, Trigger, US};
use crate::trace::Trace;

/// More steps than any run takes.
const STEPS_MAX: u64 = 2_000_000;
/// More time than any run takes, in nanoseconds.
const TIME_MAX: u64 = 3 * 3600 * S;

/// What does not hold.
#[derive(Debug)]
pub struct Broken(pub String);

/// What happens.
#[derive(Debug)]
pub enum Happening {
    /// A rank asks its core; with its life.
    Turn(usize, u64),
    /// A rank's wait is over; with its life and the wait's token.
    Late(usize, u64, u64),
    /// A rank's device is done.
    Done(usize, u64),
    /// A rank has its links.
    Joined(usize, u64),
    /// A frame has left its sender.
    Written(usize),
    /// A frame's bytes have come.
    Arrive(usize, Vec<u8>),
    /// A close of the other side arrives at an end.
    Closed(usize, usize),
    /// No byte came on this connection for too long.
    Silent(usize),
    /// An end looks for the rank after.
    Reach(usize),
    /// A rank's end was not completed in time.
    GiveUp(usize, u64, usize),
    /// Rank 0's neighbours can't be had.
    NotJoined(usize),
    /// A client asks.
    Client(usize),
    /// Rank 0 is woken for a command.
    Poke,
    /// The patience with the ring may be over.
    Expire,
    /// A rank that died is back.
    Restart(usize),
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// Steps of the clock and of the ranks.
    pub steps: u64,
    /// Requests that ended with their whole reply.
    pub served: u64,
    /// Requests whose client left.
    pub cancels: u64,
    /// Epochs that broke.
    pub breaks: u64,
    /// Frames that came too late for their epoch.
    pub late: u64,
    /// Times that all ranks were seen idle, with nothing held.
    pub quiets: u64,
    /// Prompt tokens that were not computed.
    pub cached: u64,
    /// Guesses.
    pub drafted: u64,
    /// Guesses that were right.
    pub accepted: u64,
    /// Streams that gave way to older ones.
    pub preemptions: u64,
    /// Of all that happened.
    pub hash: u64,
    /// What did not hold.
    pub failure: Option<String>,
    /// The last things that happened, where asked for.
    pub trace: String,
}

/// All of a run.
pub struct World {
    pub now: u64,
    pub rng: Rng,
    pub setting: Setting,
    pub plant: Option<Plant>,
    plant_rank: usize,
    pub nodes: Vec<Node>,
    pub ends: Vec<End>,
    pub conns: Vec<Conn>,
    /// Until when no connection to a rank can be made.
    pub blocked: Vec<u64>,
    events: BTreeMap<(u64, u64, u64), Happening>,
    made: u64,
    triggers: usize,
    pub steps: u64,
    pub trace: Trace,
    /// Tables after each round of each epoch.
    pub tables: BTreeMap<(u64, u64), u64>,
    pub due: Vec<Due>,
    /// When faults began and were over.
    pub faults: Vec<(u64, u64)>,
    pub epoch_began: u64,
    pub commands: Commands,
    pub patience: Patience,
    pub clients: Vec<Client>,
    /// Which client each request is of.
    pub names: Vec<usize>,
    /// Requests that were taken in and have not ended.
    pub owners: BTreeSet<RequestId>,
    /// Requests whose cancel rank 0 has taken.
    pub gone: BTreeSet<RequestId>,
    pub published: RingState,
    pub holding: bool,
    pub ready_since: u64,
    pub has_served: bool,
    pub drains: bool,
    /// When the time of what waits began, and when it last came to wait.
    pub broke_at: u64,
    pub held_at: u64,
    pub quiets: u64,
    pub breaks: u64,
    pub late: u64,
    pub served: u64,
    pub cancels: u64,
    pub cached: u64,
    pub drafted: u64,
    pub accepted: u64,
    preemptions: u64,
    has_probed: bool,
}

/// Runs a seed, with a planted bug or none; with the lines of its trace or without.
pub fn run(seed: u64, size: Size, plant: Option<Plant>, with_trace: bool) -> Report {
    let mut world = World::new(seed, size, plant, with_trace);
    let ended = catch_unwind(AssertUnwindSafe(|| world.run()));
    let failure = match ended {
        Ok(Ok(())) => None,
        Ok(Err(Broken(why))) => Some(why),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Some(format!("panic: {}", text.unwrap_or("without words")))
        }
    };
    Report {
        seed,
        steps: world.steps,
        served: world.served,
        cancels: world.cancels,
        breaks: world.breaks,
        late: world.late,
        quiets: world.quiets,
        cached: world.cached,
        drafted: world.drafted,
        accepted: world.accepted,
        preemptions: world.preemptions,
        hash: world.trace.hash,
        failure,
        trace: world.trace.to_string(),
    }
}

impl World {
    fn new(seed: u64, size: Size, plant: Option<Plant>, with_trace: bool) -> Self {
        let mut rng = Rng::new(seed);
        let setting = Setting::draw(&mut rng, size);
        let world = setting.world();
        let plant_rank = rng.below(world as u64) as usize;
        let patience = Patience::new(Duration::from_nanos(setting.patience));
        let requests: Vec<_> = setting.requests.iter().map(|(_, r)| r.clone()).collect();
        let mut trace = Trace::new(with_trace);
        trace.note(0, seed, || format!("{setting:?}"));
        let mut world = Self {
            now: 0,
            rng,
            plant,
            plant_rank,
            nodes: Vec::new(),
            ends: Vec::new(),
            conns: Vec::new(),
            blocked: vec![0; world],
            events: BTreeMap::new(),
            made: 0,
            triggers: 0,
            steps: 0,
            trace,
            tables: BTreeMap::new(),
            due: Vec::new(),
            faults: Vec::new(),
            epoch_began: 0,
            commands: Commands::new(),
            patience,
            clients: Vec::new(),
            names: Vec::new(),
            owners: BTreeSet::new(),
            gone: BTreeSet::new(),
            published: RingState::Booting("starting".into()),
            holding: false,
            ready_since: 0,
            has_served: false,
            drains: false,
            broke_at: 0,
            held_at: 0,
            quiets: 0,
            breaks: 0,
            late: 0,
            served: 0,
            cancels: 0,
            cached: 0,
            drafted: 0,
            accepted: 0,
            preemptions: 0,
            has_probed: false,
            setting,
        };
        for request in requests {
            world.client(request, false);
        }
        for rank in 0..world.setting.world() {
            let node = world.fresh(rank, 0);
            world.nodes.push(node);
        }
        (0..world.nodes.len()).for_each(|rank| world.rouse(rank));
        world
    }

    /// A rank that has just started.
    pub fn fresh(&self, rank: usize, life: u64) -> Node {
        let own = self.setting.describe(rank);
        let plant = self.plant.filter(|plant| self.has_plant(*plant, rank));
        let (range, keeps_max) = (own.range.clone(), self.setting.keeps_max[rank]);
        // Devices give each other rows in half of all settings.
        let berths = self.setting.depth.is_multiple_of(2);
        let device = Device::new(range, rank == 0, keeps_max, plant, berths);
        let core = match rank {
            0 => Core::Lead(Box::new(Leading::new(self.setting.facts()))),
            _ => Core::Follow(Box::new(Following::new(own, self.setting.times(), device.hidden()))),
        };
        Node::new(rank, core, device, life)
    }

    /// Whether a rank has that planted bug.
    pub fn has_plant(&self, plant: Plant, rank: usize) -> bool {
        self.plant == Some(plant) && self.plant_rank == rank
    }

    /// Has something happen then, and by chance before or after what else happens then.
    pub fn at(&mut self, at: u64, happening: Happening) {
        self.made += 1;
        self.events.insert((at.max(self.now), self.rng.next(), self.made), happening);
    }

    /// As [`World::at`], so much later than now.
    pub fn after(&mut self, time: u64, happening: Happening) {
        self.at(self.now + time, happening);
    }

    /// Whether anything happens until then.
    pub fn is_next_before(&self, at: u64) -> bool {
        self.events.first_key_value().is_some_and(|(key, _)| key.0 <= at)
    }

    fn run(&mut self) -> Result<(), Broken> {
        while !matches!(self.nodes[0].state, State::Ended) {
            let Some(((at, _, _), happening)) = self.events.pop_first() else {
                return Err(Broken(format!("stuck: {}", self.stuck())));
            };
            self.now = self.now.max(at);
            self.steps += 1;
            if self.steps > STEPS_MAX || self.now > TIME_MAX {
                let (steps, seconds) = (self.steps, self.now / S);
                let stuck = self.stuck();
                return Err(Broken(format!("no end: {steps} steps, {seconds} s: {stuck}")));
            }
            while let Some((_, trigger)) =
                self.setting.triggers.get(self.triggers).filter(|(at, _)| *at <= self.steps)
            {
                let trigger = *trigger;
                self.triggers += 1;
                self.trigger(trigger);
            }
            self.happens(happening)?;
            self.go_on();
        }
        let over = |client: &Client| client.stage == Stage::Over;
        let open = self.clients.iter().position(|client| !over(client) && self.has_served);
        match open.filter(|at| self.clients[*at].stage == Stage::Running) {
            Some(at) => {
                Err(Broken(format!("request {at} never ends: {:?}", self.clients[at].stage)))
            }
            None => Ok(()),
        }
    }

    fn stuck(&self) -> String {
        let over = |client: &&Client| client.stage == Stage::Over;
        let (over, all) = (self.clients.iter().filter(over).count(), self.clients.len());
        let waits = self.commands.len();
        format!("{}; {over} of {all} requests are over, {waits} commands wait", self.published)
    }

    /// Ends the run, once all requests have ended and the ring has served one more.
    fn go_on(&mut self) {
        let is_over = self.clients.iter().all(|client| client.stage == Stage::Over);
        if !is_over || !self.has_served || self.drains {
            return;
        }
        if !self.has_probed {
            self.has_probed = true;
            return self.probe();
        }
        self.drain();
    }

    fn drain(&mut self) {
        if self.drains {
            return;
        }
        self.drains = true;
        self.count_preemptions();
        self.publishes(RingState::Draining);
        self.holds(false);
        self.command(Asked::Drain);
    }

    /// Adds those of the epoch that ends.
    pub fn count_preemptions(&mut self) {
        let lead = self.nodes[0].lead().lead();
        self.preemptions += lead.map_or(0, |lead| lead.sched.preemptions());
    }

    fn happens(&mut self, happening: Happening) -> Result<(), Broken> {
        match happening {
            Happening::Turn(rank, life) if self.lives(rank, life) => {
                if matches!(self.nodes[rank].state, State::Awake) {
                    return self.turn(rank);
                }
            }
            Happening::Late(rank, life, token) if self.lives(rank, life) => {
                if self.nodes[rank].token == token {
                    return self.late(rank);
                }
            }
            Happening::Done(rank, life) if self.lives(rank, life) => return self.done(rank),
            Happening::Joined(rank, life) if self.lives(rank, life) => return self.begun(rank),
            Happening::GiveUp(rank, life, end) if self.lives(rank, life) => {
                self.give_up(rank, end);
            }
            Happening::Written(conn) => self.written(conn),
            Happening::Arrive(conn, bytes) => return self.arrive(conn, bytes),
            Happening::Closed(conn, end) => self.closed(conn, end),
            Happening::Silent(conn) => {
                let rank = Rank(self.ends[self.conns[conn].sender].rank as u32);
                let silent = LinkError::RingSilent { rank, silent_ms: 6_000 };
                self.fail(self.conns[conn].receiver, silent);
            }
            Happening::Reach(end) => self.reach(end),
            Happening::NotJoined(end) => return self.not_joined(end),
            Happening::Client(at) => self.ask(at),
            Happening::Poke => {
                if let Some(end) = self.nodes[0].held {
                    return self.deliver(end, Inbound::Poke);
                }
            }
            Happening::Expire => return self.expire(),
            Happening::Restart(rank) => self.restart(rank),
            Happening::Turn(..)
            | Happening::Late(..)
            | Happening::Done(..)
            | Happening::Joined(..)
            | Happening::GiveUp(..) => {}
        }
        Ok(())
    }

    fn lives(&self, rank: usize, life: u64) -> bool {
        self.nodes[rank].is_alive && self.nodes[rank].life == life
    }

    fn trigger(&mut self, trigger: Trigger) {
        self.trace.note(self.now, 1, || format!("{trigger:?}"));
        match trigger {
            Trigger::Fault(fault) => self.befalls(fault),
            Trigger::Cancel(at) => {
                if self.has_served && self.clients[at].stage != Stage::Over {
                    self.cancel(at);
                }
            }
            Trigger::Drain => {
                if self.has_served {
                    self.drain();
                }
            }
        }
    }

    fn befalls(&mut self, fault: Fault) {
        let over = match fault {
            Fault::Cut(rank, time, late) => {
                self.blocked[rank] = self.now + time;
                if let Some(conn) = self.conn_to(rank) {
                    self.conns[conn].loses = late == 0;
                    self.conns[conn].late_until = self.now + late;
                    for end in [self.conns[conn].sender, self.conns[conn].receiver] {
                        let soon = self.rng.below(5 * MS);
                        self.after(soon, Happening::Closed(conn, end));
                    }
                }
                time
            }
            Fault::HalfOpen(rank) => {
                if let Some(conn) = self.conn_to(rank) {
                    self.conns[conn].loses = true;
                    self.conns[conn].is_mute = true;
                    let silence = self.rng.within(4 * S, 6 * S);
                    self.after(silence, Happening::Silent(conn));
                }
                6 * S
            }
            Fault::Stall(rank, time) => {
                if let Some(conn) = self.conn_to(rank) {
                    let conn = &mut self.conns[conn];
                    conn.free_at = conn.free_at.max(self.now) + time;
                }
                time
            }
            Fault::Kill(rank, time) => {
                if rank > 0 && self.nodes[rank].is_alive {
                    self.kill(rank);
                    self.after(time.max(US), Happening::Restart(rank));
                }
                time
            }
            Fault::Fails(rank, rounds) => {
                self.nodes[rank].device.fails_in = Some(rounds);
                return;
            }
            Fault::Slow(rank, times, time) => {
                self.nodes[rank].slow = (times, self.now + time);
                let cost = self.setting.costs[rank];
                time + 2 * times * (cost.round + 100 * cost.row)
            }
            Fault::Hang(rank, time) => {
                self.nodes[rank].hang = time;
                return;
            }
        };
        self.faults.push((self.now, self.now + over));
    }
}
