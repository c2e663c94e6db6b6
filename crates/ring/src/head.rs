//! Rank 0's side as the server sees it: a handle that submits requests and hears tokens.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, mpsc};
use std::time::Duration;

use sched::{Event, Refusal, Request, RequestId};
use tokio::sync::watch;
pub use wire::tally::Tally;

use crate::carry::Carry;
use crate::link::Waker;

/// What the ring is doing; /health and /ready follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RingState {
    /// Ranks connect, describe, agree, load; the text says which step.
    Booting(String),
    /// The canary has come back.
    Ready,
    /// A link broke; the text names the rank and the reason. Rank 0 boots the ring again.
    Waiting(String),
    /// Shutting down: no new requests.
    Draining,
}

impl fmt::Display for RingState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Booting(what) => write!(f, "the ring is starting: {what}"),
            Self::Ready => f.write_str("ready"),
            Self::Waiting(reason) => write!(f, "the ring is down: {reason}"),
            Self::Draining => f.write_str("the server is shutting down"),
        }
    }
}

/// What the handle asks of rank 0's driver.
#[derive(Debug)]
pub enum Command {
    /// A new request; events go to `events`.
    Submit {
        /// Its id.
        id: RequestId,
        /// The request.
        request: Box<Request>,
        /// Capacity is `max_tokens`, the prompt's rows where they are told of, and a few: the
        /// driver never waits for a slow reader.
        events: tokio::sync::mpsc::Sender<Event>,
        /// The verdict.
        answer: tokio::sync::oneshot::Sender<Result<(), Refusal>>,
    },
    /// The owner went away; also of a request that was refused or has ended.
    Cancel(RequestId),
    /// Finish what runs, admit nothing, then stop the ring.
    Drain,
    /// Nothing; the driver looks up from what it waits for.
    Look,
}

/// A rank, as it described itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Its layers.
    pub layers: Range<u32>,
    /// `cpu`, `cuda`.
    pub backend: String,
    /// Its device, for people.
    pub device: String,
    /// Whether it computes a function of its own; `device` says which rule it breaks.
    pub own: bool,
}

/// Counters and facts of the ring, for /health, metrics and replies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// `0:10,10:20,20:30`.
    pub layout: String,
    /// Ranks.
    pub world: u32,
    /// Most positions of a stream.
    pub context_max: u32,
    /// Size of the vocabulary.
    pub vocab: u32,
    /// Streams that run now.
    pub running: u32,
    /// Requests that wait.
    pub waiting: u32,
    /// Rounds done in this epoch.
    pub rounds: u64,
    /// KV pages in use on rank 0 and in all.
    pub pages_used: u32,
    /// KV pages in all.
    pub pages: u32,
    /// KV pages that kept prompts alone hold.
    pub pages_kept: u32,
    /// Kept prompts.
    pub keeps: u32,
    /// Streams that gave their pages up to older ones and were computed again.
    pub preemptions: u64,
    /// Milliseconds in which rank 0's device computed.
    pub computed_ms: u64,
    /// Milliseconds in which there was work in the ring.
    pub at_work_ms: u64,
    /// The ranks, in order; none before the first boot is done.
    pub seats: Arc<[Seat]>,
    /// The newest tally of each rank that there is one of, by rank: a few seconds old while
    /// rounds go on. Its counts are of this epoch.
    pub tallies: Vec<Tally>,
    /// Rounds that carried rows, and how long from rank 0's start of them to their end in all.
    pub trips: (u64, Duration),
}

impl Facts {
    /// The arithmetic of replies: the ring's, or which rank computes a function of its own.
    pub fn arith(&self, ring: &str) -> String {
        let mut own = self.seats.iter().enumerate().filter(|(_, seat)| seat.own);
        match own.next() {
            None => ring.to_owned(),
            Some((rank, seat)) => format!("own, of rank {rank} ({})", seat.device),
        }
    }

    /// The part of the time with work in the ring that rank 0 computed; 0 before there was any.
    pub fn busy(&self) -> f64 {
        self.computed_ms as f64 / self.at_work_ms.max(1) as f64
    }
}

