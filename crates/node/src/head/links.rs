//! Which ways between machines are measured, by whom and when: each before a plan counts on it,
//! side by side where no machine is in two at once, and never while requests run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use super::gather::Measure;
use super::{Action, Head, IDLE_WAIT};
use crate::Now;
use crate::message::{Door, ToHead, ToNode};

/// How long a way may take to be measured, at all addresses of its other end.
pub const LINK_TIMEOUT: Duration = Duration::from_secs(60);
/// A way on which nothing came through, or that could not be measured, is measured again after so
/// long.
pub const LINK_PAUSE: Duration = Duration::from_secs(120);
/// How long a plan waits for ways to be measured, in all.
pub const LINKS_WAIT: Duration = Duration::from_secs(120);

/// An end of a way: a node, or none for the head's own machine.
pub type End = Option<usize>;

/// What is known of the way from one machine to another's rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Link {
    /// Not measured yet.
    #[default]
    Unknown,
    /// What its measurement gave; what it means is the planner's to know.
    Measured(Value),
    /// Nothing came through at any address, and why.
    Dead(String),
    /// It could not be measured, and why.
    Unmeasured(String),
}

/// What is done about it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Step {
    #[default]
    Due,
    /// The other end opens its port, since.
    Opening(Now),
    /// It is measured, since.
    Runs(Now),
    Done(Now),
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Way {
    link: Link,
    step: Step,
    /// Whether a kept measurement is not to be used.
    again: bool,
    /// Requests came meanwhile: what it gives says nothing.
    is_spoilt: bool,
    /// It is known otherwise than when the last plan was made.
    is_news: bool,
}

/// All ways that were looked at.
#[derive(Clone, Debug, Default)]
pub(super) struct Links {
    ways: BTreeMap<(End, usize), Way>,
    /// Since when some are due or run.
    unsettled: Option<Now>,
    /// What opens ports for who measures.
    door: Door,
}

impl Way {
    fn since(&self) -> Option<Now> {
        match self.step {
            Step::Opening(since) | Step::Runs(since) => Some(since),
            Step::Due | Step::Done(_) => None,
        }
    }

    fn is_due(&self, now: Now) -> bool {
        let rested = |since: Now| now.saturating_sub(since) >= LINK_PAUSE;
        match (self.step, &self.link) {
            (Step::Due, _) => true,
            (Step::Done(since), Link::Dead(_) | Link::Unmeasured(_)) => rested(since),
            _ => false,
        }
    }
}

impl Links {
    /// None; ports are opened by `door`.
    pub fn new(door: Door) -> Self {
        Self { door, ..Self::default() }
    }

    /// Requests have come.
    pub fn disturb(&mut self) {
        let at_work = self.ways.values_mut().filter(|way| way.since().is_some());
        at_work.for_each(|way| way.is_spoilt = true);
    }

    /// Whether a way is known otherwise than at the last plan.
    pub fn is_news(&self) -> bool {
        self.ways.values().any(|way| way.is_news)
    }

    /// Whether one between `ends` is.
    pub fn is_news_of(&self, ends: &[End]) -> bool {
        self.ways.iter().any(|(pair, way)| way.is_news && is_within(pair, ends))
    }

    /// A plan is made of what is known.
    pub fn told(&mut self) {
        self.ways.values_mut().for_each(|way| way.is_news = false);
    }

    /// All ways between `ends` are measured again; what was measured before counts until then.
    pub fn renew(&mut self, ends: &[End]) {
        for (_, way) in self.ways.iter_mut().filter(|(pair, _)| is_within(pair, ends)) {
            (way.step, way.again) = (Step::Due, true);
        }
    }

    /// A node's channel has ended, and so what it was asked; what it could not do it may next
    /// time.
    pub fn forget(&mut self, node: usize) {
        let is_of = |(from, to): &(End, usize)| *from == Some(node) || *to == node;
        for (_, way) in self.ways.iter_mut().filter(|(pair, _)| is_of(pair)) {
            if way.since().is_some() || !matches!(way.link, Link::Measured(_)) {
                way.step = Step::Due;
            }
        }
    }

