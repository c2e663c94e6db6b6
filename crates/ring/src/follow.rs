//! Every rank but 0, on its thread: [`Following`] between the links and the stage, for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use arith::base::Rank;
use stage::{Engine, Offer};
use wire::control::Describe;

use crate::boot::BootTimes;
use crate::error::RingError;
use crate::inbox;
use crate::join::Join;
use crate::link::{Inbound, Neighbours};
use crate::span::Spans;
use crate::step::{Action, Computed, Following, Rows, Want};

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
        let own = Describe { world: self.world, ..self.describe.clone() };
        let mut core = Following::new(own, self.times, engine.hidden());
        while !self.is_stopped() {
            tracing::info!("rank {rank}: waiting for the ring");
            let links = match self.join.join(None) {
                Ok(links) => links,
                Err(error) => {
                    if !self.is_stopped() {
                        tracing::warn!("rank {rank}: {error}");
                    }
                    continue;
                }
            };
            let Err(error) = self.epoch(&links, &mut core, engine);
            let error = inbox::first_cause(links.inbound.try_iter(), error);
            tracing::debug!("rank {rank}: table {:?}", engine.table());
            let over = core.broke(&error);
            let _ = perform(over, &core, &links, engine); // ends with the links closed
            if self.is_stopped() {
                return;
            }
            if error.is_shutdown() {
                tracing::info!("rank {rank}: the ring ended: {error}; weights stay loaded");
            } else {
                tracing::warn!("rank {rank}: the ring broke: {error}; weights stay loaded");
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// One epoch: boot, then rounds until something breaks.
    fn epoch(
        &self,
        links: &Neighbours,
        core: &mut Following,
        engine: &mut dyn Engine,
    ) -> Result<std::convert::Infallible, RingError> {
        let (rank, start) = (self.describe.rank, Instant::now());
        tracing::info!("rank {rank}: connected, epoch {:016x}", links.epoch.0);
        let first = core.joined(links.epoch)?;
        perform(first, core, links, engine)?;
        let mut spans = Spans::new(rank, links.epoch);
        let waker = links.waker.clone();
        engine.watch(Box::new(move || waker.wake()));
        engine.heed(links.over());
        loop {
            let was_ready = core.is_ready();
            let item = match core.want(start.elapsed()) {
                Want::Inbox => inbox::poll(&links.inbound),
                Want::Sleep(until) => inbox::wait(&links.inbound, until.map(|at| start + at)),
                Want::Prepare(agree) => {
                    links.prepare(engine, rank, &agree)?;
                    core.prepared(offer(engine, rank, agree.depth));
                    continue;
                }
                Want::Compute(Action::Stage { plan, rows, round }) => {
                    let (mut values, since) = (links.room(), Instant::now());
                    let berth = engine
                        .step_on(round, &plan, rows.input(), &mut values)
                        .map_err(|error| links.failed(rank, error))?;
                    links.computed(since.elapsed());
                    if let Rows::Values(rows) = rows {
                        links.give_back(rows);
                    }
                    spans.round(round, &plan, since.elapsed(), |_| None);
                    let held = engine.held().to_vec();
                    let actions = core.computed(Computed { values, berth, held })?;
                    perform(actions, core, links, engine)?;
                    continue;
                }
                other => unreachable!("a follower in an epoch wants no {other:?}"),
            };
            if matches!(item, Some(Inbound::Poke)) && was_ready && self.is_stopped() {
                return Err(RingError::Shutdown);
            }
            engine.check().map_err(|error| RingError::Stage { rank, error })?;
            let actions = core.inbox(item)?;
            perform(actions, core, links, engine)?;
            if core.is_ready() && !was_ready {
                tracing::info!("rank {rank}: ready");
            }
        }
    }
}

fn perform(
    actions: Vec<Action>,
    core: &Following,
    links: &Neighbours,
    engine: &mut dyn Engine,
) -> Result<(), RingError> {
    let (round, done) = core.progress();
    links.set_progress(round, done);
    for action in actions {
        match action {
            Action::Send(frame) => links.outbound.queue(frame)?,
            Action::Free(rows) => links.give_back(rows),
            Action::Reach(offer) => reach(engine, core.rank(), &offer),
            Action::Skip(stream) => engine.skip(stream),
            Action::Stop(origin, reason) => links.stop(origin, &reason),
            Action::Close => links.outbound.close(),
            Action::Reset => engine.reset(),
            other => unreachable!("a follower has no {other:?}"),
        }
    }
    links.outbound.flush();
    Ok(())
}

/// Berths for the rank before, where this rank's device has some.
fn offer(engine: &mut dyn Engine, rank: Rank, count: u32) -> Option<Offer> {
    engine.berths(count).unwrap_or_else(|words| {
        tracing::info!("rank {rank}: rows come over the link: {words}");
        None
    })
}

/// Finds the berths of the rank after, or says why rows go over the link.
pub(crate) fn reach(engine: &mut dyn Engine, rank: Rank, offer: &Offer) {
    match engine.reach(offer) {
        Ok(way) => tracing::info!("rank {rank}: rows go to the rank after {way}"),
        Err(words) => tracing::info!("rank {rank}: rows go over the link: {words}"),
    }
}

impl Neighbours {
    /// Allocates for the agreed shapes, and lets the link take rows of that size: both before this
    /// rank says that it is ready.
    pub(crate) fn prepare(
        &self,
        engine: &mut dyn Engine,
        rank: Rank,
        agree: &wire::control::Agree,
    ) -> Result<(), RingError> {
        self.set_rows_bytes_max(agree.shapes.round_rows_max as usize * engine.hidden() * 4);
        engine.reset();
        engine.prepare(&agree.shapes).map_err(|error| RingError::Stage { rank, error })
    }
}
