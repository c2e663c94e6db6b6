//! A head, a head that takes over, and agents, over a made-up network, with faults from seeds.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use node::agent::{self, Agent};
use node::head::{self, End, Head, Plan};
use node::membership::State;
use node::message::{Door, Facts, Launch, Reach, ToHead, ToNode, Units, Wanted};
use node::{Ballot, Now};
use proptest::prelude::*;
use serde_json::json;

pub const REPLAN_WAIT: Duration = Duration::from_secs(5);
pub const STEP: Duration = Duration::from_millis(50);
/// One way.
const DELAY: Duration = Duration::from_millis(20);
/// How long a way takes to be measured.
const MEASURE: Duration = Duration::from_millis(500);

/// What may go wrong at a time.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// A node's agent and its rank die; it is back after so many steps.
    Kill(usize, u32),
    /// A channel breaks.
    Cut(usize),
    /// A node's words come late, so many steps in all.
    Slow(usize, u32),
    /// A node's rank ends by itself.
    Crash(usize),
    /// The head is started anew; the old one lives on, cut off for so many steps.
    Take(u32),
    /// A user asks for a plan.
    Replan,
    /// Requests come, or all are done.
    Busy(bool),
}

pub struct Node {
    agent: Option<Agent>,
    lives: u64,
    back: u32,
    slow: u32,
    /// What runs: the launch, and whether it is being ended.
    pub process: Option<(Launch, bool)>,
    /// Channels that this life of it has.
    channels: Vec<u64>,
    pub starts: u32,
    /// Whether it has the model's file.
    has: bool,
    /// What it measures; a node of 0 only slows the others.
    pub speed: u32,
    pub measures: u32,
    pub gives: u32,
    /// Whether its port is open for who measures.
    is_open: bool,
    /// Until when it measures the way to another.
    reaches: Option<(Now, Reach)>,
}

pub struct Boss {
    pub head: Head,
    id: u64,
    /// Channel to each node.
    channels: BTreeMap<usize, u64>,
    cut_off: u32,
    pub moves: Vec<Plan>,
    /// How many plans were made.
    pub plans: u32,
    dials: u32,
    pub ended: Option<String>,
}

pub struct World {
    pub now: Now,
    pub nodes: Vec<Node>,
    pub bosses: Vec<Boss>,
    next: u64,
    /// Due, by channel: to the node, or to the boss.
    post: VecDeque<(Now, u64, Post)>,
    /// Channel: boss and node.
    ways: BTreeMap<u64, (usize, usize)>,
    /// Ways on which nothing comes through, and on which nobody tells what did.
    pub dead: Vec<(End, usize)>,
    pub lost: Vec<(End, usize)>,
    /// Each measurement of a way: when, from whom to whom.
    pub reached: Vec<(Now, End, usize)>,
    /// What this machine measures for a boss, and until when.
    own: Option<(Now, usize, usize)>,
}

pub enum Post {
    There(ToNode),
    Back(ToHead),
}

impl World {
    pub fn new(count: usize) -> Self {
        let node = |at| Node {
            agent: None,
            lives: 0,
            back: 1,
            slow: 0,
            process: None,
            channels: Vec::new(),
            starts: 0,
            has: at != 1,
            speed: 1,
            measures: 0,
            gives: 0,
            is_open: false,
            reaches: None,
        };
        let nodes = (0..count).map(node).collect();
        let mut world = Self {
            now: Duration::ZERO,
            nodes,
            bosses: Vec::new(),
            next: 1,
            post: VecDeque::new(),
            ways: BTreeMap::new(),
            dead: Vec::new(),
            lost: Vec::new(),
            reached: Vec::new(),
            own: None,
        };
        world.boss();
        world
    }

    pub fn boss(&mut self) {
        let id = 100 + self.bosses.len() as u64;
        let nodes = (0..self.nodes.len()).map(|at| (format!("n{at}"), Wanted::default()));
        let head = Head::new(
            nodes,
            Ballot { epoch: id, head: id },
            Door::default(),
            REPLAN_WAIT,
            self.now,
        );
        let (channels, moves) = (BTreeMap::new(), Vec::new());
        let boss = Boss { head, id, channels, cut_off: 0, moves, plans: 0, dials: 0, ended: None };
        self.bosses.push(boss);
    }

