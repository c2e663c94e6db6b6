//! What each node is asked to run.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{
    Ask, Choice, Facts, Links, Model, Node, Placement, PlacementError, Prediction, Problem, choose,
    predict,
};

/// The form of a [`Plan`].
pub const PLAN_VERSION: u32 = 1;

/// One process of a placement: a rank, or a member of its group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The rank.
    pub rank: u32,
    /// Which member of its group; 0, the leader, has the rank's place in the ring.
    pub member: u32,
    /// The node's name.
    pub node: String,
    /// Layers of the rank.
    pub layers: Range<usize>,
    /// The whole layout, the same for every rank.
    pub layout: String,
    /// As `--device` takes it.
    pub device: String,
    /// Compute threads.
    pub threads: usize,
    /// Where it listens, as the node said it.
    pub listen: Vec<String>,
    /// Where it finds the rank after, the best address first; none in a ring of one.
    pub next: Vec<String>,
    /// Where the members of its group listen, by index: on the port after the rank's. None where
    /// it has no group.
    pub group: Vec<String>,
    /// What it is expected to hold.
    pub memory_bytes: u64,
    /// Rounds in the ring, where rank 0 is to have fewer than it would by itself.
    #[serde(default)]
    pub depth: Option<u32>,
}

impl Order {
    /// The arguments of `baton` that run it, but for the key and settings that all ranks share.
    pub fn arguments(&self, model: &str) -> Vec<String> {
        let head = self.rank == 0 && self.member == 0;
        let mut words = vec![if head { "serve" } else { "stage" }.to_owned(), model.to_owned()];
        let mut add = |flag: &str, value: String| words.extend([flag.to_owned(), value]);
        if !head {
            add("--rank", self.rank.to_string());
        }
        if self.member > 0 {
            add("--member", self.member.to_string());
        }
        add("--layout", self.layout.clone());
        add("--device", self.device.clone());
        add("--threads", self.threads.to_string());
        if self.member == 0 && !self.next.is_empty() {
            self.listen.iter().for_each(|address| add("--listen", address.clone()));
            self.next.iter().take(1).for_each(|address| add("--next", address.clone()));
        }
        if let Some(depth) = self.depth {
            add("--depth", depth.to_string());
        }
        if !self.group.is_empty() {
            add("--group", self.group.join(","));
        }
        words
    }
}

/// A placement with all that starting it needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// [`PLAN_VERSION`].
    pub version: u32,
    /// The model's digest, as the facts have it.
    pub model: String,
    /// As `--layout` takes it.
    pub layout: String,
    /// The nodes that were looked at; placements name them by index.
    pub nodes: Vec<String>,
    /// What was asked.
    pub ask: Ask,
    /// The placement and what else there was.
    pub choice: Choice,
    /// What it is expected to do.
    pub prediction: Prediction,
    /// A process each, rank 0's first.
    pub ranks: Vec<Order>,
}

impl Plan {
    /// The best placement of `model` on the nodes of `facts`, or the one that `layers` says
    /// (`a:0-9,b:10-35`).
    ///
    /// # Errors
    /// `OtherFacts` for facts that do not fit `digest`, and those of [`choose()`] and
    /// [`Problem::given`].
    pub fn make(
        (model, digest): (&Model, &str),
        facts: &[Facts],
        links: &Links,
        ask: &Ask,
        layers: Option<&str>,
    ) -> Result<Self, PlacementError> {
        Facts::check_all(facts, digest)?;
        let nodes: Vec<Node> = facts.iter().map(|facts| facts.node.clone()).collect();
        let problem = Problem::new(model, &nodes, links, ask)?;
        let choice = match layers {
            None => choose(&problem)?,
            Some(text) => {
                let best = problem.given(text)?;
                // A given placement was held against links.
                let time_s = problem.time_s(&best).unwrap_or(f64::INFINITY);
                Choice { best, time_s, runner_up: None, one: None }
            }
        };
        let Some(prediction) = predict(&problem, &choice.best) else {
            return Err(problem.missing_link());
        };
        Ok(Self {
            version: PLAN_VERSION,
            model: digest.to_owned(),
            layout: choice.best.layout(),
            nodes: nodes.iter().map(|node| node.name.clone()).collect(),
            ask: ask.clone(),
            ranks: orders(&problem, facts, &choice.best, prediction.groups),
            prediction,
            choice,
        })
    }
}

/// `host:port` with the port after it.
fn port_after(address: &str) -> Option<String> {
    let (host, port) = address.rsplit_once(':')?;
    Some(format!("{host}:{}", port.parse::<u16>().ok()?.checked_add(1)?))
}

/// A process for every node of every stage.
fn orders(
    problem: &Problem<'_>,
    facts: &[Facts],
    placement: &Placement,
    groups: u32,
) -> Vec<Order> {
    let mut orders = Vec::new();
    let world = placement.world();
    let is_fewer = groups < problem.ask.streams.min(world as u32);
    for (rank, stage) in placement.stages.iter().enumerate() {
        let after = placement.stages[(rank + 1) % world].nodes[0];
        let leader = &facts[stage.nodes[0]];
        let reached = |node: &usize| match *node == stage.nodes[0] {
            true => leader.listen.first().and_then(|address| port_after(address)),
            false => port_after(leader.addresses(&facts[*node]).first()?),
        };
        for (member, &node) in stage.nodes.iter().enumerate() {
            let own = &facts[node];
            orders.push(Order {
                rank: rank as u32,
                member: member as u32,
                node: own.node.name.clone(),
                layers: stage.layers.clone(),
                layout: placement.layout(),
                device: own.device.clone(),
                threads: own.threads,
                listen: own.listen.clone(),
                next: match world > 1 && member == 0 {
                    true => own.addresses(&facts[after]),
                    false => Vec::new(),
                },
                group: match stage.nodes.len() > 1 {
                    true => stage.nodes.iter().filter_map(reached).collect(),
                    false => Vec::new(),
                },
                memory_bytes: problem.memory(stage, rank == 0, node).total_bytes(),
                depth: Some(groups).filter(|_| is_fewer && rank == 0 && member == 0),
            });
        }
    }
    orders
}
