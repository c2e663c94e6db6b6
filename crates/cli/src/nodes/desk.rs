//! The head's own thread: what happens goes to its core, and what that says is done.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use api::Compared;
use node::file::Listed;
use node::head::{Action, End, Event, Head, Plan};
use node::membership::GONE_AFTER;
use node::message::{self, Door, Reach, ToNode, Wanted};
use node::{Ballot, NODES_MAX};
use ring::head::{Handle, RingState};
use ring::key::Key;
use serde_json::json;

use super::givers::Givers;
use super::lead::{Order, Way};
use super::listing::{self, Listing};
use super::planner::Planner;
use super::{Happening, Status, ways};
use crate::model::Model;
use crate::node::ways::reached;
use crate::probe;

/// How often the core hears of the time and of the load.
const LOOK: Duration = Duration::from_millis(100);
/// How often the link is asked for nodes.
const ASK: Duration = Duration::from_secs(10);

/// What a desk is set up with.
pub struct Ground {
    pub model: Arc<Model>,
    pub threads: usize,
    pub wanted: Wanted,
    pub ballot: Ballot,
    /// What opens nodes' ports for who measures the way to them.
    pub door: Door,
    /// Though there are measurements that are kept.
    pub again: bool,
    /// Which node holds which layers, where a user says so.
    pub layers: Option<String>,
    /// How long a plan with a hole is kept.
    pub wait: Duration,
    pub handle: Handle,
    pub orders: Sender<Order>,
    pub happened: SyncSender<Happening>,
    pub way: Way,
    pub status: Arc<Status>,
    pub compared: Compared,
}

/// The core of a head, and all that it acts through.
pub struct Desk {
    core: Head,
    start: Instant,
    listed: Vec<Listed>,
    /// The model as any node looks for it.
    wanted: Wanted,
    keys: Vec<Option<Key>>,
    /// The key of nodes that are found.
    found_key: Option<Key>,
    /// The number of each node's newest channel, and its sending side while it stands.
    numbers: Vec<u64>,
    senders: Vec<Option<node::channel::Sender>>,
    planner: Planner,
    givers: Givers,
    /// What this machine is measured by once more: model, threads, name.
    again: (Arc<Model>, usize, Option<String>),
    handle: Handle,
    orders: Sender<Order>,
    happened: SyncSender<Happening>,
    way: Way,
    status: Arc<Status>,
    /// What the plan predicts, and what is measured.
    compared: Compared,
    /// Whether the core knows that the two differ.
    is_off: bool,
    /// The last plan that a rank was refused in.
    refused_in: u64,
    /// The last plan that was asked for.
    asked: u64,
    over: bool,
}

impl Desk {
    /// Measures this machine, and finds who is on the link where no file says so.
    ///
    /// # Errors
    /// What can't be measured or read here, a link that takes no question.
    pub fn set(ground: Ground, listing: Listing) -> Result<Self> {
        let Ground { model, threads, wanted, handle, orders, happened, way, status, .. } = ground;
        let _ = orders.send(Order::Say("measuring this machine".into()));
        let name = listing.file.head.name.clone();
        let own = probe::probed(&model, threads, ground.again, name.clone())?;
        let planner = Planner::new(model.clone(), own, &listing.file, ground.layers)?;
        let Listing { file, keys, auto } = listing;
        let nodes = file.nodes.iter();
        let nodes = nodes.map(|node| (node.name.clone(), listing::wanted_by(node, &wanted)));
        let mut core = Head::new(nodes, ground.ballot, ground.door, ground.wait, Duration::ZERO);
        if ground.again {
            core.measure_anew();
        }
        let mut desk = Self {
            core,
            start: Instant::now(),
            numbers: vec![0; keys.len()],
            senders: keys.iter().map(|_| None).collect(),
            listed: file.nodes,
            wanted,
            keys,
            found_key: None,
            givers: Givers::new(model.clone()),
            again: (model, threads, name),
            planner,
            handle,
            orders,
            happened,
            way,
            status,
            compared: ground.compared,
            is_off: false,
            refused_in: 0,
            asked: 0,
            over: false,
        };
        if let Some((mut link, key)) = auto {
            desk.found_key = key;
            let _ = desk.orders.send(Order::Say("asking the link for nodes".into()));
            link.look()?.into_iter().for_each(|node| desk.admit(node));
            let happened = desk.happened.clone();
            let look = move || loop {
                std::thread::sleep(ASK);
                match link.look() {
                    Ok(found) => {
                        for node in found {
                            if happened.send(Happening::Found(node)).is_err() {
                                return;
                            }
                        }
                    }
                    Err(error) => tracing::debug!("the link takes no question: {error}"),
                }
            };
            std::thread::Builder::new().name("baton-look".into()).spawn(look)?;
        }
        Ok(desk)
    }