    /// The way that waits for a node to open its port.
    fn opening(&self, to: usize) -> Option<(End, usize)> {
        let opens = |(pair, way): &(&(End, usize), &Way)| {
            pair.1 == to && matches!(way.step, Step::Opening(_))
        };
        self.ways.iter().find(opens).map(|(pair, _)| *pair)
    }

    /// What a measurement gave.
    fn settle(&mut self, pair: (End, usize), link: Link, now: Now) {
        let Some(way) = self.ways.get_mut(&pair).filter(|way| way.since().is_some()) else {
            return;
        };
        if std::mem::take(&mut way.is_spoilt) {
            (way.step, way.again) = (Step::Due, true);
            return;
        }
        (way.step, way.again) = (Step::Done(now), false);
        // Of one that worked before, a failure to measure says nothing.
        let is_less = matches!((&way.link, &link), (Link::Measured(_), Link::Unmeasured(_)));
        if way.link != link && !is_less {
            (way.link, way.is_news) = (link, true);
        }
    }
}

fn is_within((from, to): &(End, usize), ends: &[End]) -> bool {
    ends.contains(from) && ends.contains(&Some(*to))
}

impl Head {
    /// What is known of the way from one machine to a node's rank.
    pub fn link(&self, from: End, to: usize) -> &Link {
        static UNKNOWN: Link = Link::Unknown;
        self.links.ways.get(&(from, to)).map_or(&UNKNOWN, |way| &way.link)
    }

    /// The ways between the head's machine and all nodes that were looked at.
    pub fn links(&self) -> impl Iterator<Item = (End, usize, &Link)> {
        self.links.ways.iter().map(|((from, to), way)| (*from, *to, &way.link))
    }

    /// The machines of the plan that stands.
    pub(super) fn holders(&self) -> Vec<End> {
        let seats = self.plan.iter().flat_map(|plan| &plan.seats);
        std::iter::once(None).chain(seats.map(|(node, _)| Some(*node))).collect()
    }

    /// Has ways be measured that are due; true once none of them is, or runs, and where that takes
    /// too long.
    pub(super) fn measure_links(&mut self, now: Now, actions: &mut Vec<Action>) -> bool {
        self.give_up(now, actions);
        let nodes = self.usable();
        let idle = self.idle.is_some_and(|since| now.saturating_sub(since) >= IDLE_WAIT);
        let may = self.plan.is_none() || self.hole.is_some() || idle;
        let mut at_work: BTreeSet<End> = BTreeSet::new();
        for ((from, to), way) in &self.links.ways {
            if way.since().is_some() {
                at_work.extend([*from, Some(*to)]);
            }
        }
        let mut is_settled = at_work.is_empty();
        let froms = || std::iter::once(None).chain(nodes.iter().copied().map(Some));
        let pairs = nodes.iter().flat_map(|to| froms().map(|from| (from, *to)));
        for (from, to) in pairs.filter(|(from, to)| *from != Some(*to)).collect::<Vec<_>>() {
            if !self.links.ways.entry((from, to)).or_default().is_due(now) {
                continue;
            }
            is_settled = false;
            let is_quiet = [from, Some(to)].iter().all(|end| self.is_quiet(*end));
            if may && is_quiet && !at_work.contains(&from) && !at_work.contains(&Some(to)) {
                at_work.extend([from, Some(to)]);
                self.begin((from, to), now, actions);
            }
        }
        // Waits count only while something can be done about them.
        let unsettled = !is_settled && may;
        self.links.unsettled = unsettled.then(|| self.links.unsettled.unwrap_or(now));
        let waited = self.links.unsettled.map(|since| now.saturating_sub(since));
        is_settled || waited.is_some_and(|waited| waited >= LINKS_WAIT)
    }

    /// Whether a machine times no layers now.
    fn is_quiet(&self, end: End) -> bool {
        match end {
            None => !self.recheck.is_own(),
            Some(node) => matches!(self.measures[node], Measure::Done(_)),
        }
    }

