//! Links over TCP: one I/O thread a rank, which never computes.
//!
//! [`accept`] lets the rank before in, [`connect`] reaches the rank after, `reader` and `writer`
//! move records, and the `supervisor` makes one epoch's links after another out of them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use arith::base::{Epoch, Rank};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::Instant;
use wire::hello::{Encryption, Hello, Role};

mod accept;
mod config;
mod connect;
mod half_open;
pub(crate) mod inlet;
pub mod measure;
pub(crate) mod outlet;
pub mod probe;
mod reader;
mod supervisor;
mod switch;
pub(crate) mod wire_io;
mod writer;

pub use config::{TcpConfig, Times};
pub use half_open::HALF_OPEN_MAX;

use crate::key::Key;
use crate::link::{LinkError, Neighbours};
use half_open::HalfOpen;
use supervisor::{Happening, Joiner, Supervisor};

/// What all tasks of a transport share.
struct Shared {
    config: TcpConfig,
    key: Key,
    fingerprint: [u8; 32],
    next: RwLock<Vec<String>>,
    /// The newest epoch; 0 before the first.
    epoch: AtomicU64,
    /// What this rank last refused at its door.
    refusal: Mutex<Option<LinkError>>,
    /// How the last attempt to reach the rank after failed.
    attempt: Mutex<Option<LinkError>>,
    /// Held while somebody measures the link to this rank.
    measured: tokio::sync::Mutex<()>,
    events: UnboundedSender<Happening>,
}

/// A rank's sockets and the thread that serves them.
pub struct Transport {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    thread: Option<JoinHandle<()>>,
}

impl Transport {
    /// Listens, and starts the I/O thread. Nothing is connected before [`Transport::join`].
    ///
    /// # Errors
    /// `WildcardListen`, `KeylessAddress`, `Listen`, `BadRing`.
    pub fn start(config: TcpConfig) -> Result<Self, LinkError> {
        config.check()?;
        let mut listeners = Vec::with_capacity(config.listen.len());
        for address in &config.listen {
            config.check_listen(*address)?;
            listeners.push(std::net::TcpListener::bind(address).map_err(|e| bad(*address, &e))?);
        }
        Self::start_on(config, listeners)
    }

