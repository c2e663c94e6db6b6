//! Servers whose ranks run where agents are: nodes that die, come back and join.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::model::{CACHE, TINY, scratch};
use crate::process::{Baton, baton, members, s, wait_for};
use crate::ring::{Server, failed_by_name, free_addresses, greedy};
use crate::scarce::lies;
use crate::turn::Turn;

/// How long a plan may take to serve.
const SERVES: Duration = s(60);
/// A context whose KV takes far more than a process without layers does.
const LONG: &str = "65536";

/// Agents on loopback, a file that lists them, and what they share.
pub struct Field {
    folder: PathBuf,
    nodes: Vec<(&'static str, SocketAddr)>,
    /// Most memory of each machine, the head's too, in GiB.
    limit: Option<f64>,
}

impl Field {
    pub fn new(name: &str, nodes: &[&'static str], limit: Option<f64>) -> Self {
        let folder = scratch(&format!("nodes-{name}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        write_key(&folder.join("ring.key"), 7);
        let addresses = free_addresses(nodes.len());
        let nodes = nodes.iter().copied().zip(addresses).collect();
        let field = Self { folder, nodes, limit };
        field.list(field.nodes.len());
        field
    }

    fn file(&self) -> String {
        self.folder.join("nodes.toml").to_str().unwrap().to_owned()
    }

    /// Writes the file, with the first `count` nodes.
    fn list(&self, count: usize) {
        let limit = self.limit.map_or(String::new(), |gib| format!("memory_limit = {gib}\n"));
        let mut text = format!("key = \"ring.key\"\n[head]\nname = \"head\"\n{limit}");
        for (name, address) in &self.nodes[..count] {
            text += &format!("[[node]]\nname = \"{name}\"\naddress = \"{address}\"\n{limit}");
        }
        fs::write(self.file(), text).unwrap();
    }

    /// Where the agent of a node listens.
    pub fn address(&self, at: usize) -> SocketAddr {
        self.nodes[at].1
    }

    /// Lists a node at another address than its own.
    pub fn list_at(&self, at: usize, address: SocketAddr) {
        let text = fs::read_to_string(self.file()).unwrap();
        let own = format!("address = \"{}\"", self.nodes[at].1);
        fs::write(self.file(), text.replace(&own, &format!("address = \"{address}\""))).unwrap();
    }

    /// Puts a line before all others of the list.
    pub fn say(&self, line: &str) {
        let text = fs::read_to_string(self.file()).unwrap();
        fs::write(self.file(), format!("{line}\n{text}")).unwrap();
    }

    /// Starts the agent of a node.
    pub fn agent(&self, at: usize) -> Baton {
        self.agent_of(baton(), at)
    }

    /// Starts the agent of a node, as `command`, a `baton` of some kind.
    fn agent_of(&self, command: Command, at: usize) -> Baton {
        self.agent_with(command, at, &[])
    }

    /// Starts the agent of a node with more arguments.
    pub fn agent_with(&self, mut command: Command, at: usize, more: &[&str]) -> Baton {
        let (name, address) = self.nodes[at];
        command.arg("node").args(["--name", name, "--listen", &address.to_string()]).args(more);
        command.args(["--threads", "1", "--key"]).arg(self.folder.join("ring.key"));
        command.arg("--journal").arg(self.folder.join(name));
        command.arg("--store").arg(self.folder.join(name).join("store"));
        if command.get_envs().all(|(name, _)| name != "BATON_CACHE") {
            command.env("BATON_CACHE", &*CACHE);
        }
        let agent = Baton::spawn(command);
        agent.log.wait("listening on", SERVES);
        agent
    }

    pub fn serve(&self, more: &[&str]) -> Server {
        self.serve_model(&TINY, more)
    }

    fn serve_model(&self, model: &Path, more: &[&str]) -> Server {
        self.serve_as(baton(), model, more)
    }

    /// Starts a head, as `command`, a `baton` of some kind.
    fn serve_as(&self, command: Command, model: &Path, more: &[&str]) -> Server {
        let file = self.file();
        let context = if self.limit.is_some() { LONG } else { "4096" };
        let mut args = vec!["--nodes", &file, "--threads", "1", "--context", context];
        if !more.contains(&"--continue-s") {
            args.extend(["--continue-s", "60"]);
        }
        args.extend(more);
        Server::launch(command, model, &args, &CACHE)
    }
}

/// A key that its owner alone can read.
fn write_key(path: &Path, byte: u8) {
    fs::write(path, [byte; 32]).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// The state of a node as /health tells it.
pub fn node(server: &Server, name: &str) -> Value {
    let health = server.health();
    let nodes = health["nodes"]["nodes"].as_array().cloned().unwrap_or_default();
    nodes.into_iter().find(|node| node["name"] == name).unwrap_or_default()
}

/// The plan that stands.
pub fn plan(server: &Server) -> String {
    server.health()["nodes"]["plan"].as_str().unwrap_or_default().to_owned()
}

/// Waits until `is` holds of the plan.
pub fn planned(server: &Server, is: impl Fn(&str) -> bool) -> String {
    let found = wait_for(SERVES, || Some(plan(server)).filter(|plan| is(plan)));
    found.unwrap_or_else(|| panic!("plan {:?}\n{}", plan(server), server.process.log.text()))
}

/// A reply of one process, to hold others against.
pub fn alone(body: &Value) -> Vec<u64> {
    let server = Server::ready(&TINY, &["--threads", "1", "--context", "4096"]);
    let reply = server.stream(body).finish();
    assert!(reply.done, "{reply:?}");
    reply.ids
}

pub fn long(tokens: u32) -> Value {
    json!({
        "prompt": "once upon a time", "max_tokens": tokens, "ignore_eos": true, "seed": 7,
        "temperature": 0.9, "return_token_ids": true,
    })
}

/// Most memory so that one machine has room for about so much of the model.
pub fn limit(part: f64) -> f64 {
    let output = baton()
        .args(["plan", TINY.to_str().unwrap(), "--threads", "1", "--context", LONG, "--json"])
        .env("BATON_CACHE", &*CACHE)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let plan: Value = serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let bytes = plan["ranks"][0]["memory_bytes"].as_u64().unwrap();
    bytes as f64 * part / f64::from(1 << 30)
}

#[test]
fn nodes_reply_as_one_machine_and_outlive_the_death_of_one() {
    let _turn = Turn::shared();
    let body = long(1_500);
    let expected = alone(&body);
    let field = Field::new("death", &["b", "c"], None);
    // Nothing of a node's life reads the wall clock, which jumps at b.
    let (mut lying, clock) = (baton(), field.folder.join("clock"));
    lies(&mut lying, &clock);
    let (b, c) = (field.agent_of(lying, 0), field.agent(1));
    let server = field.serve(&["--layers", "head:0-2,b:3-5,c:6-7", "--replan-wait", "1"]);
    server.wait_ready(SERVES);
    assert_eq!(plan(&server), "head 0..3, b 3..6, c 6..8");
    let mut reply = server.stream(&body);
    for jump in ["+3600", "-3600"] {
        reply.read(20);
        fs::write(&clock, jump).unwrap();
    }
    // The agent and its rank, as a machine that loses power.
    c.signal_group(libc::SIGKILL);
    let reply = reply.finish();
    assert_eq!((reply.error.as_deref(), reply.done), (None, true), "{}", server.process.log.text());
    assert_eq!(reply.ids, expected);
    assert!(!plan(&server).contains("c "), "{}", plan(&server));
    assert_ne!(node(&server, "c")["state"], "up");
    c.leaves_nothing(s(1));
    let mut server = server;
    server.process.signal(libc::SIGTERM);
    server.process.ends_well(s(20));
    // The ranks end with their head, the agents stay.
    let left = || members(b.id()).iter().all(|line| !line.contains("stage")).then_some(());
    assert!(wait_for(s(10), left).is_some(), "{:?}", members(b.id()));
    let mut b = b;
    b.signal(libc::SIGTERM);
    b.ends_well(s(10));
}

#[test]
fn a_second_head_takes_the_nodes_over_and_the_first_is_refused() {
    let _turn = Turn::shared();
    let field = Field::new("heads", &["b"], None);
    let mut b = field.agent(0);
    // Strangers who say nothing keep no head out.
    let knock = |_| std::net::TcpStream::connect(field.nodes[0].1).unwrap();
    let strangers: Vec<_> = (0..40).map(knock).collect();
    let layers = ["--layers", "head:0-3,b:4-7"];
    let mut first = field.serve(&layers);
    first.wait_ready(SERVES);
    let expected = first.sample();
    first.process.signal(libc::SIGSTOP);
    let mut second = field.serve(&layers);
    second.wait_ready(SERVES);
    assert_eq!(plan(&second), "head 0..4, b 4..8");
    assert_eq!(second.sample(), expected);
    first.process.signal(libc::SIGCONT);
    let status = first.process.exit(s(30));
    let log = || first.process.log.text();
    assert_eq!(status.code(), Some(1), "{}", log());
    first.process.log.wait("another head has taken over", s(5));
    let url = format!("http://{}", second.addr);
    let output = baton().args(["replan", "--url", &url]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "asked for; the plan before it: head 0..4, b 4..8\n");
    second.process.log.wait("the plan stays", SERVES);
    assert_eq!(second.sample(), expected);
    drop(strangers);
    second.process.signal(libc::SIGTERM);
    second.process.ends_well(s(20));
    b.signal(libc::SIGTERM);
    b.ends_well(s(10));
}

#[test]
fn ranks_of_nodes_pass_rows_by_the_way_that_the_head_was_asked_for() {
    let _turn = Turn::shared();
    let field = Field::new("exchange", &["b"], None);
    let _b = field.agent(0);
    let server = field.serve(&["--layers", "head:0-3,b:4-7", "--exchange", "nccl"]);
    server.wait_ready(SERVES);
    let why = "rows of the ring go over the link: --exchange nccl: ";
    let said = fs::read_to_string(field.folder.join("b").join("rank.log")).unwrap();
    for (rank, log) in [(0, server.process.log.text()), (1, said)] {
        assert!(log.contains(&format!("rank {rank}: {why}")), "{log}");
    }
}

/// What an agent said of the layers that its rank took: all bytes, those that were missing, those
/// that came.
fn took(agent: &Baton, layers: &str) -> [u64; 3] {
    let (_, line) = agent.log.wait(&format!("layers {layers} are here: "), SERVES);
    let numbers = line.split("here: ").nth(1).unwrap().split(|c: char| !c.is_ascii_digit());
    let numbers: Vec<u64> = numbers.filter_map(|number| number.parse().ok()).collect();
    [numbers[0], numbers[1], numbers[2]]
}

#[test]
fn a_node_without_the_model_takes_its_layers_from_others_once() {
    let _turn = Turn::shared();
    let body = long(60);
    let field = Field::new("lacking", &["b", "c"], None);
    // A path that means something in one folder alone.
    let (with, without) = (field.folder.join("with"), field.folder.join("without"));
    fs::create_dir_all(&with).unwrap();
    fs::create_dir_all(&without).unwrap();
    fs::copy(&*TINY, with.join("own.gguf")).unwrap();
    let at = |folder: &Path| {
        let mut command = baton();
        command.current_dir(folder).env("BATON_CACHE", folder.join("cache"));
        command
    };
    let start = |layers: &str| {
        let agents = (field.agent_of(at(&without), 0), field.agent_of(at(&with), 1));
        let server = field.serve_as(at(&with), Path::new("own.gguf"), &["--layers", layers]);
        server.wait_ready(SERVES);
        let (status, reply) = server.complete(&body);
        assert_eq!(status, 200, "{reply}");
        (crate::http::ids(&reply["choices"][0]), server, agents)
    };
    let (ids, server, (b, c)) = start("head:0-2,b:3-5,c:6-7");
    assert_eq!(ids, alone(&body));
    let [all, missing, came] = took(&b, "3..6");
    // What it was measured with came before. At the end both that give are asked for the same.
    assert!(0 < missing && missing < all, "{missing} of {all}");
    assert!((missing..=2 * missing).contains(&came), "{came} for {missing}");
    assert!(!c.log.text().contains("takes what it lacks"), "{}", c.log.text());
    drop((server, b, c));
    let (again, server, (b, c)) = start("head:0-2,b:3-5,c:6-7");
    assert_eq!(again, ids);
    assert_eq!(took(&b, "3..6"), [all, 0, 0]);
    drop((server, b, c));
    let (moved, _server, (b, _c)) = start("head:0-1,b:2-5,c:6-7");
    assert_eq!(moved, ids);
    let [_, missing, came] = took(&b, "2..6");
    assert!(0 < missing && missing < all / 2 && came <= 2 * missing, "{missing} of {all}");
}

#[test]
fn what_can_not_go_on_ends_by_name_and_the_service_comes_back_and_drains_in_time() {
    let _turn = Turn::shared();
    // No machine has room for the model alone.
    let field = Field::new("alone", &["b"], Some(limit(0.75)));
    let mut b = field.agent(0);
    let mut server = field.serve(&["--replan-wait", "1", "--continue-s", "2", "--drain", "1"]);
    server.wait_ready(SERVES);
    let (expected, layout) = (server.sample(), plan(&server));
    let mut cut = server.endless();
    cut.read(5);
    b.signal_group(libc::SIGKILL);
    failed_by_name(&cut.finish());
    let waits = wait_for(s(20), || Some(server.get("/ready")).filter(|(status, _)| *status == 503));
    assert!(waits.is_some(), "{}", server.process.log.text());
    let (status, error) = server.complete(&greedy("late", 4));
    assert_eq!(status, 503, "{error}");
    assert_eq!(plan(&server), "");
    b = field.agent(0);
    server.wait_ready(SERVES);
    assert_eq!((server.sample(), plan(&server)), (expected, layout));
    // One reply outlasts the drain, the other is whole before.
    let (mut endless, mut short) = (server.endless(), server.stream(&long(50)));
    endless.read(5);
    short.read(5);
    let asked = Instant::now();
    server.process.signal(libc::SIGTERM);
    server.process.log.wait("may finish within 1 s", s(5));
    let short = short.finish();
    assert!(short.done && short.ids.len() == 50, "{short:?}");
    assert!(failed_by_name(&endless.finish()).contains("shutting down"));
    assert!(asked.elapsed() >= s(1) && asked.elapsed() < s(6), "{:?}", asked.elapsed());
    server.process.ends_well(s(10));
    b.signal(libc::SIGTERM);
    b.ends_well(s(10));
}

#[test]
fn nodes_are_found_on_the_link_and_the_key_decides_who_is_one() {
    let _turn = Turn::shared();
    let field = Field::new("auto", &["b"], None);
    let announcing = |key: &str| {
        let mut command = baton();
        let address = free_addresses(1)[0].to_string();
        command.args(["node", "--announce", "--name", key, "--listen", &address]);
        command.args(["--threads", "1", "--key"]).arg(field.folder.join(key));
        command.arg("--store").arg(field.folder.join(key).with_extension("store"));
        command.arg("--journal").arg(field.folder.join(key).with_extension("journal"));
        command.env("BATON_CACHE", &*CACHE);
        let agent = Baton::spawn(command);
        agent.log.wait("listening on", SERVES);
        agent
    };
    write_key(&field.folder.join("other.key"), 9);
    let (_ours, _other) = (announcing("ring.key"), announcing("other.key"));
    let key = field.folder.join("ring.key");
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let layers = format!("{}:0-3,ring.key:4-7", host.trim());
    let args = [
        "--nodes",
        "auto=127.0.0.1",
        "--key",
        key.to_str().unwrap(),
        "--threads",
        "1",
        "--context",
        "4096",
        "--layers",
        &layers,
    ];
    let server = Server::start(&TINY, &args);
    server.process.log.wait("other.key at", SERVES);
    server.wait_ready(SERVES);
    let health = server.health();
    let names: Vec<&Value> =
        health["nodes"]["nodes"].as_array().unwrap().iter().map(|node| &node["name"]).collect();
    assert_eq!(names, ["ring.key"]);
}

#[test]
fn a_node_whose_file_has_other_values_takes_the_layers_instead() {
    let _turn = Turn::shared();
    let body = long(60);
    let field = Field::new("values", &["b"], None);
    // The same name and shapes, and the last layers of another seed.
    let (with, without) = (field.folder.join("with"), field.folder.join("without"));
    fs::create_dir_all(&with).unwrap();
    fs::create_dir_all(&without).unwrap();
    fs::copy(&*TINY, with.join("own.gguf")).unwrap();
    let spec = weights::synthetic::Llama { seed: 99, ..weights::synthetic::Llama::default() };
    fs::copy(crate::model::tiny("values", &spec), without.join("own.gguf")).unwrap();
    let at = |folder: &Path| {
        let mut command = baton();
        command.current_dir(folder).env("BATON_CACHE", folder.join("cache"));
        command
    };
    let b = field.agent_of(at(&without), 0);
    let layers = ["--layers", "head:0-3,b:4-7"];
    let server = field.serve_as(at(&with), Path::new("own.gguf"), &layers);
    server.wait_ready(SERVES);
    assert_eq!(plan(&server), "head 0..4, b 4..8");
    let (status, reply) = server.complete(&body);
    assert_eq!(status, 200, "{reply}");
    assert_eq!(crate::http::ids(&reply["choices"][0]), alone(&body));
    let (_, said) = server.process.log.wait("has another model's values", s(5));
    assert!(said.contains("OtherTensor: rank 1: describe.layer 4"), "{said}");
    let [all, missing, _] = took(&b, "4..8");
    assert!(0 < missing && missing <= all, "{missing} of {all}");
}