    /// Takes a node in that was found.
    fn admit(&mut self, mut node: Listed) {
        let is_taken = |name: &str| {
            name == self.planner.head() || self.listed.iter().any(|known| known.name == name)
        };
        if self.listed.len() == NODES_MAX {
            tracing::warn!("{} at {}: {NODES_MAX} nodes at most", node.name, node.address);
            return;
        }
        if is_taken(&node.name) {
            node.name = format!("{}-{}", node.name, self.listed.len() + 1);
        }
        if is_taken(&node.name) {
            tracing::warn!("{} at {}: the name is taken: give it another", node.name, node.address);
            return;
        }
        tracing::info!("found node {} at {}", node.name, node.address);
        let wanted = listing::wanted_by(&node, &self.wanted);
        self.core.add(node.name.clone(), wanted, self.start.elapsed());
        self.planner.add(node.clone());
        self.listed.push(node);
        self.keys.push(self.found_key.clone());
        self.numbers.push(0);
        self.senders.push(None);
    }

    /// Until the end.
    pub fn run(&mut self, happenings: &Receiver<Happening>) {
        let mut told = String::new();
        while !self.over {
            let event = match happenings.recv_timeout(LOOK) {
                Ok(happening) => self.event(happening),
                Err(RecvTimeoutError::Timeout) => Some(Event::Tick),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            self.hears(Event::Load { busy: self.is_busy() });
            if !self.is_off && self.compared.is_off() {
                self.is_off = true;
                self.hears(Event::Off);
            }
            if let Some((rank, why)) = self.refused() {
                self.hears(Event::Other(rank, why));
            }
            if let Some(event) = event {
                self.hears(event);
            }
            self.publish(&mut told);
        }
    }

    fn is_busy(&self) -> bool {
        let facts = self.handle.facts();
        facts.running + facts.waiting > 0
    }

    /// The rank that the ring of the newest plan refuses for other values, once a plan.
    fn refused(&mut self) -> Option<(u32, String)> {
        let plan = self.core.plan()?.number;
        if self.refused_in == plan || self.way.plan() != plan {
            return None;
        }
        let RingState::Waiting(why) = self.handle.state() else { return None };
        let rank = other_values(&why)?;
        self.refused_in = plan;
        Some((rank, why))
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
            Happening::Supplied(node, found) => Some(Event::Supplied(node, found)),
            Happening::Reached(to, found) => Some(Event::Reached(to, found)),
            Happening::MeasuredAgain(found) => {
                match found {
                    Ok(own) if !self.is_busy() => self.planner.measured(own),
                    Ok(_) => {}
                    Err(why) => tracing::warn!("this machine is not measured again: {why}"),
                }
                Some(Event::MeasuredAgain)
            }
            Happening::Found(node) => {
                self.admit(node);
                None
            }
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
            Action::Say(node, message) => self.say(node, &message),
            Action::Supply(node) => {
                let (givers, key) = (self.givers.clone(), self.keys[node].clone());
                let local = self.planner.local(node)?;
                let supply = move || {
                    let found = givers.open(node, local, key);
                    Happening::Supplied(node, found.map_err(|error| crate::line(&error)))
                };
                if let Err(error) = self.aside("baton-supply", supply) {
                    return Some(Event::Supplied(node, Err(error.to_string())));
                }
            }
            Action::Reach { from, to, door, again } => {
                let found = self.reach(from, to, door, again);
                return found.err().map(|error| Event::Reached(to, Err(crate::line(&error))));
            }
            Action::MeasureAgain => {
                let (model, threads, name) = self.again.clone();
                let measure = move || {
                    let own = probe::probed(&model, threads, true, name);
                    Happening::MeasuredAgain(own.map_err(|error| crate::line(&error)))
                };
                if let Err(error) = self.aside("baton-measure", measure) {
                    tracing::warn!("this machine is not measured again: {error}");
                    return Some(Event::MeasuredAgain);
                }
            }
            Action::Plan { number, nodes } => {
                self.asked = number;
                let planned = self.planner.plan(number, &nodes, &self.core);
                let stays = |plan: &Plan| self.core.plan().is_some_and(|p| p.line == plan.line);
                if planned.as_ref().is_ok_and(stays) {
                    self.expects(number);
                }
                return Some(Event::Planned(planned.map_err(|error| crate::line(&error))));
            }
            Action::Move(plan) => self.moves(&plan),
            Action::Waiting(why) => {
                tracing::warn!("no plan: {why}");
                let _ = self.orders.send(Order::Wait(why));
                self.leave(self.asked + 1);
            }
            Action::Note(text) => tracing::info!("{text}"),
            Action::End(why) => {
                let _ = self.orders.send(Order::End(Some(why)));
                self.leave(u64::MAX);
                self.over = true;
            }
        }
        None
    }

