//! The HTTP server: connections in, requests to the ring's handle, replies out.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use grammar::{GrammarError, Grammars};
use placement::truth::{Advice, Expected, Truth};
use ring::head::Handle;
use text::Text;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use crate::keys::Keys;
use crate::responses::Store;
use crate::{ApiError, Limits};

mod answer;
mod connection;
mod events;
mod guard;
mod metrics;
mod page;
mod routes;
mod source;
mod tokens;
mod truth;
mod unstalled;
mod vitals;

/// What is served, and within which limits.
#[derive(Clone)]
pub struct App {
    /// Rank 0.
    pub handle: Handle,
    /// Tokenizer and template of the model.
    pub text: Arc<Text>,
    /// The model's name in `/v1/models`.
    pub model_name: String,
    /// The arithmetic, as proofs name it.
    pub arith: String,
    /// Bounds.
    pub limits: Limits,
    /// Who may ask; everybody where there are none.
    pub keys: Option<Arc<Keys>>,
    /// Origins of pages that may ask, or `*`.
    pub origins: Vec<String>,
    /// What prompts in pairs cost; none where they go alone.
    pub prompt_pair: Option<PromptPair>,
    /// What a plan predicted, where there is one; this server adds what it measures.
    pub compared: Option<Compared>,
    /// The nodes that ranks are given to; none where ranks stay where they are.
    pub nodes: Option<Arc<dyn Nodes>>,
}

/// A prediction, and how often what is measured is held against it.
#[derive(Clone, Debug)]
pub struct Compared {
    /// What was predicted and measured; none as long as there is no plan.
    pub truth: Arc<Mutex<Option<Truth>>>,
    /// The tenth part of a window.
    pub tick: Duration,
}

impl Compared {
    /// In windows of ten seconds.
    pub fn new(expected: Expected) -> Self {
        let compared = Self::without();
        compared.expect(expected);
        compared
    }

    /// Of a server whose plan is still to come.
    pub fn without() -> Self {
        Self { truth: Arc::default(), tick: Duration::from_secs(1) }
    }

    /// What a new plan predicts; what was measured before says nothing of it.
    pub fn expect(&self, expected: Expected) {
        *self.known() = Some(Truth::new(expected));
    }

    /// Whether what is measured has been other than predicted for long.
    pub fn is_off(&self) -> bool {
        self.known().as_ref().is_some_and(|truth| truth.advice() != Advice::Keep)
    }

    /// What is known now.
    fn known(&self) -> MutexGuard<'_, Option<Truth>> {
        self.truth.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The nodes of a server that gives ranks to machines.
pub trait Nodes: Send + Sync {
    /// What there is to say of each, and of the plan: a JSON object.
    fn status(&self) -> serde_json::Value;
    /// Has a new plan made now; false where one is being made or the server ends.
    fn replan(&self) -> bool;
}

/// What prompts in pairs cost the member of a group that loses most by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptPair {
    /// Fewest rows of a second half.
    pub rows_min: usize,
    /// Bytes of the row buffers of second halves.
    pub twin_bytes: u64,
    /// KV pages that those bytes would hold instead.
    pub kv_pages_lost: u64,
}

impl App {
    /// With the default limits.
    pub fn new(handle: Handle, text: Arc<Text>, model_name: impl Into<String>) -> Self {
        Self {
            handle,
            text,
            model_name: model_name.into(),
            arith: String::new(),
            limits: Limits::default(),
            keys: None,
            origins: Vec::new(),
            prompt_pair: None,
            compared: None,
            nodes: None,
        }
    }
}

/// Why the server ended other than by its shutdown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The listener takes no connection any more.
    #[error("the listener failed: {0}")]
    Listener(std::io::Error),
}

/// Every path that is served.
#[cfg(test)]
pub(crate) fn paths() -> Vec<&'static str> {
    let all = routes::all().into_iter().map(|(path, _)| path);
    all.chain(page::PATHS).collect()
}

/// Waits until connections are to close.
async fn closed(closing: &mut watch::Receiver<bool>) {
    // The sender lives in `Shared`; its end is an end too.
    let _ = closing.wait_for(|&closing| closing).await;
}

