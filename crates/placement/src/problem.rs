//! All that a placement is made from, checked once.

use crate::{
    Ask, Kind, LAYERS_MAX, Link, Links, Memory, Model, NODES_MAX, Node, Placement, PlacementError,
    Split, Stage, need,
};

/// Values are f32 on every link.
const VALUE_BYTES: f64 = 4.0;
/// A plan beside the rows of a hop, about.
const PLAN_BYTES: f64 = 128.0;

/// A model, nodes, the links between them and what is asked.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    pub(crate) model: &'a Model,
    pub(crate) nodes: &'a [Node],
    pub(crate) links: &'a Links,
    pub(crate) ask: &'a Ask,
}

/// One round as a stage sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Rows.
    pub rows: f64,
    /// Tokens before them.
    pub context: f64,
    /// Rows whose logits are wanted.
    pub wanted: f64,
}

impl<'a> Problem<'a> {
    /// Checks what can be checked before any placement.
    ///
    /// # Errors
    /// `Nodes` and `Layers` for none or too many.
    pub fn new(
        model: &'a Model,
        nodes: &'a [Node],
        links: &'a Links,
        ask: &'a Ask,
    ) -> Result<Self, PlacementError> {
        if !(1..=NODES_MAX).contains(&nodes.len()) {
            return Err(PlacementError::Nodes { found: nodes.len() });
        }
        if !(1..=LAYERS_MAX).contains(&model.layers.len()) {
            return Err(PlacementError::Layers { found: model.layers.len() });
        }
        Ok(Self { model, nodes, links, ask })
    }

    /// The placement that a user wrote, `a:0-9,b:10-35`, checked: whole, and within memory.
    ///
    /// # Errors
    /// `UnknownNode`, `BadCut`, `NoLink` and `TooSmall`.
    pub fn given(&self, text: &str) -> Result<Placement, PlacementError> {
        let layers = self.model.layers.len();
        let bad = || PlacementError::BadCut { layers, found: text.into() };
        let mut placement = Placement::default();
        let mut next = 0;
        for (name, range) in crate::ask::ranges(text).ok_or_else(bad)? {
            let node = crate::ask::named(self.nodes, name)?;
            let again = placement.stages.iter().any(|stage: &Stage| stage.nodes == [node]);
            if again || range.start != next || range.is_empty() || range.end > layers {
                return Err(bad());
            }
            next = range.end;
            placement.stages.push(Stage { nodes: vec![node], split: None, layers: range });
        }
        if next != layers {
            return Err(bad());
        }
        self.check(&placement)?;
        Ok(placement)
    }

    /// Holds a placement against links and memory.
    ///
    /// # Errors
    /// `NoLink` and `TooSmall`, of the first rank that has either.
    pub fn check(&self, placement: &Placement) -> Result<(), PlacementError> {
        let name = |node: usize| self.nodes[node].name.clone();
        for (rank, stage) in placement.stages.iter().enumerate() {
            for &node in &stage.nodes {
                let need_bytes = self.memory(stage, rank == 0, node).total_bytes();
                let have_bytes = self.nodes[node].memory_bytes;
                if need_bytes > have_bytes {
                    let node = name(node);
                    return Err(PlacementError::TooSmall { node, need_bytes, have_bytes });
                }
            }
            let next = &placement.stages[(rank + 1) % placement.world()];
            let (from, to) = (stage.nodes[0], next.nodes[0]);
            if from != to && self.links.get(from, to).is_none() {
                return Err(PlacementError::NoLink { from: name(from), to: name(to) });
            }
        }
        Ok(())
    }

    /// What a node of a stage holds.
    pub fn memory(&self, stage: &Stage, is_first: bool, node: usize) -> Memory {
        need(self.model, self.ask, stage, is_first, &self.nodes[node])
    }

    pub(crate) fn fits(&self, stage: &Stage, is_first: bool) -> bool {
        stage.nodes.iter().all(|&node| {
            self.memory(stage, is_first, node).total_bytes() <= self.nodes[node].memory_bytes
        })
    }

    /// How long a stage computes in one round, with the head where it has the ends; `None` where
    /// its members do not reach each other.
    pub(crate) fn stage_s(&self, stage: &Stage, is_first: bool, load: Load) -> Option<f64> {
        let members = stage.nodes.len() as f64;
        let layers = |node: usize| self.layers_s(node, stage, is_first, load) / members;
        let ends = |node: usize| match is_first {
            true if load.wanted > 0.0 => self.nodes[node].costs.ends.at(load.wanted, 0.0) / members,
            _ => 0.0,
        };
        let of_node = |node: &usize| self.nodes[*node].costs.round_s + layers(*node) + ends(*node);
        let slowest = stage.nodes.iter().map(of_node).fold(0.0, f64::max);
        Some(slowest + self.exchange_s(stage, load.rows)?)
    }

    /// A stage's layers on one node that has all of them. What caches keep of the weights is saved
    /// once a round, however many rows it has.
    fn layers_s(&self, node: usize, stage: &Stage, is_first: bool, load: Load) -> f64 {
        let costs = &self.nodes[node].costs;
        let [attention, recurrent] = self.model.count(stage.layers.clone());
        let of = |rows: f64, context: f64| {
            let mut sum = 0.0;
            if attention > 0 {
                sum += attention as f64 * costs.layer_s(Kind::Attention, rows, context);
            }
            if recurrent > 0 {
                sum += recurrent as f64 * costs.layer_s(Kind::Recurrent, rows, context);
            }
            sum
        };
        let ends_bytes = if is_first { self.model.ends_bytes } else { 0 };
        let bytes = self.model.weight_bytes(stage.layers.clone()) + ends_bytes;
        let saved = 1.0 - costs.part(bytes / stage.nodes.len() as u64);
        of(load.rows, load.context) - saved * of(1.0, 0.0)
    }

    /// Exchanges of a group in all its layers: two a layer where sums of shares are added, four
    /// where inputs and outputs are joined; each member gives its piece to every other.
    fn exchange_s(&self, stage: &Stage, rows: f64) -> Option<f64> {
        let Some(split) = stage.split else { return Some(0.0) };
        let members = stage.nodes.len() as f64;
        let Model { hidden, attention_width, intermediate, .. } = *self.model;
        let (hidden, inner) = (hidden as f64, (attention_width + intermediate) as f64);
        let (sites, values) = match split {
            Split::Shards => (2.0, 2.0 * hidden),
            Split::Rows => (4.0, (2.0 * hidden + inner) / members),
        };
        let bytes = rows * values / sites * VALUE_BYTES * (members - 1.0);
        let mut worst = 0.0_f64;
        for &from in &stage.nodes {
            for &to in stage.nodes.iter().filter(|to| **to != from) {
                worst = worst.max(self.links.get(from, to)?.time_s(bytes));
            }
        }
        Some(stage.layers.len() as f64 * sites * worst)
    }

    /// The hop from one stage to the next, `None` where there is no link: its time, and how long
    /// it keeps the link busy. A ring of one hops nowhere.
    pub(crate) fn hop_s(&self, from: usize, to: usize, rows: f64) -> Option<[f64; 2]> {
        if from == to {
            return Some([0.0, 0.0]);
        }
        let link: Link = self.links.get(from, to)?;
        let bytes = PLAN_BYTES + rows * self.model.hidden as f64 * VALUE_BYTES;
        Some([link.time_s(bytes), bytes / link.bytes_per_s])
    }
}
