//! `baton doctor` on healthy rings, which it must not disturb, and on each thing that can be wrong.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;

use weights::synthetic::Llama;

use crate::model::{LAYERS, TINY, scratch, tiny};
use crate::process::{Baton, s};
use crate::ring::{ByHand, Server, free_addresses, new_key};
use crate::turn::Turn;

/// What the doctor of a rank says, and its exit status.
fn doctor(ring: &ByHand, rank: usize) -> (i32, String) {
    let mut args = vec!["doctor".to_owned(), ring.model.to_str().unwrap().into()];
    args.extend(["--rank".into(), rank.to_string()]);
    args.extend(ring.place(rank));
    let mut process = Baton::start(args);
    let status = process.exit(s(60)).code().unwrap();
    let said = process.out.to_end(s(5));
    assert!(!process.log.to_end(s(5)).contains("panicked"), "{said}");
    (status, said)
}

/// Everything is well.
fn finds_nothing(ring: &ByHand, rank: usize) {
    let (status, said) = doctor(ring, rank);
    assert_eq!(status, 0, "{said}");
    for check in ["key", "model", "layout", "listen", "next", "preamble", "secret"] {
        assert!(said.contains(&format!("ok    {check}")), "no {check} in\n{said}");
    }
    for check in ["neighbour", "fingerprint", "rtt", "clock"] {
        assert!(said.contains(&format!("ok    {check}")), "no {check} in\n{said}");
    }
}

/// One line fails, and holds all of `parts`; those before it are well.
#[track_caller]
fn finds(ring: &ByHand, rank: usize, parts: &[&str]) {
    let (status, said) = doctor(ring, rank);
    assert_eq!(status, 1, "{said}");
    let failed: Vec<&str> = said.lines().filter(|line| line.starts_with("FAIL")).collect();
    let [line] = failed[..] else { panic!("not one failure:\n{said}") };
    for part in parts {
        assert!(line.contains(part), "no {part:?} in {line}");
    }
    assert!(line.contains(" -> "), "no advice: {line}");
}

fn three(name: &str) -> (ByHand, Vec<Baton>, Server) {
    let ring = ByHand::new(name, &TINY, &format!("0:3,3:6,6:{LAYERS}"));
    let stages = vec![ring.stage(1), ring.stage(2)];
    let server = ring.serve();
    server.wait_ready(s(30));
    (ring, stages, server)
}

#[test]
fn a_serving_ring_is_found_well_and_serves_on() {
    let _turn = Turn::alone();
    let (ring, stages, server) = three("doctor-well");
    let right = server.sample();
    let mut reply = server.endless();
    reply.read(5);
    let seen = [server.process.log.len(), stages[0].log.len(), stages[1].log.len()];
    for rank in 0..3 {
        finds_nothing(&ring, rank);
    }
    // Nor do those that would be refused.
    let other = ByHand { key: Some(new_key("doctor-well-other")), ..ring.clone() };
    finds(&other, 0, &["secret", "BadSecret", "sha256sum"]);
    reply.read(20);
    drop(reply);
    assert_eq!(server.get("/ready").0, 200);
    for (process, seen) in [&server.process, &stages[0], &stages[1]].iter().zip(seen) {
        assert_eq!(process.log.count_after(seen, "broke"), 0, "{}", process.log.text());
        let epochs = process.log.count_after(seen, "connected, epoch");
        assert_eq!(epochs, 0, "{}", process.log.text());
    }
    assert_eq!(server.sample(), right);
}

#[test]
fn what_differs_between_two_ranks_is_named() {
    let _turn = Turn::shared();
    let ring = ByHand::new("doctor-differs", &TINY, &format!("0:3,3:6,6:{LAYERS}"));
    let stage = ring.stage(1);
    stage.log.wait("waiting for the ring", s(20));
    let but = |change: &dyn Fn(&mut ByHand)| {
        let mut other = ring.clone();
        change(&mut other);
        other
    };
    finds(
        &but(&|r| r.layout = "0:2,2:6,6:8".into()),
        0,
        &["fingerprint", "OtherFingerprint", "layout", "0:2,2:6", "--layout"],
    );
    finds(&but(&|r| r.extra = vec!["--kv".into(), "f32".into()]), 0, &["f32", "--kv"]);
    finds(
        &but(&|r| r.extra = vec!["--arith".into(), "2".into()]),
        0,
        &["OtherFingerprint", "arith", "--arith"],
    );
    let wider = Llama { intermediate: 192, ..Llama::default() };
    let wider = tiny("doctor-wider", &wider);
    finds(&but(&|r| r.model = wider.clone()), 0, &["OtherFingerprint", "192", "model file"]);
    let two = but(&|r| {
        r.layout = "0:4,4:8".into();
        r.addresses.truncate(2);
        r.doors.truncate(2);
    });
    finds(&two, 0, &["OtherWorld", "--layout"]);
    // Rank 2 that was told rank 1's address as its next, which is rank 0.
    let wrong = but(&|r| r.doors[0] = r.addresses[1]);
    finds(&wrong, 2, &["NotNeighbour", "--next"]);
    // A key that is not the ring's, and one that is none.
    let open = new_key("doctor-open");
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o644)).unwrap();
    let said = doctor(&but(&|r| r.key = Some(open.clone())), 0).1;
    assert!(said.contains("FAIL  key: SecretFileMode") && said.contains("chmod 600"), "{said}");
    let short = scratch("doctor-short.key");
    std::fs::write(&short, "fifteen bytes !").unwrap();
    std::fs::set_permissions(&short, PermissionsExt::from_mode(0o600)).unwrap();
    let said = doctor(&but(&|r| r.key = Some(short.clone())), 0).1;
    assert!(said.contains("FAIL  key: SecretTooShort"), "{said}");
    let said = doctor(&but(&|r| r.model = "/nowhere/model.gguf".into()), 0).1;
    assert!(said.contains("FAIL  model: /nowhere/model.gguf"), "{said}");
}

