//! One life of a group: its links, and why it ended.

use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use ring::session::record::{Opener, Sealer};
use stage::{ExchangeError, Member, Wake};
use wire::limit::REASON_BYTES_MAX;

use crate::link::{Link, PIECES_MAX};
use crate::memory::Memory;
use crate::{ShardError, Times};

/// The links of one epoch. Any link's failure ends all.
pub(crate) struct Epoch {
    pub(crate) number: u64,
    pub(crate) member: Member,
    times: Times,
    state: Mutex<State>,
    changed: Condvar,
    watch: Watch,
    memory: OnceLock<Memory>,
    /// The exchange between devices that this member is at; 0 where it is at none.
    at: AtomicU64,
}

/// Who is woken when an epoch ends.
pub(crate) type Watch = Arc<Mutex<Option<Wake>>>;

struct State {
    links: Vec<Option<Arc<Link>>>,
    lost: Option<ExchangeError>,
}

impl Epoch {
    pub(crate) fn new(number: u64, member: Member, times: Times, watch: Watch) -> Arc<Self> {
        let links = (0..member.count).map(|_| None).collect();
        let state = Mutex::new(State { links, lost: None });
        Arc::new(Self {
            number,
            member,
            times,
            state,
            changed: Condvar::new(),
            watch,
            memory: OnceLock::new(),
            at: AtomicU64::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an authenticated link in and starts its threads. A member that has one already, or an
    /// epoch that is over, drops the new one: its end tries again.
    pub(crate) fn add(
        self: &Arc<Self>,
        peer: usize,
        stream: TcpStream,
        (sealer, opener): (Sealer, Opener),
    ) -> Result<(), ShardError> {
        let failed = |e: std::io::Error| ShardError::Resource(format!("a link's thread: {e}"));
        stream.set_read_timeout(Some(self.times.silent)).map_err(failed)?;
        stream.set_write_timeout(Some(self.times.stalled)).map_err(failed)?;
        let (wake, inbox) = sync_channel(PIECES_MAX);
        let link = Arc::new(Link::new(peer, stream, sealer, (wake.clone(), inbox)));
        {
            let mut state = self.state();
            if state.lost.is_some() || state.links[peer].is_some() {
                return Ok(());
            }
            state.links[peer] = Some(link.clone());
        }
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let name = format!("baton-{name}-{peer}");
            std::thread::Builder::new().name(name).spawn(run).map(drop).map_err(failed)
        };
        let (epoch, sends) = (self.clone(), link.clone());
        let beat = self.times.beat;
        spawn("give", Box::new(move || sends.run_sender(&epoch, beat)))?;
        let (epoch, takes) = (self.clone(), link);
        spawn("take", Box::new(move || takes.run_receiver(&epoch, opener, &wake)))?;
        self.changed.notify_all();
        Ok(())
    }

    /// The link to another member of a whole epoch.
    pub(crate) fn link(&self, peer: usize) -> Result<Arc<Link>, ExchangeError> {
        let state = self.state();
        match (&state.lost, &state.links[peer]) {
            (Some(lost), _) => Err(lost.clone()),
            (None, Some(link)) => Ok(link.clone()),
            (None, None) => Err(ExchangeError { member: peer, reason: "it has not joined".into() }),
        }
    }

    /// The members other than this one.
    pub(crate) fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let Member { index, count } = self.member;
        (0..count).filter(move |&peer| peer != index)
    }

    /// Why the epoch is over, once it is.
    pub(crate) fn lost(&self) -> Option<ExchangeError> {
        self.state().lost.clone()
    }

    /// Waits until the epoch is over, no longer than `limit`; whether it is.
    pub(crate) fn wait_lost(&self, limit: std::time::Duration) -> bool {
        let state = self.state();
        let waited = self.changed.wait_timeout_while(state, limit, |state| state.lost.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.lost.is_some()
    }

    /// Ends the epoch by `member`, whose link failed, and tells the others why. The first cause
    /// stays: it is what this returns.
    pub(crate) fn fail(&self, member: usize, reason: String) -> ExchangeError {
        self.end(member, reason, member)
    }

    /// Ends the epoch as `by` says, this member or one whose link has ended: all others are told,
    /// `member` too, which would take a link that closes without a word for another's death.
    pub(crate) fn told(&self, by: usize, member: usize, reason: String) -> ExchangeError {
        self.end(member, reason, by)
    }

    fn end(&self, member: usize, mut reason: String, gone: usize) -> ExchangeError {
        reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
        let (lost, links) = {
            let mut state = self.state();
            if let Some(lost) = &state.lost {
                return lost.clone();
            }
            let lost = state.lost.insert(ExchangeError { member, reason }).clone();
            (lost, state.links.iter().flatten().cloned().collect::<Vec<_>>())
        };
        for link in links {
            let is_gone = link.peer == gone;
            link.end(Some((member, lost.reason.as_str())).filter(|_| !is_gone), is_gone);
        }
        self.changed.notify_all();
        if let Some(memory) = self.memory() {
            memory.wake(self.member.index);
        }
        if let Some(wake) = &*self.watch.lock().unwrap_or_else(PoisonError::into_inner) {
            wake();
        }
        lost
    }

    /// The memory that some members exchange through, once they do.
    pub(crate) fn memory(&self) -> Option<&Memory> {
        self.memory.get()
    }

    /// Exchanges through `memory` from the next one on.
    pub(crate) fn meet_in(&self, memory: Memory) {
        assert!(self.memory.set(memory).is_ok(), "an epoch's members meet once");
    }

    /// What this member's beats say from now on: the exchange between devices that it is at, 0
    /// where it is at none.
    pub(crate) fn set_at(&self, number: u64) {
        self.at.store(number, Ordering::Relaxed);
    }

    pub(crate) fn at(&self) -> u64 {
        self.at.load(Ordering::Relaxed)
    }

    /// A member whose beats have said for nearly as long as silence may last that it is at no
    /// exchange.
    pub(crate) fn resting(&self) -> Option<usize> {
        let limit = self.times.silent.saturating_sub(self.times.beat);
        let state = self.state();
        let mut links = state.links.iter().flatten();
        links.find(|link| link.rested() >= Some(limit)).map(|link| link.peer)
    }

    /// How long nothing may come of a member.
    pub(crate) fn silent(&self) -> std::time::Duration {
        self.times.silent
    }

    /// How long a member that beats may say nothing else.
    pub(crate) fn stalled(&self) -> std::time::Duration {
        self.times.stalled
    }

    /// How long a member may take to load, or to prepare.
    pub(crate) fn ready(&self) -> std::time::Duration {
        self.times.ready
    }

    /// Waits until every member has a link: `Ok(None)`; at `until`, the first one without.
    ///
    /// # Errors
    /// Why the epoch is over.
    pub(crate) fn wait_whole(&self, until: Instant) -> Result<Option<usize>, ExchangeError> {
        let mut state = self.state();
        loop {
            if let Some(lost) = &state.lost {
                return Err(lost.clone());
            }
            let missing = self.peers().find(|&peer| state.links[peer].is_none());
            let left = until.saturating_duration_since(Instant::now());
            if missing.is_none() || left.is_zero() {
                return Ok(missing);
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
