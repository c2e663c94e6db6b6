//! A head without I/O: which nodes there are, when to plan, and what each of them is to run.
//!
//! A plan stands until it can't: a node of it that is gone for longer than the wait, or whose rank
//! ends again and again, makes a new one of what is left. Nodes that join or come back change
//! nothing before a drain boundary: a ring that is idle, or [`Event::Replan`].

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::Now;
use crate::membership::{BEAT, Look, Member, Membership, State};
use crate::message::{Ballot, Launch, RankState, ToHead, ToNode, Wanted};

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
/// Fewest time between two plans, where the first gave none.
const PLAN_PAUSE: Duration = Duration::from_secs(1);

/// Who runs what; the head itself is rank 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Which one; later ones have higher numbers.
    pub number: u64,
    /// The other ranks, in order: node and launch.
    pub seats: Vec<(usize, Launch)>,
    /// For people: which node holds which layers.
    pub line: String,
    /// Its predicted time by what it is for; less is better.
    pub time_s: f64,
}

/// What happens to a head.
#[derive(Clone, Debug)]
pub enum Event {
    /// A channel to a node stands.
    Opened(usize),
    /// A node could not be reached, or its channel ended, and why.
    Broke(usize, String),
    /// A node said something.
    Heard(usize, ToHead),
    /// What an [`Action::Plan`] gave: none where nothing fits, and why.
    Planned(Result<Plan, String>),
    /// Whether requests run or wait.
    Load {
        /// Some do.
        busy: bool,
    },
    /// A user asks for a new plan now.
    Replan,
    /// Time goes on.
    Tick,
    /// The server ends.
    Drain,
}

/// What a head does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Reach for a node.
    Dial(usize),
    /// End its channel.
    Close(usize),
    /// Say something to it.
    Say(usize, ToNode),
    /// Make a plan of these nodes and the head; [`Event::Planned`] is the answer.
    Plan {
        /// Its number.
        number: u64,
        /// Who may hold layers.
        nodes: Vec<usize>,
    },
    /// Rank 0 goes over to this plan.
    Move(Box<Plan>),
    /// What the service waits for, where there is no plan.
    Waiting(String),
    /// A line for the log.
    Note(String),
    /// Another head has taken over: end.
    End(String),
}

#[derive(Clone, Debug, PartialEq)]
enum Measure {
    None,
    Asked(Now),
    Done(Value),
    Unfit(Now, String),
}

/// Why a plan is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    First,
    Lost,
    Joined,
    Asked,
}

/// A node as users see it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Whether it is there.
    pub state: State,
    /// Why it is not, or holds nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// Its rank, where it has one.
    pub rank: Option<u32>,
    /// How often its agent came back as another process.
    pub returns: u32,
}

/// The core of a head.
#[derive(Debug)]
pub struct Head {
    table: Membership,
    ballot: Ballot,
    /// Whose channel has our claim.
    claimed: Vec<bool>,
    measures: Vec<Measure>,
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
    /// A plan with a hole is kept for `replan_wait`. The head of `ballot` is drawn at random; its
    /// epoch is the time of its start, so that a head that comes later outranks one before it.
    /// Where a clock went back it does so once nodes have been alone for
    /// [`crate::agent::ORPHAN_AFTER`].
    pub fn new(
        nodes: impl IntoIterator<Item = (String, Wanted)>,
        ballot: Ballot,
        replan_wait: Duration,
        now: Now,
    ) -> Self {
        let (names, wanted): (Vec<_>, Vec<_>) = nodes.into_iter().unzip();
        let table = Membership::new(names, now);
        let count = table.members().len();
        Self {
            table,
            ballot: Ballot { epoch: ballot.epoch.max(1), head: ballot.head.max(1) },
            claimed: vec![false; count],
            measures: vec![Measure::None; count],
            left_out: vec![None; count],
            wanted,
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
        }
    }

    /// The table.
    pub fn members(&self) -> &[Member] {
        self.table.members()
    }

    /// What was measured of a node.
    pub fn measured(&self, node: usize) -> Option<&Value> {
        match &self.measures[node] {
            Measure::Done(value) => Some(value),
            _ => None,
        }
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
            let why = match (&self.measures[node], member.state) {
                (Measure::Unfit(_, why), State::Up) => why.clone(),
                (Measure::Asked(_), State::Up) => "measures itself".into(),
                (_, State::Up) => {
                    let news = member.rank.as_ref().filter(|news| news.ends > 0);
                    news.map(|news| format!("its rank ended: {}", news.why)).unwrap_or_default()
                }
                _ => member.why.clone(),
            };
            let Member { name, state, returns, .. } = member;
            Line { name: name.clone(), state: *state, why, rank, returns: *returns }
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
            Event::Load { busy: true } => self.idle = None,
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
        if matches!(self.measures[node], Measure::Asked(_)) {
            self.measures[node] = Measure::None;
        }
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
            ToHead::Measured(value) => {
                self.table.heard(node, None, now);
                self.measures[node] = Measure::Done(value);
            }
            ToHead::Unfit(why) => {
                self.table.heard(node, None, now);
                let name = &self.members()[node].name;
                actions.push(Action::Note(format!("node {name} can't take part: {why}")));
                self.measures[node] = Measure::Unfit(now, why);
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
            let asks = match &self.measures[node] {
                Measure::None => true,
                Measure::Asked(at) => now.saturating_sub(*at) >= MEASURE_TIMEOUT,
                Measure::Unfit(at, _) => now.saturating_sub(*at) >= UNFIT_PAUSE,
                Measure::Done(_) => false,
            };
            if asks {
                self.measures[node] = Measure::Asked(now);
                actions.push(Action::Say(node, ToNode::Measure(self.wanted[node].clone())));
            }
            self.failing(now, node, actions);
        }
    }

