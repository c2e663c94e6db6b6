//! What nodes measured, where those that lack the model take it from, and when all is measured
//! again.

use serde_json::Value;

use super::planning::Cause;
use super::{Action, Head, IDLE_WAIT, LEFT_OUT, MEASURE_TIMEOUT, UNFIT_PAUSE};
use crate::Now;
use crate::membership::State;
use crate::message::{ToHead, ToNode, Units};

/// What is known of a node.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Measure {
    None,
    Asked(Now),
    Done(Value),
    /// It is measured once more; what it measured before counts.
    Again(Now, Value),
    Unfit(Now, String),
    /// It has no such model, and is soon told where to take it.
    Lacks,
}

/// A second measurement of all that hold layers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Recheck {
    /// What is measured in use has been other than planned for long.
    is_due: bool,
    /// One runs.
    is_on: bool,
    /// This machine's own part of it runs.
    own: bool,
    /// Ways between them are measured, after all else.
    links: bool,
    /// Requests came meanwhile: what it gives says nothing.
    is_spoilt: bool,
}

impl Recheck {
    /// In use it is other than planned.
    pub fn due(&mut self) {
        self.is_due = true;
    }

    /// Requests have come.
    pub fn disturb(&mut self) {
        self.is_spoilt |= self.is_on;
    }

    /// Whether one runs.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether this machine measures itself.
    pub fn is_own(&self) -> bool {
        self.own
    }

    /// This machine's part is done.
    pub fn own_done(&mut self) {
        self.own = false;
    }
}

impl Head {
    /// What was measured of a node.
    pub fn measured(&self, node: usize) -> Option<&Value> {
        match &self.measures[node] {
            Measure::Done(value) | Measure::Again(_, value) => Some(value),
            _ => None,
        }
    }

    /// What keeps a node that is there from work, or what it does first.
    pub(super) fn why(&self, node: usize) -> String {
        let member = &self.members()[node];
        match (&self.measures[node], member.state) {
            (Measure::Unfit(_, why), State::Up) => why.clone(),
            (Measure::Lacks, State::Up) => "has no such model, and waits for its catalog".into(),
            (Measure::Asked(_) | Measure::Again(..), State::Up) => "measures itself".into(),
            (_, State::Up) => match &member.rank {
                Some(news) if news.coming.is_some() => {
                    let coming = news.coming.unwrap_or_default();
                    let mb = |bytes: u64| bytes as f64 / 1e6;
                    format!("took {:.1} of {:.1} MB", mb(coming.moved), mb(coming.missing))
                }
                Some(news) if news.ends > 0 => format!("its rank ended: {}", news.why),
                _ => String::new(),
            },
            _ => member.why.clone(),
        }
    }

    /// What a node said of itself and the model.
    pub(super) fn told(
        &mut self,
        now: Now,
        node: usize,
        message: ToHead,
        actions: &mut Vec<Action>,
    ) {
        self.table.heard(node, None, now);
        let name = self.members()[node].name.clone();
        let before = std::mem::replace(&mut self.measures[node], Measure::None);
        self.measures[node] = match (message, before) {
            (ToHead::Measured(_), Measure::Again(_, old)) if self.recheck.is_spoilt => {
                Measure::Done(old)
            }
            (ToHead::Measured(value), _) => Measure::Done(value),
            (ToHead::Unfit(why), Measure::Again(_, old)) => {
                actions.push(Action::Note(format!("node {name} is not measured again: {why}")));
                Measure::Done(old)
            }
            (ToHead::Unfit(why), _) => {
                actions.push(Action::Note(format!("node {name} can't take part: {why}")));
                Measure::Unfit(now, why)
            }
            (ToHead::Lacks(why), _) => {
                let takes = "its layers come from machines that have them";
                actions.push(Action::Note(format!("node {name} lacks the model, {takes}: {why}")));
                actions.push(Action::Supply(node));
                Measure::Lacks
            }
            (_, before) => before,
        };
    }

    /// Where a node that lacks the model takes it from.
    pub(super) fn supplied(
        &mut self,
        now: Now,
        node: usize,
        found: Result<Units, String>,
        actions: &mut Vec<Action>,
    ) {
        let is_other = std::mem::take(&mut self.others[node]);
        match found {
            Ok(units) => {
                self.wanted[node].units = Some(Units { instead: is_other, ..units });
                if is_other {
                    self.ask(Cause::Lost, now, actions);
                }
                if self.measures[node] == Measure::Lacks {
                    self.measures[node] = Measure::None;
                }
            }
            Err(why) => {
                let name = &self.members()[node].name;
                actions.push(Action::Note(format!("node {name} gets no layers: {why}")));
                if is_other {
                    self.left_out[node] = Some(now + LEFT_OUT);
                } else {
                    self.measures[node] = Measure::Unfit(now, why);
                }
            }
        }
    }

