//! `baton serve`: rank 0, its endpoint and, unless the others are started by hand, their
//! processes.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use arith::base::Rank;
use placement::Plan;
use ring::head::{self, Handle, RingState};
use ring::join::{Alone, Join};
use ring::key::{self, Key};
use text::Text;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::args::{Serve, Shared};
use crate::local::{Locals, Recipe};
use crate::model::Model;
use crate::nodes::{self, Listing, Nodes};
use crate::notify::Manager;
use crate::plan;
use crate::rank::{self, Joined, Place, Ways};
use crate::signal::{self, Signals};
use crate::source;

/// How long a drained ring may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Seconds that running replies may take to finish.
const DRAIN: u32 = 30;
/// The same with nodes.
const DRAIN_NODES: u32 = 180;

/// Serves until SIGINT or SIGTERM.
///
/// # Errors
/// What keeps rank 0 from loading or listening.
pub fn run(args: &Serve, log: &str) -> Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // The port first: nothing is loaded for an address that is taken.
    let address = SocketAddr::new(args.host, args.port);
    let listener = runtime.block_on(TcpListener::bind(address)).map_err(|e| {
        let hint = match e.kind() {
            ErrorKind::AddrInUse => "choose another --port, or stop what uses it",
            _ => "choose another --host or --port",
        };
        anyhow!("can't listen on {address}: {hint}: {e}")
    })?;
    let (address, keys) = (listener.local_addr()?, keys(args)?.map(Arc::new));
    let (model, plan) = open(args)?;
    let text = Arc::new(Text::from_checkpoint(&model.checkpoint)?);
    for note in text.notes() {
        tracing::info!("{note}");
    }
    let (first, second) = runtime.block_on(async { signal::twice() })?;
    let mut hang_ups = runtime.block_on(async { Signals::new() })?;
    let mut head = Head::start(args, &model, log)?;
    let layout = match &head.nodes {
        Some(_) => "by nodes".to_owned(),
        None => model.layout.to_string(),
    };
    tracing::info!(
        "serving {} on http://{address}/v1, layout {layout}, context {}",
        model.name(),
        model.shapes.context_max
    );
    let app = app(args, &model, &head, text, (keys.clone(), plan.as_ref()))?;
    let drain_ms = app.limits.drain_timeout_ms;
    let manager = Arc::new(Manager::of_this_process());
    runtime.spawn(report(manager.clone(), head.handle.clone()));
    runtime.spawn(async move {
        loop {
            hang_ups.hung_up().await;
            tracing::info!("SIGHUP: reading the keys again");
            keys.iter().for_each(|keys| keys.read_again());
        }
    });
    let mut serving = false;
    let ended = async {
        tokio::select! {
            name = first => {
                serving = head.handle.state() == RingState::Ready;
                let seconds = drain_ms / 1_000;
                tracing::info!(
                    "{name}: no new requests, running replies may finish within {seconds} s"
                );
                manager.stopping();
            }
            _ = &mut head.gone => {}
        }
    };
    let hurry = async {
        let name = second.await;
        tracing::info!("{name} again: running replies end now");
    };
    let served = runtime.block_on(api::serve(listener, app, ended, hurry));
    head.end(&runtime, serving)?;
    served?;
    tracing::info!("done");
    Ok(())
}

/// The model under the settings asked for, and the plan that it is held against.
fn open(args: &Serve) -> Result<(Arc<Model>, Option<Plan>)> {
    let path = source::resolve(&args.shared.model)?;
    let mut settings = args.shared.settings(args.world);
    settings.queue = args.queue;
    settings.depth = args.depth;
    settings.continue_s = args.continue_s;
    settings.drafters = args.drafter.into();
    settings.draft_head = args.draft_head.format();
    let plan = args.plan.as_deref().map(plan::read).transpose()?;
    if let Some(plan) = plan.as_ref().filter(|_| settings.layout.is_none()) {
        settings.layout = Some(plan.layout.clone());
    }
    Ok((Arc::new(Model::open(&path, settings)?), plan))
}

