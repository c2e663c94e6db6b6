//! A whole ring inside this process, its ranks on threads of their own and its links real sockets:
//! what checks and benchmarks run.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use arith::base::Rank;
use ring::head::{self, Driver, Handle, RingState};
use ring::join::{Alone, Join};
use ring::key::Key;
use ring::tcp::Transport;
use shard::Group;
use stage::Engine;
use wire::hello::Encryption;

use crate::busy::{Busy, Meter};
use crate::model::{Model, Settings};
use crate::rank::{self, Joined, Place, local_places};

/// How long a cell may take to become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// A ring that serves.
pub struct Cell {
    handle: Handle,
    runtime: tokio::runtime::Runtime,
    threads: Vec<JoinHandle<()>>,
    transports: Vec<Arc<Transport>>,
    groups: Vec<Group>,
    stops: Vec<Arc<AtomicBool>>,
    meters: Vec<Meter>,
}

impl Cell {
    /// Loads every rank and waits until the canary is back.
    ///
    /// # Errors
    /// What keeps a rank from loading or the ring from becoming ready.
    pub fn start(path: &Path, settings: Settings, threads: usize) -> Result<Self> {
        Self::start_over(path, settings, threads, |_| {})
    }

    /// As [`Cell::start`], with other ways between the ranks than straight ones.
    ///
    /// # Errors
    /// As [`Cell::start`].
    pub fn start_over(
        path: &Path,
        settings: Settings,
        threads: usize,
        detour: impl FnOnce(&mut [Place]),
    ) -> Result<Self> {
        let model = Arc::new(Model::open(path, settings)?);
        let world = model.layout.world() as usize;
        let (mut cell, driver) = Self::empty()?;
        let key = Key::from_bytes(&*ring::key::generate_secret()?)?;
        let mut places = local_places(&model.layout, &key, Encryption::On)?;
        detour(&mut places);
        let mut groups =
            places.iter().map(|place| place.group(&model)).collect::<Result<Vec<_>>>()?;
        cell.groups.extend(groups.iter().flatten().cloned());
        for (place, group) in places.iter().zip(&groups).skip(world) {
            cell.serve(&model, place.rank, threads, group.as_ref())?;
        }
        groups.truncate(world);
        for (place, group) in places.iter().zip(&groups) {
            if group.as_ref().is_some_and(|group| !rank::assemble(place.rank, group)) {
                bail!("{place}: its group ended");
            }
        }
        if world == 1 {
            cell.lead(&model, threads, Alone, driver, groups[0].as_ref())?;
        } else {
            for place in &places[..world] {
                cell.transports.push(place.transport(&model)?);
            }
            for (place, group) in places.iter().zip(&groups).skip(1) {
                cell.follow(&model, place.rank, threads, group.as_ref())?;
            }
            let join = Joined(cell.transports[0].clone());
            cell.lead(&model, threads, join, driver, groups[0].as_ref())?;
        }
        cell.wait_ready()?;
        Ok(cell)
    }

    /// Loads rank 0 at `place` and waits until the canary is back from ranks, or members of its
    /// group, that somebody else has started.
    ///
    /// # Errors
    /// As [`Cell::start`]'s.
    pub fn join(path: &Path, settings: Settings, threads: usize, place: &Place) -> Result<Self> {
        let model = Model::open(path, settings)?;
        let (mut cell, driver) = Self::empty()?;
        let group = place.group(&model)?;
        cell.groups.extend(group.clone());
        if group.as_ref().is_some_and(|group| !rank::assemble(place.rank, group)) {
            bail!("{place}: its group ended");
        }
        if model.layout.world() == 1 {
            cell.lead(&model, threads, Alone, driver, group.as_ref())?;
        } else {
            cell.transports.push(place.transport(&model)?);
            let join = Joined(cell.transports[0].clone());
            cell.lead(&model, threads, join, driver, group.as_ref())?;
        }
        cell.wait_ready()?;
        Ok(cell)
    }

    fn empty() -> Result<(Self, Driver)> {
        let (handle, driver) = head::pair();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let cell = Self {
            handle,
            runtime,
            threads: Vec::new(),
            transports: Vec::new(),
            groups: Vec::new(),
            stops: Vec::new(),
            meters: Vec::new(),
        };
        Ok((cell, driver))
    }

