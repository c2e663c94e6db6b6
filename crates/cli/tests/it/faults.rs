//! Ranks that die or fall silent while they are at work.

use std::time::{Duration, Instant};

use weights::synthetic::Llama;

use crate::http::Streamed;
use crate::model::{LAYERS, TINY, scratch, tiny};
use crate::process::{Baton, members, s, send_signal, wait_for};
use crate::ring::{ByHand, Server, failed_by_name, greedy};
use crate::turn::Turn;

/// A dead peer is known within this time.
const DEAD: Duration = s(1);
/// A silent one within this.
const SILENT: Duration = s(7);

/// Says a measured time past the harness's capture.
fn report(what: &str, time: Duration) {
    println!("{what}: {:.0} ms", time.as_secs_f64() * 1e3);
}

#[test]
fn a_killed_rank_ends_replies_by_name_and_the_ring_comes_back() {
    let _turn = Turn::alone();
    let server = Server::ready(&TINY, &["--world", "3", "--threads", "1"]);
    let right = server.sample();
    let head = server.process.id();
    for rank in [1, 2] {
        let (mut first, mut second) = (server.endless(), server.endless());
        first.read(5);
        second.read(5);
        let victim = server.rank(rank);
        let seen = server.process.log.len();
        let killed = Instant::now();
        send_signal(victim, libc::SIGKILL);
        let failed = [first.finish(), second.finish()];
        let time = killed.elapsed();
        let (status, ready) = server.get("/ready");
        report(&format!("rank {rank} killed, error event after"), time);
        assert!(time < DEAD, "{time:?}");
        assert_eq!(status, 503, "{ready}");
        let name = format!("rank {rank}");
        assert!(ready["detail"].as_str().unwrap().contains(&name), "{ready}");
        for reply in &failed {
            let error = failed_by_name(reply);
            assert!(error.contains(&name), "{error}");
        }
        server.process.log.wait_after(seen, "rank 0: the ring broke", s(1));
        server.wait_ready(s(10));
        report("ready again after", killed.elapsed());
        assert_ne!(server.rank(rank), victim);
        assert_eq!(server.sample(), right);
    }
    assert_eq!(members(head).len(), 3, "{:?}", members(head));
}

#[test]
fn replies_go_on_with_the_same_bytes_when_a_killed_rank_is_back() {
    let _turn = Turn::alone();
    let server = Server::ready(&TINY, &["--world", "3", "--threads", "1", "--continue-s", "30"]);
    let mut bodies = ["the quick brown fox", "once upon a time"].map(|text| greedy(text, 600));
    for (seed, body) in bodies.iter_mut().enumerate() {
        body["ignore_eos"] = true.into();
        body["temperature"] = 2.into();
        body["seed"] = seed.into();
    }
    let right = server.sample();
    let expected: Vec<Streamed> = bodies.iter().map(|body| server.stream(body).finish()).collect();
    for rank in [1, 2] {
        let mut replies = bodies.each_ref().map(|body| server.stream(body));
        replies.iter_mut().for_each(|reply| reply.read(20));
        let killed = Instant::now();
        let seen = server.process.log.len();
        send_signal(server.rank(rank), libc::SIGKILL);
        server.process.log.wait_after(seen, "rank 0: the ring broke", s(2));
        // A new request waits, too.
        assert_eq!(server.sample(), right);
        for (reply, expected) in replies.into_iter().zip(&expected) {
            let reply = reply.finish();
            assert_eq!(reply.error, None);
            assert!(reply.ids == expected.ids && reply.text == expected.text, "rank {rank}");
        }
        report(&format!("rank {rank} killed, replies whole after"), killed.elapsed());
    }
}

#[test]
fn ranks_that_a_server_started_end_with_it() {
    let _turn = Turn::alone();
    let mut server = Server::ready(&TINY, &["--world", "3", "--threads", "1"]);
    let mut reply = server.endless();
    reply.read(5);
    assert_eq!(members(server.process.id()).len(), 3);
    server.process.signal(libc::SIGKILL);
    let killed = Instant::now();
    server.process.exit(s(5));
    server.process.leaves_nothing(DEAD);
    report("rank 0 killed, nothing left after", killed.elapsed());
    let reply: Streamed = reply.finish();
    assert!(!reply.done && reply.finish.is_none(), "{reply:?}");
}

/// A ring by hand of three ranks that serves.
fn by_hand(name: &str) -> (ByHand, Vec<Baton>, Server) {
    let ring = ByHand::new(name, &TINY, &format!("0:3,3:6,6:{LAYERS}"));
    let stages = vec![ring.stage(1), ring.stage(2)];
    let server = ring.serve();
    server.wait_ready(s(20));
    (ring, stages, server)
}