    fn begin(&mut self, (from, to): (End, usize), now: Now, actions: &mut Vec<Action>) {
        let door = self.links.door.clone();
        let has_rank = self.seat(to).is_some();
        let Some(way) = self.links.ways.get_mut(&(from, to)) else { return };
        // A rank's own port answers; where none runs its agent opens it.
        if has_rank {
            way.step = Step::Runs(now);
            self.reach((from, to), actions);
        } else {
            way.step = Step::Opening(now);
            actions.push(Action::Say(to, ToNode::Answer(door)));
        }
    }

    fn reach(&self, (from, to): (End, usize), actions: &mut Vec<Action>) {
        let is_renewed = self.links.ways.get(&(from, to)).is_some_and(|way| way.again);
        let again = self.again || is_renewed;
        let secret = match self.seat(to) {
            Some(launch) => launch.secret.clone(),
            None => self.links.door.secret.clone(),
        };
        let door = Door { secret, ..self.links.door.clone() };
        actions.push(Action::Reach { from, to, door, again });
    }

    /// Whether a node's port is open for who measures.
    fn answers(
        &mut self,
        now: Now,
        node: usize,
        opened: Result<(), String>,
        actions: &mut Vec<Action>,
    ) {
        let Some(pair) = self.links.opening(node) else { return };
        match opened {
            Ok(()) => {
                if let Some(way) = self.links.ways.get_mut(&pair) {
                    way.step = Step::Runs(now);
                }
                self.reach(pair, actions);
            }
            Err(why) => self.found(now, pair, Link::Unmeasured(why), actions),
        }
    }

    /// What the end of a way that measured found.
    pub(super) fn reached(
        &mut self,
        now: Now,
        pair: (End, usize),
        found: Result<Value, String>,
        actions: &mut Vec<Action>,
    ) {
        // A rank that does not answer may not have loaded yet; an open port has no such reason.
        let has_rank = self.seat(pair.1).is_some();
        let link = match found {
            Ok(value) => Link::Measured(value),
            Err(why) if has_rank => Link::Unmeasured(why),
            Err(why) => Link::Dead(why),
        };
        self.found(now, pair, link, actions);
    }

    /// As a node tells it.
    pub(super) fn told_links(
        &mut self,
        now: Now,
        node: usize,
        message: ToHead,
        actions: &mut Vec<Action>,
    ) {
        self.table.heard(node, None, now);
        match message {
            ToHead::Answers(opened) => self.answers(now, node, opened, actions),
            ToHead::Reached { node: name, found } => {
                let to = self.members().iter().position(|member| member.name == name);
                if let Some(to) = to {
                    self.reached(now, (Some(node), to), found, actions);
                }
            }
            _ => {}
        }
    }

    fn found(&mut self, now: Now, pair: (End, usize), link: Link, actions: &mut Vec<Action>) {
        let name = |end: End| match end {
            Some(node) => self.members()[node].name.clone(),
            None => "this machine".into(),
        };
        let between = format!("{} to {}", name(pair.0), name(Some(pair.1)));
        match &link {
            Link::Dead(why) => {
                actions.push(Action::Note(format!("nothing goes from {between}: {why}")));
            }
            Link::Unmeasured(why) => {
                actions
                    .push(Action::Note(format!("the way from {between} is not measured: {why}")));
            }
            Link::Unknown | Link::Measured(_) => {}
        }
        self.links.settle(pair, link, now);
    }

    /// Ends waits that take too long.
    fn give_up(&mut self, now: Now, actions: &mut Vec<Action>) {
        let is_late =
            |way: &Way| way.since().is_some_and(|s| now.saturating_sub(s) >= LINK_TIMEOUT);
        let late: Vec<(End, usize)> =
            self.links.ways.iter().filter(|(_, way)| is_late(way)).map(|(pair, _)| *pair).collect();
        for pair in late {
            let why = format!("no word of it for {} s", LINK_TIMEOUT.as_secs());
            self.found(now, pair, Link::Unmeasured(why), actions);
        }
    }
}
