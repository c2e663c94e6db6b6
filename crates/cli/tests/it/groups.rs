//! Ranks that are groups of processes: one machine's replies, whoever dies or falls silent.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::model::{LAYERS, TINY, scratch};
use crate::process::{Baton, members, s, send_signal};
use crate::ring::{Server, failed_by_name, free_addresses, greedy, new_key};
use crate::turn::Turn;

/// A dead member is known within this time.
const DEAD: Duration = s(1);
/// A silent one within this.
const SILENT: Duration = s(7);

fn layouts() -> [String; 4] {
    [
        format!("0:{LAYERS}@shards2"),
        format!("0:{LAYERS}@rows2"),
        format!("0:{LAYERS}@rows3"),
        format!("0:3@shards2,3:{LAYERS}@rows2"),
    ]
}

fn of_layout(layout: &str) -> Server {
    Server::ready(&TINY, &["--layout", layout, "--threads", "1"])
}

/// Four drawn replies at once.
fn four(server: &Server) -> Vec<Vec<u64>> {
    let body = |seed: u64| {
        let mut body: Value = greedy("tell me of the sea", 30);
        body["ignore_eos"] = true.into();
        body["temperature"] = 2.into();
        body["seed"] = seed.into();
        body
    };
    let streams: Vec<_> = (1..=4).map(|seed| server.stream(&body(seed))).collect();
    streams.into_iter().map(|stream| stream.finish().ids).collect()
}

