//! `baton serve --nodes`: the head. Its core says whom to reach, when to plan and what to run;
//! this drives it, over channels to the agents, the planner, and rank 0 on a thread of its own.

mod lead;
mod planner;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use node::Ballot;
use node::file::{Listed, Nodes as File};
use node::head::{Action, Event, Head, Plan};
use node::membership::GONE_AFTER;
use node::message::{self, ToHead, Wanted};
use ring::head::{Driver, Handle};
use ring::key::Key;
use serde_json::{Value, json};

use crate::args::Serve;
use crate::client::Client;
use crate::model::Model;
use crate::probe;

use lead::{Lead, Order, Way};
use planner::Planner;

/// Most things that have happened and were not looked at yet; more wait.
const EVENTS_MAX: usize = 256;
/// How often the core hears of the time and of the load.
const LOOK: Duration = Duration::from_millis(100);

/// What reaches the head's own thread. A channel's number tells its words from those of one before.
enum Happening {
    Opened(usize, u64, node::channel::Sender, std::net::SocketAddr),
    Broke(usize, u64, String),
    Heard(usize, u64, ToHead),
    Replan,
    End,
}

/// The head's threads, as the server sees them.
pub struct Nodes {
    happened: SyncSender<Happening>,
    thread: Option<JoinHandle<()>>,
    way: Way,
    orders: Sender<Order>,
    status: Arc<Status>,
}

/// What users see.
pub struct Status {
    now: Mutex<Value>,
    happened: SyncSender<Happening>,
}

impl api::Nodes for Status {
    fn status(&self) -> Value {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replan(&self) -> bool {
        self.happened.try_send(Happening::Replan).is_ok()
    }
}

/// What the file says, with its keys read.
pub struct Listing {
    file: File,
    keys: Vec<Option<Key>>,
}

impl Listing {
    /// Reads the file and its keys; `key` is everybody's where the file names none.
    ///
    /// # Errors
    /// What is wrong with the file or a key.
    pub fn read(path: &Path, key: Option<&Path>) -> Result<Self> {
        if path.as_os_str() == "auto" {
            bail!("--nodes auto: nodes are not found by themselves yet: list them in a file");
        }
        let file = File::read(path)?;
        // As the file has it, beside the file.
        let beside = |key: &PathBuf| path.parent().map_or_else(|| key.clone(), |at| at.join(key));
        let all = file.key.as_ref().map(beside).or_else(|| key.map(Path::to_path_buf));
        let load = |node: &Listed| {
            let own = node.key.as_ref().map(beside).or_else(|| all.clone());
            Ok(own.map(|own| Key::load(&own)).transpose()?)
        };
        let keys = file.nodes.iter().map(load).collect::<Result<_>>()?;
        Ok(Self { file, keys })
    }
}

/// Starts the head: it gathers, plans, and has rank 0 lead what was planned. `loaded` says when
/// rank 0 has its layers.
///
/// # Errors
/// What can't be measured here, or a thread that can't be started.
pub fn start(
    args: &Serve,
    listing: Listing,
    model: &Arc<Model>,
    (handle, driver): (Handle, Driver),
    loaded: Arc<AtomicBool>,
    alive: tokio::sync::oneshot::Sender<()>,
) -> Result<(Nodes, JoinHandle<Result<()>>)> {
    let threads = crate::serve::threads(&args.shared, 1);
    let (happened, happenings) = sync_channel(EVENTS_MAX);
    let (orders, ordered) = channel();
    let now = Mutex::new(json!({ "plan": null, "nodes": [] }));
    let status = Arc::new(Status { now, happened: happened.clone() });
    let way = Way::default();
    let lead = Lead {
        model: model.clone(),
        threads,
        encryption: args.shared.encryption.into(),
        orders: ordered,
        way: way.clone(),
        loaded,
    };
    let run = move || {
        let _alive = alive;
        lead.run(driver)
    };
    let rank = std::thread::Builder::new().name("baton-rank-0".into()).spawn(run)?;
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let epoch = since.unwrap_or_default().as_millis() as u64;
    let (wanted, ballot) = (wanted(args, model)?, Ballot { epoch, head: node::draw()? });
    let (told, seen, model, ours) = (happened.clone(), status.clone(), model.clone(), way.clone());
    let (given, layers) = (orders.clone(), args.by_nodes.layers.clone());
    let wait = Duration::from_secs_f64(args.by_nodes.replan_wait);
    let conduct = move || {
        let _ = given.send(Order::Say("measuring this machine".into()));
        let ready = (|| {
            let name = listing.file.head.name.clone();
            let own = probe::probed(&model, threads, false, name)?;
            Planner::new(model, own, &listing.file, layers)
        })();
        let planner = match ready {
            Ok(planner) => planner,
            Err(error) => {
                let _ = given.send(Order::End(Some(crate::line(&error))));
                return;
            }
        };
        let Listing { file, keys } = listing;
        let nodes = file.nodes.iter().map(|node| (node.name.clone(), wanted_by(node, &wanted)));
        let mut desk = Desk {
            core: Head::new(nodes, ballot, wait, Duration::ZERO),
            start: Instant::now(),
            numbers: vec![0; keys.len()],
            senders: keys.iter().map(|_| None).collect(),
            listed: file.nodes,
            keys,
            planner,
            handle,
            orders: given,
            happened: told,
            way: ours,
            status: seen,
            over: false,
        };
        desk.run(&happenings);
    };
    let thread = std::thread::Builder::new().name("baton-nodes".into()).spawn(conduct)?;
    Ok((Nodes { happened, thread: Some(thread), way, orders, status }, rank))
}

/// The model as nodes look for it.
fn wanted(args: &Serve, model: &Model) -> Result<Wanted> {
    let path = model.checkpoint.path();
    let file = path.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(Wanted {
        model: args.shared.model.clone(),
        file: file.unwrap_or_default(),
        digest: model.digest()?,
        arguments: args.shared.arguments(),
    })
}

/// As a node of the file looks for it.
fn wanted_by(node: &Listed, wanted: &Wanted) -> Wanted {
    let mut wanted = wanted.clone();
    for (flag, value) in [
        ("--device", node.device.clone()),
        ("--threads", node.threads.map(|threads| threads.to_string())),
    ] {
        wanted.arguments.extend(value.into_iter().flat_map(|value| [flag.to_owned(), value]));
    }
    wanted
}

impl Nodes {
    /// For the endpoint.
    pub fn status(&self) -> Arc<Status> {
        self.status.clone()
    }