    pub fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(at, back) => {
                let node = &mut self.nodes[at];
                (node.agent, node.process, node.back) = (None, None, back.max(1));
                (node.is_open, node.reaches) = (false, None);
                for channel in std::mem::take(&mut node.channels) {
                    self.cut(channel, false);
                }
            }
            Fault::Cut(at) => {
                let channels = self.nodes[at].channels.clone();
                channels.into_iter().for_each(|channel| self.cut(channel, true));
            }
            Fault::Slow(at, steps) => self.nodes[at].slow = steps,
            Fault::Crash(at) => {
                if let Some((_, false)) = self.nodes[at].process {
                    self.nodes[at].process = None;
                    self.agent(at, agent::Event::Ended("exit status: 1".into()));
                }
            }
            Fault::Take(steps) => {
                let last = self.bosses.len() - 1;
                self.bosses[last].cut_off = steps;
                let channels: Vec<u64> = self.bosses[last].channels.values().copied().collect();
                channels.into_iter().for_each(|channel| self.cut(channel, true));
                self.boss();
            }
            Fault::Replan => self.head(self.bosses.len() - 1, head::Event::Replan),
            Fault::Busy(busy) => {
                self.head(self.bosses.len() - 1, head::Event::Load { busy });
            }
        }
    }

    /// Breaks a channel; both ends hear of it, where they are there to.
    fn cut(&mut self, channel: u64, agent_hears: bool) {
        let Some((boss, node)) = self.ways.remove(&channel) else { return };
        self.nodes[node].channels.retain(|other| *other != channel);
        self.bosses[boss].channels.retain(|_, other| *other != channel);
        if agent_hears {
            self.agent(node, agent::Event::Closed(channel));
        }
        self.head(boss, head::Event::Broke(node, "cut".into()));
    }

    pub fn agent(&mut self, at: usize, event: agent::Event) {
        let now = self.now;
        let Some(agent) = &mut self.nodes[at].agent else { return };
        for action in agent.step(now, event) {
            match action {
                agent::Action::Say(channel, message) => {
                    self.post.push_back((now + DELAY, channel, Post::Back(message)));
                }
                agent::Action::Close(channel) => {
                    // What was said before arrives.
                    self.deliver_of(channel);
                    self.cut(channel, true);
                }
                agent::Action::Start(launch) => {
                    let node = &mut self.nodes[at];
                    assert!(node.process.is_none(), "two ranks on node {at}");
                    assert!(!node.is_open, "the port of node {at} is taken");
                    node.process = Some((*launch, false));
                    node.starts += 1;
                }
                agent::Action::End => {
                    let process = self.nodes[at].process.as_mut();
                    process.expect("something to end").1 = true;
                }
                agent::Action::Measure { wanted, again } => {
                    let node = &mut self.nodes[at];
                    node.measures += u32::from(again);
                    let event = match node.has || wanted.units.is_some() {
                        true => agent::Event::Measured(Ok(json!({ "speed": node.speed }))),
                        false => agent::Event::Lacks("no such model".into()),
                    };
                    self.agent(at, event);
                }
                agent::Action::Give(_) => self.nodes[at].gives += 1,
                agent::Action::Answer(_) => {
                    assert!(self.nodes[at].process.is_none(), "a rank of node {at} has the port");
                    self.nodes[at].is_open = true;
                    self.agent(at, agent::Event::Answers(Ok(())));
                }
                agent::Action::Shut => self.nodes[at].is_open = false,
                agent::Action::Reach(reach) => {
                    assert!(self.nodes[at].reaches.is_none(), "node {at} measures two ways");
                    self.nodes[at].reaches = Some((now + MEASURE, *reach));
                }
                agent::Action::Note(_) => {}
                agent::Action::Stopped => unreachable!("nobody stops an agent here"),
            }
        }
    }

    fn deliver_of(&mut self, channel: u64) {
        let (own, rest) = self.post.drain(..).partition(|(_, of, _)| *of == channel);
        self.post = rest;
        let own: VecDeque<_> = own;
        own.into_iter().for_each(|(_, channel, post)| self.deliver(channel, post));
    }

    fn deliver(&mut self, channel: u64, post: Post) {
        let Some((boss, node)) = self.ways.get(&channel).copied() else { return };
        match post {
            Post::There(message) => self.agent(node, agent::Event::Heard(channel, message)),
            Post::Back(message) => self.head(boss, head::Event::Heard(node, message)),
        }
    }

    pub fn head(&mut self, at: usize, event: head::Event) {
        let now = self.now;
        if self.bosses[at].ended.is_some() {
            return;
        }
        for action in self.bosses[at].head.step(now, event) {
            match action {
                head::Action::Dial(node) => {
                    self.bosses[at].dials += 1;
                    if self.nodes[node].agent.is_none() || self.bosses[at].cut_off > 0 {
                        self.head(at, head::Event::Broke(node, "refused".into()));
                        continue;
                    }
                    let channel = self.next;
                    self.next += 1;
                    self.ways.insert(channel, (at, node));
                    self.nodes[node].channels.push(channel);
                    self.bosses[at].channels.insert(node, channel);
                    self.head(at, head::Event::Opened(node));
                }
                head::Action::Close(node) => {
                    let channel = self.bosses[at].channels.get(&node).copied();
                    if let Some(channel) = channel {
                        self.cut(channel, true);
                    }
                }
                head::Action::Say(node, message) => {
                    if let Some(channel) = self.bosses[at].channels.get(&node) {
                        self.post.push_back((now + DELAY, *channel, Post::There(message)));
                    }
                }
                head::Action::Plan { number, nodes } => {
                    self.bosses[at].plans += 1;
                    let plan = self.plan(at, number, &nodes);
                    self.head(at, head::Event::Planned(plan));
                }
                head::Action::Supply(node) => {
                    let units = Units {
                        catalog: "00".repeat(32),
                        sources: vec!["a:1".into()],
                        instead: false,
                    };
                    self.head(at, head::Event::Supplied(node, Ok(units)));
                }
                head::Action::Reach { from: Some(from), to, door, again } => {
                    let node = format!("n{to}");
                    let reach = Reach { node, addresses: vec!["a:1".into()], door, again };
                    if let Some(channel) = self.bosses[at].channels.get(&from) {
                        let post = Post::There(ToNode::Reach(Box::new(reach)));
                        self.post.push_back((now + DELAY, *channel, post));
                    }
                }
                head::Action::Reach { from: None, to, .. } => {
                    self.own = Some((now + MEASURE, at, to));
                    self.reached.push((now, None, to));
                }
                head::Action::MeasureAgain => self.head(at, head::Event::MeasuredAgain),
                head::Action::Move(plan) => self.bosses[at].moves.push(*plan),
                head::Action::End(why) => {
                    self.bosses[at].ended = Some(why);
                    let channels: Vec<u64> = self.bosses[at].channels.values().copied().collect();
                    channels.into_iter().for_each(|channel| self.cut(channel, true));
                }
                head::Action::Waiting(_) | head::Action::Note(_) => {}
            }
        }
    }

    /// Two nodes at least, since the head has not room for all; more are faster.
    fn plan(&self, boss: usize, number: u64, nodes: &[usize]) -> Result<Plan, String> {
        let head = &self.bosses[boss].head;
        for node in nodes {
            assert!(head.measured(*node).is_some(), "node {node} is not measured");
            assert_eq!(head.members()[*node].state, State::Up);
        }
        let speed = |node: &usize| head.measured(*node).map(|value| value["speed"] == 1);
        let nodes: Vec<usize> = nodes.iter().copied().filter(|n| speed(n) == Some(true)).collect();
        if nodes.is_empty() {
            return Err("nothing fits".into());
        }
        let seat = |(at, node): (usize, &usize)| {
            let launch = Launch { plan: number, rank: at as u32 + 1, ..Launch::default() };
            (*node, launch)
        };
        let seats = nodes.iter().enumerate().map(seat).collect();
        let time_s = 1.0 / (1.0 + nodes.len() as f64);
        Ok(Plan { number, seats, line: format!("{nodes:?}"), time_s })
    }

    pub fn step(&mut self) {
        self.now += STEP;
        while let Some(at) = self.post.iter().position(|(due, channel, _)| {
            let way = self.ways.get(channel);
            *due <= self.now && way.is_none_or(|(_, node)| self.nodes[*node].slow == 0)
        }) {
            let (_, channel, post) = self.post.remove(at).unwrap();
            self.deliver(channel, post);
        }
        for at in 0..self.nodes.len() {
            let node = &mut self.nodes[at];
            node.slow = node.slow.saturating_sub(1);
            if node.agent.is_none() {
                node.back -= 1;
                if node.back == 0 {
                    node.lives += 1;
                    let engine = env!("CARGO_PKG_VERSION").into();
                    let facts = Facts { engine, ..Facts::default() };
                    let incarnation = at as u64 * 1_000 + node.lives;
                    node.agent = Some(Agent::new(incarnation, facts, self.now));
                }
            }
            if node.process.as_ref().is_some_and(|(_, ending)| *ending) {
                node.process = None;
                self.agent(at, agent::Event::Ended("ended".into()));
            }
            self.measured_a_way(at);
            self.agent(at, agent::Event::Tick);
        }
        if let Some((_, boss, to)) = self.own.take_if(|(until, ..)| *until <= self.now) {
            let found = self.way(None, to);
            self.head(boss, head::Event::Reached(to, found));
        }
        for at in 0..self.bosses.len() {
            self.bosses[at].cut_off = self.bosses[at].cut_off.saturating_sub(1);
            self.head(at, head::Event::Tick);
            let members = self.bosses[at].head.members();
            assert_eq!(members.len(), self.nodes.len());
        }
    }

    /// What is measured of a way.
    fn way(&self, from: End, to: usize) -> Result<serde_json::Value, String> {
        match self.dead.contains(&(from, to)) {
            true => Err("no answer".into()),
            false => Ok(json!({ "rate": self.nodes[to].speed })),
        }
    }

    fn measured_a_way(&mut self, from: usize) {
        let now = self.now;
        let Some((until, reach)) = self.nodes[from].reaches.clone() else { return };
        let to: usize = reach.node[1..].parse().unwrap();
        if until == now + MEASURE - STEP {
            self.reached.push((now, Some(from), to));
        }
        if until > now {
            return;
        }
        self.nodes[from].reaches = None;
        let is_there = self.nodes[to].is_open || self.nodes[to].process.is_some();
        let found = match is_there {
            true => self.way(Some(from), to),
            false => Err("refused".into()),
        };
        if !self.lost.contains(&(Some(from), to)) {
            self.agent(from, agent::Event::Reached(reach.node, found));
        }
    }

    pub fn run(&mut self, seconds: u64) {
        let until = self.now + Duration::from_secs(seconds);
        while self.now < until {
            self.step();
        }
    }

    /// Once nothing has gone wrong for a while, one head decides, and what runs is its plan.
    pub fn settles(&mut self) -> Result<(), TestCaseError> {
        self.head(self.bosses.len() - 1, head::Event::Load { busy: false });
        self.run(200);
        let last = self.bosses.last().unwrap();
        prop_assert_eq!(&last.ended, &None);
        for old in &self.bosses[..self.bosses.len() - 1] {
            let touched = old.head.members().iter().any(|member| member.incarnation != 0);
            prop_assert!(old.ended.is_some() || !touched, "head {} still reigns", old.id);
        }
        let plan = last.head.plan().expect("a plan");
        prop_assert_eq!(plan.seats.len(), self.nodes.len(), "all are back, and used: {:?}", plan);
        for (node, launch) in &plan.seats {
            let process = self.nodes[*node].process.as_ref();
            prop_assert_eq!(process.map(|(own, _)| own), Some(launch));
        }
        // The dials of ten minutes: no storm.
        for boss in &self.bosses {
            let most = 30 + self.now.as_secs() as u32 * self.nodes.len() as u32;
            prop_assert!(boss.dials <= most, "{} dials", boss.dials);
        }
        Ok(())
    }
}
