//! `baton node`: an agent. Heads come in by its door, its core says what to do, and what it starts
//! are processes of this very program.

mod announce;
mod child;
mod door;
mod find;
mod supply;
pub mod ways;

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use node::Agent;
use node::agent::{Action, Channel, Event};
use node::channel::Sender;
use node::message::{ADDRESSES_MAX, Coming, Facts, Reach};
use ring::key::Key;

use crate::args::NodeArgs;
use crate::model::ENGINE;
use crate::notify::Manager;
use crate::signal::Signals;
use crate::{probe, source};

use child::{Child, Measured, Starter};
use supply::Supply;
use ways::Ways;

/// Most things that have happened and were not looked at yet; more wait.
const EVENTS_MAX: usize = 256;
/// How often a running process is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long the last words of an ending agent may take.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// What reaches the agent's own thread.
pub enum Happening {
    /// A head is connected.
    Opened(Channel, Sender),
    /// For the core.
    Event(Event),
}

/// Runs until a signal.
///
/// # Errors
/// What keeps it from listening.
pub fn run(args: &NodeArgs, log: &str) -> Result<()> {
    let key = args.key.as_deref().map(Key::load).transpose()?;
    let (listener, ranks) = listen(&args.listen, key.as_ref())?;
    let address = listener.local_addr()?;
    let (happened, happenings) = sync_channel(EVENTS_MAX);
    let name = args.name.clone().unwrap_or_else(probe::host_name);
    let folder = match &args.store {
        Some(folder) => folder.clone(),
        None => source::cache_dir()?.join("node").join(&name).join("store"),
    };
    let supply = Arc::new(Supply::open(&folder, args.store_gib, key.clone())?);
    door::open(listener, key, happened.clone(), supply.depot().clone())?;
    if args.announce {
        announce::announce(name.clone(), address)?;
    }
    stop_on_a_signal(happened.clone())?;
    let starter = Arc::new(Starter {
        name: name.clone(),
        device: args.device.to_string(),
        threads: args.threads.unwrap_or_else(cores),
        memory_limit: args.memory_limit,
        models: args.models.clone(),
        listen: ranks,
        journal: journal(args, &name)?,
        log: log.to_owned(),
        supply,
    });
    let facts = facts(&starter);
    let start = Instant::now();
    let mut desk = Desk {
        core: Agent::new(node::draw()?, facts, Duration::ZERO),
        start,
        channels: HashMap::new(),
        child: None,
        coming: None,
        ways: Ways::of(&starter),
        starter,
        happened,
        manager: Manager::of_this_process(),
        status: String::new(),
    };
    tracing::info!("node {name}: listening on {address}, its rank on port {}", address.port() + 1);
    desk.manager.ready("no rank, no head");
    let mut ending = None;
    loop {
        let event = match happenings.recv_timeout(LOOK) {
            Ok(Happening::Opened(channel, sender)) => {
                desk.channels.insert(channel, sender);
                continue;
            }
            Ok(Happening::Event(event)) => event,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Event::Tick,
        };
        if matches!(event, Event::Stop) {
            ending = Some(Instant::now() + END_TIMEOUT);
            desk.manager.stopping();
        }
        if desk.step(event) || ending.is_some_and(|until| Instant::now() >= until) {
            tracing::info!("node {name}: done");
            return Ok(());
        }
    }
}

/// The agent's socket at the first of `addresses`, and where its rank listens.
fn listen(addresses: &[SocketAddr], key: Option<&Key>) -> Result<(TcpListener, Vec<SocketAddr>)> {
    let mut ranks = addresses.iter().map(|a| rank_at(*a, key)).collect::<Result<Vec<_>>>()?;
    let (count, first) = (addresses.len(), addresses.first().context("--listen")?);
    ensure!(
        count <= ADDRESSES_MAX,
        "--listen: {count} addresses, expected at most {ADDRESSES_MAX}"
    );
    let listener = TcpListener::bind(first).with_context(|| format!("can't listen on {first}"))?;
    ranks[0] = rank_at(listener.local_addr()?, key)?;
    Ok((listener, ranks))
}

/// Where a rank listens beside an agent at `address`.
fn rank_at(address: SocketAddr, key: Option<&Key>) -> Result<SocketAddr> {
    ensure!(
        !address.ip().to_canonical().is_unspecified(),
        "--listen {address}: give the address that the head reaches this machine at"
    );
    ring::address::check_key(key, address)?;
    ensure!(address.port() < u16::MAX, "--listen {address}: the rank takes the next port");
    let mut rank = address;
    rank.set_port(address.port() + 1);
    Ok(rank)
}

/// The agent's own thread, which also is the parent of its rank.
struct Desk {
    core: Agent,
    start: Instant,
    channels: HashMap<Channel, Sender>,
    child: Option<Child>,
    /// What the core was told of layers that come.
    coming: Option<Coming>,
    /// To other nodes, and from them.
    ways: Ways,
    starter: Arc<Starter>,
    happened: SyncSender<Happening>,
    manager: Manager,
    status: String,
}