    /// Ends rank 0's links and every wait of it.
    pub fn shutdown(&self) {
        let _ = self.orders.send(Order::End(None));
        self.way.end();
    }

    /// Has all nodes end what they run for this head.
    pub fn end(mut self) {
        let _ = self.happened.send(Happening::End);
        if let Some(thread) = self.thread.take() {
            // It panicked, and has said so.
            let _ = thread.join();
        }
    }
}

struct Desk {
    core: Head,
    start: Instant,
    listed: Vec<Listed>,
    keys: Vec<Option<Key>>,
    /// The number of each node's newest channel, and its sending side while it stands.
    numbers: Vec<u64>,
    senders: Vec<Option<node::channel::Sender>>,
    planner: Planner,
    handle: Handle,
    orders: Sender<Order>,
    happened: SyncSender<Happening>,
    way: Way,
    status: Arc<Status>,
    over: bool,
}

impl Desk {
    fn run(&mut self, happenings: &Receiver<Happening>) {
        let mut told = String::new();
        while !self.over {
            let event = match happenings.recv_timeout(LOOK) {
                Ok(happening) => self.event(happening),
                Err(RecvTimeoutError::Timeout) => Some(Event::Tick),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let facts = self.handle.facts();
            self.hears(Event::Load { busy: facts.running + facts.waiting > 0 });
            if let Some(event) = event {
                self.hears(event);
            }
            self.publish(&mut told);
        }
    }

    fn event(&mut self, happening: Happening) -> Option<Event> {
        let is_new = |node: usize, number: u64| self.numbers[node] == number;
        match happening {
            Happening::Opened(node, number, sender, local) => {
                if !is_new(node, number) {
                    sender.close();
                    return None;
                }
                self.senders[node] = Some(sender);
                self.planner.reached(node, local.ip());
                Some(Event::Opened(node))
            }
            Happening::Broke(node, number, why) if is_new(node, number) => {
                self.senders[node] = None;
                Some(Event::Broke(node, why))
            }
            Happening::Heard(node, number, message) if is_new(node, number) => {
                Some(Event::Heard(node, message))
            }
            Happening::Broke(..) | Happening::Heard(..) => None,
            Happening::Replan => Some(Event::Replan),
            Happening::End => {
                self.over = true;
                Some(Event::Drain)
            }
        }
    }

    fn hears(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for action in self.core.step(self.start.elapsed(), event) {
                events.extend(self.act(action));
            }
        }
    }