#[test]
fn ranks_started_by_hand_wait_for_a_killed_rank_0() {
    let _turn = Turn::alone();
    let (ring, mut stages, server) = by_hand("rank-0-killed");
    let right = server.sample();
    let mut reply = server.endless();
    reply.read(5);
    let seen: Vec<usize> = stages.iter().map(|stage| stage.log.len()).collect();
    let killed = Instant::now();
    server.process.signal(libc::SIGKILL);
    for (stage, seen) in stages.iter_mut().zip(seen) {
        let (waiting, _) = stage.log.wait_after(seen, "waiting for the ring", s(5));
        report("rank 0 killed, waiting after", waiting - killed);
        assert!(waiting - killed < DEAD);
        assert!(stage.is_alive());
    }
    drop(server);
    let server = ring.serve();
    server.wait_ready(s(20));
    assert_eq!(server.sample(), right);
    assert!(stages.iter_mut().all(Baton::is_alive));
}

#[test]
fn a_killed_rank_is_missed_until_somebody_starts_it_again() {
    let _turn = Turn::alone();
    let (ring, mut stages, server) = by_hand("rank-killed");
    let right = server.sample();
    for rank in [1, 2] {
        let mut reply = server.endless();
        reply.read(5);
        let other = 2 - rank;
        let seen = stages[other].log.len();
        let killed = Instant::now();
        stages[rank - 1].signal(libc::SIGKILL);
        let failed = reply.finish();
        assert!(killed.elapsed() < DEAD, "{:?}", killed.elapsed());
        assert!(failed_by_name(&failed).contains(&format!("rank {rank}")), "{failed:?}");
        let (waiting, _) = stages[other].log.wait_after(seen, "waiting for the ring", s(5));
        assert!(waiting - killed < DEAD);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(server.get("/ready").0, 503);
        assert_eq!(server.get("/health").0, 200);
        stages[rank - 1] = ring.stage(rank);
        server.wait_ready(s(20));
        assert_eq!(server.sample(), right);
    }
}

#[test]
fn a_silent_rank_ends_replies_and_may_come_back() {
    let _turn = Turn::alone();
    let server = Server::ready(&TINY, &["--world", "3", "--threads", "1"]);
    let right = server.sample();
    let mut reply = server.endless();
    reply.read(5);
    let victim = server.rank(2);
    let stopped = Instant::now();
    send_signal(victim, libc::SIGSTOP);
    let failed = reply.finish();
    let time = stopped.elapsed();
    report("rank 2 silent, error event after", time);
    send_signal(victim, libc::SIGCONT);
    assert!(time < SILENT, "{time:?}");
    let error = failed_by_name(&failed);
    assert!(error.contains("rank 2"), "{error}");
    server.wait_ready(s(20));
    assert_eq!(server.sample(), right);
}

#[test]
fn a_rank_that_dies_again_and_again_does_not_take_the_server_down() {
    let _turn = Turn::alone();
    let server = Server::ready(&TINY, &["--world", "3", "--threads", "1"]);
    let right = server.sample();
    for round in 0..4 {
        let seen = server.process.log.len();
        send_signal(server.rank(1 + round % 2), libc::SIGKILL);
        // A look at /ready may miss the time for which it is 503.
        server.process.log.wait_after(seen, "rank 0: the ring broke", s(5));
        server.wait_ready(s(20));
        assert_eq!(server.sample(), right);
    }
}

/// A ring whose bytes are not those of an earlier start serves nobody.
#[test]
fn a_canary_of_other_bytes_keeps_the_server_shut() {
    let _turn = Turn::shared();
    let model = tiny("canary", &Llama { seed: 77, ..Llama::default() });
    let cache = scratch("canary-cache");
    let _ = std::fs::remove_dir_all(&cache);
    let start = || Server::start_with(&model, &["--world", "3"], &cache);
    let mut server = start();
    server.wait_ready(s(20));
    server.process.signal(libc::SIGTERM);
    server.process.ends_well(s(10));
    let kept = std::fs::read_dir(cache.join("canary")).unwrap().next().unwrap().unwrap().path();
    let mut hash = std::fs::read(&kept).unwrap();
    hash[0] ^= 1;
    std::fs::write(&kept, hash).unwrap();
    let server = start();
    server.process.log.wait("OtherCanary", s(20));
    let said = wait_for(s(10), || {
        let (status, ready) = server.get("/ready");
        assert_eq!(status, 503, "{ready}");
        let detail = ready["detail"].as_str().unwrap();
        (detail.contains("OtherCanary") && detail.contains(kept.to_str().unwrap())).then_some(())
    });
    assert!(said.is_some(), "{}", server.health());
    assert_eq!(server.complete(&greedy("hello", 4)).0, 503);
}