    /// Has the way from a machine to a node's rank be measured.
    fn reach(&mut self, from: End, to: usize, door: Door, again: bool) -> Result<()> {
        let addresses = self.planner.addresses(to, &self.core)?;
        let reach = Reach { node: self.listed[to].name.clone(), addresses, door, again };
        match from {
            Some(from) => self.say(from, &ToNode::Reach(Box::new(reach))),
            None => {
                let name = self.planner.head().to_owned();
                let measure = move || Happening::Reached(to, reached(&name, &reach));
                self.aside("baton-way", measure)?;
            }
        }
        Ok(())
    }

    fn say(&mut self, node: usize, message: &ToNode) {
        let Some(sender) = &mut self.senders[node] else { return };
        if let Err(error) = sender.send(message) {
            tracing::debug!("{error}");
            sender.close();
        }
    }

    /// Does what takes long on a thread of its own.
    fn aside(
        &self,
        name: &str,
        work: impl FnOnce() -> Happening + Send + 'static,
    ) -> std::io::Result<()> {
        let happened = self.happened.clone();
        let run = move || drop(happened.send(work()));
        std::thread::Builder::new().name(name.into()).spawn(run).map(drop)
    }

    fn moves(&mut self, plan: &Plan) {
        self.expects(plan.number);
        let Some(seated) = self.planner.seated(plan.number) else { return };
        tracing::info!("plan {}: {}", plan.number, plan.line);
        for line in seated.table.lines().filter(|line| !line.is_empty()) {
            tracing::info!("{line}");
        }
        let _ = self.orders.send(Order::Lead(seated));
        self.leave(plan.number);
    }

    fn expects(&mut self, plan: u64) {
        if let Some(expected) = self.planner.expected(plan) {
            self.compared.expect(expected);
            self.is_off = false;
        }
    }

    /// Has rank 0 look at its orders, wherever it waits in a ring of a plan before `first`.
    fn leave(&self, first: u64) {
        self.handle.leave();
        self.way.cut(first);
    }

    fn publish(&self, told: &mut String) {
        let plan = self.core.plan().map(|plan| plan.line.clone());
        let links = ways::told(&self.core, self.planner.head());
        let now = json!({ "plan": plan, "nodes": self.core.lines(), "links": links });
        let text = now.to_string();
        if text != *told {
            *told = text;
            *self.status.now.lock().unwrap_or_else(PoisonError::into_inner) = now;
        }
    }
}

/// The rank whose layers a boot refused for what is in them.
fn other_values(why: &str) -> Option<u32> {
    let (_, of) = why.split_once("OtherTensor: rank ")?;
    of.split_once(':')?.0.parse().ok().filter(|rank| *rank > 0)
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