/// What every connection sees.
struct Shared {
    app: App,
    started: Instant,
    /// Part of each reply's id.
    started_ns: u128,
    /// Running replies end with an error, connections after the bytes that are due.
    closing: watch::Sender<bool>,
    /// Replies in the making.
    active: watch::Sender<u32>,
    tokenising: Arc<Semaphore>,
    /// Made for the first request that needs it.
    grammars: OnceLock<Grammars>,
    metrics: metrics::Metrics,
    /// Responses that may be continued.
    responses: Arc<Store>,
}

impl Shared {
    fn new(app: App) -> Self {
        Self {
            started: Instant::now(),
            started_ns: since_epoch().as_nanos(),
            closing: watch::Sender::new(false),
            active: watch::Sender::new(0),
            tokenising: Arc::new(Semaphore::new(app.limits.tokenising_max)),
            grammars: OnceLock::new(),
            metrics: metrics::Metrics::default(),
            responses: Arc::new(Store::new(
                app.limits.responses_max,
                app.limits.responses_bytes_max,
            )),
            app,
        }
    }

    /// The compiler of grammars. Made once, which takes a large vocabulary a while.
    fn grammars(&self) -> Result<&Grammars, GrammarError> {
        if let Some(grammars) = self.grammars.get() {
            return Ok(grammars);
        }
        let started = Instant::now();
        let handle = self.app.handle.clone();
        let made = Grammars::new(&self.app.text)?.waking(move || handle.wake());
        let took_ms = started.elapsed().as_millis();
        tracing::info!("made the grammars' trie of {} tokens: {took_ms} ms", self.app.text.vocab());
        Ok(self.grammars.get_or_init(|| made))
    }

    /// Counts a request in, unless the ring can't take it or as many run as may.
    fn begin(self: &Arc<Self>, owner: &str) -> Result<Work, ApiError> {
        if let Some(refusal) = self.app.handle.refusal().and_then(ApiError::of_state) {
            return Err(refusal);
        }
        let limit = self.app.limits.requests_max;
        let counted = self.active.send_if_modified(|n| {
            let room = *n < limit;
            *n += u32::from(room);
            room
        });
        if !counted {
            return Err(ApiError::QueueFull(format!("{limit} requests run, as many as may")));
        }
        let owner = owner.into();
        Ok(Work { shared: self.clone(), owner, started: Instant::now(), ended: true })
    }
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// One request in the making; the drain waits until all are dropped.
struct Work {
    shared: Arc<Shared>,
    owner: Arc<str>,
    started: Instant,
    /// No reply of it runs.
    ended: bool,
}

impl Drop for Work {
    fn drop(&mut self) {
        self.shared.active.send_modify(|n| *n -= 1);
        if !self.ended {
            self.shared.metrics.gone();
        }
    }
}

/// Serves `app` on `listener` until `shutdown` completes, then drains.
///
/// While it drains, new requests get a 503 and running replies go on, until `hurry` completes and
/// for [`Limits::drain_timeout_ms`] at most; what still runs then ends with an error. Returns when
/// every connection is closed.
pub async fn serve(
    listener: TcpListener,
    app: App,
    shutdown: impl Future<Output = ()>,
    hurry: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let limits = app.limits;
    let shared = Arc::new(Shared::new(app));
    let watch = |compared| tokio::spawn(truth::watch(shared.clone(), compared)).abort_handle();
    let watching = shared.app.compared.clone().map(watch);
    let mut door = connection::Door::new(listener, shared.clone());
    door.admit_until(shutdown).await?;

    tracing::info!("draining: new requests are refused, running replies go on");
    shared.app.handle.drain();
    let mut active = shared.active.subscribe();
    let finished = async {
        let _ = active.wait_for(|&n| n == 0).await;
    };
    let deadline = async {
        tokio::select! {
            _ = tokio::time::timeout(limits.drain_timeout(), finished) => {}
            () = hurry => {}
        }
    };
    door.admit_until(deadline).await?;

    shared.closing.send_replace(true);
    door.close(limits.flush_timeout()).await;
    if let Some(watching) = watching {
        watching.abort();
    }
    Ok(())
}
