//! What a node must hold.

use arith::base::{TILE_KEYS, pages_of};
use serde::{Deserialize, Serialize};

use crate::{Ask, Model, Node, Stage};

/// Buffers of a boundary: rows that come, rows that go, two of each.
const STAGING: u64 = 4;
const F32_BYTES: u64 = 4;
/// Sockets, sessions, their thread and its code, where a rank has neighbours.
const LINKS_BYTES: u64 = 1 << 20;

/// Bytes by what they are for, on each node of a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Layers, as they lie.
    pub weight_bytes: u64,
    /// Embeddings, head and a draft head.
    pub ends_bytes: u64,
    /// Keys and values of all streams at the asked context.
    pub kv_bytes: u64,
    /// Recurrent states of all streams.
    pub state_bytes: u64,
    /// Buffers of ops and boundaries, and what links take.
    pub work_bytes: u64,
    /// The rank before it loads anything, and the endpoint where that is.
    pub runtime_bytes: u64,
}

impl Memory {
    /// All of it.
    pub fn total_bytes(&self) -> u64 {
        let Self { weight_bytes, ends_bytes, kv_bytes, state_bytes, work_bytes, runtime_bytes } =
            self;
        weight_bytes + ends_bytes + kv_bytes + state_bytes + work_bytes + runtime_bytes
    }
}

/// KV pages of a rank without a prompt cache: one stream may use the whole context, more share two
/// of them.
pub fn pages(context: u32, streams: u32) -> u32 {
    pages_of(context).saturating_mul(streams.min(2)).saturating_add(streams)
}

/// What `node` needs as one of `stage`; `is_first` says that it holds the ends. Members of a group
/// hold a share of each layer and of the head, and buffers of their own.
pub fn need(model: &Model, ask: &Ask, stage: &Stage, is_first: bool, node: &Node) -> Memory {
    let members = stage.nodes.len() as u64;
    let share = |bytes: u64| bytes.div_ceil(members);
    let [attention, recurrent] = model.count(stage.layers.clone());
    let streams = u64::from(ask.streams);
    let tokens = u64::from(pages(ask.context, ask.streams)) * TILE_KEYS as u64;
    let rows = u64::from(ask.chunk_rows + ask.streams);
    let staging = STAGING * model.hidden * F32_BYTES;
    let twin = if members > 1 { model.twin_bytes } else { 0 };
    let is_alone = members == 1 && stage.layers.len() == model.layers.len();
    let links = if is_alone { 0 } else { LINKS_BYTES };
    let weight_bytes = share(model.weight_bytes(stage.layers.clone()));
    let ends_bytes = if is_first { model.ends_bytes + model.drafter_bytes } else { 0 };
    Memory {
        weight_bytes: weight_bytes + node.runs.gaps_bytes(weight_bytes + ends_bytes),
        ends_bytes,
        kv_bytes: share(attention * model.kv_bytes * tokens),
        state_bytes: share(recurrent * model.state_bytes * streams),
        work_bytes: rows.min(model.rows_max.into()) * model.row_bytes
            + rows * staging
            + twin
            + links,
        runtime_bytes: node.runtime_bytes + if is_first { node.endpoint_bytes } else { 0 },
    }
}
