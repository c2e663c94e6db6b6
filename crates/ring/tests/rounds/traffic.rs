//! A ring of fake stages without threads: the cores of its ranks, frames in queues, and a random
//! order of what happens next.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use arith::base::{Epoch, Rank};
use arith::sample::mix;
use baton_ring::step::{Action, Computed, Event, Follow, Lead, Ring, Rows};
use sched::{Caching, Drafting, Event as Heard, Refusal, Request, RequestId};
use stage::{Engine, Fake, FakeConfig, Input, Shapes};
use wire::control::{Agree, Fields};
use wire::frame::{Frame, Kind};
use wire::plan::{Keep, KeepOp, Op, Plan};

pub const LAYERS: u32 = 6;
const EPOCH: Epoch = Epoch(9);

/// A small deterministic generator.
pub struct Rng(pub u64);

impl Rng {
    /// 0 .. `n`-1.
    pub fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.0) % u64::from(n.max(1))) as u32
    }
    /// `low ..= high`.
    pub fn within(&mut self, low: u32, high: u32) -> u32 {
        low + self.below(high - low + 1)
    }
    pub fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }
}

/// What a ring is made of.
#[derive(Clone, Debug)]
pub struct Build {
    pub world: u32,
    pub depth: u32,
    pub shapes: Shapes,
    pub caching: Caching,
    /// Kept states that each rank has room for.
    pub rooms: Vec<usize>,
    /// Rank 0 hears that every stage held everything.
    pub deaf: bool,
}

struct Node {
    fake: Fake,
    /// On the device.
    work: Option<Action>,
    /// From the rank before.
    inbox: VecDeque<Frame>,
}

/// How a request went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    pub tokens: Vec<u32>,
    pub sha: Option<[u8; 32]>,
    pub cached: u32,
    pub accepted: u32,
}

/// What a run met.
#[derive(Clone, Copy, Debug, Default)]
pub struct Met {
    pub rounds: u64,
    pub saves: u64,
    pub refused: u64,
    pub drops: u64,
    pub resumes: u64,
    pub rows: u64,
    pub kept_most: usize,
}

pub struct Net {
    build: Build,
    lead: Lead,
    follows: Vec<Follow>,
    nodes: Vec<Node>,
    pub running: BTreeMap<u64, Told>,
    pub ended: BTreeMap<u64, Told>,
    pub met: Met,
}

fn range(rank: u32, world: u32) -> Range<u32> {
    let at = |rank| rank * LAYERS / world;
    at(rank)..at(rank + 1)
}

impl Net {
    pub fn new(build: &Build) -> Self {
        let Build { world, depth, shapes, caching, rooms, .. } = build.clone();
        let agree = Agree { shapes, depth, settings: Fields::new() };
        let ring = Ring { world, epoch: EPOCH, hidden: 8, vocab: 64, chunk_cost_rows: 0 };
        let mut lead = Lead::new(ring, &agree, 1 << 20);
        lead.sched.set_cache(caching);
        let node = |rank: u32| {
            let config = FakeConfig::small(range(rank, world), rank == 0);
            let mut fake = Fake::new(config).with_keeps_max(rooms[rank as usize]);
            fake.prepare(&shapes).unwrap();
            Node { fake, work: None, inbox: VecDeque::new() }
        };
        let follow = |rank| Follow::new(Rank(rank), world, EPOCH, 8, depth);
        Self {
            lead,
            follows: (1..world).map(follow).collect(),
            nodes: (0..world).map(node).collect(),
            running: BTreeMap::new(),
            ended: BTreeMap::new(),
            met: Met::default(),
            build: build.clone(),
        }
    }

    /// From now on streams guess ahead.
    pub fn draft(&mut self, drafting: Box<dyn Drafting>) {
        self.lead.sched.set_drafting(drafting);
    }

    pub fn submit(&mut self, id: u64, request: Request) -> Result<(), Refusal> {
        self.lead.submit(RequestId(id), request)?;
        self.running.insert(id, Told::default());
        Ok(())
    }

    pub fn cancel(&mut self, id: u64) -> Result<(), String> {
        self.running.remove(&id);
        let actions = self.lead.cancel(RequestId(id));
        self.perform(0, actions)
    }

    pub fn is_idle(&self) -> bool {
        self.lead.is_idle()
    }

    /// Something happens somewhere; false when nothing can.
    pub fn step(&mut self, rng: &mut Rng) -> Result<bool, String> {
        let world = self.build.world;
        let start = rng.below(world);
        for rank in (0..world).map(|n| (start + n) % world) {
            let node = &mut self.nodes[rank as usize];
            let computes = node.work.is_some() && (node.inbox.is_empty() || rng.chance(60));
            if computes {
                let work = node.work.take().unwrap();
                let event = self.compute(rank, work)?;
                self.event(rank, event)?;
                return Ok(true);
            }
            if let Some(frame) = node.inbox.pop_front() {
                self.hear(rank, frame)?;
                return Ok(true);
            }
        }
        if self.nodes[0].work.is_none() {
            self.event(0, Event::Look)?;
        }
        Ok(self.nodes.iter().any(|node| node.work.is_some() || !node.inbox.is_empty()))
    }

    fn hear(&mut self, rank: u32, frame: Frame) -> Result<(), String> {
        // The link relays a cancel at once, up to the rank before its origin.
        if frame.kind == Kind::Cancel && rank > 0 && rank + 1 < self.build.world {
            self.nodes[rank as usize + 1].inbox.push_front(frame.clone());
        }
        self.event(rank, Event::Frame(frame))
    }

