//! Servers, and rings whose ranks are started by hand.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::arm;
use crate::http::{self, Stream, Streamed};
use crate::model::{CACHE, scratch};
use crate::process::{self, Baton, s, wait_for};

/// How long a ring may take to become ready.
const READY: Duration = s(60);

/// `baton serve` and where it listens.
pub struct Server {
    pub process: Baton,
    pub addr: SocketAddr,
}

impl Server {
    /// Starts it; returns once its address is known.
    pub fn start(model: &Path, args: &[&str]) -> Self {
        Self::start_with(model, args, &CACHE)
    }

    /// As [`Server::start`], with a cache of its own.
    pub fn start_with(model: &Path, args: &[&str], cache: &Path) -> Self {
        Self::launch(process::baton(), model, args, cache)
    }

    /// Starts `command`, a `baton` of some kind.
    pub fn launch(mut command: Command, model: &Path, args: &[&str], cache: &Path) -> Self {
        command.arg("serve").arg(model).args(["--port", "0"]).args(args);
        if !args.contains(&"--continue-s") {
            command.args(["--continue-s", "0"]);
        }
        command.env("BATON_CACHE", cache);
        let process = Baton::spawn(command);
        let (_, line) = process.log.wait("on http://", READY);
        let addr = line.split("http://").nth(1).unwrap().split("/v1").next().unwrap();
        Self { addr: addr.parse().unwrap(), process }
    }

    /// Starts it at a quiet log, which does not say where it listens.
    pub fn quiet(model: &Path, args: &[&str]) -> Self {
        let addr = free_addresses(1)[0];
        let port = addr.port().to_string();
        let mut all = vec!["--log", "error", "serve", model.to_str().unwrap(), "--port", &port];
        all.extend(args);
        let process = Baton::start(all);
        let is_up = wait_for(READY, || http::try_call(addr, "GET", "/health", "").ok());
        assert!(is_up.is_some(), "{}", process.log.text());
        Self { process, addr }
    }

    /// Starts it and waits until it serves.
    pub fn ready(model: &Path, args: &[&str]) -> Self {
        let server = Self::start(model, args);
        server.wait_ready(READY);
        server
    }

    /// Waits for a 200 of /ready; every answer before must be a 503.
    pub fn wait_ready(&self, limit: Duration) {
        let ready = wait_for(limit, || match http::get(self.addr, "/ready") {
            (200, _) => Some(()),
            (503, _) => None,
            other => panic!("{other:?}"),
        });
        let log = || self.process.log.text();
        assert!(ready.is_some(), "not ready within {limit:?}\n{}", log());
    }

    pub fn get(&self, path: &str) -> (u16, Value) {
        http::get(self.addr, path)
    }

    /// /health now.
    pub fn health(&self) -> Value {
        self.get("/health").1
    }

    pub fn chat(&self, body: &Value) -> (u16, Value) {
        http::post(self.addr, "/v1/chat/completions", body)
    }

    pub fn complete(&self, body: &Value) -> (u16, Value) {
        http::post(self.addr, "/v1/completions", body)
    }

    pub fn stream_chat(&self, body: &Value) -> Stream {
        Stream::open(self.addr, "/v1/chat/completions", &streamed(body))
    }

    pub fn stream(&self, body: &Value) -> Stream {
        Stream::open(self.addr, "/v1/completions", &streamed(body))
    }

    /// A reply that takes far longer than any test.
    pub fn endless(&self) -> Stream {
        let mut body = greedy("once upon a time", 1_000_000);
        body["ignore_eos"] = true.into();
        self.stream(&body)
    }

    /// Asks for a long reply; to be left without a look at it.
    pub fn ask(&self) -> TcpStream {
        let body = streamed(&greedy("once", 5_000)).to_string();
        http::send(self.addr, "POST", "/v1/completions", &body).unwrap()
    }

    /// The same short reply's ids whenever it is asked for. It is drawn: the tiny model's greedy
    /// replies soon repeat themselves.
    pub fn sample(&self) -> Vec<u64> {
        let mut body = greedy("the quick brown fox", 24);
        body["ignore_eos"] = true.into();
        body["temperature"] = 2.into();
        body["seed"] = 3.into();
        let (status, reply) = self.complete(&body);
        assert_eq!(status, 200, "{reply}");
        let ids = http::ids(&reply["choices"][0]);
        assert_eq!(ids.len(), 24, "{reply}");
        ids
    }

