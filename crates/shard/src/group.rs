//! A member's way to the others: one epoch of links after another.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arith::base::{Epoch as Number, Rank};
use ring::key::Key;
use ring::link::LinkError;
use stage::{ExchangeError, Member, Wake};
use wire::hello::{Encryption, Hello, Role};

use crate::epoch::{Epoch, Watch};
use crate::memory::{Memory, Token};
use crate::seat::Seat;
use crate::{GroupConfig, ShardError, dial, door};

/// First pause between attempts to connect; doubles up to the longest.
const PAUSE: Duration = Duration::from_millis(10);
/// Longest pause between attempts.
const PAUSE_MAX: Duration = Duration::from_millis(300);

/// A member's links to all others; clones are the same.
#[derive(Clone)]
pub struct Group(pub(crate) Arc<Shared>);

/// What a member has given and taken in exchanges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Exchanges.
    pub exchanges: u64,
    /// Those in which another member was met in memory.
    pub in_memory: u64,
    /// Those that went between devices.
    pub direct: u64,
    /// Bytes of values sent, to all members together.
    pub given_bytes: u64,
    /// Bytes of values received.
    pub taken_bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) exchanges: AtomicU64,
    pub(crate) in_memory: AtomicU64,
    pub(crate) direct: AtomicU64,
    pub(crate) given_bytes: AtomicU64,
    pub(crate) taken_bytes: AtomicU64,
}

impl Counters {
    /// One more exchange, of so many values.
    pub(crate) fn count(&self, given: usize, taken: usize) {
        self.exchanges.fetch_add(1, Ordering::Relaxed);
        self.given_bytes.fetch_add(4 * given as u64, Ordering::Relaxed);
        self.taken_bytes.fetch_add(4 * taken as u64, Ordering::Relaxed);
    }
}

pub(crate) struct Shared {
    pub(crate) config: GroupConfig,
    pub(crate) key: Key,
    fingerprint: [u8; 32],
    address: Option<SocketAddr>,
    epoch: Mutex<Option<Arc<Epoch>>>,
    over: AtomicBool,
    /// Wakes whoever pauses between attempts.
    ended: (Mutex<()>, Condvar),
    /// What this member's door refused last.
    refusal: Mutex<Option<String>>,
    pub(crate) counters: Counters,
    watch: Watch,
}

impl Group {
    /// Listens, where members come after this one. Nothing is connected before [`Group::join`].
    ///
    /// # Errors
    /// `BadGroup`; an address that must not or can't be used.
    pub fn start(config: GroupConfig) -> Result<Self, ShardError> {
        config.check()?;
        let listener = match config.listens() {
            false => None,
            true => {
                let address = config.own_address()?;
                let bad = |e: std::io::Error| LinkError::Listen {
                    address: address.to_string(),
                    reason: e.to_string(),
                };
                Some(TcpListener::bind(address).map_err(bad)?)
            }
        };
        let address = listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let shared = Arc::new(Shared::new(config, address));
        if let Some(listener) = listener {
            let (shared, name) = (shared.clone(), "baton-group".to_owned());
            let run = move || door::run(&listener, &shared);
            let thread = std::thread::Builder::new().name(name).spawn(run);
            thread.map_err(|e| ShardError::Resource(format!("no thread: {e}")))?;
        }
        Ok(Self(shared))
    }

    /// Which member this is.
    pub fn member(&self) -> Member {
        self.0.config.member
    }

    /// Where all members listen, by index.
    pub fn addresses(&self) -> &[String] {
        &self.0.config.addresses
    }

    /// Where it listens, with the port that the system chose.
    pub fn address(&self) -> Option<SocketAddr> {
        self.0.address
    }

    /// What a stage exchanges through, in this epoch of the group and the next ones.
    pub fn seat(&self) -> Seat {
        Seat::new(self.clone())
    }

    /// What has been exchanged so far.
    pub fn traffic(&self) -> Traffic {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { exchanges, in_memory, direct, given_bytes, taken_bytes } = &self.0.counters;
        Traffic {
            exchanges: read(exchanges),
            in_memory: read(in_memory),
            direct: read(direct),
            given_bytes: read(given_bytes),
            taken_bytes: read(taken_bytes),
        }
    }

    /// A new epoch: links between this member and all others, connected and authenticated. The
    /// leader draws it and waits `Times::join` for the others; they wait without limit.
    ///
    /// # Errors
    /// `NotJoined` for the leader; `Shutdown` after [`Group::shutdown`]; a system without
    /// randomness or threads.
    pub fn join(&self) -> Result<(), ShardError> {
        self.end("a new epoch begins");
        if self.member().index == 0 { self.gather() } else { self.follow() }
    }