/// The state as the handle sees it, and whether requests wait for a better one.
#[derive(Clone, Debug)]
pub(crate) struct Published(watch::Sender<(RingState, bool)>);

impl Published {
    fn new(state: RingState) -> Self {
        Self(watch::Sender::new((state, false)))
    }

    fn state(&self) -> RingState {
        self.0.borrow().0.clone()
    }

    fn set_state(&self, state: RingState) {
        self.0.send_modify(|published| published.0 = state);
    }

    /// From now on new requests wait for the ring to serve, or are refused while it does not.
    pub(crate) fn hold(&self, holds: bool) {
        self.0.send_modify(|published| published.1 = holds);
    }

    fn holds(&self) -> bool {
        self.0.borrow().1
    }

    fn refusal(&self) -> Option<RingState> {
        match &*self.0.borrow() {
            (RingState::Ready, _) | (RingState::Booting(_) | RingState::Waiting(_), true) => None,
            (state, _) => Some(state.clone()),
        }
    }
}

/// What the two ends share besides the commands.
#[derive(Debug)]
struct Shared {
    state: Published,
    facts: RwLock<Facts>,
    /// Wakes the driver where it waits for its neighbours.
    waker: Mutex<Option<Waker>>,
    draining: AtomicBool,
    /// The driver is to leave its ring for another.
    leaving: AtomicBool,
}