    fn event(&mut self, rank: u32, event: Event) -> Result<(), String> {
        let stepped = match rank {
            0 => self.lead.step(Duration::ZERO, self.deafen(event)),
            _ => self.follows[rank as usize - 1].step(event),
        };
        self.perform(rank, stepped.map_err(|error| error.to_string())?)
    }

    /// The planted fault: an echo in which every stage held every keep.
    fn deafen(&self, event: Event) -> Event {
        match event {
            Event::Frame(mut frame) if self.build.deaf && frame.kind == Kind::Plan => {
                let mut plan = Plan::decode(&frame.payload).unwrap();
                plan.keeps.iter_mut().for_each(|keep| keep.held = true);
                frame.payload = plan.encode().unwrap();
                Event::Frame(frame)
            }
            Event::Computed(mut computed) if self.build.deaf => {
                computed.held.fill(true);
                Event::Computed(computed)
            }
            event => event,
        }
    }

    fn perform(&mut self, rank: u32, actions: Vec<Action>) -> Result<(), String> {
        let next = (rank + 1) % self.build.world;
        for action in actions {
            match action {
                Action::Send(frame) => {
                    if frame.kind == Kind::Cancel && self.build.world == 1 {
                        continue;
                    }
                    let inbox = &mut self.nodes[next as usize].inbox;
                    if frame.kind == Kind::Cancel {
                        inbox.push_front(frame);
                    } else {
                        inbox.push_back(frame);
                    }
                }
                Action::Free(_) => {}
                Action::Skip(stream) => self.nodes[rank as usize].fake.skip(stream),
                Action::Tell(RequestId(id), event) => self.tell(id, event)?,
                work => {
                    if let (0, Action::Stage { plan, .. }) = (rank, &work) {
                        self.count(plan);
                    }
                    let node = &mut self.nodes[rank as usize];
                    assert!(node.work.replace(work).is_none(), "one thing at a time");
                }
            }
        }
        Ok(())
    }

    fn count(&mut self, plan: &Plan) {
        let ops = |op| plan.keeps.iter().filter(|keep| keep.op == op).count() as u64;
        self.met.rounds += 1;
        self.met.rows += plan.rows() as u64;
        self.met.saves += ops(KeepOp::Save);
        self.met.drops += ops(KeepOp::Drop);
        let resumed = plan.entries.iter().filter(|entry| entry.op == Op::Resume).count() as u64;
        assert_eq!(resumed, ops(KeepOp::Restore));
        self.met.resumes += resumed;
    }

    fn compute(&mut self, rank: u32, work: Action) -> Result<Event, String> {
        let fake = &mut self.nodes[rank as usize].fake;
        let mut values = Vec::new();
        let mut held = Vec::new();
        let done = match &work {
            Action::Stage { plan, rows: Rows::Tokens(tokens), .. } => {
                fake.step(plan, Input::Tokens(tokens), &mut values)
            }
            Action::Stage { plan, rows: Rows::Values(rows), .. } => {
                fake.step(plan, Input::Rows(rows), &mut values)
            }
            Action::Head { rows, best, .. } => fake.best_logits(rows, best, &mut values),
            other => unreachable!("no work: {other:?}"),
        };
        done.map_err(|error| format!("rank {rank}: {error}"))?;
        if let Action::Stage { plan, .. } = &work {
            held.extend_from_slice(fake.held());
            let refused = |(keep, held): (&Keep, &bool)| keep.op == KeepOp::Save && !held;
            self.met.refused +=
                plan.keeps.iter().zip(&held).filter(|pair| refused(*pair)).count() as u64;
            let (kept, room) = (fake.kept(), self.build.rooms[rank as usize]);
            if kept > room {
                return Err(format!("rank {rank}: {kept} kept states in {room}"));
            }
            self.met.kept_most = self.met.kept_most.max(fake.slots().keeps().len());
        }
        Ok(Event::Computed(Computed { values, held, berth: None }))
    }

    fn tell(&mut self, id: u64, event: Heard) -> Result<(), String> {
        let Some(told) = self.running.get_mut(&id) else {
            return Ok(()); // cancelled
        };
        match event {
            Heard::Token { id, .. } => told.tokens.push(id),
            Heard::Done { logits_sha256, cached, accepted, prompt_tokens, .. } => {
                assert!(cached < prompt_tokens);
                told.sha = logits_sha256;
                (told.cached, told.accepted) = (cached, accepted);
                let told = self.running.remove(&id).unwrap();
                self.ended.insert(id, told);
            }
            other => return Err(format!("request {id}: {other:?}")),
        }
        Ok(())
    }

    /// Runs until nothing is left to do.
    pub fn finish(&mut self, rng: &mut Rng) -> Result<(), String> {
        while !self.is_idle() || self.nodes.iter().any(|n| n.work.is_some() || !n.inbox.is_empty())
        {
            if !self.step(rng)? {
                return Err("nothing happens any more".into());
            }
        }
        Ok(())
    }

    /// In a quiet ring every rank has the same table, and rank 0's mirror agrees.
    pub fn check_quiet(&self) -> Result<(), String> {
        let first = &self.nodes[0].fake;
        let sched = &self.lead.sched;
        for (rank, node) in self.nodes.iter().enumerate() {
            let (table, keeps) = (node.fake.table(), node.fake.slots().keeps());
            if table != sched.table() || keeps != first.slots().keeps() {
                return Err(format!("rank {rank} has another table"));
            }
        }
        // Drops that no plan has carried yet are still on the stages.
        let used = self.build.shapes.pages - first.slots().pages_free();
        if sched.pages_used() > 0 || used < sched.pages_kept() {
            return Err(format!("{used} pages used, rank 0 says {}", sched.pages_kept()));
        }
        Ok(())
    }

    pub fn preemptions(&self) -> u64 {
        self.lead.sched.preemptions()
    }
}
