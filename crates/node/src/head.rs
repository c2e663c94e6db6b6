//! A head without I/O: which nodes there are, when to plan, and what each of them is to run.
//!
//! A plan stands until it can't: a node of it that is gone for longer than the wait, or whose rank
//! ends again and again, makes a new one of what is left. Nodes that join or come back change
//! nothing before a drain boundary: a ring that is idle, or [`Event::Replan`].

mod gather;
mod links;
mod planning;
mod terms;

use std::time::Duration;

use crate::membership::{BEAT, Look, Member, Membership};
use crate::message::{Ballot, Door, Launch, ToHead, ToNode, Wanted};
use crate::{NODES_MAX, Now};

use gather::{Measure, Recheck};
use links::Links;
pub use links::{End, LINK_PAUSE, LINK_TIMEOUT, LINKS_WAIT, Link};
use planning::Cause;
pub use terms::{Action, Event, Line, Plan};

/// How long nodes that are not there yet are waited for before the first plan.
pub const GATHER: Duration = Duration::from_secs(10);
/// How long a node may measure.
pub const MEASURE_TIMEOUT: Duration = Duration::from_secs(300);
/// A node that could not be measured is asked again after so long.
pub const UNFIT_PAUSE: Duration = Duration::from_secs(30);
/// A rank that ended so often in a plan makes its node unfit for a while.
pub const ENDS_MAX: u32 = 3;
/// How long such a node is left out.
pub const LEFT_OUT: Duration = Duration::from_secs(120);
/// A ring without a request for so long is idle.
pub const IDLE_WAIT: Duration = Duration::from_secs(5);
/// A plan takes another's place at a drain boundary where its time is at most this part of it.
pub const BETTER: f64 = 0.95;

/// The core of a head.
#[derive(Debug)]
pub struct Head {
    table: Membership,
    ballot: Ballot,
    /// Whose channel has our claim.
    claimed: Vec<bool>,
    measures: Vec<Measure>,
    /// Which nodes were asked to let others take the model from them.
    gives: Vec<bool>,
    /// Whose own files hold other values, and are soon told where to take the model's.
    others: Vec<bool>,
    recheck: Recheck,
    links: Links,
    /// Though there are measurements that are kept.
    again: bool,
    left_out: Vec<Option<Now>>,
    wanted: Vec<Wanted>,
    replan_wait: Duration,
    start: Now,
    number: u64,
    plan: Option<Plan>,
    /// Why a plan is being made.
    planning: Option<Cause>,
    /// Of whom the last plan was made.
    considered: Vec<usize>,
    planned: Now,
    /// Since when the plan has a hole.
    hole: Option<Now>,
    idle: Option<Now>,
    beat: Now,
    over: bool,
}

impl Head {
    /// Before any node was heard of: their names, and the model as each of them looks for it.
    /// A plan with a hole is kept for `replan_wait`, and `door` opens the ports of nodes without a
    /// rank for each other to measure the way there. The head of `ballot` is drawn at random; its
    /// epoch is the time of its start, so that a head that comes later outranks one before it.
    /// Where a clock went back it does so once nodes have been alone for
    /// [`crate::agent::ORPHAN_AFTER`].
    pub fn new(
        nodes: impl IntoIterator<Item = (String, Wanted)>,
        ballot: Ballot,
        door: Door,
        replan_wait: Duration,
        now: Now,
    ) -> Self {
        let mut head = Self {
            table: Membership::new([], now),
            ballot: Ballot { epoch: ballot.epoch.max(1), head: ballot.head.max(1) },
            claimed: Vec::new(),
            measures: Vec::new(),
            gives: Vec::new(),
            others: Vec::new(),
            recheck: Recheck::default(),
            links: Links::new(door),
            again: false,
            left_out: Vec::new(),
            wanted: Vec::new(),
            replan_wait,
            start: now,
            number: 0,
            plan: None,
            planning: None,
            considered: Vec::new(),
            planned: now,
            hole: None,
            idle: Some(now),
            beat: now,
            over: false,
        };
        nodes.into_iter().for_each(|(name, wanted)| head.add(name, wanted, now));
        head
    }

    /// Nothing that was measured before this head is used.
    pub fn measure_anew(&mut self) {
        self.again = true;
    }

    /// One more node, behind the others; it joins as any that comes late.
    ///
    /// # Panics
    /// Beyond [`NODES_MAX`].
    pub fn add(&mut self, name: String, wanted: Wanted, now: Now) {
        assert!(self.wanted.len() < NODES_MAX, "{NODES_MAX} nodes at most");
        self.table.add(name, now);
        self.claimed.push(false);
        self.measures.push(Measure::None);
        self.gives.push(false);
        self.others.push(false);
        self.left_out.push(None);
        self.wanted.push(wanted);
    }

    /// The table.
    pub fn members(&self) -> &[Member] {
        self.table.members()
    }

    /// The model as a node looks for it.
    pub fn wanted(&self, node: usize) -> &Wanted {
        &self.wanted[node]
    }

    /// The plan that stands.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// The claim.
    pub fn ballot(&self) -> Ballot {
        self.ballot
    }

    /// The table for users.
    pub fn lines(&self) -> Vec<Line> {
        let line = |(node, member): (usize, &Member)| {
            let rank = self.seat(node).map(|launch| launch.rank);
            let Member { name, state, returns, .. } = member;
            let (name, why) = (name.clone(), self.why(node));
            Line { name, state: *state, why, rank, returns: *returns }
        };
        self.members().iter().enumerate().map(line).collect()
    }

