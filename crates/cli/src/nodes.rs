//! `baton serve --nodes`: the head. Its core says whom to reach, when to plan and what to run;
//! this drives it, over channels to the agents, the planner, and rank 0 on a thread of its own.

mod auto;
mod desk;
mod givers;
mod lead;
mod listing;
mod planner;
mod ways;

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::Compared;
use node::Ballot;
use node::file::Listed;
use node::message::{Door, Secret, ToHead, Units};
use placement::Facts;
use ring::head::{Driver, Handle};
use ring::key::generate_secret;
use serde_json::{Value, json};
use wire::hello::Encryption;

use crate::args::Serve;
use crate::client::Client;
use crate::model::Model;

use desk::{Desk, Ground};
use lead::{Lead, Order, Way};
pub use listing::Listing;

/// Looks at the ring in a window of what is measured.
const WINDOW_TICKS: f64 = 10.0;
/// Fewest seconds between two of them.
const TICK_MIN_S: f64 = 0.01;
/// Most things that have happened and were not looked at yet; more wait.
const EVENTS_MAX: usize = 256;

/// What reaches the head's own thread. A channel's number tells its words from those of one before.
enum Happening {
    Opened(usize, u64, node::channel::Sender, std::net::SocketAddr),
    Broke(usize, u64, String),
    Heard(usize, u64, ToHead),
    Supplied(usize, Result<Units, String>),
    /// What this machine measured of the way to a node.
    Reached(usize, Result<Value, String>),
    /// What this machine measured once more.
    MeasuredAgain(Result<Facts, String>),
    /// A node that was not there before.
    Found(Listed),
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
    compared: Compared,
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
    let now = Mutex::new(json!({ "plan": null, "nodes": [], "links": [] }));
    let status = Arc::new(Status { now, happened: happened.clone() });
    let tick = Duration::from_secs_f64((args.by_nodes.window_s / WINDOW_TICKS).max(TICK_MIN_S));
    let (way, compared) = (Way::default(), Compared { tick, ..Compared::without() });
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
    let encrypts = Encryption::from(args.shared.encryption) == Encryption::On;
    let ground = Ground {
        model: model.clone(),
        threads,
        wanted: listing::wanted(args, model)?,
        ballot: Ballot { epoch, head: node::draw()? },
        door: Door { secret: Secret::new(&*generate_secret()?), encrypts },
        again: args.by_nodes.again,
        layers: args.by_nodes.layers.clone(),
        wait: Duration::from_secs_f64(args.by_nodes.replan_wait),
        handle,
        orders: orders.clone(),
        happened: happened.clone(),
        way: way.clone(),
        status: status.clone(),
        compared: compared.clone(),
    };
    let conduct = move || {
        let orders = ground.orders.clone();
        match Desk::set(ground, listing) {
            Ok(mut desk) => desk.run(&happenings),
            Err(error) => drop(orders.send(Order::End(Some(crate::line(&error))))),
        }
    };
    let thread = std::thread::Builder::new().name("baton-nodes".into()).spawn(conduct)?;
    let thread = Some(thread);
    Ok((Nodes { happened, thread, way, orders, status, compared }, rank))
}

impl Nodes {
    /// For the endpoint.
    pub fn status(&self) -> Arc<Status> {
        self.status.clone()
    }

    /// What plans predict, for who adds what is measured.
    pub fn compared(&self) -> Compared {
        self.compared.clone()
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