    /// Does it; what follows at once.
    fn act(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Dial(node) => {
                self.numbers[node] += 1;
                let (number, happened) = (self.numbers[node], self.happened.clone());
                let (address, key) = (self.listed[node].address.clone(), self.keys[node].clone());
                let dial = move || dial(node, number, &address, key.as_ref(), &happened);
                let thread = std::thread::Builder::new().name("baton-agent".into()).spawn(dial);
                if let Err(error) = thread {
                    return Some(Event::Broke(node, error.to_string()));
                }
            }
            Action::Close(node) => {
                if let Some(sender) = self.senders[node].take() {
                    // Its reader tells of the end.
                    sender.close();
                }
            }
            Action::Say(node, message) => {
                let sender = self.senders[node].as_mut()?;
                if let Err(error) = sender.send(&message) {
                    tracing::debug!("{error}");
                    sender.close();
                }
            }
            Action::Plan { number, nodes } => {
                let planned = self.planner.plan(number, &nodes, &self.core);
                return Some(Event::Planned(planned.map_err(|error| crate::line(&error))));
            }
            Action::Move(plan) => self.moves(&plan),
            Action::Waiting(why) => {
                tracing::warn!("no plan: {why}");
                let _ = self.orders.send(Order::Wait(why));
                self.leave();
            }
            Action::Note(text) => tracing::info!("{text}"),
            Action::End(why) => {
                let _ = self.orders.send(Order::End(Some(why)));
                self.leave();
                self.over = true;
            }
        }
        None
    }

    fn moves(&mut self, plan: &Plan) {
        let Some(seated) = self.planner.seated(plan.number) else { return };
        tracing::info!("plan {}: {}", plan.number, plan.line);
        for line in seated.table.lines().filter(|line| !line.is_empty()) {
            tracing::info!("{line}");
        }
        let _ = self.orders.send(Order::Lead(seated));
        self.leave();
    }

    /// Has rank 0 look at its orders, wherever it waits.
    fn leave(&self) {
        self.handle.leave();
        self.way.cut();
    }

    fn publish(&self, told: &mut String) {
        let plan = self.core.plan().map(|plan| plan.line.clone());
        let now = json!({ "plan": plan, "nodes": self.core.lines() });
        let text = now.to_string();
        if text != *told {
            *told = text;
            *self.status.now.lock().unwrap_or_else(PoisonError::into_inner) = now;
        }
    }
}

/// Reaches an agent, and hears it to the end.
fn dial(
    node: usize,
    number: u64,
    address: &str,
    key: Option<&Key>,
    happened: &SyncSender<Happening>,
) {
    let broke = |why: String| drop(happened.send(Happening::Broke(node, number, why)));
    let mut channel = match node::channel::dial(address, key) {
        Ok(channel) => channel,
        Err(error) => return broke(error.to_string()),
    };
    let opened = Happening::Opened(node, number, channel.sender, channel.local);
    if happened.send(opened).is_err() {
        return;
    }
    loop {
        match channel.receiver.next(GONE_AFTER).and_then(message::of_agent) {
            Ok(message) => {
                if happened.send(Happening::Heard(node, number, message)).is_err() {
                    return;
                }
            }
            Err(error) => return broke(error.to_string()),
        }
    }
}

/// `baton replan`.
///
/// # Errors
/// No server, or one without nodes.
pub fn replan(url: &str) -> Result<()> {
    let client = Client::new(url);
    let said = client.ask("/replan", &json!({}))?;
    if said["accepted"] != true {
        bail!("the server is busy with a plan; ask again");
    }
    let status = client.get("/health").context("the server's state")?;
    println!(
        "asked for; the plan before it: {}",
        status["nodes"]["plan"].as_str().unwrap_or("none")
    );
    Ok(())
}
