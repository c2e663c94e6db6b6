//! Ways between nodes, measured before they are planned with: slow ones, several addresses, and
//! ones on which nothing comes through.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;

use crate::nodes::{Field, limit, plan};
use crate::process::{baton, s};
use crate::proxy::{Door, Proxy};
use crate::ring::{Server, free_addresses};
use crate::turn::Turn;

const SERVES: Duration = s(90);

/// A node as others reach it: at another address of the same ports, where what goes to its rank
/// passes through a relay.
pub struct Far {
    _agent: Proxy,
    rank: Proxy,
}

impl Far {
    pub fn before(field: &Field, at: usize) -> Self {
        let to = field.address(at);
        let relay = SocketAddr::new([127, 0, 0, 2].into(), to.port());
        let next = |address: SocketAddr| SocketAddr::new(address.ip(), address.port() + 1);
        let (agent, rank) = (Proxy::at(relay, to), Proxy::at(next(relay), next(to)));
        field.list_at(at, relay);
        Self { _agent: agent, rank }
    }

    /// 20 ms there and back, and 1.6 Mbit/s.
    pub fn is_slow(&self) {
        self.rank.both(|weather| {
            weather.delay = Duration::from_millis(10);
            weather.bytes_per_s = Some(200_000);
        });
    }
}

/// What /health tells of the way from one machine to another.
fn way(server: &Server, from: &str, to: &str) -> Value {
    let health = server.health();
    let links = health["nodes"]["links"].as_array().cloned().unwrap_or_default();
    let found = links.into_iter().find(|way| way["from"] == from && way["to"] == to);
    found.unwrap_or_else(|| panic!("no way from {from} to {to}: {health}"))
}

fn mbit(path: &Value) -> f64 {
    path["bytes_per_s"].as_f64().unwrap() * 8e-6
}

fn round_trip_ms(path: &Value) -> f64 {
    path["round_trip_s"].as_f64().unwrap() * 1e3
}

#[test]
fn a_node_behind_a_slow_way_is_left_out_unless_a_user_says_that_it_is_fast() {
    let _turn = Turn::shared();
    // One machine has no room for the model alone; two have.
    let field = Field::new("slow-way", &["b", "c"], Some(limit(0.75)));
    let far = Far::before(&field, 0);
    far.is_slow();
    let _agents = (field.agent(0), field.agent(1));
    let server = field.serve(&[]);
    server.wait_ready(SERVES);
    let chosen = plan(&server);
    assert!(chosen.contains("head ") && chosen.contains("c "), "{chosen}");
    assert!(!chosen.contains("b "), "{chosen}");
    for from in ["head", "c"] {
        let slow = &way(&server, from, "b")["paths"][0];
        assert!(mbit(slow) < 2.0 && round_trip_ms(slow) >= 20.0, "{from}: {slow}");
        let measured_at = slow["measured_at"].as_u64().unwrap();
        assert!(measured_at > 1_700_000_000, "dated: {measured_at}");
    }
    for (from, to) in [("head", "c"), ("b", "c")] {
        let fast = &way(&server, from, to)["paths"][0];
        assert!(mbit(fast) > 100.0 && round_trip_ms(fast) < 10.0, "{from}: {fast}");
    }
    let log = server.process.log.text();
    assert!(log.contains("| head | c | ") && log.contains(" Mbit/s | now |"), "{log}");
    let expected = server.sample();
    drop(server);

    // What was measured is kept, and a user's word outranks it.
    far.rank.clear();
    let b = r#""head:b=0.01ms,100gbit", "b:c=0.01ms,100gbit""#;
    field.say(&format!("links = [{b}, \"head:c=50ms,1mbit\"]"));
    let server = field.serve(&[]);
    server.wait_ready(SERVES);
    assert!(plan(&server).contains("b "), "{}", plan(&server));
    assert!(mbit(&way(&server, "head", "b")["paths"][0]) < 2.0, "kept");
    assert_eq!(server.sample(), expected);
    drop(server);

    let server = field.serve(&["--again"]);
    server.wait_ready(SERVES);
    let again = way(&server, "head", "b");
    assert!(mbit(&again["paths"][0]) > 2.0, "measured again: {again}");
}

#[test]
fn a_rank_is_reached_at_the_best_of_its_addresses() {
    let _turn = Turn::shared();
    let field = Field::new("addresses", &["b"], None);
    let far = Far::before(&field, 0);
    far.is_slow();
    let other = free_addresses(1)[0].to_string();
    let _b = field.agent_with(baton(), 0, &["--listen", &other]);
    let server = field.serve(&["--layers", "head:0-3,b:4-7"]);
    server.wait_ready(SERVES);
    assert_eq!(plan(&server), "head 0..4, b 4..8");
    let way = way(&server, "head", "b");
    assert!(mbit(&way["paths"][0]) < 2.0 && mbit(&way["paths"][1]) > 100.0, "{way}");
    assert_eq!(far.rank.connections(), 0, "the ring goes the fast way");
}

#[test]
fn a_node_that_nothing_reaches_is_named_and_gets_no_layers() {
    let _turn = Turn::shared();
    let field = Field::new("dead-way", &["b", "c"], Some(limit(0.75)));
    let far = Far::before(&field, 0);
    far.rank.door(Door::Silent);
    let _agents = (field.agent(0), field.agent(1));
    let server = field.serve(&["--layers", "head:0-3,b:4-7"]);
    server.wait_ready(SERVES);
    let chosen = plan(&server);
    assert!(chosen.contains("c ") && !chosen.contains("b "), "{chosen}");
    for (from, named) in [("head", "this machine"), ("c", "c")] {
        server.process.log.wait(&format!("nothing goes from {named} to b: "), s(1));
        assert!(way(&server, from, "b")["why"].is_string());
    }
    server.process.log.wait("--layers: ", s(1));
    server.sample();
}
