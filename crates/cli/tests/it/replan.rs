//! A plan that turns out wrong, since a way is slow only once the ring serves. Nothing changes
//! while requests run; once they are done the machine behind it loses its layers.

use std::time::Duration;

use serde_json::Value;

use crate::http;
use crate::nodes::{Field, alone, limit, long, plan, planned};
use crate::process::{Baton, s, wait_for};
use crate::ring::Server;
use crate::turn::Turn;
use crate::ways::Far;

const SERVES: Duration = s(90);
/// Five windows of two seconds with as slow a ring must have gone by, and some time more.
const OFF: Duration = s(60);
const NAMES: [&str; 2] = ["b", "c"];

/// A ring of the head and one of two nodes, since one machine has no room for the model.
struct Life {
    ways: [Far; 2],
    _agents: [Baton; 2],
    server: Server,
    /// The node with layers.
    at: usize,
}

impl Life {
    fn start(name: &str) -> Self {
        let field = Field::new(name, &NAMES, Some(limit(0.75)));
        let ways = [Far::before(&field, 0), Far::before(&field, 1)];
        let agents = [field.agent(0), field.agent(1)];
        let server = field.serve(&["--window-s", "2"]);
        server.wait_ready(SERVES);
        let at = NAMES.iter().position(|name| holds(&plan(&server), name)).unwrap();
        Self { ways, _agents: agents, server, at }
    }

    fn ask(&self, body: &Value) -> Vec<u64> {
        let (status, reply) = self.server.complete(body);
        assert_eq!(status, 200, "{reply}");
        http::ids(&reply["choices"][0])
    }

    /// While a request runs the plan stays, however slow; then the other node takes the layers.
    fn is_planned_anew(&self, expected: &[u64]) {
        let before = plan(&self.server);
        let log = &self.server.process.log;
        let mut busy = self.server.endless();
        busy.read(5);
        let is_off = || (self.server.health()["plan"]["advice"] != "keep").then_some(());
        assert!(wait_for(OFF, is_off).is_some(), "{}", self.server.health()["plan"]);
        // Far longer than a ring must be idle for.
        std::thread::sleep(s(8));
        busy.read(5);
        assert_eq!(plan(&self.server), before, "requests run");
        assert!(!log.text().contains("measuring again"), "{}", log.text());
        drop(busy);
        log.wait("it is not as fast as planned: measuring again", s(30));
        let (slow, other) = (NAMES[self.at], NAMES[1 - self.at]);
        let now = planned(&self.server, |plan| holds(plan, other));
        assert!(!holds(&now, slow), "{now}");
        self.server.wait_ready(SERVES);
        assert_eq!(self.ask(&long(60)), expected);
    }
}

fn holds(plan: &str, name: &str) -> bool {
    plan.split(", ").any(|part| part.starts_with(&format!("{name} ")))
}

#[test]
fn a_way_that_becomes_slow_costs_its_node_the_layers_once_requests_are_done() {
    let _turn = Turn::shared();
    let expected = alone(&long(60));
    let life = Life::start("slow-later");
    assert_eq!(life.ask(&long(60)), expected);
    life.ways[life.at].is_slow();
    life.is_planned_anew(&expected);
}