    /// The process of a rank that it started.
    pub fn rank(&self, rank: u32) -> i32 {
        let line = self.process.log.last(&format!("rank {rank}: process ")).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
}

fn streamed(body: &Value) -> Value {
    let mut body = body.clone();
    body["stream"] = true.into();
    body
}

/// A greedy completion that returns its ids.
pub fn greedy(prompt: &str, max_tokens: u32) -> Value {
    json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "return_token_ids": true})
}

/// A stream that failed as the protocol wants it: an error event, then the body's proper end, with
/// neither finish_reason nor `[DONE]`.
pub fn failed_by_name(all: &Streamed) -> &str {
    assert!(all.ended && !all.done && all.finish.is_none(), "{all:?}");
    all.error.as_deref().unwrap_or_else(|| panic!("no error event: {all:?}"))
}

/// Ports that no system hands out by itself, to a listener at port 0 or to a client's end: whoever
/// binds one later finds it as it was drawn.
const PORTS: std::ops::Range<u16> = 16_384..32_000;
/// Drawn so far, two ports each.
static DRAWN: AtomicU32 = AtomicU32::new(0);

/// Free loopback addresses, each for its process alone, and the port after each for its rank.
pub fn free_addresses(count: usize) -> Vec<SocketAddr> {
    let pairs = u32::from(PORTS.end - PORTS.start) / 2;
    // Tests of another process begin elsewhere.
    let first = std::process::id().wrapping_mul(97);
    let draw = |_| {
        let at = first.wrapping_add(DRAWN.fetch_add(1, Ordering::Relaxed)) % pairs;
        let address = |port| SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let port = PORTS.start + 2 * at as u16;
        let both = [port, port + 1].map(|port| TcpListener::bind(address(port)).is_ok());
        (both == [true; 2]).then(|| address(port))
    };
    let free: Vec<_> = (0..pairs).filter_map(draw).take(count).collect();
    assert_eq!(free.len(), count, "no {count} free ports in {PORTS:?}");
    free
}

/// What the ranks of a ring by hand are told.
#[derive(Clone)]
pub struct ByHand {
    pub model: PathBuf,
    pub layout: String,
    pub key: Option<PathBuf>,
    pub addresses: Vec<SocketAddr>,
    /// Where each rank is reached, if not at its own address.
    pub doors: Vec<SocketAddr>,
    /// Further arguments of all ranks.
    pub extra: Vec<String>,
    /// Further arguments of rank 0.
    pub head: Vec<String>,
    /// Ranks that run on an emulated machine.
    pub emulated: Vec<usize>,
}

impl ByHand {
    /// A ring with a key of its own.
    pub fn new(name: &str, model: &Path, layout: &str) -> Self {
        let addresses = free_addresses(layout.split(',').count());
        Self {
            model: model.into(),
            layout: layout.into(),
            key: Some(new_key(name)),
            doors: addresses.clone(),
            addresses,
            extra: Vec::new(),
            head: Vec::new(),
            emulated: Vec::new(),
        }
    }

    /// The arguments of a rank that say where it stands.
    pub fn place(&self, rank: usize) -> Vec<String> {
        let next = self.doors[(rank + 1) % self.doors.len()];
        let mut args: Vec<String> =
            ["--layout", &self.layout, "--listen", &self.addresses[rank].to_string()]
                .map(String::from)
                .into();
        args.extend(["--next".into(), next.to_string(), "--threads".into(), "1".into()]);
        if let Some(key) = &self.key {
            args.extend(["--key".into(), key.to_str().unwrap().into()]);
        }
        args.extend(self.extra.iter().cloned());
        args
    }

    /// Starts a rank other than 0.
    pub fn stage(&self, rank: usize) -> Baton {
        let mut args = vec!["stage".to_owned(), self.model.to_str().unwrap().into()];
        args.extend(["--rank".into(), rank.to_string()]);
        args.extend(self.place(rank));
        let mut command = self.program(rank);
        command.args(args).env("BATON_CACHE", &*CACHE);
        Baton::spawn(command)
    }

    /// Starts rank 0.
    pub fn serve(&self) -> Server {
        let place = [self.place(0), self.head.clone()].concat();
        let args: Vec<&str> = place.iter().map(String::as_str).collect();
        Server::launch(self.program(0), &self.model, &args, &CACHE)
    }

    fn program(&self, rank: usize) -> Command {
        if self.emulated.contains(&rank) { arm::emulated() } else { process::baton() }
    }
}

/// A key file that `baton key new` made.
pub fn new_key(name: &str) -> PathBuf {
    let path = scratch(&format!("{name}.key"));
    let _ = std::fs::remove_file(&path);
    Baton::start(["key", "new", path.to_str().unwrap()]).ends_well(s(10));
    path
}