    fn gather(&self) -> Result<(), ShardError> {
        let (shared, start) = (&self.0, Instant::now());
        let wait = shared.config.times.join;
        loop {
            let epoch = self.begin(draw()?)?;
            match epoch.wait_whole(start + wait) {
                Ok(None) => {
                    shared.refusal().take();
                    return Ok(());
                }
                Ok(Some(member)) => {
                    let waited_ms = wait.as_millis() as u64;
                    let hint = shared.refusal().take().unwrap_or("is it running?".into());
                    self.end("a member did not join");
                    return Err(ShardError::NotJoined { member, waited_ms, hint });
                }
                // A member came and went; it comes back.
                Err(_) if shared.is_over() => return Err(ShardError::Shutdown),
                Err(_) => {}
            }
        }
    }

    fn follow(&self) -> Result<(), ShardError> {
        let shared = &self.0;
        let index = self.member().index;
        let mut said = String::new();
        let mut note = |error: &ShardError| {
            let text = error.to_string();
            let is_turn = matches!(error, ShardError::Refused { error, .. }
                if error.code() == "OtherEpoch");
            if text != said && !is_turn {
                let rank = shared.config.fingerprint.get("group").unwrap_or_default();
                // One that is not there yet is a matter of time.
                if matches!(error, ShardError::Unreachable { .. }) {
                    tracing::info!("member {index} of {rank}: {text}");
                } else {
                    tracing::warn!("member {index} of {rank}: {text}");
                }
                said = text;
            }
        };
        'epoch: loop {
            let leader = self.persist(0, 0, None, &mut note)?;
            let Some(leader) = leader else { continue };
            let epoch = self.begin(leader.epoch)?;
            epoch.add(0, leader.stream, leader.records)?;
            for peer in 1..index {
                let reached = self.persist(peer, epoch.number, Some(&epoch), &mut note)?;
                let Some(reached) = reached else { continue 'epoch };
                epoch.add(peer, reached.stream, reached.records)?;
            }
            // The leader's patience ends this wait, by its link.
            if let Ok(None) = epoch.wait_whole(Instant::now() + shared.config.times.ready) {
                return Ok(());
            }
            let _ = epoch.fail(index, "it waited too long for the others".into());
        }
    }