/// A lock whose holder panicked still holds plain data.
fn locked<T>(result: Result<T, PoisonError<T>>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

/// Sends commands and wakes the driver for each.
#[derive(Clone, Debug)]
struct Commands {
    sender: mpsc::Sender<Command>,
    shared: Arc<Shared>,
}

impl Commands {
    fn send(&self, command: Command) -> Result<(), mpsc::SendError<Command>> {
        self.sender.send(command)?;
        self.wake();
        Ok(())
    }

    fn wake(&self) {
        if let Some(waker) = &*locked(self.shared.waker.lock()) {
            waker.wake();
        }
    }
}

/// A clonable handle on rank 0's driver.
#[derive(Clone, Debug)]
pub struct Handle {
    commands: Commands,
    next: Arc<AtomicU64>,
}

/// A running request: its events; dropping it cancels.
#[derive(Debug)]
pub struct Reply {
    id: RequestId,
    events: tokio::sync::mpsc::Receiver<Event>,
    commands: Commands,
}

/// The driver's end of a [`Handle`].
#[derive(Debug)]
pub struct Driver {
    /// Commands in order.
    pub commands: mpsc::Receiver<Command>,
    /// What a ring that was left has not answered.
    pub(crate) carry: Option<Carry>,
    shared: Arc<Shared>,
}

/// A connected pair.
pub fn pair() -> (Handle, Driver) {
    let (sender, receiver) = mpsc::channel();
    let shared = Arc::new(Shared {
        state: Published::new(RingState::Booting("starting".into())),
        facts: RwLock::default(),
        waker: Mutex::default(),
        draining: AtomicBool::new(false),
        leaving: AtomicBool::new(false),
    });
    let commands = Commands { sender, shared: shared.clone() };
    let driver = Driver { commands: receiver, carry: None, shared };
    (Handle { commands, next: Arc::default() }, driver)
}

impl Driver {
    /// The state last published.
    pub fn state(&self) -> RingState {
        self.shared.state.state()
    }

    /// Where the state is published.
    pub(crate) fn published(&self) -> Published {
        self.shared.state.clone()
    }

    /// Publishes the state; once draining, only that.
    pub fn set_state(&self, state: RingState) {
        let state = if self.draining() { RingState::Draining } else { state };
        self.shared.state.set_state(state);
    }

    /// Publishes facts.
    pub fn set_facts(&self, facts: Facts) {
        *locked(self.shared.facts.write()) = facts;
    }

    /// Whether a drain was asked for.
    pub fn draining(&self) -> bool {
        self.shared.draining.load(Ordering::Acquire)
    }

    /// Whether the ring is to be left for another.
    pub fn leaving(&self) -> bool {
        self.shared.leaving.load(Ordering::Acquire)
    }

    /// The ring was left; the next one may be joined.
    pub fn left(&self) {
        self.shared.leaving.store(false, Ordering::Release);
    }

    /// From now on commands wake the driver through these links.
    pub fn wake_through(&self, waker: Waker) {
        waker.wake();
        *locked(self.shared.waker.lock()) = Some(waker);
    }
}

impl Drop for Driver {
    /// A driver that ends, or panics, leaves no ring that claims to be ready.
    fn drop(&mut self) {
        if matches!(self.state(), RingState::Ready | RingState::Booting(_)) {
            self.set_state(RingState::Waiting("rank 0 has stopped".into()));
        }
    }
}

impl Handle {
    /// Submits a request; the verdict comes before any event.
    ///
    /// # Errors
    /// The scheduler's refusals; `NotReady` with the state while the ring does not serve. A ring
    /// that is to be back soon is waited for.
    pub async fn submit(&self, request: Request) -> Result<Reply, Refusal> {
        loop {
            self.served().await?;
            match self.submit_now(request.clone()).await {
                // It broke meanwhile.
                Err(Refusal::NotReady(_)) if self.commands.shared.state.holds() => {
                    tokio::task::yield_now().await;
                }
                verdict => return verdict,
            }
        }
    }

    /// Waits for a ring that serves, as long as that is to be expected.
    async fn served(&self) -> Result<(), Refusal> {
        let mut published = self.commands.shared.state.0.subscribe();
        let settled = published.wait_for(|(state, holds)| *state == RingState::Ready || !holds);
        let state = match settled.await {
            Ok(published) => published.0.clone(),
            Err(_) => self.state(),
        };
        if state == RingState::Ready { Ok(()) } else { Err(Refusal::NotReady(state.to_string())) }
    }

    /// What a request would be refused with now; `None` where it is taken or waits.
    pub fn refusal(&self) -> Option<RingState> {
        self.commands.shared.state.refusal()
    }

    async fn submit_now(&self, request: Request) -> Result<Reply, Refusal> {
        let id = RequestId(self.next.fetch_add(1, Ordering::Relaxed) + 1);
        let rows = request.guide.prompt_logprobs.map_or(0, |_| request.prompt.len());
        let room = request.max_tokens as usize + rows + 64;
        let (sender, events) = tokio::sync::mpsc::channel(room);
        let (answer, verdict) = tokio::sync::oneshot::channel();
        let stopped = || Refusal::NotReady("the ring has stopped".into());
        let command = Command::Submit { id, request: Box::new(request), events: sender, answer };
        self.commands.send(command).map_err(|_| stopped())?;
        // Made before the verdict, so that a caller who stops waiting cancels too.
        let reply = Reply { id, events, commands: self.commands.clone() };
        verdict.await.map_err(|_| stopped())??;
        Ok(reply)
    }

    /// Has rank 0 look whether there is something to compute, also where it waits.
    pub fn wake(&self) {
        self.commands.wake();
    }

    /// The ring's state now.
    pub fn state(&self) -> RingState {
        self.commands.shared.state.state()
    }

    /// Facts now.
    pub fn facts(&self) -> Facts {
        locked(self.commands.shared.facts.read()).clone()
    }

    /// Has rank 0 leave its ring, for one that is laid out otherwise: [`crate::lead::Leader::run`]
    /// gives its driver back, with the requests that wait.
    pub fn leave(&self) {
        self.commands.shared.leaving.store(true, Ordering::Release);
        let _ = self.commands.send(Command::Look);
    }

    /// Starts the drain: nothing new is admitted, what runs may finish.
    pub fn drain(&self) {
        self.commands.shared.draining.store(true, Ordering::Release);
        // At once: the driver may be busy with a round.
        self.commands.shared.state.set_state(RingState::Draining);
        self.commands.shared.state.hold(false);
        let _ = self.commands.send(Command::Drain);
    }
}

impl Reply {
    /// The request's id.
    pub fn id(&self) -> RequestId {
        self.id
    }
    /// The next event, as a poll; `None` after the last.
    pub fn poll_next(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Option<Event>> {
        self.events.poll_recv(cx)
    }
    /// Takes the request back; its last event says what it took.
    pub fn cancel(&self) {
        let _ = self.commands.send(Command::Cancel(self.id));
    }
    /// The next event; `None` after the last.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Cancel(self.id));
    }
}
