//! `baton probe` and `baton plan`: what is measured here becomes a placement that runs.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use crate::model::scratch;
use crate::process::{Baton, baton, s};
use crate::turn::Turn;

fn run(args: &[&str]) -> Output {
    let cache = scratch("plan-cache");
    baton().args(args).env("BATON_CACHE", cache).output().unwrap()
}

fn good(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn bad(args: &[&str]) -> String {
    let output = run(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The measured node as another machine of the given name, with as much memory.
fn other(from: &Path, name: &str, memory_bytes: u64) -> PathBuf {
    let mut probed: Value = serde_json::from_slice(&std::fs::read(from).unwrap()).unwrap();
    probed["node"]["name"] = name.into();
    probed["node"]["memory_bytes"] = memory_bytes.into();
    let path = scratch(&format!("{name}.json"));
    std::fs::write(&path, probed.to_string()).unwrap();
    path
}

#[test]
fn what_is_measured_here_becomes_a_layout_that_runs() {
    let _turn = Turn::shared();
    let own = scratch("own.json");
    let own_name = own.to_str().unwrap();
    let base = ["--threads", "1", "--context", "256", "--streams", "2"];
    let probe = ["probe", "baton-tiny", "--name", "here", "--out", own_name];
    let text = good(&[&probe[..], &base].concat());
    for part in ["here: ", "| attention layer | 0 | 1 |", "| recurrent layer |", "| head | 0 | 8 |"]
    {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let kept = std::fs::read(&own).unwrap();
    good(&[&probe[..], &base].concat());
    let when = |bytes: &[u8]| {
        let probed: Value = serde_json::from_slice(bytes).unwrap();
        probed["measured_at"].as_u64().unwrap()
    };
    let again = when(&std::fs::read(&own).unwrap());
    assert_eq!(again, when(&kept), "a kept measurement is used again");

    // Too small for all of it, large enough for a part.
    let alone = [&["plan", "baton-tiny", "--node", own_name, "--json"], &base[..]].concat();
    let alone: Value = serde_json::from_str(&good(&alone)).unwrap();
    let memory = alone["prediction"]["memory"][0].as_object().unwrap().values();
    let all: u64 = memory.map(|bytes| bytes.as_u64().unwrap()).sum();
    let [a, b] = ["a", "b"].map(|name| other(&own, name, all * 97 / 100));
    let nodes = ["--node", a.to_str().unwrap(), "--node", b.to_str().unwrap()];
    let plan = [&["plan", "baton-tiny"], &nodes[..], &base].concat();
    let told = good(&[&plan[..], &["--json"]].concat());
    let told: Value = serde_json::from_str(&told).unwrap();
    let layout = told["layout"].as_str().unwrap();
    assert_eq!(layout.split(',').count(), 2, "{layout}");
    assert!(told["prediction"]["decode_per_s"].as_f64().unwrap() > 1.0, "{told}");
    let check = ["check", "baton-tiny", "--layouts", "1", "--layouts", layout];
    let few = ["--threads", "1", "--chunks", "64", "--streams", "1", "--prompt", "80"];
    good(&[&check[..], &few].concat());

    let text = good(&[&plan[..], &["--layers", "b:0-2,a:3-7"]].concat());
    assert!(text.contains("| 0 | b | 0:3 |") && text.contains("b > a (0:3,3:8)"), "{text}");
    let text = good(&["plan", "baton-tiny", "--node", own_name, "--context", "256"]);
    assert!(text.contains("| 0 | here | 0:8 |") && text.contains("bound by rank 0"), "{text}");
    assert!(!text.contains("projection"), "{text}");
    assert_eq!(alone["groups"], Value::Array(Vec::new()), "one machine exchanges nothing");
    says_how_each_projection_is_divided(own_name);
    says_which_node_computes_its_own(&own);
}

fn says_which_node_computes_its_own(probed: &Path) {
    let mut told: Value = serde_json::from_slice(&std::fs::read(probed).unwrap()).unwrap();
    let device = "a card, gpu:0 over Vulkan, arith: own, by rule `fma`";
    told["node"]["device"] = device.into();
    let path = scratch("its-own.json");
    std::fs::write(&path, told.to_string()).unwrap();
    let plan = ["plan", "baton-tiny", "--context", "256", "--node", path.to_str().unwrap()];
    let refused = bad(&plan);
    assert!(refused.contains("does not compute arith 1") && refused.contains(device), "{refused}");
    let text = good(&[&plan[..], &["--allow-own-arith", "--dry-run"]].concat());
    assert!(text.contains(&format!("here: {device}")), "{text}");
    let order = text.lines().last().unwrap();
    assert!(order.contains("baton serve") && order.ends_with(" --allow-own-arith"), "{text}");
}

fn says_how_each_projection_is_divided(own_name: &str) {
    let groups = ["--layout", "0:4@shards2,4:8@rows3"];
    let text = good(&[&["plan", "baton-tiny", "--node", own_name], &groups[..]].concat());
    for line in [
        "| 0 | shards2 | attn_output | row gathered, outputs split | 1 | 2 |",
        "| 0 | shards2 | ssm_out | tree nodes added | 3 | 3 | 3072 B | 3072 B |",
        "| 0 | shards2 | output | outputs split, merged on the leader | 1 | 1 | 0 B |",
        "| 1 | rows3 | ffn_down | row gathered, outputs split | 4 | 8 |",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    let json = good(&[&["plan", "baton-tiny", "--node", own_name, "--json"], &groups[..]].concat());
    let json: Value = serde_json::from_str(&json).unwrap();
    let ways = json["groups"].as_array().unwrap();
    let chosen = |way: &Value| format!("{} {} {}", way["rank"], way["projection"], way["chosen"]);
    let found: Vec<String> = ways.iter().map(chosen).collect();
    for way in [
        r#"0 "attn_output" "outputs""#,
        r#"0 "ssm_out" "nodes""#,
        r#"0 "ffn_down" "nodes""#,
        r#"0 "output" "outputs""#,
        r#"1 "ssm_out" "outputs""#,
        r#"1 "ffn_down" "outputs""#,
    ] {
        assert!(found.iter().any(|found| found == way), "{way} in {found:?}");
    }
    let sums = ways.iter().find(|way| way["projection"] == "ssm_out").unwrap();
    assert_eq!((&sums["exchanges"], &sums["sent_bytes"]), (&3.into(), &3072.into()), "{sums}");
}

#[test]
fn a_link_is_measured_from_one_end_and_planned_with() {
    let _turn = Turn::shared();
    let base = ["--threads", "1", "--context", "256", "--streams", "2"];
    let [a, b] = ["link-a.json", "link-b.json"].map(scratch);
    let [a_name, b_name] = [&a, &b].map(|path| path.to_str().unwrap());
    let near = ["probe", "baton-tiny", "--name", "near", "--listen", "127.0.0.1:0", "--answer"];
    let mut command = baton();
    command.args(near).args(base).args(["--out", b_name]);
    command.env("BATON_CACHE", scratch("plan-cache"));
    let mut door = Baton::spawn(command);
    let (_, line) = door.out.wait("measure the way to here with --peer ", s(60));
    let address = line.split_whitespace().nth(7).unwrap().trim_end_matches(';');
    let peer = format!("near={address}");
    let far = ["probe", "baton-tiny", "--name", "far", "--peer", &peer, "--out", a_name];
    let text = good(&[&far[..], &base].concat());
    assert!(text.contains(&format!("| near | {address} | ")), "{text}");
    door.signal(libc::SIGINT);
    door.ends_well(s(10));
    let probed: Value = serde_json::from_slice(&std::fs::read(&a).unwrap()).unwrap();
    let path = &probed["paths"][0];
    let rates = ["bytes_per_s", "back_bytes_per_s", "round_trip_s", "measured_at"];
    assert!(rates.iter().all(|rate| path[rate].as_f64().unwrap() > 0.0), "{path}");
    // Kept, and so known without the other end.
    let again = good(&[&far[..], &base].concat());
    assert!(again.contains(&format!("| near | {address} | ")), "{again}");

    let nodes = ["--node", a_name, "--node", b_name, "--layers", "far:0-3,near:4-7"];
    let plan = [&["plan", "baton-tiny"], &nodes[..], &base].concat();
    let told: Value = serde_json::from_str(&good(&[&plan[..], &["--json"]].concat())).unwrap();
    assert_eq!(told["ranks"][0]["next"][0], address, "{told}");
    let commands = good(&[&plan[..], &["--dry-run"]].concat());
    let stage = "near: baton stage baton-tiny --rank 1 --layout 0:4,4:8 --device cpu --threads 1";
    assert!(commands.lines().any(|line| line.starts_with(stage)), "{commands}");
    let none = [&plan[..], &["--link", "far:near=none"]].concat();
    assert!(bad(&none).contains("far does not reach near"));
    // A server holds what it does against the plan.
    let file = scratch("link-plan.json");
    std::fs::write(&file, told.to_string()).unwrap();
    let file = file.to_str().unwrap();
    let serve = ["serve", "baton-tiny", "--port", "0", "--plan", file];
    let other = bad(&[&serve[..], &base, &["--layout", "0:8"]].concat());
    assert!(other.contains("--plan: of the layout 0:4,4:8, not of 0:8"), "{other}");
    let mut server = Baton::start([&serve[..], &base].concat());
    server.log.wait("layout 0:4,4:8", s(60));
    server.signal(libc::SIGINT);
    server.ends_well(s(30));
}

#[test]
fn what_can_not_be_planned_is_said_in_a_line() {
    let file = scratch("no-probe.json");
    std::fs::write(&file, "{}").unwrap();
    let node = ["plan", "baton-tiny", "--node", file.to_str().unwrap()];
    assert!(bad(&node).contains("expected what `baton probe --out` writes"));
    let error = bad(&[&node[..], &["--node", "/nowhere/a.json"]].concat());
    assert!(error.contains("no-probe.json"), "{error}");
}
