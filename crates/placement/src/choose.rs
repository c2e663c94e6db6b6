//! The search: every subset of the nodes, every order, every cut.
//!
//! The objective's time grows with two numbers of a ring, the sum of its stages and hops and the
//! most that one of them takes, and both grow stage by stage. So of all rings that use the same
//! nodes, end at the same one and have come to the same layer, only those count that no other
//! beats in both numbers; what is left is as exact as trying all of them.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::predict::{Cost, Drive};
use crate::problem::Problem;
use crate::{Ask, Objective, Placement, PlacementError, Split, Stage};

/// The best placement and what else there was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// The best.
    pub best: Placement,
    /// Its time by the objective, seconds.
    pub time_s: f64,
    /// The best one that has other nodes, or other ones first and last.
    pub runner_up: Option<(Placement, f64)>,
    /// The best single node, where the model fits one.
    pub one: Option<(Placement, f64)>,
}

/// Whether any cut fits nodes and links at all.
pub(crate) fn is_possible(problem: &Problem<'_>) -> bool {
    let ask = Ask { objective: Objective::Decode, ..problem.ask.clone() };
    !candidates(&Problem { ask: &ask, ..*problem }).is_empty()
}

/// Who may be a stage.
#[derive(Clone, Debug, PartialEq)]
struct Seat {
    nodes: Vec<usize>,
    mask: u32,
    split: Option<Split>,
}

/// A ring's first stages.
#[derive(Debug)]
struct Start {
    cost: Cost,
    last: Stage,
    before: Option<Rc<Start>>,
}

impl Start {
    fn placement(&self) -> Placement {
        let mut stages = vec![self.last.clone()];
        let mut before = self.before.as_deref();
        while let Some(start) = before {
            stages.push(start.last.clone());
            before = start.before.as_deref();
        }
        stages.reverse();
        Placement { stages }
    }
}

/// Used nodes, the seat that came last, layers so far.
type State = (u32, usize, usize);

/// The best placement for what is asked. Of equal ones the one with fewer stages, then with nodes
/// that stand first.
///
/// # Errors
/// `NoRoom` where no cut fits, with what is missing; `NoLink` where one would, but for a link.
pub fn choose(problem: &Problem<'_>) -> Result<Choice, PlacementError> {
    let found = candidates(problem);
    let Some((time_s, best)) = found.first().cloned() else {
        return Err(problem.refusal());
    };
    let place = |placement: &Placement| {
        let mut all: Vec<usize> = placement.stages.iter().flat_map(|s| s.nodes.clone()).collect();
        let ends = (all.first().copied(), all.last().copied());
        all.sort_unstable();
        (all, ends)
    };
    let other = |(_, p): &&(f64, Placement)| place(p) != place(&best);
    let turned = |(time_s, p): &(f64, Placement)| (p.clone(), *time_s);
    let alone = |(_, p): &&(f64, Placement)| p.world() == 1 && p.stages[0].nodes.len() == 1;
    let runner_up = found.iter().find(other).map(turned);
    let one = found.iter().find(alone).map(turned);
    Ok(Choice { best, time_s, runner_up, one })
}

/// The best ring of each set of nodes with its first and last, by time.
fn candidates(problem: &Problem<'_>) -> Vec<(f64, Placement)> {
    let seats = seats(problem);
    let nodes = problem.nodes.len();
    let mut found = Vec::new();
    for world in 1..=nodes {
        for drive in Drive::of(problem.ask, world) {
            for (first, seat) in seats.iter().enumerate() {
                if problem.ask.head.is_none_or(|head| seat.nodes[0] == head) {
                    let search = Search { problem, seats: &seats, drive };
                    search.run(first, world, &mut found);
                }
            }
        }
    }
    found.sort_by(|a: &(f64, Placement), b| {
        let stages = a.1.world().cmp(&b.1.world());
        let nodes = |p: &Placement| p.stages.iter().map(|s| s.nodes.clone()).collect::<Vec<_>>();
        a.0.total_cmp(&b.0).then(stages).then_with(|| nodes(&a.1).cmp(&nodes(&b.1)))
    });
    found
}

