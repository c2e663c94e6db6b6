//! Every rank but 0: waits for rank 0, boots, then computes what the plans say, for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arith::base::Rank;
use stage::{Engine, Input};
use wire::cancel::Cancel;
use wire::control::Describe;
use wire::frame::{Frame, Kind};
use wire::plan::Plan;

use crate::boot::{self, BootTimes};
use crate::error::RingError;
use crate::hop::{self, Hop};
use crate::inbox::{self, Wake};
use crate::join::Join;
use crate::link::Neighbours;

/// A follower's facts and its way to its neighbours.
pub struct Follower<J> {
    /// What it says of itself.
    pub describe: Describe,
    /// Ranks of the ring.
    pub world: u32,
    /// Deadlines of a boot.
    pub times: BootTimes,
    /// Makes links.
    pub join: J,
    /// Set from outside to end [`Follower::run`]; pair it with the transport's shutdown.
    pub stop: Arc<AtomicBool>,
}

impl<J: Join> Follower<J> {
    /// Serves epochs until stopped. Whatever breaks one, weights stay loaded and the rank waits
    /// for the next.
    pub fn run(mut self, engine: &mut dyn Engine) {
        let rank = self.describe.rank;
        while !self.stop.load(Ordering::Acquire) {
            tracing::info!("rank {rank}: waiting for the ring");
            let links = match self.join.join(None) {
                Ok(links) => links,
                Err(error) => {
                    if !self.stop.load(Ordering::Acquire) {
                        tracing::warn!("rank {rank}: {error}");
                    }
                    continue;
                }
            };
            let Err(error) = self.epoch(&links, engine);
            let error = inbox::first_cause(&links.inbound, error);
            tracing::debug!("rank {rank}: table {:?}", engine.table());
            error.tell(&links, rank);
            engine.reset();
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            if error.is_shutdown() {
                tracing::info!("rank {rank}: the ring ended: {error}; weights stay loaded");
            } else {
                tracing::warn!("rank {rank}: the ring broke: {error}; weights stay loaded");
            }
        }
    }

    /// One epoch: boot, then rounds until something breaks.
    fn epoch(
        &self,
        links: &Neighbours,
        engine: &mut dyn Engine,
    ) -> Result<std::convert::Infallible, RingError> {
        let rank = self.describe.rank;
        tracing::info!("rank {rank}: connected, epoch {:016x}", links.epoch.0);
        boot::follow(links, &self.describe, &self.times, engine)?;
        tracing::info!("rank {rank}: ready");
        let hop = Hop::of(rank.0, self.world);
        let mut out = Vec::new();
        let mut done = 0;
        loop {
            let (mut frame, mut plan) = self.next_plan(links, engine)?;
            let hidden = engine.hidden();
            let rows = match plan.rows() {
                0 => Vec::new(),
                n => {
                    let arrived = self.next_frame(links, engine)?;
                    hop::expect(&arrived, Kind::Rows, frame.round)?;
                    wire::rows::decode(&arrived.payload, n, hidden).map_err(|error| {
                        RingError::Wire { from: before(rank, self.world), error }
                    })?
                }
            };
            links.set_progress(frame.round, done);
            engine
                .step(&plan, Input::Rows(&rows), &mut out)
                .map_err(|error| RingError::Stage { rank, error })?;
            if !plan.keeps.is_empty() {
                for (keep, held) in plan.keeps.iter_mut().zip(engine.held()) {
                    keep.held &= held;
                }
                frame.payload = plan.encode()?;
            }
            done = frame.round.0;
            links.set_progress(frame.round, done);
            hop::send(&links.outbound, frame.round, &plan, frame.payload, hop, &out, hidden)?;
        }
    }

    fn next_plan(
        &self,
        links: &Neighbours,
        engine: &mut dyn Engine,
    ) -> Result<(Frame, Plan), RingError> {
        let frame = self.next_frame(links, engine)?;
        hop::expect(&frame, Kind::Plan, frame.round)?;
        let plan = Plan::decode(&frame.payload)
            .map_err(|error| RingError::Wire { from: Rank(0), error })?;
        Ok((frame, plan))
    }

    /// The next plan or rows frame; cancels on the way reach the engine at once.
    fn next_frame(&self, links: &Neighbours, engine: &mut dyn Engine) -> Result<Frame, RingError> {
        loop {
            match inbox::wait(&links.inbound, None)? {
                Wake::Frame(frame) if frame.kind == Kind::Cancel => {
                    if let Ok(cancel) = Cancel::decode(&frame.payload)
                        && cancel.epoch == links.epoch
                    {
                        engine.skip(cancel.stream);
                    }
                }
                Wake::Frame(frame) => return Ok(frame),
                Wake::Poke | Wake::Late if self.stop.load(Ordering::Acquire) => {
                    return Err(RingError::Shutdown);
                }
                Wake::Poke | Wake::Late => {}
            }
        }
    }
}

/// The rank whose frames arrive here.
fn before(rank: Rank, world: u32) -> Rank {
    Rank((rank.0 + world - 1) % world)
}