/// What the endpoint serves.
fn app(
    args: &Serve,
    model: &Model,
    head: &Head,
    text: Arc<Text>,
    (keys, plan): (Option<Arc<api::Keys>>, Option<&Plan>),
) -> Result<api::App> {
    let mut app = api::App::new(head.handle.clone(), text, model.name());
    app.keys = keys;
    app.origins.clone_from(&args.cors);
    app.prompt_pair = prompt_pair(model)?;
    app.compared = match &head.nodes {
        Some(nodes) => Some(nodes.compared()),
        None => plan.map(|plan| plan::compared(plan, model)).transpose()?,
    };
    app.arith = model.settings.arith.to_string();
    app.nodes = head.nodes.as_ref().map(|nodes| nodes.status() as Arc<dyn api::Nodes>);
    let drain = args.drain.unwrap_or(if app.nodes.is_some() { DRAIN_NODES } else { DRAIN });
    app.limits.drain_timeout_ms = u64::from(drain) * 1_000;
    Ok(app)
}

/// What prompts in pairs cost, said too.
fn prompt_pair(model: &Model) -> Result<Option<api::PromptPair>> {
    let pair = model.prompt_pair()?;
    if let Some(pair) = &pair {
        let drafts = model.settings.drafters.mtp && model.checkpoint.config().mtp();
        tracing::info!(
            "long prompts{} go in pairs: {:.1} MiB of each member for second halves, \
             {} KV pages less",
            if drafts { " that no draft head takes in" } else { "" },
            pair.twin_bytes as f64 / f64::from(1 << 20),
            pair.kv_pages_lost
        );
    }
    Ok(pair)
}

/// Tells the service manager when the ring serves for the first time, what it does from then on,
/// and that this runtime, which answers requests, is alive.
async fn report(manager: Arc<Manager>, handle: Handle) {
    let Some(pause) = manager.pause() else { return };
    let (mut told, mut ready) = (None, false);
    loop {
        let state = handle.state();
        manager.alive();
        if state == RingState::Ready && !ready {
            ready = true;
            manager.ready("the ring serves");
        } else if told.as_ref() != Some(&state) && state != RingState::Draining {
            manager.status(&state.to_string());
        }
        told = Some(state);
        tokio::time::sleep(pause).await;
    }
}

/// The keys that requests need; none where none are given.
fn keys(args: &Serve) -> Result<Option<api::Keys>> {
    if let Some(path) = &args.api_key_file {
        return Ok(Some(api::Keys::from_file(path)?));
    }
    match std::env::var("BATON_API_KEYS") {
        Ok(text) => Ok(Some(api::Keys::given(&text).context("BATON_API_KEYS")?)),
        Err(_) => Ok(None),
    }
}

/// Threads of each of `ranks` ranks of this machine.
pub fn threads(shared: &Shared, ranks: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    shared.threads.unwrap_or((cores / ranks.max(1)).max(1))
}

/// Rank 0 on its thread, and whatever runs beside it.
struct Head {
    handle: Handle,
    thread: JoinHandle<Result<()>>,
    /// Resolves when the thread ends, however.
    gone: oneshot::Receiver<()>,
    loaded: Arc<AtomicBool>,
    ways: Ways,
    locals: Option<Locals>,
    nodes: Option<Nodes>,
}

impl Head {
    /// Returns once every rank is on its way; what they load is not there yet.
    fn start(args: &Serve, model: &Arc<Model>, log: &str) -> Result<Self> {
        let (world, shares) = (model.layout.world(), model.shares());
        if let Some(file) = &args.by_nodes.nodes {
            let listing = Listing::read(file, args.by_hand.key.as_deref())?;
            return Self::by_nodes(args, model, listing);
        }
        let by_hand = args.by_hand.is_any();
        ensure!(
            args.by_hand.next.is_none() || world > 1,
            "--next is for a layout of two ranks or more; this one has {world}"
        );
        ensure!(
            !by_hand || args.by_hand.next.is_some() || world == 1,
            "--next is needed: the other ranks of the layout {} are started by hand too",
            model.layout
        );
        let threads = threads(&args.shared, if by_hand { 1 } else { shares.len() });
        if by_hand {
            return Self::join(
                model,
                threads,
                &Place::of_head(&args.by_hand, args.shared.encryption.into())?,
                None,
            );
        }
        if shares.len() == 1 {
            return Self::lead(model, threads, Alone, Ways::default(), None);
        }
        // Before anything starts: a rank that can't load would be restarted again and again.
        let crate::model::Settings { arith, own_arith, .. } = model.settings;
        let free_bytes = model.device(Rank(0), 0).free_bytes(arith, own_arith)?;
        model.check_memory(&shares, free_bytes)?;
        let secret = key::generate_secret()?;
        let encryption = args.shared.encryption.into();
        let places = rank::local_places(&model.layout, &Key::from_bytes(&*secret)?, encryption)?;
        // The file that was found, so that no rank finds, downloads or checks it again.
        let found = model.checkpoint.path().to_str().unwrap_or(&args.shared.model).to_owned();
        let recipe = Recipe {
            shared: Shared { model: found, ..args.shared.clone() },
            layout: model.layout.to_string(),
            threads,
            secret,
            log: log.to_owned(),
        };
        Self::join(model, threads, &places[0], Some((&recipe, &places)))
    }