    /// A rank's node has a file with the model's shapes and other values: it takes the model's
    /// layers instead. One that has taken them is left out.
    pub(super) fn other(&mut self, now: Now, rank: u32, why: &str, actions: &mut Vec<Action>) {
        let seats = self.plan.iter().flat_map(|plan| &plan.seats);
        let Some(node) = seats.clone().find(|(_, l)| l.rank == rank).map(|(node, _)| *node) else {
            return;
        };
        if self.others[node] {
            return;
        }
        let name = &self.members()[node].name;
        if self.wanted[node].units.as_ref().is_some_and(|units| units.instead) {
            actions.push(Action::Note(format!("node {name} is left out: {why}")));
            self.left_out[node] = Some(now + LEFT_OUT);
            return;
        }
        let takes = "its layers come from machines that have them";
        actions
            .push(Action::Note(format!("node {name} has another model's values, {takes}: {why}")));
        actions.push(Action::Supply(node));
        self.others[node] = true;
    }

    /// Asks a node for what is not known of it, and, where others lack the model, to give it.
    pub(super) fn ask_node(&mut self, now: Now, node: usize, actions: &mut Vec<Action>) {
        let since = |at: Now| now.saturating_sub(at);
        let asks = match &self.measures[node] {
            Measure::None => true,
            Measure::Asked(at) => since(*at) >= MEASURE_TIMEOUT,
            Measure::Unfit(at, _) => since(*at) >= UNFIT_PAUSE,
            Measure::Again(at, old) if since(*at) >= MEASURE_TIMEOUT => {
                self.measures[node] = Measure::Done(old.clone());
                false
            }
            Measure::Done(_) | Measure::Again(..) | Measure::Lacks => false,
        };
        if asks {
            self.measures[node] = Measure::Asked(now);
            let wanted = self.wanted[node].clone();
            actions.push(Action::Say(node, ToNode::Measure { wanted, again: self.again }));
        }
        let is_lacked = self.wanted.iter().any(|wanted| wanted.units.is_some());
        let has = self.wanted[node].units.is_none() && self.measured(node).is_some();
        if is_lacked && has && !std::mem::replace(&mut self.gives[node], true) {
            actions.push(Action::Say(node, ToNode::Give(self.wanted[node].clone())));
        }
    }

    /// Measures all that hold layers again, then the ways between them, once the ring is idle and
    /// it is due; true once what was measured is to be planned with. `linked` says that no way is
    /// being measured.
    pub(super) fn recheck(&mut self, now: Now, linked: bool, actions: &mut Vec<Action>) -> bool {
        let idle = self.idle.is_some_and(|since| now.saturating_sub(since) >= IDLE_WAIT);
        if self.recheck.is_on {
            let runs = |measure: &Measure| matches!(measure, Measure::Again(..));
            if self.recheck.own || self.measures.iter().any(runs) {
                return false;
            }
            if !std::mem::replace(&mut self.recheck.links, true) {
                self.links.renew(&self.holders());
                return false;
            }
            if !linked {
                return false;
            }
            let is_spoilt = self.recheck.is_spoilt;
            self.recheck = Recheck { is_due: is_spoilt, ..Recheck::default() };
            return !is_spoilt;
        }
        let Some(plan) = self.plan.as_ref().filter(|_| idle && self.recheck.is_due) else {
            return false;
        };
        actions.push(Action::Note("it is not as fast as planned: measuring again".into()));
        self.recheck = Recheck { is_on: true, own: true, ..Recheck::default() };
        actions.push(Action::MeasureAgain);
        for (node, _) in &plan.seats {
            if let Measure::Done(old) = &self.measures[*node] {
                self.measures[*node] = Measure::Again(now, old.clone());
                let wanted = self.wanted[*node].clone();
                actions.push(Action::Say(*node, ToNode::Measure { wanted, again: true }));
            }
        }
        false
    }

    /// What a channel's end leaves of a measurement.
    pub(super) fn forget(&mut self, node: usize) {
        self.gives[node] = false;
        self.links.forget(node);
        self.measures[node] = match std::mem::replace(&mut self.measures[node], Measure::None) {
            Measure::Asked(_) => Measure::None,
            Measure::Again(_, old) => Measure::Done(old),
            other => other,
        };
    }
}
