//! A ring of three by hand in which every hop goes through a proxy, and what it shows when
//! something befalls it.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::{self, Stream};
use crate::model::{LAYERS, TINY};
use crate::process::{Baton, s, wait_for};
use crate::proxy::Proxy;
use crate::ring::{ByHand, Server};

/// Ranks.
pub const WORLD: usize = 3;
/// Tokens of the long prompt, which takes a second or more.
const PROMPT_TOKENS: usize = 16_000;
/// Tokens of a prompt that is waited for.
const PROMPT_TOKENS_SHORT: usize = 3_000;
/// Streams beside the first.
const COMPANY: usize = 2;
/// Longest that a ring may take to its first reply on a busy machine.
const UP: Duration = s(30);

/// What the ring is at when something befalls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing.
    Idle,
    /// A long prompt.
    Prompt,
    /// A long reply.
    Decode,
}

/// The ring.
pub struct Rig {
    ring: ByHand,
    /// Proxy `r` stands before rank `r`.
    pub doors: Vec<Proxy>,
    stages: Vec<Option<Baton>>,
    server: Option<Server>,
    right: Vec<u64>,
}

/// A client that watches its reply.
pub struct Client {
    end: Receiver<Seen>,
    /// Hears once the reply has begun.
    begun: Receiver<()>,
}

/// What a client saw, and when.
#[derive(Clone, Debug)]
pub struct Seen {
    pub at: Instant,
    pub what: String,
    pub ids: Vec<u64>,
}

impl Rig {
    /// Starts it; it serves.
    pub fn start(name: &str) -> Self {
        Self::start_with(name, &[])
    }

    /// As [`Rig::start`], with further arguments of all ranks.
    pub fn start_with(name: &str, extra: &[&str]) -> Self {
        Self::start_as(name, extra, &[])
    }

    /// As [`Rig::start_with`], with further arguments of rank 0.
    pub fn start_as(name: &str, extra: &[&str], head: &[&str]) -> Self {
        let mut ring = ByHand::new(name, &TINY, &format!("0:3,3:6,6:{LAYERS}"));
        let doors: Vec<Proxy> = ring.addresses.iter().map(|&at| Proxy::to(at)).collect();
        ring.doors = doors.iter().map(|proxy| proxy.address).collect();
        let common = ["--context", "32768", "--chunk", "32", "--prompt-cache-gib", "0"];
        ring.extra = [&common, extra].concat().into_iter().map(String::from).collect();
        ring.head = head.iter().copied().map(String::from).collect();
        let mut rig = Self {
            ring,
            doors,
            stages: (0..WORLD).map(|_| None).collect(),
            server: None,
            right: Vec::new(),
        };
        (0..WORLD).rev().for_each(|rank| rig.start_rank(rank));
        rig.server().wait_ready(UP);
        rig.right = rig.server().sample();
        rig
    }

    /// Starts a rank, in place of one that is gone.
    pub fn start_rank(&mut self, rank: usize) {
        if rank == 0 {
            self.server = None;
            self.server = Some(self.ring.serve());
        } else {
            self.stages[rank] = None;
            self.stages[rank] = Some(self.ring.stage(rank));
        }
    }

    pub fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    /// A rank's process.
    pub fn rank(&self, rank: usize) -> &Baton {
        match rank {
            0 => &self.server().process,
            rank => self.stages[rank].as_ref().unwrap(),
        }
    }

    /// Where a rank listens itself.
    pub fn address(&self, rank: usize) -> SocketAddr {
        self.ring.addresses[rank]
    }

    /// Ranks whose processes run.
    pub fn alive(&mut self) -> usize {
        let stages = self.stages.iter_mut().flatten();
        let stages = stages.filter_map(|stage| stage.is_alive().then_some(())).count();
        stages + usize::from(self.server.as_mut().is_some_and(|s| s.process.is_alive()))
    }

    /// Lines that each rank has logged.
    pub fn logged(&self) -> Vec<usize> {
        (0..WORLD).map(|rank| self.rank(rank).log.len()).collect()
    }

    /// Whether no rank has loaded its layers since.
    pub fn kept_weights(&self, since: &[usize], but: Option<usize>) -> bool {
        let reloads = |rank: usize| self.rank(rank).log.count_after(since[rank], "loading layers");
        (0..WORLD).filter(|&rank| Some(rank) != but).all(|rank| reloads(rank) == 0)
    }

