//! Every rank but 0: waits for rank 0, boots, then computes what the plans say, for ever.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use stage::{Engine, Input};
use wire::control::Describe;
use wire::plan::Plan;

use crate::boot::{self, BootTimes};
use crate::error::RingError;
use crate::inbox::{self, Wake};
use crate::join::Join;
use crate::link::Neighbours;
use crate::step::{Action, Event, Follow, Rows};

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
        let agree = boot::follow(links, &self.describe, &self.times, engine)?;
        tracing::info!("rank {rank}: ready");
        let (hidden, depth) = (engine.hidden(), agree.depth);
        let mut core = Follow::new(rank, self.world, links.epoch, hidden, depth);
        let mut work = VecDeque::new();
        loop {
            // All that is there before the device is busy: a cancel may spare it rows.
            while let Some(wake) = inbox::poll(&links.inbound)? {
                self.woken(&mut core, wake, links, engine, &mut work)?;
            }
            let Some((plan, rows)) = work.pop_front() else {
                let wake = inbox::wait(&links.inbound, None)?;
                self.woken(&mut core, wake, links, engine, &mut work)?;
                continue;
            };
            let mut values = Vec::new();
            engine
                .step(&plan, Input::Rows(&rows), &mut values)
                .map_err(|error| RingError::Stage { rank, error })?;
            let held = engine.held().to_vec();
            let actions = core.step(Event::Computed { values, held })?;
            perform(actions, &core, links, engine, &mut work)?;
        }
    }

    fn woken(
        &self,
        core: &mut Follow,
        wake: Wake,
        links: &Neighbours,
        engine: &mut dyn Engine,
        work: &mut VecDeque<(Plan, Vec<f32>)>,
    ) -> Result<(), RingError> {
        match wake {
            Wake::Frame(frame) => {
                let actions = core.step(Event::Frame(frame))?;
                perform(actions, core, links, engine, work)
            }
            Wake::Poke | Wake::Late if self.stop.load(Ordering::Acquire) => {
                Err(RingError::Shutdown)
            }
            Wake::Poke | Wake::Late => Ok(()),
        }
    }
}

/// Does what is not the device's, and leaves that in `work`.
fn perform(
    actions: Vec<Action>,
    core: &Follow,
    links: &Neighbours,
    engine: &mut dyn Engine,
    work: &mut VecDeque<(Plan, Vec<f32>)>,
) -> Result<(), RingError> {
    let (round, done) = core.progress();
    links.set_progress(round, done);
    for action in actions {
        match action {
            Action::Send(frame) => links.outbound.send(frame)?,
            Action::Skip(stream) => engine.skip(stream),
            Action::Stage { plan, rows: Rows::Values(rows), .. } => work.push_back((plan, rows)),
            other => unreachable!("a follower has no {other:?}"),
        }
    }
    Ok(())
}