    /// Tries `peer` until it answers; none where the epoch is over before that.
    fn persist(
        &self,
        peer: usize,
        number: u64,
        epoch: Option<&Epoch>,
        note: &mut dyn FnMut(&ShardError),
    ) -> Result<Option<dial::Reached>, ShardError> {
        let shared = &self.0;
        let mut pause = PAUSE;
        loop {
            if shared.is_over() {
                return Err(ShardError::Shutdown);
            }
            if epoch.is_some_and(|epoch| epoch.lost().is_some()) {
                return Ok(None);
            }
            match dial::reach(shared, peer, number) {
                Ok(reached) => return Ok(Some(reached)),
                Err(error @ ShardError::Address(_)) => return Err(error),
                Err(error) => note(&error),
            }
            shared.pause(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn begin(&self, number: u64) -> Result<Arc<Epoch>, ShardError> {
        let config = &self.0.config;
        let epoch = Epoch::new(number, config.member, config.times, self.0.watch.clone());
        *self.0.current() = Some(epoch.clone());
        if self.0.is_over() {
            self.end(&ShardError::Shutdown.to_string());
            return Err(ShardError::Shutdown);
        }
        Ok(epoch)
    }

    /// The epoch's links, while all members are there.
    ///
    /// # Errors
    /// Who is lost.
    pub(crate) fn live(&self) -> Result<Arc<Epoch>, ExchangeError> {
        let none = || ExchangeError { member: 0, reason: "the group has not joined".into() };
        let epoch = self.0.epoch().ok_or_else(none)?;
        match epoch.lost() {
            Some(lost) => Err(lost),
            None => Ok(epoch),
        }
    }

    /// Ends the epoch, if there is one, by this member.
    pub(crate) fn end(&self, reason: &str) {
        if let Some(epoch) = self.0.current().take() {
            let _ = epoch.fail(self.member().index, reason.into());
        }
    }

    /// Waits a little before another attempt.
    pub(crate) fn rest(&self) {
        self.0.pause(PAUSE_MAX);
    }

    /// Has `wake` called, instead of an earlier one, whenever the group breaks.
    pub fn watch(&self, wake: Wake) {
        *self.0.watch.lock().unwrap_or_else(PoisonError::into_inner) = Some(wake);
    }

    /// Why the group is broken, if it is: who is lost.
    pub fn lost(&self) -> Option<ExchangeError> {
        self.0.epoch().and_then(|epoch| epoch.lost())
    }

    /// Ends all links, and every wait in [`Group::join`], now and later. Does not block.
    pub fn shutdown(&self) {
        let shared = &self.0;
        if shared.over.swap(true, Ordering::AcqRel) {
            return;
        }
        self.end(&ShardError::Shutdown.to_string());
        let _waiting = shared.ended.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.ended.1.notify_all();
        // Wakes the listener, which then sees that it is over.
        if let Some(address) = shared.address {
            let _ = TcpStream::connect_timeout(&address, PAUSE_MAX);
        }
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("member", &self.member()).finish_non_exhaustive()
    }
}

/// Has joined groups of one process exchange through memory, as a leader has its members.
///
/// # Errors
/// The system has no such memory.
#[doc(hidden)]
pub fn share_memory(groups: &[Group]) -> std::io::Result<()> {
    let token = Token::default();
    let first = Memory::create(groups[0].member(), &token)?;
    let place = first.place();
    let others = groups[1..].iter().map(|group| Memory::open(group.member(), &place, &token));
    let all = std::iter::once(Ok(first)).chain(others).collect::<Result<Vec<_>, _>>()?;
    for (group, mut memory) in groups.iter().zip(all) {
        memory.set_here(vec![true; groups.len()]);
        let epoch = group.live().map_err(std::io::Error::other)?;
        epoch.meet_in(memory);
    }
    Ok(())
}

/// Asks at the door of member `peer`, one before `config.member`, whether this one would be let in,
/// and joins nothing.
///
/// # Errors
/// What keeps it out, by field.
pub fn probe(config: GroupConfig, peer: usize) -> Result<(), ShardError> {
    config.check()?;
    assert!(peer < config.member.index, "a member connects to those before it");
    dial::ask(&Arc::new(Shared::new(config, None)), peer)
}

impl Shared {
    fn new(config: GroupConfig, address: Option<SocketAddr>) -> Self {
        Self {
            key: config.link_key(),
            fingerprint: config.fingerprint.digest(),
            config,
            address,
            epoch: Mutex::default(),
            over: AtomicBool::new(false),
            ended: (Mutex::new(()), Condvar::new()),
            refusal: Mutex::default(),
            counters: Counters::default(),
            watch: Watch::default(),
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Epoch>>> {
        self.epoch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn epoch(&self) -> Option<Arc<Epoch>> {
        self.current().clone()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub(crate) fn encrypts(&self) -> bool {
        self.config.encryption == Encryption::On
    }

    /// This member's hello: its index and their number stand where a ring has rank and world.
    pub(crate) fn hello(&self, role: Role, epoch: Number) -> Hello {
        let Member { index, count } = self.config.member;
        Hello {
            rank: Rank(index as u32),
            world: count as u32,
            role,
            epoch,
            fingerprint: self.fingerprint,
            encryption: self.config.encryption,
        }
    }

    fn refusal(&self) -> MutexGuard<'_, Option<String>> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The door has refused somebody who has the secret, or said something else than a handshake.
    pub(crate) fn refused(&self, from: SocketAddr, text: &str) {
        let index = self.config.member.index;
        tracing::debug!("member {index}: {from}: {text}");
        let text = format!("its door refused: {text}");
        if self.refusal().replace(text.clone()).as_ref() != Some(&text) {
            tracing::warn!("member {index}: {text}");
        }
    }

    fn pause(&self, pause: Duration) {
        let waiting = self.ended.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_over() {
            let _ = self.ended.1.wait_timeout(waiting, pause);
        }
    }
}

/// What the leader's memory of an epoch begins with.
pub(crate) fn draw_token() -> Result<Token, ShardError> {
    let mut token = Token::default();
    getrandom::fill(&mut token).map_err(|e| ShardError::Resource(format!("random bytes: {e}")))?;
    Ok(token)
}

fn draw() -> Result<u64, ShardError> {
    let mut bytes = [0u8; 8];
    getrandom::fill(&mut bytes).map_err(|e| ShardError::Resource(format!("random bytes: {e}")))?;
    Ok(u64::from_le_bytes(bytes).max(1))
}