    /// Leaves a node out whose rank ends again and again.
    fn failing(&mut self, now: Now, node: usize, actions: &mut Vec<Action>) {
        if self.left_out[node].is_some_and(|until| now >= until) {
            self.left_out[node] = None;
        }
        let number = self.plan.as_ref().map(|plan| plan.number);
        let Some(news) = &self.members()[node].rank else { return };
        let ends = Some(news.plan) == number && news.ends >= ENDS_MAX;
        if ends && news.state != RankState::Ending && self.left_out[node].is_none() {
            let name = &self.members()[node].name;
            let text = format!("node {name} is left out: its rank ended: {}", news.why);
            actions.push(Action::Note(text));
            self.left_out[node] = Some(now + LEFT_OUT);
        }
    }

    /// Whether a node may be given a rank.
    fn is_usable(&self, node: usize) -> bool {
        self.table.is_up(node)
            && self.claimed[node]
            && self.left_out[node].is_none()
            && matches!(self.measures[node], Measure::Done(_))
    }

    /// Who may be given a rank.
    pub fn usable(&self) -> Vec<usize> {
        (0..self.claimed.len()).filter(|node| self.is_usable(*node)).collect()
    }

    /// Whether a plan is due.
    fn consider(&mut self, now: Now, actions: &mut Vec<Action>) {
        if self.planning.is_some() {
            return;
        }
        let Some(plan) = &self.plan else {
            let due = self.considered != self.usable() || self.number == 0;
            let rested = self.number == 0 || now.saturating_sub(self.planned) >= PLAN_PAUSE;
            if due && rested && self.is_gathered(now) {
                self.ask(Cause::First, now, actions);
            }
            return;
        };
        let out = |node: &usize| self.left_out[*node].is_some();
        let is_there = |node: &usize| self.table.is_up(*node) && self.claimed[*node];
        let nodes: Vec<usize> = plan.seats.iter().map(|(node, _)| *node).collect();
        if nodes.iter().all(|node| is_there(node) && !out(node)) {
            self.hole = None;
        } else {
            let since = *self.hole.get_or_insert(now);
            if nodes.iter().any(out) || now.saturating_sub(since) >= self.replan_wait {
                self.ask(Cause::Lost, now, actions);
            }
            return;
        }
        let usable = self.usable();
        self.considered.retain(|node| usable.contains(node));
        let idle = self.idle.is_some_and(|since| now.saturating_sub(since) >= IDLE_WAIT);
        if idle && self.considered != usable {
            self.ask(Cause::Joined, now, actions);
        }
    }

    /// Whether there is nobody left to wait for.
    fn is_gathered(&self, now: Now) -> bool {
        let waited = now.saturating_sub(self.start);
        (0..self.claimed.len()).all(|node| {
            match (&self.measures[node], self.members()[node].state) {
                (Measure::Done(_) | Measure::Unfit(..), _) => true,
                (Measure::Asked(_), State::Up) => waited >= GATHER + MEASURE_TIMEOUT,
                _ => waited >= GATHER,
            }
        })
    }

    fn ask(&mut self, cause: Cause, now: Now, actions: &mut Vec<Action>) {
        if self.planning.is_some() {
            return;
        }
        self.number += 1;
        (self.planning, self.planned) = (Some(cause), now);
        self.considered = self.usable();
        actions.push(Action::Plan { number: self.number, nodes: self.considered.clone() });
    }

    fn settled(&mut self, now: Now, result: Result<Plan, String>, actions: &mut Vec<Action>) {
        let Some(cause) = self.planning.take() else { return };
        self.hole = None;
        let plan = match result {
            Ok(plan) => plan,
            Err(why) => {
                if matches!(cause, Cause::First | Cause::Lost) {
                    self.plan = None;
                    actions.push(Action::Waiting(why));
                } else {
                    actions.push(Action::Note(format!("no other plan: {why}")));
                }
                return;
            }
        };
        let is_same = self.plan.as_ref().is_some_and(|old| old.line == plan.line);
        let is_better = self.plan.as_ref().is_none_or(|old| plan.time_s <= old.time_s * BETTER);
        let moves = match cause {
            Cause::First | Cause::Lost => true,
            Cause::Joined => !is_same && is_better,
            Cause::Asked => !is_same,
        };
        if !moves {
            actions.push(Action::Note(format!("the plan stays: {}", plan.line)));
            return;
        }
        self.idle = self.idle.map(|_| now);
        let rests = (0..self.claimed.len())
            .filter(|node| self.claimed[*node] && plan.seats.iter().all(|(at, _)| at != node));
        actions.extend(rests.map(|node| Action::Say(node, ToNode::Rest)));
        for (node, launch) in &plan.seats {
            if self.claimed[*node] {
                actions.push(Action::Say(*node, ToNode::Run(Box::new(launch.clone()))));
            }
        }
        actions.push(Action::Move(Box::new(plan.clone())));
        self.plan = Some(plan);
    }
}