    /// How long until it serves again, with the right bytes.
    pub fn serves_again(&self, since: Instant, limit: Duration) -> Duration {
        let ready = wait_for(limit, || (self.ready().0 == 200).then_some(()));
        let took = since.elapsed();
        assert!(ready.is_some(), "not ready {took:?} after\n{}", self.logs());
        assert_eq!(self.server().sample(), self.right, "other bytes\n{}", self.logs());
        took
    }

    /// /ready now: status, and the detail where there is one. Status 0: nobody answers.
    pub fn ready(&self) -> (u16, String) {
        match http::try_call(self.server().addr, "GET", "/ready", "") {
            Ok((status, body)) => (status, body["detail"].as_str().unwrap_or_default().into()),
            Err(error) => (0, error.to_string()),
        }
    }

    /// All logs.
    pub fn logs(&self) -> String {
        let log = |rank| format!("-- rank {rank}\n{}", self.rank(rank).log.text());
        (0..WORLD).map(log).collect::<Vec<_>>().join("\n")
    }

    /// A client in the phase asked for; none when idle.
    pub fn client(&self, phase: Phase) -> Option<Client> {
        let body = match phase {
            Phase::Idle => return None,
            Phase::Prompt => prompt(PROMPT_TOKENS),
            Phase::Decode => json!({"prompt": "once upon a time", "max_tokens": 20_000}),
        };
        let client = Client::ask(self.server().addr, &body);
        match phase {
            Phase::Decode => client.begun.recv_timeout(s(20)).unwrap(),
            _ => std::thread::sleep(Duration::from_millis(300)),
        }
        Some(client)
    }

    /// More clients beside the first of a phase, so that several rounds are in flight.
    pub fn company(&self, phase: Phase) -> Vec<Client> {
        let ask = |seed: usize| {
            let body = json!({"prompt": "once upon a time", "max_tokens": 20_000, "seed": seed});
            Client::ask(self.server().addr, &body)
        };
        let company: Vec<Client> =
            if phase == Phase::Idle { Vec::new() } else { (1..=COMPANY).map(ask).collect() };
        for client in &company {
            client.begun.recv_timeout(s(20)).unwrap();
        }
        company
    }

    /// A client whose reply ends by itself, so that its ids can be compared.
    pub fn short_client(&self, phase: Phase) -> Client {
        let body = match phase {
            Phase::Prompt => prompt(PROMPT_TOKENS_SHORT),
            _ => json!({"prompt": "once upon a time", "max_tokens": 1_000}),
        };
        Client::ask(self.server().addr, &body)
    }
}

/// Ids of the byte-level vocabulary, all of them bytes.
pub fn prompt(tokens: usize) -> Value {
    let ids: Vec<usize> = (0..tokens).map(|at| at * 31 % 251).collect();
    json!({"prompt": ids, "max_tokens": 8})
}

impl Client {
    /// Asks; streamed, with ids, to the last token that was asked for.
    pub fn ask(addr: SocketAddr, body: &Value) -> Self {
        let (ended, end) = channel();
        let (begins, begun) = channel();
        let mut body = body.clone();
        for (name, value) in [("stream", true), ("ignore_eos", true), ("return_token_ids", true)] {
            body[name] = value.into();
        }
        // A seed wants noise.
        body["temperature"] = if body["seed"].is_null() { 0 } else { 2 }.into();
        std::thread::spawn(move || {
            let seen = watch(addr, &body, &begins);
            let _ = ended.send(seen);
        });
        Self { end, begun }
    }

    /// What it saw, once its reply is over.
    pub fn seen(&self, limit: Duration) -> Option<Seen> {
        self.end.recv_timeout(limit).ok()
    }
}

/// Reads a reply to its end, whatever that is.
fn watch(addr: SocketAddr, body: &Value, begins: &std::sync::mpsc::Sender<()>) -> Seen {
    let text = body.to_string();
    let opened = Stream::try_open(addr, "/v1/completions", &text);
    let seen = |what: String, ids| Seen { at: Instant::now(), what, ids };
    let mut stream = match opened {
        Ok(Ok(stream)) => stream,
        Ok(Err((status, error))) => return seen(format!("{status}: {error}"), Vec::new()),
        Err(error) => return seen(format!("no reply: {error}"), Vec::new()),
    };
    let mut events = 0;
    while stream.step() {
        events += 1;
        if events == 5 {
            let _ = begins.send(());
        }
    }
    let all = stream.all();
    let what = match (&all.error, all.ended, all.done) {
        (Some(error), true, false) if all.finish.is_none() => format!("error event: {error}"),
        (None, true, true) => "whole".into(),
        _ => "cut off".into(),
    };
    seen(what, all.ids.clone())
}
