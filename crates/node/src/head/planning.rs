//! When a head plans, of whom, and which plan takes another's place.

use std::time::Duration;

use super::gather::Measure;
use super::{Action, BETTER, ENDS_MAX, GATHER, Head, IDLE_WAIT, LEFT_OUT, MEASURE_TIMEOUT, Plan};
use crate::Now;
use crate::membership::State;
use crate::message::{RankState, ToNode};

/// Fewest time between two plans, where the first gave none.
const PLAN_PAUSE: Duration = Duration::from_secs(1);

/// Why a plan is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    First,
    Lost,
    Joined,
    Asked,
    /// What was measured again.
    Off,
}

impl Head {
    /// Leaves a node out whose rank ends again and again.
    pub(super) fn failing(&mut self, now: Now, node: usize, actions: &mut Vec<Action>) {
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
            && self.measured(node).is_some()
    }

    /// Who may be given a rank.
    pub fn usable(&self) -> Vec<usize> {
        (0..self.claimed.len()).filter(|node| self.is_usable(*node)).collect()
    }

    /// Whether a plan is due.
    pub(super) fn consider(&mut self, now: Now, actions: &mut Vec<Action>) {
        if self.planning.is_some() {
            return;
        }
        let linked = self.measure_links(now, actions);
        let Some(plan) = &self.plan else {
            let due = self.considered != self.usable() || self.number == 0;
            let rested = self.number == 0 || now.saturating_sub(self.planned) >= PLAN_PAUSE;
            if due && rested && linked && self.is_gathered(now) {
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
        if self.recheck(now, linked, actions) {
            self.ask(Cause::Off, now, actions);
        }
        if !idle || !linked || self.recheck.is_on() {
            return;
        }
        if self.links.is_news_of(&self.holders()) {
            self.ask(Cause::Off, now, actions);
        } else if self.considered != usable || self.links.is_news() {
            self.ask(Cause::Joined, now, actions);
        }
    }

    /// Whether there is nobody left to wait for.
    fn is_gathered(&self, now: Now) -> bool {
        let waited = now.saturating_sub(self.start);
        (0..self.claimed.len()).all(|node| {
            match (&self.measures[node], self.members()[node].state) {
                (Measure::Done(_) | Measure::Again(..) | Measure::Unfit(..), _) => true,
                (Measure::Asked(_) | Measure::Lacks, State::Up) => {
                    waited >= GATHER + MEASURE_TIMEOUT
                }
                _ => waited >= GATHER,
            }
        })
    }

    pub(super) fn ask(&mut self, cause: Cause, now: Now, actions: &mut Vec<Action>) {
        if self.planning.is_some() {
            return;
        }
        self.number += 1;
        (self.planning, self.planned) = (Some(cause), now);
        self.considered = self.usable();
        self.links.told();
        actions.push(Action::Plan { number: self.number, nodes: self.considered.clone() });
    }

    pub(super) fn settled(
        &mut self,
        now: Now,
        result: Result<Plan, String>,
        actions: &mut Vec<Action>,
    ) {
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
            Cause::Asked | Cause::Off => !is_same,
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
