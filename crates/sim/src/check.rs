//! What must hold of the ranks, seen from outside.

use arith::base::{Round, StreamId};
use arith::sample::mix;
use ring::error::RingError;
use sched::SlotState;
use wire::cancel::Cancel;
use wire::frame::Frame;

use crate::device::{Seen, Table};
use crate::node::{Core, State};
use crate::setting::{MS, US};
use crate::world::{Broken, World};

/// Bytes of a frame of a round, at most.
const FRAME_BYTES: u64 = 2_000;

/// When a rank must have heard of a cancel.
pub struct Due {
    epoch: u64,
    stream: StreamId,
    rank: usize,
    at: u64,
}

fn digest(table: &Table) -> u64 {
    let one = |hash: u64, value: u64| mix(hash.rotate_left(7) ^ value);
    let stream = |hash: u64, state: &SlotState| {
        let SlotState { id, generation, first, rows, pages } = *state;
        [id.0, generation.0, first, rows, pages].map(u64::from).into_iter().fold(hash, one)
    };
    let streams = table.streams.iter().fold(1, stream);
    let keep = |hash: u64, keep: &(u64, u32)| one(one(hash, keep.0), keep.1.into());
    one(table.keeps.iter().fold(streams, keep), table.pages_free.into())
}

impl World {
    /// A rank has done a round: all ranks have the same table after it, generations move on, and
    /// no row is computed for a stream whose cancel the rank must have heard of.
    pub fn check_round(&mut self, rank: usize, round: Round, seen: &Seen) -> Result<(), Broken> {
        let epoch = self.ends[self.nodes[rank].held.expect("links")].epoch;
        let table = self.nodes[rank].device.table();
        let found = digest(&table);
        let expected = *self.tables.entry((epoch.0, round.0)).or_insert(found);
        if expected != found {
            return Err(Broken(format!(
                "tables differ: rank {rank} after round {round}: {table:?}"
            )));
        }
        if rank == 0 {
            let mirror = self.nodes[0].lead().lead().map(|lead| lead.sched.table());
            if mirror.as_ref() != Some(&table.streams) {
                let what = format!("rank 0 after round {round}: {table:?}, sched has {mirror:?}");
                return Err(Broken(format!("tables differ: {what}")));
            }
        }
        for due in &self.due {
            if (due.epoch, due.rank) == (epoch.0, rank)
                && due.at < self.now
                && seen.streams.contains(&due.stream)
                && self.faults.iter().all(|(_, until)| *until < self.epoch_began)
            {
                return Err(Broken(format!(
                    "rows after a cancel: rank {rank} computes stream {} in round {round}",
                    due.stream
                )));
            }
        }
        let ended = |due: &Due| {
            due.rank != rank || table.streams.iter().any(|state| state.id == due.stream)
        };
        self.due.retain(ended);
        Ok(())
    }

    /// Rank 0 sends a cancel: within a bound each rank knows of it.
    pub fn cancel_is_sent(&mut self, frame: &Frame) {
        let Ok(cancel) = Cancel::decode(&frame.payload) else { return };
        let mut at = self.now;
        for rank in 1..self.nodes.len() {
            let hop = self.setting.hops[rank];
            at += 2 * (hop.delay + hop.jitter) + 3 * FRAME_BYTES * hop.byte + 10 * US;
            let (epoch, stream) = (cancel.epoch.0, cancel.stream);
            self.due.push(Due { epoch, stream, rank, at });
        }
    }

    /// When rank 0 has nothing to do, nobody holds anything.
    pub fn check_quiet(&mut self, rank: usize) -> Result<(), Broken> {
        let Core::Lead(core) = &self.nodes[rank].core else { return Ok(()) };
        let Some(lead) = core.lead().filter(|lead| lead.is_idle()) else { return Ok(()) };
        let (kept, keeps) = (lead.sched.pages_kept(), lead.sched.keeps() as usize);
        let Some(epoch) = self.nodes[0].held.map(|end| self.ends[end].epoch) else {
            return Ok(());
        };
        for node in &self.nodes {
            let same = node.held.is_some_and(|end| self.ends[end].epoch == epoch);
            if !same || matches!(node.state, State::Busy(_)) {
                continue;
            }
            let table = node.device.table();
            let (rank, pages) = (node.rank, node.device.pages);
            // A state that rank 0 gave up goes with the next plan.
            let is_settled = table.keeps.len() == keeps;
            let is_whole = table.pages_free + kept == pages;
            if !table.streams.is_empty() || table.keeps.len() < keeps || is_settled != is_whole {
                let what = format!("{table:?}, {kept} of {pages} pages kept");
                return Err(Broken(format!("leak: rank {rank}, idle: {what}")));
            }
        }
        self.quiets += 1;
        Ok(())
    }

    /// An epoch ends for a reason: something befell it.
    pub fn check_break(&mut self, rank: usize, error: &RingError) -> Result<(), Broken> {
        let text = error.to_string();
        if text.ends_with("shutting down") && self.drains {
            return Ok(());
        }
        let over = rank == 0 && matches!(error, RingError::Link(_)) && self.drains;
        let befell = |(from, until): &(u64, u64)| *from <= self.now && *until >= self.epoch_began;
        if over || self.faults.iter().any(befell) {
            self.breaks += u64::from(rank == 0);
            return Ok(());
        }
        // A follower hears of a drain by whatever link closes first.
        if rank > 0 && self.drains {
            return Ok(());
        }
        Err(Broken(format!("an epoch ends for nothing: rank {rank}: {text}")))
    }

    /// A command has waited since then for rank 0.
    pub fn check_waited(&mut self, since: u64) -> Result<(), Broken> {
        let longest = self.setting.costs[0];
        let most = (longest.round + 100 * longest.row) * 2 + 5 * MS;
        let waited = self.now - since.max(self.ready_since);
        let is_faulty = self.faults.iter().any(|(_, until)| *until >= since);
        if self.is_ready() && !is_faulty && waited > most {
            return Err(Broken(format!("a command waited {:.3} ms", waited as f64 / 1e6)));
        }
        Ok(())
    }
}
