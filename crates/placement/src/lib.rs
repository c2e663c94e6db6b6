//! Which machine does what: from nodes, links and a model to a placement, its predicted speed and
//! its memory. A pure function of what was measured: no socket, clock or file.
//!
//! A [`Placement`] is a ring of [`Stage`]s in rank order, each a contiguous range of layers on one
//! node or on a group of alike nodes. [`choose()`] looks at every subset of the nodes, every order
//! and every cut, and gives the best for the [`Objective`] with the runner-up; [`predict()`] says
//! what a placement does, also one that a user wrote. [`Plan::make`] is both, from the [`Facts`]
//! that nodes tell of themselves to the [`Order`] of every process.

mod ask;
mod choose;
mod error;
mod facts;
mod link;
mod memory;
mod model;
mod node;
mod order;
mod predict;
mod problem;
mod refusal;
mod table;
pub mod truth;

pub use ask::{Ask, Objective, named};
pub use choose::{Choice, choose};
pub use error::PlacementError;
pub use facts::{FACTS_VERSION, Facts, LISTEN_MAX, PATHS_MAX};
pub use link::{Link, Links, Path};
pub use memory::{Memory, need, pages};
pub use model::{Kind, Layer, Model};
pub use node::{Costs, Curve, Node, Point, Runs, Stack};
pub use order::{Order, PLAN_VERSION, Plan};
pub use predict::{Bound, PROMPTS, Prediction, predict};
pub use problem::Problem;
pub use table::table;

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The most nodes that are looked at together; the search takes time and memory for every subset.
pub const NODES_MAX: usize = 8;
/// The most layers of a model.
pub const LAYERS_MAX: usize = 1_024;

/// How a group's members share each layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// Tensor parallel: sums of shares of K are added in the tree's order.
    Shards,
    /// Output rows: every member reduces the whole K.
    Rows,
}

/// One rank of the ring, or a group in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// Indices of its nodes, the leader first; more than one are a group.
    pub nodes: Vec<usize>,
    /// How a group shares its layers; `None` for one node.
    pub split: Option<Split>,
    /// Its layers, never none.
    pub layers: Range<usize>,
}

/// Stages in rank order; the first holds the ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The stages.
    pub stages: Vec<Stage>,
}

impl Placement {
    /// Number of stages.
    pub fn world(&self) -> usize {
        self.stages.len()
    }

    /// As `--layout` takes it: `0:10,10:30@rows2`.
    pub fn layout(&self) -> String {
        let stage = |stage: &Stage| {
            let Range { start, end } = stage.layers;
            let split = match stage.split {
                None => String::new(),
                Some(Split::Shards) => format!("@shards{}", stage.nodes.len()),
                Some(Split::Rows) => format!("@rows{}", stage.nodes.len()),
            };
            format!("{start}:{end}{split}")
        };
        self.stages.iter().map(stage).collect::<Vec<_>>().join(",")
    }
}