    fn lead<J: Join + 'static>(
        &mut self,
        model: &Model,
        threads: usize,
        join: J,
        driver: Driver,
        group: Option<&Group>,
    ) -> Result<()> {
        let seat = model.seat(Rank(0), 0, threads)?;
        let mut leader = model.leader(&seat, join, driver)?;
        // Whoever runs a cell compares its bytes; an earlier run's must not end it before.
        leader.canary.kept_at = None;
        let engine = model.engine(Rank(0), &seat, group)?;
        self.spawn(Rank(0), engine, move |engine| drop(leader.run(engine)))
    }

    fn follow(
        &mut self,
        model: &Model,
        rank: Rank,
        threads: usize,
        group: Option<&Group>,
    ) -> Result<()> {
        let seat = model.seat(rank, 0, threads)?;
        let join = Joined(self.transports[rank.0 as usize].clone());
        let follower = model.follower(rank, &seat, join)?;
        self.stops.push(follower.stop.clone());
        let engine = model.engine(rank, &seat, group)?;
        self.spawn(rank, engine, move |engine| follower.run(engine))
    }

    /// A member of a rank's group, but its leader.
    fn serve(
        &mut self,
        model: &Arc<Model>,
        rank: Rank,
        threads: usize,
        group: Option<&Group>,
    ) -> Result<()> {
        let Some(group) = group.cloned() else { bail!("rank {rank} has no group") };
        let model = model.clone();
        let run = move || {
            if !rank::assemble(rank, &group) {
                return;
            }
            let loaded = model.seat(rank, group.member().index, threads);
            match loaded.and_then(|seat| model.share(rank, &seat, Some(&group))) {
                Ok(mut share) => shard::Follower::new(group).run(&mut *share),
                Err(error) => {
                    tracing::warn!("rank {rank}: {error:#}");
                    group.shutdown();
                }
            }
        };
        let name = format!("baton-member-{rank}");
        self.threads.push(std::thread::Builder::new().name(name).spawn(run)?);
        Ok(())
    }

    fn spawn(
        &mut self,
        rank: Rank,
        engine: Box<dyn Engine>,
        run: impl FnOnce(&mut dyn Engine) + Send + 'static,
    ) -> Result<()> {
        let meter = Meter::default();
        let mut engine = Busy::new(engine, meter.clone());
        // Followers are started first; rank 0's comes in front.
        self.meters.insert(if rank.0 == 0 { 0 } else { self.meters.len() }, meter);
        let name = format!("baton-rank-{rank}");
        let thread = std::thread::Builder::new().name(name).spawn(move || run(&mut engine))?;
        self.threads.push(thread);
        Ok(())
    }

    fn wait_ready(&self) -> Result<()> {
        let until = Instant::now() + READY_TIMEOUT;
        loop {
            match self.handle.state() {
                RingState::Ready => return Ok(()),
                RingState::Waiting(reason) => bail!("the ring did not come up: {reason}"),
                state if Instant::now() > until => bail!("not ready in time: {state}"),
                _ => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// Where requests go.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// What each rank of this process has computed, by rank.
    pub fn meters(&self) -> &[Meter] {
        &self.meters
    }

    /// Runs a future that talks to the ring.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Drains the ring and waits for its ranks.
    ///
    /// # Errors
    /// A rank that panicked.
    pub fn stop(mut self) -> Result<()> {
        self.end();
        let ended: Vec<_> = self.threads.drain(..).map(JoinHandle::join).collect();
        ensure!(ended.iter().all(Result::is_ok), "a rank panicked while the ring stopped");
        Ok(())
    }

    fn end(&self) {
        if self.threads.is_empty() {
            self.groups.iter().for_each(Group::shutdown);
            return;
        }
        self.handle.drain();
        self.stops.iter().for_each(|stop| stop.store(true, Ordering::Release));
        // Rank 0's stop frame must get out before the sockets go.
        std::thread::sleep(Duration::from_millis(if self.transports.is_empty() { 0 } else { 20 }));
        self.transports.iter().for_each(|transport| transport.shutdown());
        self.groups.iter().for_each(Group::shutdown);
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        self.end();
    }
}