#[test]
fn addresses_that_are_wrong_are_named() {
    let _turn = Turn::shared();
    let ring = ByHand::new("doctor-addresses", &TINY, &format!("0:4,4:{LAYERS}"));
    let stage = ring.stage(1);
    stage.log.wait("waiting for the ring", s(20));
    let listening = |at: &str| {
        let mut other = ring.clone();
        other.addresses[0] = at.parse().unwrap();
        other
    };
    finds(&listening("203.0.113.9:7400"), 0, &["not an address of this machine", "127.0.0.1"]);
    finds(&listening("0.0.0.0:7400"), 0, &["WildcardListen", "127.0.0.1"]);
    finds(&listening("[::]:7400"), 0, &["WildcardListen"]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listening(&taken.local_addr().unwrap().to_string());
    // A listener that is silent is another program.
    finds(&taken, 0, &["in use by another program", "another port"]);
    let mut keyless = ring.clone();
    keyless.key = None;
    keyless.addresses[0] = "203.0.113.9:7400".parse().unwrap();
    finds_among(&keyless, 0, &["KeylessAddress", "baton key new"]);
}

/// As [`finds`], among other failures.
#[track_caller]
fn finds_among(ring: &ByHand, rank: usize, parts: &[&str]) {
    let (status, said) = doctor(ring, rank);
    assert_eq!(status, 1, "{said}");
    let holds = |line: &str| parts.iter().all(|part| line.contains(part));
    let found = said.lines().any(|line| line.starts_with("FAIL") && holds(line));
    assert!(found, "no {parts:?} in\n{said}");
}

#[test]
fn a_next_rank_that_is_not_there_is_named() {
    let _turn = Turn::shared();
    let ring = ByHand::new("doctor-next", &TINY, &format!("0:4,4:{LAYERS}"));
    finds(&ring, 0, &["refused", "start rank 1"]);
    let reaching = |next: SocketAddr| {
        let mut other = ring.clone();
        other.doors[1] = next;
        other
    };
    finds(&reaching(ring.addresses[0]), 0, &["own address", "rank 1"]);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    finds(&reaching(silent.local_addr().unwrap()), 0, &["preamble", "rank 1 has that port"]);
    let web = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = web.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in web.incoming() {
            let _ = stream.unwrap().write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    finds(&reaching(address), 0, &["preamble", "BadMagic", "rank 1 has that port"]);
    let newer = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = newer.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in newer.incoming() {
            let _ = stream.unwrap().write_all(b"BATN\x09\0\x01\0");
        }
    });
    finds(&reaching(address), 0, &["preamble", "OtherVersion", "same baton"]);
    let mut args: Vec<String> = ["doctor", ring.model.to_str().unwrap()].map(String::from).into();
    args.extend(ring.place(0));
    let next = args.iter().position(|arg| arg == "--next").unwrap() + 1;
    args[next] = "no-such-machine.invalid:7401".into();
    let mut process = Baton::start(args);
    assert_eq!(process.exit(s(30)).code(), Some(1));
    let said = process.out.to_end(s(5));
    assert!(said.contains("FAIL  next no-such-machine.invalid:7401: its name does"), "{said}");
    let mut bare = Baton::start(["doctor", ring.model.to_str().unwrap(), "--layout", "0:4,4:8"]);
    assert_eq!(bare.exit(s(30)).code(), Some(1));
    assert!(bare.log.to_end(s(5)).contains("--listen and --next"));
}

#[test]
fn the_doctor_of_a_member_asks_at_the_doors_of_those_before_it() {
    let _turn = Turn::shared();
    let key = new_key("doctor-group");
    let layout = format!("0:{LAYERS}@rows3");
    let group = free_addresses(3).iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let of = |member: &str, group: &str, extra: &[&str]| {
        let mut args = vec!["doctor", TINY.to_str().unwrap(), "--member", member];
        args.extend(["--layout", &layout, "--group", group, "--key", key.to_str().unwrap()]);
        args.extend(extra);
        let mut process = Baton::start(args);
        let status = process.exit(s(60)).code().unwrap();
        (status, process.out.to_end(s(5)))
    };
    let finds = |(status, said): (i32, String), parts: &[&str]| {
        let failed: Vec<&str> = said.lines().filter(|line| line.starts_with("FAIL")).collect();
        let [line] = failed[..] else { panic!("not one failure, {status}:\n{said}") };
        assert!(parts.iter().all(|part| line.contains(part)), "{parts:?} in {line}");
    };
    // Nobody is there yet.
    finds(of("1", &group, &[]), &["member 0 at", "refused", "start member 0 there"]);
    let place = ["--layout", &layout, "--group", &group, "--key", key.to_str().unwrap()];
    let leader = Server::start(&TINY, &place);
    let (status, said) = of("1", &group, &[]);
    assert_eq!(status, 0, "{said}");
    for part in ["ok    group: member 1 of 3", "lets this member in", "1 connect here"] {
        assert!(said.contains(part), "no {part} in\n{said}");
    }
    finds(of("1", &group, &["--streams", "3"]), &["shapes.", "--streams"]);
    finds(of("1", &group, &["--kv", "f32"]), &["kv: expected f32, found f16", "--kv"]);
    finds(of("0", &group[..group.rfind(',').unwrap()], &[]), &["group", "2 addresses"]);
    assert_eq!(leader.process.log.count_after(0, "broke"), 0);
}