    /// Gathers nodes, and leads what is planned of them.
    fn by_nodes(args: &Serve, model: &Arc<Model>, listing: Listing) -> Result<Self> {
        let (handle, driver) = head::pair();
        let (alive, gone) = oneshot::channel();
        let loaded = Arc::new(AtomicBool::new(false));
        let pair = (handle.clone(), driver);
        let (nodes, thread) = nodes::start(args, listing, model, pair, loaded.clone(), alive)?;
        let (ways, nodes) = (Ways::default(), Some(nodes));
        Ok(Self { handle, thread, gone, loaded, ways, locals: None, nodes })
    }

    /// Listens at `place`, then starts the processes of the other `places`.
    fn join(
        model: &Arc<Model>,
        threads: usize,
        place: &Place,
        others: Option<(&Recipe, &[Place])>,
    ) -> Result<Self> {
        let transport = match model.layout.world() {
            1 => None,
            _ => Some(place.transport(model)?),
        };
        let ways = Ways { transport: transport.clone(), group: place.group(model)? };
        let locals = others.map(|(recipe, places)| Locals::start(recipe, places)).transpose()?;
        match transport {
            None => Self::lead(model, threads, Alone, ways, locals),
            Some(transport) => Self::lead(model, threads, Joined(transport), ways, locals),
        }
    }

    fn lead<J: Join + 'static>(
        model: &Arc<Model>,
        threads: usize,
        join: J,
        ways: Ways,
        locals: Option<Locals>,
    ) -> Result<Self> {
        let (handle, driver) = head::pair();
        let (alive, gone) = oneshot::channel();
        let loaded = Arc::new(AtomicBool::new(false));
        let (model, is_loaded, group) = (model.clone(), loaded.clone(), ways.group.clone());
        let run = move || {
            let _alive: oneshot::Sender<()> = alive;
            if group.as_ref().is_some_and(|group| !rank::assemble(Rank(0), group)) {
                return Ok(());
            }
            let seat = model.seat(Rank(0), 0, threads)?;
            let range = model.range(Rank(0))?;
            tracing::info!(
                "rank 0: loading layers {}..{} and the ends of {}",
                range.start,
                range.end,
                model.name()
            );
            let leader = model.leader(&seat, join, driver)?;
            let mut engine = model.engine(Rank(0), &seat, group.as_ref())?;
            is_loaded.store(true, Ordering::Release);
            leader.run(&mut *engine);
            Ok(())
        };
        let thread = std::thread::Builder::new().name("baton-rank-0".into()).spawn(run)?;
        Ok(Self { handle, thread, gone, loaded, ways, locals, nodes: None })
    }

    /// Drains rank 0, then ends the ranks beside it.
    ///
    /// # Errors
    /// What rank 0 ended of, if not of the drain.
    fn end(mut self, runtime: &Runtime, serving: bool) -> Result<()> {
        self.handle.drain();
        let is_gone = self.wait_gone(runtime, serving);
        self.ways.shutdown();
        if let Some(nodes) = &self.nodes {
            nodes.shutdown();
        }
        // Loading heeds nobody, and leaves nothing behind: the thread may end with the process.
        let ended = if is_gone || self.loaded.load(Ordering::Acquire) {
            let ended = self.thread.join();
            ended.unwrap_or_else(|_| bail!("rank 0 panicked, as said above"))
        } else {
            Ok(())
        };
        if let Some(locals) = self.locals {
            locals.end();
        }
        if let Some(nodes) = self.nodes {
            nodes.end();
        }
        ended
    }

    /// Whether rank 0's thread has ended. A ring that serves gets time to stop properly; a join
    /// that waits for ranks would outlast the drain.
    fn wait_gone(&mut self, runtime: &Runtime, serving: bool) -> bool {
        match self.gone.try_recv() {
            Err(TryRecvError::Empty) if serving => {
                let gone = async { tokio::time::timeout(STOP_TIMEOUT, &mut self.gone).await };
                runtime.block_on(gone).is_ok()
            }
            Err(TryRecvError::Empty) => false,
            _ => true,
        }
    }
}