    /// The same on sockets that listen already, such as inherited ones.
    ///
    /// # Errors
    /// As [`Transport::start`]'s.
    pub fn start_on(
        config: TcpConfig,
        listeners: Vec<std::net::TcpListener>,
    ) -> Result<Self, LinkError> {
        config.check()?;
        let mut addresses = Vec::with_capacity(listeners.len());
        for listener in &listeners {
            let address = listener.local_addr().map_err(|e| LinkError::Listen {
                address: "an inherited socket".into(),
                reason: e.to_string(),
            })?;
            config.check_listen(address)?;
            listener.set_nonblocking(true).map_err(|e| bad(address, &e))?;
            addresses.push(address);
        }
        let (events, happenings) = unbounded_channel();
        let shared = Arc::new(Shared::new(config, events));
        let failed = |what: &str, e: std::io::Error| LinkError::Random(format!("{what}: {e}"));
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| failed("no event queue", e))?;
        listen_all(&runtime, listeners, &addresses, &shared)?;
        let supervisor = Supervisor::new(shared.clone(), happenings);
        let thread = std::thread::Builder::new()
            .name("baton-io".into())
            .spawn(move || {
                runtime.block_on(supervisor.run());
                // A name that is still being resolved must not hold the process up.
                runtime.shutdown_background();
            })
            .map_err(|e| failed("no thread", e))?;
        Ok(Self { shared, addresses, thread: Some(thread) })
    }

    /// Where this rank listens, with the ports that the system chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Says where the rank after listens, from the next attempt on.
    pub fn set_next(&self, next: Vec<String>) {
        *self.shared.next.write().unwrap_or_else(PoisonError::into_inner) = next;
    }

    /// Both neighbours of a new epoch, connected and authenticated; the links of the epoch before
    /// are closed. Rank 0 names the epoch; the others take it from the rank before, for which they
    /// wait without limit, and have `deadline` from then on to reach the rank after.
    ///
    /// # Errors
    /// What stands in the way when no retry mends it, or when the deadline has passed; `Closed`
    /// after [`Transport::shutdown`]; `BadRing` for an epoch of 0 or one in the wrong place.
    pub fn join(&self, epoch: Option<Epoch>, deadline: Duration) -> Result<Neighbours, LinkError> {
        let rank = self.shared.config.rank;
        if (rank == Rank(0)) != epoch.is_some() || epoch == Some(Epoch(0)) {
            let text = format!("rank {rank}: expected a new epoch from rank 0 alone, not 0");
            return Err(LinkError::BadRing(text));
        }
        let (answer, neighbours) = std::sync::mpsc::sync_channel(1);
        let joiner = Joiner { epoch, deadline, since: Instant::now(), answer };
        self.shared.happened(Happening::Join(joiner));
        neighbours.recv().unwrap_or(Err(LinkError::Closed))
    }

    /// Ends all links, and every wait in [`Transport::join`], now and later. Does not block.
    pub fn shutdown(&self) {
        self.shared.happened(Happening::Shutdown);
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.shutdown();
        if let Some(thread) = self.thread.take() {
            // It panicked, and has said so.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let config = &self.shared.config;
        f.debug_struct("Transport")
            .field("rank", &config.rank)
            .field("world", &config.world)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

fn bad(address: SocketAddr, error: &std::io::Error) -> LinkError {
    LinkError::Listen { address: address.to_string(), reason: error.to_string() }
}

fn listen_all(
    runtime: &Runtime,
    listeners: Vec<std::net::TcpListener>,
    addresses: &[SocketAddr],
    shared: &Arc<Shared>,
) -> Result<(), LinkError> {
    let _inside = runtime.enter();
    let half_open = HalfOpen::default();
    for (listener, address) in listeners.into_iter().zip(addresses) {
        let listener =
            tokio::net::TcpListener::from_std(listener).map_err(|e| bad(*address, &e))?;
        runtime.spawn(accept::listen(listener, shared.clone(), half_open.clone()));
    }
    Ok(())
}

impl Shared {
    fn new(config: TcpConfig, events: UnboundedSender<Happening>) -> Self {
        Self {
            key: config.link_key(),
            fingerprint: config.fingerprint.digest(),
            next: RwLock::new(config.next.clone()),
            epoch: AtomicU64::new(0),
            refusal: Mutex::default(),
            attempt: Mutex::default(),
            measured: tokio::sync::Mutex::default(),
            config,
            events,
        }
    }

    fn happened(&self, happening: Happening) {
        // Nobody listens after a shutdown; what was sent is dropped, and so answered.
        let _ = self.events.send(happening);
    }

    fn next(&self) -> Vec<String> {
        self.next.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn previous_rank(&self) -> Rank {
        Rank((self.config.rank.0 + self.config.world - 1) % self.config.world)
    }

    fn next_rank(&self) -> Rank {
        Rank((self.config.rank.0 + 1) % self.config.world)
    }

    fn encrypts(&self) -> bool {
        self.config.encryption == Encryption::On
    }

    /// This rank's hello.
    fn hello(&self, role: Role, epoch: Epoch) -> Hello {
        Hello {
            rank: self.config.rank,
            world: self.config.world,
            role,
            epoch,
            fingerprint: self.fingerprint,
            encryption: self.config.encryption,
        }
    }

    /// The epoch that this rank's door asks for: rank 0's own; elsewhere the connector's, said
    /// as 0. Rank 0 before its first epoch asks for one that nobody draws.
    fn accepts(&self) -> Epoch {
        match (self.config.rank, self.epoch.load(Ordering::Acquire)) {
            (Rank(0), 0) => Epoch(u64::MAX),
            (Rank(0), epoch) => Epoch(epoch),
            _ => Epoch(0),
        }
    }

    fn begin(&self, epoch: Epoch) {
        self.epoch.store(epoch.0, Ordering::Release);
        locked(&self.attempt).take();
    }

    fn note_refusal(&self, error: LinkError) {
        // A neighbour of an old epoch is a matter of time, not of configuration.
        if error.code() != "OtherEpoch" {
            *locked(&self.refusal) = Some(error);
        }
    }

    fn forget_refusal(&self) {
        locked(&self.refusal).take();
    }

    fn take_refusal(&self) -> Option<LinkError> {
        locked(&self.refusal).take()
    }

    fn note_attempt(&self, error: LinkError) {
        *locked(&self.attempt) = Some(error);
    }

    fn take_attempt(&self) -> Option<LinkError> {
        locked(&self.attempt).take()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
