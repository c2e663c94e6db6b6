//! Rank 0's side as the server sees it: a handle that submits requests and hears tokens.

use std::sync::{Arc, RwLock, mpsc};

use sched::{Event, Refusal, Request, RequestId};

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

/// What the handle asks of rank 0's driver.
#[derive(Debug)]
pub enum Command {
    /// A new request; events go to `events`.
    Submit {
        /// Its id.
        id: RequestId,
        /// The request.
        request: Request,
        /// Capacity is `max_tokens` plus a few, so the driver never waits for a slow reader.
        events: tokio::sync::mpsc::Sender<Event>,
        /// The verdict.
        answer: tokio::sync::oneshot::Sender<Result<(), Refusal>>,
    },
    /// The owner went away; also of a request that was refused or has ended.
    Cancel(RequestId),
    /// Finish what runs, admit nothing, then stop the ring.
    Drain,
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
}

/// A clonable handle on rank 0's driver.
#[derive(Clone, Debug)]
pub struct Handle {
    commands: mpsc::Sender<Command>,
    shared: Arc<RwLock<(RingState, Facts)>>,
    next: Arc<std::sync::atomic::AtomicU64>,
}

/// A running request: its events; dropping it cancels.
#[derive(Debug)]
pub struct Reply {
    id: RequestId,
    events: tokio::sync::mpsc::Receiver<Event>,
    commands: mpsc::Sender<Command>,
}

/// The driver's end of a [`Handle`].
#[derive(Debug)]
pub struct Driver {
    /// Commands in order.
    pub commands: mpsc::Receiver<Command>,
    shared: Arc<RwLock<(RingState, Facts)>>,
}

/// A connected pair.
pub fn pair() -> (Handle, Driver) {
    let (commands, receiver) = mpsc::channel();
    let shared = Arc::new(RwLock::new((
        RingState::Booting("starting".into()),
        Facts::default(),
    )));
    (
        Handle {
            commands,
            shared: shared.clone(),
            next: Arc::default(),
        },
        Driver {
            commands: receiver,
            shared,
        },
    )
}

impl Driver {
    /// Publishes the state.
    pub fn set_state(&self, state: RingState) {
        if let Ok(mut s) = self.shared.write() {
            s.0 = state;
        }
    }
    /// Publishes facts.
    pub fn set_facts(&self, facts: Facts) {
        if let Ok(mut s) = self.shared.write() {
            s.1 = facts;
        }
    }
}

impl Handle {
    /// Submits a request; the verdict comes before any event.
    pub async fn submit(&self, request: Request) -> Result<Reply, Refusal> {
        let id = RequestId(self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1);
        let (sender, events) = tokio::sync::mpsc::channel(request.max_tokens as usize + 64);
        let (answer, verdict) = tokio::sync::oneshot::channel();
        let stopped = || Refusal::NotReady("the ring has stopped".into());
        let command = Command::Submit {
            id,
            request,
            events: sender,
            answer,
        };
        self.commands.send(command).map_err(|_| stopped())?;
        // Made before the verdict, so that a caller who stops waiting cancels too.
        let reply = Reply {
            id,
            events,
            commands: self.commands.clone(),
        };
        verdict.await.map_err(|_| stopped())??;
        Ok(reply)
    }
    /// The ring's state now.
    pub fn state(&self) -> RingState {
        self.shared
            .read()
            .map_or(RingState::Waiting("the driver died".into()), |s| {
                s.0.clone()
            })
    }
    /// Facts now.
    pub fn facts(&self) -> Facts {
        self.shared.read().map(|s| s.1.clone()).unwrap_or_default()
    }
    /// Starts the drain.
    pub fn drain(&self) {
        let _ = self.commands.send(Command::Drain);
    }
}

impl Reply {
    /// The request's id.
    pub fn id(&self) -> RequestId {
        self.id
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