impl Desk {
    /// Whether it was the last step.
    fn step(&mut self, event: Event) -> bool {
        self.manager.alive();
        let mut over = self.hears(event);
        if let Some(why) = self.child.as_mut().and_then(|child| child.ended(&self.starter)) {
            self.child = None;
            over |= self.hears(Event::Ended(why));
        }
        let coming = self.child.as_ref().and_then(Child::coming);
        if coming != self.coming {
            self.coming = coming;
            over |= self.hears(Event::Coming(coming));
        }
        let status = self.core.status();
        if status != self.status {
            self.manager.status(&status);
            self.status = status;
        }
        over
    }

    fn hears(&mut self, event: Event) -> bool {
        let mut events = vec![event];
        let mut over = false;
        while let Some(event) = events.pop() {
            if let Event::Heard(_, node::message::ToNode::Hello { .. }) = &event {
                let fresh = facts(&self.starter);
                *self.core.facts() = fresh;
            }
            if let Event::Closed(channel) = &event {
                self.channels.remove(channel);
            }
            for action in self.core.step(self.start.elapsed(), event) {
                match action {
                    Action::Stopped => over = true,
                    action => events.extend(self.act(action)),
                }
            }
        }
        over
    }

    /// Does it; what follows at once.
    fn act(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Say(channel, message) => {
                let sender = self.channels.get_mut(&channel)?;
                if let Err(error) = sender.send(&message) {
                    tracing::debug!("{error}");
                    // Its reader hears the end.
                    sender.close();
                }
            }
            Action::Close(channel) => {
                if let Some(sender) = self.channels.remove(&channel) {
                    sender.close();
                }
            }
            Action::Start(launch) => match self.starter.start(&launch) {
                Ok(child) => self.child = Some(child),
                Err(error) => {
                    let why = crate::line(&error);
                    tracing::warn!("rank {}: {why}", launch.rank);
                    return Some(Event::Ended(why));
                }
            },
            Action::End => {
                if let Some(child) = &mut self.child {
                    child.end();
                }
            }
            Action::Measure { wanted, again } => {
                let (starter, happened) = (self.starter.clone(), self.happened.clone());
                let measure = move || {
                    let event = match starter.measure(&wanted, again) {
                        Ok(Measured::Facts(facts)) => Event::Measured(Ok(facts)),
                        Ok(Measured::Lacks(why)) => Event::Lacks(why),
                        Err(error) => Event::Measured(Err(crate::line(&error))),
                    };
                    let _ = happened.send(Happening::Event(event));
                };
                let thread = std::thread::Builder::new().name("baton-measure".into());
                if let Err(error) = thread.spawn(measure) {
                    return Some(Event::Measured(Err(error.to_string())));
                }
            }
            Action::Give(wanted) => {
                let starter = self.starter.clone();
                let give = move || {
                    if let Err(error) = starter.give(&wanted) {
                        tracing::warn!("the model is not given to others: {}", crate::line(&error));
                    }
                };
                // Where there is no thread the head gives all of it.
                let _ = std::thread::Builder::new().name("baton-give".into()).spawn(give);
            }
            Action::Answer(door) => {
                return Some(Event::Answers(self.ways.open(&door).map_err(|e| crate::line(&e))));
            }
            Action::Shut => self.ways.shut(),
            Action::Reach(reach) => return self.reach(*reach),
            Action::Note(text) => tracing::info!("node {}: {text}", self.starter.name),
            Action::Stopped => unreachable!("looked at before"),
        }
        None
    }
}

impl Desk {
    /// Measures the way to another node aside.
    fn reach(&self, reach: Reach) -> Option<Event> {
        let (name, happened) = (self.starter.name.clone(), self.happened.clone());
        let node = reach.node.clone();
        let measure = move || {
            let found = ways::reached(&name, &reach);
            let _ = happened.send(Happening::Event(Event::Reached(reach.node, found)));
        };
        let thread = std::thread::Builder::new().name("baton-way".into());
        let error = thread.spawn(measure).err()?;
        Some(Event::Reached(node, Err(error.to_string())))
    }
}

fn stop_on_a_signal(happened: SyncSender<Happening>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = runtime.block_on(async { Signals::new() })?;
    std::thread::Builder::new().name("baton-signal".into()).spawn(move || {
        let name = runtime.block_on(signals.ended());
        tracing::info!("{name}: ending");
        let _ = happened.send(Happening::Event(Event::Stop));
    })?;
    Ok(())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn journal(args: &NodeArgs, name: &str) -> Result<PathBuf> {
    Ok(match &args.journal {
        Some(folder) => folder.clone(),
        None => source::cache_dir()?.join("node").join(name),
    })
}

/// What this machine is, now.
fn facts(starter: &Starter) -> Facts {
    Facts {
        name: starter.name.clone(),
        engine: ENGINE.into(),
        system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        cores: cores() as u32,
        memory_bytes: memory_bytes("MemTotal:"),
        free_bytes: memory_bytes("MemAvailable:"),
        disk_bytes: source::cache_dir().map_or(0, |folder| probe::disk_bytes(&folder)),
        device: starter.device.clone(),
        stage_port: starter.listen.first().map_or(0, SocketAddr::port),
        addresses: starter.listen.iter().skip(1).map(SocketAddr::to_string).collect(),
    }
}

/// A line of what the system says of its memory; 0 where it says nothing.
fn memory_bytes(what: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(what));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
