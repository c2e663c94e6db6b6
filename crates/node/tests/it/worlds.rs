//! A head, a head that takes over, and agents, over a made-up network, with faults from seeds.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use node::agent::{self, Agent};
use node::head::{self, Head, Plan};
use node::membership::State;
use node::message::{Coming, Facts, Launch, ToHead, ToNode, Units, Wanted};
use node::{Ballot, Now};
use proptest::prelude::*;
use serde_json::json;

const REPLAN_WAIT: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(50);
/// One way.
const DELAY: Duration = Duration::from_millis(20);

/// What may go wrong at a time.
#[derive(Clone, Copy, Debug)]
enum Fault {
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

struct Node {
    agent: Option<Agent>,
    lives: u64,
    back: u32,
    slow: u32,
    /// What runs: the launch, and whether it is being ended.
    process: Option<(Launch, bool)>,
    /// Channels that this life of it has.
    channels: Vec<u64>,
    starts: u32,
    /// Whether it has the model's file.
    has: bool,
    /// What it measures; a node of 0 only slows the others.
    speed: u32,
    measures: u32,
    gives: u32,
}

struct Boss {
    head: Head,
    id: u64,
    /// Channel to each node.
    channels: BTreeMap<usize, u64>,
    cut_off: u32,
    moves: Vec<Plan>,
    dials: u32,
    ended: Option<String>,
}

struct World {
    now: Now,
    nodes: Vec<Node>,
    bosses: Vec<Boss>,
    next: u64,
    /// Due, by channel: to the node, or to the boss.
    post: VecDeque<(Now, u64, Post)>,
    /// Channel: boss and node.
    ways: BTreeMap<u64, (usize, usize)>,
}

enum Post {
    There(ToNode),
    Back(ToHead),
}

impl World {
    fn new(count: usize) -> Self {
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
        };
        let nodes = (0..count).map(node).collect();
        let mut world = Self {
            now: Duration::ZERO,
            nodes,
            bosses: Vec::new(),
            next: 1,
            post: VecDeque::new(),
            ways: BTreeMap::new(),
        };
        world.boss();
        world
    }

    fn boss(&mut self) {
        let id = 100 + self.bosses.len() as u64;
        let nodes = (0..self.nodes.len()).map(|at| (format!("n{at}"), Wanted::default()));
        let head = Head::new(nodes, Ballot { epoch: id, head: id }, REPLAN_WAIT, self.now);
        let (channels, moves) = (BTreeMap::new(), Vec::new());
        let boss = Boss { head, id, channels, cut_off: 0, moves, dials: 0, ended: None };
        self.bosses.push(boss);
    }

    fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(at, back) => {
                let node = &mut self.nodes[at];
                (node.agent, node.process, node.back) = (None, None, back.max(1));
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

    fn agent(&mut self, at: usize, event: agent::Event) {
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

    fn head(&mut self, at: usize, event: head::Event) {
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
                    let plan = self.plan(at, number, &nodes);
                    self.head(at, head::Event::Planned(plan));
                }
                head::Action::Supply(node) => {
                    assert!(!self.nodes[node].has);
                    let units = Units { catalog: "00".repeat(32), sources: vec!["a:1".into()] };
                    self.head(at, head::Event::Supplied(node, Ok(units)));
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

    fn step(&mut self) {
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
            self.agent(at, agent::Event::Tick);
        }
        for at in 0..self.bosses.len() {
            self.bosses[at].cut_off = self.bosses[at].cut_off.saturating_sub(1);
            self.head(at, head::Event::Tick);
            let members = self.bosses[at].head.members();
            assert_eq!(members.len(), self.nodes.len());
        }
    }

    fn run(&mut self, seconds: u64) {
        let until = self.now + Duration::from_secs(seconds);
        while self.now < until {
            self.step();
        }
    }

    /// Once nothing has gone wrong for a while, one head decides, and what runs is its plan.
    fn settles(&mut self) -> Result<(), TestCaseError> {
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

fn faults() -> impl Strategy<Value = Vec<(u32, Fault)>> {
    let fault = prop_oneof![
        3 => (0..3usize, 1..600u32).prop_map(|(at, back)| Fault::Kill(at, back)),
        2 => (0..3usize).prop_map(Fault::Cut),
        2 => (0..3usize, 1..300u32).prop_map(|(at, steps)| Fault::Slow(at, steps)),
        2 => (0..3usize).prop_map(Fault::Crash),
        1 => (0..400u32).prop_map(Fault::Take),
        1 => Just(Fault::Replan),
        1 => any::<bool>().prop_map(Fault::Busy),
    ];
    prop::collection::vec((1..300u32, fault), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..<_>::default() })]

    #[test]
    fn whatever_happens_the_newest_head_ends_up_with_all_nodes(faults in faults()) {
        let mut world = World::new(3);
        world.run(15);
        for (steps, fault) in faults {
            (0..steps).for_each(|_| world.step());
            world.fault(fault);
        }
        world.settles()?;
    }
}

#[test]
fn a_head_whose_node_an_older_one_took_claims_it_again() {
    let mut world = World::new(3);
    world.run(15);
    let faults = [
        (1, Fault::Kill(1, 522)),
        (1, Fault::Take(0)),
        (251, Fault::Replan),
        (165, Fault::Kill(0, 1)),
        (6, Fault::Take(46)),
    ];
    for (steps, fault) in faults {
        (0..steps).for_each(|_| world.step());
        world.fault(fault);
    }
    world.settles().unwrap();
}

#[test]
fn a_dead_node_is_replaced_after_the_wait_and_taken_back_when_idle() {
    let mut world = World::new(3);
    world.run(15);
    assert_eq!(world.bosses[0].moves.len(), 1);
    world.fault(Fault::Busy(true));
    let died = world.now;
    world.fault(Fault::Kill(1, 400));
    while world.bosses[0].moves.len() < 2 {
        world.step();
    }
    let waited = world.now - died;
    assert!(waited >= REPLAN_WAIT && waited <= REPLAN_WAIT + STEP * 4, "{waited:?}");
    assert_eq!(world.bosses[0].moves[1].line, "[0, 2]");
    // It is back after 20 s, and nothing changes while requests run.
    world.run(60);
    assert_eq!(world.bosses[0].moves.len(), 2);
    assert_eq!(world.bosses[0].head.usable(), [0, 1, 2]);
    world.fault(Fault::Busy(false));
    world.run(7);
    assert_eq!(world.bosses[0].moves.len(), 3);
    assert_eq!(world.bosses[0].moves[2].line, "[0, 1, 2]");
    // Asked for, a plan is made at once, and stays if it is the same.
    world.fault(Fault::Busy(true));
    world.fault(Fault::Replan);
    world.run(7);
    assert_eq!(world.bosses[0].moves.len(), 3);
}

#[test]
fn a_node_back_within_the_wait_gets_its_rank_again_and_no_plan_is_made() {
    let mut world = World::new(3);
    world.run(15);
    world.fault(Fault::Kill(1, 60));
    world.run(30);
    assert_eq!(world.bosses[0].moves.len(), 1);
    assert_eq!(world.nodes[1].starts, 2);
    assert_eq!(world.bosses[0].head.members()[1].returns, 1);
    assert!(world.nodes[1].process.is_some());
}

#[test]
fn a_slow_node_becomes_suspect_and_keeps_its_rank() {
    let mut world = World::new(3);
    world.run(15);
    world.fault(Fault::Slow(1, 80));
    world.run(4);
    assert_eq!(world.bosses[0].head.members()[1].state, State::Suspect);
    world.run(20);
    assert_eq!(world.bosses[0].head.members()[1].state, State::Up);
    assert_eq!((world.bosses[0].moves.len(), world.nodes[1].starts), (1, 1));
}

#[test]
fn a_rank_that_ends_again_and_again_leaves_its_node_out() {
    let mut world = World::new(3);
    world.run(15);
    for _ in 0..200 {
        world.step();
        world.fault(Fault::Crash(2));
    }
    let lines: Vec<&str> = world.bosses[0].moves.iter().map(|plan| &*plan.line).collect();
    assert_eq!(lines, ["[0, 1, 2]", "[0, 1]"]);
    assert!(world.nodes[2].starts <= 5, "{}", world.nodes[2].starts);
}

#[test]
fn a_head_that_was_cut_off_finds_another_in_its_place_and_ends() {
    let mut world = World::new(3);
    world.run(15);
    world.fault(Fault::Take(400));
    world.run(15);
    assert_eq!(world.bosses[1].moves.len(), 1, "the new one has its plan");
    assert_eq!(world.bosses[1].head.ballot(), Ballot { epoch: 101, head: 101 });
    assert!(world.bosses[0].ended.is_none(), "cut off, it does not know");
    world.run(20);
    let why = world.bosses[0].ended.clone().unwrap();
    assert!(why.contains("another head has taken over"), "{why}");
    assert_eq!(world.bosses[1].moves.len(), 1, "and it was not disturbed");
}

#[test]
fn a_node_that_lacks_the_model_is_told_where_to_take_it_and_the_others_give() {
    let mut world = World::new(3);
    world.run(15);
    let plan = world.bosses[0].head.plan().unwrap().clone();
    assert_eq!(plan.line, "[0, 1, 2]");
    let gives: Vec<u32> = world.nodes.iter().map(|node| node.gives).collect();
    assert_eq!(gives, [1, 0, 1]);
    // How far its layers are is told with its beats.
    world.agent(1, agent::Event::Coming(Some(Coming { moved: 1_500_000, missing: 6_000_000 })));
    world.run(2);
    assert_eq!(world.bosses[0].head.lines()[1].why, "took 1.5 of 6.0 MB");
    world.agent(1, agent::Event::Coming(None));
    world.run(2);
    assert_eq!(world.bosses[0].head.lines()[1].why, "");
}

#[test]
fn a_ring_that_is_not_as_planned_is_measured_again_once_it_is_idle_and_no_sooner() {
    let mut world = World::new(3);
    world.run(15);
    let measures = |world: &World| world.nodes.iter().map(|n| n.measures).collect::<Vec<_>>();
    world.nodes[1].speed = 0;
    world.run(60);
    assert_eq!(measures(&world), [0, 0, 0], "being idle alone measures nothing");
    world.fault(Fault::Busy(true));
    world.head(0, head::Event::Off);
    world.run(60);
    assert_eq!((measures(&world), world.bosses[0].moves.len()), (vec![0, 0, 0], 1));
    world.fault(Fault::Busy(false));
    world.run(4);
    assert_eq!(measures(&world), [0, 0, 0]);
    world.run(4);
    assert_eq!(measures(&world), [1, 1, 1]);
    let lines: Vec<&str> = world.bosses[0].moves.iter().map(|plan| &*plan.line).collect();
    assert_eq!(lines, ["[0, 1, 2]", "[0, 2]"]);
    world.run(60);
    assert_eq!((measures(&world), world.bosses[0].moves.len()), (vec![1, 1, 1], 2));
}

#[test]
fn what_is_measured_while_requests_come_is_measured_once_more() {
    let mut world = World::new(3);
    world.run(15);
    world.nodes[1].speed = 0;
    // Its words come so late that requests are there before it has measured.
    world.head(0, head::Event::Off);
    while world.bosses[0].head.lines()[1].why != "measures itself" {
        world.fault(Fault::Slow(1, 20));
        world.step();
    }
    world.fault(Fault::Busy(true));
    world.run(10);
    assert_eq!(world.bosses[0].moves.len(), 1);
    world.fault(Fault::Busy(false));
    world.run(10);
    assert_eq!((world.nodes[1].measures, world.bosses[0].moves.len()), (2, 2));
}