/// Single nodes, and groups of nodes with the same device.
fn seats(problem: &Problem<'_>) -> Vec<Seat> {
    let nodes = problem.nodes;
    let allowed =
        |mask: &u32| (0..nodes.len()).all(|n| mask >> n & 1 == 0 || problem.ask.allows(n));
    let mut seats = Vec::new();
    for mask in (1..1_u32 << nodes.len()).filter(allowed) {
        let mut members: Vec<usize> = (0..nodes.len()).filter(|n| mask >> n & 1 == 1).collect();
        if let Some(head) = problem.ask.head {
            members.sort_by_key(|node| (*node != head, *node));
        }
        let alike = members.iter().all(|n| nodes[*n].device == nodes[members[0]].device);
        if members.len() == 1 {
            seats.push(Seat { nodes: members, mask, split: None });
        } else if problem.ask.groups && alike {
            for split in [Split::Shards, Split::Rows] {
                seats.push(Seat { nodes: members.clone(), mask, split: Some(split) });
            }
        }
    }
    seats
}

struct Search<'a, 'p> {
    problem: &'a Problem<'p>,
    seats: &'a [Seat],
    drive: Drive,
}

impl Search<'_, '_> {
    /// Rings of `world` stages that begin at seat `first`.
    fn run(&self, first: usize, world: usize, found: &mut Vec<(f64, Placement)>) {
        let mut level: BTreeMap<State, Vec<Rc<Start>>> = BTreeMap::new();
        self.extend(None, first, 0, 0, &mut level);
        for _ in 1..world {
            let mut next = BTreeMap::new();
            for ((mask, _, at), starts) in &level {
                for (seat, to) in self.seats.iter().enumerate() {
                    if to.mask & mask == 0 {
                        for start in starts {
                            self.extend(Some(start), seat, *mask, *at, &mut next);
                        }
                    }
                }
            }
            level = next;
        }
        let layers = self.problem.model.layers.len();
        let pinned = |mask: u32| self.problem.ask.pinned.iter().all(|node| mask >> node & 1 == 1);
        for ((mask, _, at), starts) in level {
            if at == layers && pinned(mask) {
                let ended = starts.iter().filter_map(|start| self.ended(start, first));
                found.extend(ended.min_by(|a, b| a.0.total_cmp(&b.0)));
            }
        }
    }

    /// Adds every stage of a seat that fits behind `start`.
    fn extend(
        &self,
        start: Option<&Rc<Start>>,
        seat: usize,
        mask: u32,
        at: usize,
        level: &mut BTreeMap<State, Vec<Rc<Start>>>,
    ) {
        let Seat { nodes, mask: own, split } = &self.seats[seat];
        let load = self.drive.load;
        let hop = start.map(|s| self.problem.hop_s(s.last.nodes[0], nodes[0], load.rows));
        let Some([hop_s, busy_s]) = hop.unwrap_or(Some([0.0, 0.0])) else { return };
        for end in at + 1..=self.problem.model.layers.len() {
            let last = Stage { nodes: nodes.clone(), split: *split, layers: at..end };
            if !self.problem.fits(&last, start.is_none()) {
                break;
            }
            let Some(stage_s) = self.problem.stage_s(&last, start.is_none(), load) else { return };
            let before = start.map_or(Cost::default(), |start| start.cost);
            let most_s = self.problem.busy_s(&last, start.is_none(), &self.drive, stage_s);
            let cost = before.and(hop_s, busy_s).and(stage_s, most_s.unwrap_or(stage_s));
            let front = level.entry((mask | own, seat, end)).or_default();
            keep(front, cost, || Start { cost, last, before: start.cloned() });
        }
    }

    /// The time of a whole ring, with the hop back to its first stage.
    fn ended(&self, start: &Start, first: usize) -> Option<(f64, Placement)> {
        let (last, first) = (start.last.nodes[0], self.seats[first].nodes[0]);
        let [hop_s, busy_s] = self.problem.hop_s(last, first, self.drive.load.wanted)?;
        Some((self.drive.time_s(start.cost.and(hop_s, busy_s)), start.placement()))
    }
}

/// Keeps what nothing else beats in both numbers; of equals the first.
fn keep(front: &mut Vec<Rc<Start>>, cost: Cost, start: impl FnOnce() -> Start) {
    let beats = |a: Cost, b: Cost| a.sum_s <= b.sum_s && a.most_s <= b.most_s;
    if !front.iter().any(|other| beats(other.cost, cost)) {
        front.retain(|other| !beats(cost, other.cost));
        front.push(Rc::new(start()));
    }
}
