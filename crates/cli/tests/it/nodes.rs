//! Servers whose ranks run where agents are: nodes that die, come back and join.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::model::{CACHE, TINY, scratch};
use crate::process::{Baton, baton, members, s, wait_for};
use crate::ring::{Server, free_addresses};

/// How long a plan may take to serve.
const SERVES: Duration = s(60);

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
        fs::write(folder.join("ring.key"), [7; 32]).unwrap();
        let private = fs::Permissions::from_mode(0o600);
        fs::set_permissions(folder.join("ring.key"), private).unwrap();
        // A port each, and the next one for its rank.
        let addresses = loop {
            let free = free_addresses(nodes.len());
            let next = |a: &SocketAddr| SocketAddr::new(a.ip(), a.port().wrapping_add(1));
            if free.iter().all(|a| std::net::TcpListener::bind(next(a)).is_ok()) {
                break free;
            }
        };
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

    /// Starts the agent of a node.
    pub fn agent(&self, at: usize) -> Baton {
        let (name, address) = self.nodes[at];
        let mut command = baton();
        command.arg("node").args(["--name", name, "--listen", &address.to_string()]);
        command.args(["--threads", "1", "--key"]).arg(self.folder.join("ring.key"));
        command.arg("--journal").arg(self.folder.join(name)).env("BATON_CACHE", &*CACHE);
        let agent = Baton::spawn(command);
        agent.log.wait("listening on", SERVES);
        agent
    }

    pub fn serve(&self, more: &[&str]) -> Server {
        self.serve_model(&TINY, more)
    }

    fn serve_model(&self, model: &Path, more: &[&str]) -> Server {
        let file = self.file();
        let mut args =
            vec!["--nodes", &file, "--threads", "1", "--context", "4096", "--continue-s", "60"];
        args.extend(more);
        Server::start(model, &args)
    }
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
        .args(["plan", TINY.to_str().unwrap(), "--threads", "1", "--context", "4096", "--json"])
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
    let body = long(1_500);
    let expected = alone(&body);
    let field = Field::new("death", &["b", "c"], None);
    let (b, c) = (field.agent(0), field.agent(1));
    let server = field.serve(&["--layers", "head:0-2,b:3-5,c:6-7", "--replan-wait", "1"]);
    server.wait_ready(SERVES);
    assert_eq!(plan(&server), "head 0..3, b 3..6, c 6..8");
    let mut reply = server.stream(&body);
    reply.read(40);
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
    assert!(log().contains("another head has taken over"), "{}", log());
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