/// The process of a member that a server started.
fn member(server: &Server, rank: u32, member: u32) -> i32 {
    let line = server.process.log.last(&format!("rank {rank}, member {member}: process ")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn replies_of_a_group_are_one_machines_replies() {
    let _turn = Turn::alone();
    let one = of_layout(&format!("0:{LAYERS}"));
    let (right, four_right) = (one.sample(), four(&one));
    assert!(four_right.iter().all(|ids| ids.len() == 30));
    drop(one);
    for layout in layouts() {
        let mut server = of_layout(&layout);
        assert_eq!(server.sample(), right, "{layout}");
        assert_eq!(four(&server), four_right, "{layout}");
        assert_eq!(server.health()["layout"], layout.as_str());
        server.process.signal(libc::SIGTERM);
        server.process.ends_well(s(10));
    }
}

#[test]
fn a_dead_or_silent_member_ends_replies_by_name_and_the_group_comes_back() {
    let _turn = Turn::alone();
    let server = of_layout(&format!("0:{LAYERS}@rows3"));
    let right = server.sample();
    for (signal, limit) in [(libc::SIGKILL, DEAD), (libc::SIGSTOP, SILENT)] {
        let mut reply = server.endless();
        reply.read(5);
        let (victim, seen) = (member(&server, 0, 2), server.process.log.len());
        let struck = Instant::now();
        send_signal(victim, signal);
        let failed = reply.finish();
        let time = struck.elapsed();
        println!(
            "member 2 by signal {signal}: error event after {:.0} ms",
            time.as_secs_f64() * 1e3
        );
        assert!(time < limit, "{time:?}");
        let error = failed_by_name(&failed);
        assert!(error.contains("ShardLost: member 2: "), "{error}");
        // The other member leaves its exchange as soon.
        let (left, line) = server.process.log.wait_after(seen, "member 1: the group broke", limit);
        assert!(left - struck < limit && line.contains("member 2"), "{line}");
        send_signal(victim, libc::SIGCONT);
        server.wait_ready(s(30));
        println!("ready again after {:.0} ms", struck.elapsed().as_secs_f64() * 1e3);
        assert_eq!(server.sample(), right);
    }
    assert_eq!(members(server.process.id()).len(), 3);
}

#[test]
fn a_member_that_dies_while_nobody_asks_is_missed_at_once_and_comes_back() {
    let _turn = Turn::alone();
    let server = of_layout("0:3@shards2,3:8@rows2");
    let right = server.sample();
    for rank in [0, 1] {
        let (victim, seen) = (member(&server, rank, 1), server.process.log.len());
        let struck = Instant::now();
        send_signal(victim, libc::SIGKILL);
        let (told, line) = server.process.log.wait_after(seen, "rank 0: the ring broke", DEAD);
        println!("rank {rank}, idle: known after {:.0} ms", (told - struck).as_secs_f64() * 1e3);
        assert!(line.contains("ShardLost: member 1: "), "{line}");
        server.wait_ready(s(30));
        assert_eq!(server.sample(), right);
    }
}

/// A group of two by hand: its leader, and the other member.
fn by_hand(name: &str, member_args: &[&str]) -> (Server, Baton) {
    let (key, layout) = (new_key(name), format!("0:{LAYERS}@shards2"));
    let group = free_addresses(2).iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let key = key.to_str().unwrap();
    let place = ["--layout", &layout, "--group", &group, "--key", key, "--threads", "1"];
    let stage = ["stage", TINY.to_str().unwrap(), "--rank", "0", "--member", "1"];
    let member = Baton::start([&stage[..], &place, member_args].concat());
    (Server::start(&TINY, &place), member)
}

#[test]
fn an_oracle_of_one_machine_is_accepted_from_a_group_by_hand_and_recorded_from_none() {
    let _turn = Turn::alone();
    let file = scratch("one-machine.oracle");
    let _ = std::fs::remove_file(&file);
    let run = |command: &str, server: &Server, well: bool| {
        let (file, url) = (file.to_str().unwrap(), format!("http://{}", server.addr));
        let args = match command {
            "record" => vec!["record", file, "--url", &url],
            _ => vec!["accept", file, &url],
        };
        let mut process = Baton::start(args);
        let status = process.exit(s(60));
        let said = process.out.to_end(s(5)) + &process.log.to_end(s(5));
        assert_eq!(status.success(), well, "{said}");
        said
    };
    let (group, _member) = by_hand("oracle-group", &[]);
    group.wait_ready(s(30));
    let refused = run("record", &group, false);
    assert!(refused.contains("recorded from one machine that holds all layers"), "{refused}");
    let one = of_layout(&format!("0:{LAYERS}"));
    let recorded = run("record", &one, true);
    assert!(recorded.contains("two-turn: "), "{recorded}");
    drop(one);
    let accepted = run("accept", &group, true);
    let verdict = format!("accepted 0:{LAYERS}@shards2: 8 cases, twice each");
    assert!(accepted.contains(&verdict), "{accepted}");
    // A reply that is another's, and another arithmetic.
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen("\"tokens\": 24", "\"tokens\": 23", 1)).unwrap();
    let other = run("accept", &group, false);
    assert!(other.contains("turn 1: expected 23 tokens"), "{other}");
    std::fs::write(&file, text.replace("\"arith\": \"1\"", "\"arith\": \"2\"")).unwrap();
    let other = run("accept", &group, false);
    assert!(other.contains("the oracle is of arith 2, the server has 1"), "{other}");
}

#[test]
fn a_prompt_in_pairs_is_one_machines_and_says_what_it_costs() {
    let _turn = Turn::alone();
    let text = "tell me of the sea and the ships on it, then of the land. ".repeat(30);
    let mut body = greedy(&text, 8);
    body["ignore_eos"] = true.into();
    let layout = format!("0:{LAYERS}@shards2");
    let one = of_layout(&format!("0:{LAYERS}"));
    let right = one.stream(&body).finish().ids;
    assert_eq!(one.health()["prompt_pair"], Value::Null);
    drop(one);
    for (pair, costs) in [("auto", true), ("off", false)] {
        let server = Server::ready(
            &TINY,
            &["--layout", &layout, "--threads", "1", "--prompt-pair", pair, "--drafter", "none"],
        );
        assert_eq!(server.stream(&body).finish().ids, right, "{pair}");
        let (health, said) = (server.health(), server.process.log.last("long prompts go in pairs"));
        assert_eq!(
            (health["prompt_pair"] != Value::Null, said.is_some()),
            (costs, costs),
            "{pair}"
        );
        if costs {
            let cost = &health["prompt_pair"];
            assert_eq!(cost["rows_min"], 32);
            assert!(cost["twin_bytes"].as_u64() > Some(1 << 20), "{cost}");
            let lost = cost["kv_pages_lost"].as_u64().unwrap();
            assert!(lost > 0 && said.unwrap().ends_with(&format!(", {lost} KV pages less")));
        }
    }
}

#[test]
fn members_that_are_told_otherwise_are_refused_by_field() {
    let _turn = Turn::shared();
    let (server, member) = by_hand("group-refused", &["--kv", "f32"]);
    member.log.wait("OtherFingerprint: kv: expected f32, found f16", s(20));
    server.process.log.wait("OtherFingerprint: kv: expected f16, found f32", s(20));
    drop((server, member));
    let (server, member) = by_hand("group-pairs", &["--prompt-pair", "off"]);
    member.log.wait("OtherFingerprint: prompt_pair: expected off, found auto", s(20));
    server.process.log.wait("OtherFingerprint: prompt_pair: expected auto, found off", s(20));
    assert_eq!(member.log.last("loading layers"), None, "nothing is loaded before");
    drop((server, member));
    let layout = format!("0:{LAYERS}@rows9");
    for (args, expected) in [
        (vec!["--layout", &layout], "layout.group: expected shardsN or rowsN, N from 2 to 8"),
        (
            vec!["--layout", "0:8", "--group", "127.0.0.1:1,127.0.0.1:2"],
            "rank 0 of the layout 0:8 is one machine",
        ),
        (
            vec!["--layout", "0:8@rows3", "--group", "127.0.0.1:1,127.0.0.1:2"],
            "has 3 members: expected their addresses, the same on each, found 2",
        ),
    ] {
        let mut serve =
            Baton::start([vec!["serve", TINY.to_str().unwrap(), "--port", "0"], args].concat());
        assert!(!serve.exit(s(20)).success());
        let said = serve.log.to_end(s(5));
        assert!(said.contains(expected), "{said}");
    }
}