    /// What follows from an event.
    pub fn step(&mut self, now: Now, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.over {
            return actions;
        }
        match event {
            Event::Opened(node) => {
                self.table.opened(node, now);
                let engine = env!("CARGO_PKG_VERSION").into();
                actions.push(Action::Say(node, ToNode::Hello { engine }));
            }
            Event::Broke(node, why) => self.broke(now, node, &why, &mut actions),
            Event::Heard(node, message) => self.heard(now, node, message, &mut actions),
            Event::Planned(result) => self.settled(now, result, &mut actions),
            Event::Supplied(node, found) => self.supplied(now, node, found, &mut actions),
            Event::Reached(to, found) => self.reached(now, (None, to), found, &mut actions),
            Event::MeasuredAgain => self.recheck.own_done(),
            Event::Off => self.recheck.due(),
            Event::Other(rank, why) => self.other(now, rank, &why, &mut actions),
            Event::Load { busy: true } => {
                self.idle = None;
                self.recheck.disturb();
                // A ring with a hole has nothing to do.
                if self.plan.is_some() && self.hole.is_none() {
                    self.links.disturb();
                }
            }
            Event::Load { busy: false } => {
                self.idle.get_or_insert(now);
            }
            Event::Replan => self.ask(Cause::Asked, now, &mut actions),
            Event::Tick => {}
            Event::Drain => {
                self.over = true;
                let open = (0..self.claimed.len()).filter(|node| self.claimed[*node]);
                actions.extend(open.map(|node| Action::Say(node, ToNode::Rest)));
                return actions;
            }
        }
        self.look(now, &mut actions);
        self.consider(now, &mut actions);
        actions
    }

    fn broke(&mut self, now: Now, node: usize, why: &str, actions: &mut Vec<Action>) {
        self.claimed[node] = false;
        self.forget(node);
        let was = self.table.is_up(node);
        self.table.broke(node, why, now);
        if was {
            actions.push(self.state_of(node));
        }
    }

    fn state_of(&self, node: usize) -> Action {
        let Member { name, state, why, .. } = &self.members()[node];
        let state = format!("{state:?}").to_lowercase();
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        Action::Note(format!("node {name} is {state}{why}"))
    }

    fn heard(&mut self, now: Now, node: usize, message: ToHead, actions: &mut Vec<Action>) {
        match message {
            ToHead::Welcome { incarnation, facts, ballot } => {
                let ours = env!("CARGO_PKG_VERSION");
                if facts.engine != ours {
                    let why = format!("is version {}, this is {ours}: update one", facts.engine);
                    self.broke(now, node, &why, actions);
                    actions.push(Action::Close(node));
                    return;
                }
                let was = self.table.is_up(node);
                self.table.welcomed(node, incarnation, facts, now);
                if !was {
                    actions.push(self.state_of(node));
                }
                self.claim(node, ballot, actions);
            }
            ToHead::Claimed(ballot) if ballot.head == self.ballot.head => {
                self.table.heard(node, None, now);
                self.claimed[node] = true;
                if let Some(launch) = self.seat(node).cloned() {
                    actions.push(Action::Say(node, ToNode::Run(Box::new(launch))));
                } else {
                    actions.push(Action::Say(node, ToNode::Rest));
                }
            }
            ToHead::Superseded(ballot) => self.claim(node, ballot, actions),
            ToHead::Claimed(_) => {}
            ToHead::Beat(rank) => {
                let was = self.table.is_up(node);
                self.table.heard(node, Some(rank), now);
                if !was {
                    actions.push(self.state_of(node));
                }
            }
            said @ (ToHead::Measured(_) | ToHead::Unfit(_) | ToHead::Lacks(_)) => {
                self.told(now, node, said, actions);
            }
            said @ (ToHead::Answers(_) | ToHead::Reached { .. }) => {
                self.told_links(now, node, said, actions);
            }
        }
    }

    /// Claims a node that has heard `ballot` so far, or gives way if that outranks ours.
    fn claim(&mut self, node: usize, ballot: Ballot, actions: &mut Vec<Action>) {
        if ballot > self.ballot {
            self.give_way(node, ballot, actions);
        } else {
            actions.push(Action::Say(node, ToNode::Claim(self.ballot)));
        }
    }

    fn give_way(&mut self, node: usize, ballot: Ballot, actions: &mut Vec<Action>) {
        self.over = true;
        let name = &self.members()[node].name;
        actions.push(Action::End(format!(
            "node {name} follows {ballot}, this is {}: another head has taken over; where none has, try \
             again in a minute",
            self.ballot
        )));
    }

    /// The launch of a node's rank in the plan that stands.
    fn seat(&self, node: usize) -> Option<&Launch> {
        let seats = &self.plan.as_ref()?.seats;
        seats.iter().find(|(at, _)| *at == node).map(|(_, launch)| launch)
    }

    /// What time brings to the table, and what is owed to nodes.
    fn look(&mut self, now: Now, actions: &mut Vec<Action>) {
        for look in self.table.look(now) {
            actions.push(match look {
                Look::Dial(node) => Action::Dial(node),
                Look::Close(node) => Action::Close(node),
                Look::Changed(node) => self.state_of(node),
            });
        }
        let beats = now.saturating_sub(self.beat) >= BEAT;
        if beats {
            self.beat = now;
        }
        for node in 0..self.claimed.len() {
            if !self.claimed[node] || !self.table.is_open(node) {
                continue;
            }
            if beats {
                actions.push(Action::Say(node, ToNode::Beat));
            }
            self.ask_node(now, node, actions);
            self.failing(now, node, actions);
        }
    }
}
