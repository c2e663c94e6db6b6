//! Faults at random under load, for a while or for half an hour: the server stays up, and every
//! reply is whole and has the right bytes, whatever its ring went through.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http;
use crate::process::{s, wait_for};
use crate::proxy::Way;
use crate::rig::{Client, Rig, WORLD, prompt};
use crate::turn::Turn;

/// Clients that always have a reply running.
const CLIENTS: usize = 4;
/// Longest from the end of a fault until the ring serves.
const AGAIN: Duration = s(20);
/// Longest that a reply may take, its breaks included.
const REPLY: Duration = s(120);
/// How much a rank's memory may grow between a third of the way and the end.
const GROWTH_KIB: u64 = 8 << 10;

/// A small generator; the seed is the whole input.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) as usize % limit
    }
}

/// What befalls the ring; rank 0's process is left alone.
const FAULTS: [&str; 9] =
    ["kill", "stop", "fin", "reset", "half close", "flip", "stall", "far", "slow"];

fn strike(rig: &mut Rig, fault: &str, rank: usize) {
    let pause = |ms| std::thread::sleep(Duration::from_millis(ms));
    match fault {
        "kill" | "stop" if rank == 0 => rig.doors[0].reset(),
        "kill" => {
            rig.rank(rank).signal(libc::SIGKILL);
            pause(300);
            rig.start_rank(rank);
        }
        "stop" => {
            rig.rank(rank).signal(libc::SIGSTOP);
            pause(1_500);
            rig.rank(rank).signal(libc::SIGCONT);
        }
        "fin" => rig.doors[rank].cut(),
        "reset" => rig.doors[rank].reset(),
        "half close" => rig.doors[rank].half_close(Way::Onward),
        "flip" => rig.doors[rank].flip_next(Way::Onward),
        "stall" => {
            rig.doors[rank].both(|w| w.stalled = true);
            pause(7_000);
        }
        "far" => {
            rig.doors[rank].both(|w| w.delay = Duration::from_millis(20));
            pause(1_000);
        }
        _ => {
            rig.doors[rank].both(|w| w.bytes_per_s = Some(12_500_000));
            pause(1_000);
        }
    }
    if !matches!(fault, "flip") {
        rig.doors[rank].clear();
    }
}

/// What clients ask for: prompts and replies of several lengths.
fn bodies() -> Vec<Value> {
    let mut bodies = vec![prompt(1_000)];
    for (seed, tokens) in [(1, 100), (2, 400), (3, 800)] {
        bodies.push(json!({"prompt": "once upon a time", "max_tokens": tokens, "seed": seed}));
    }
    bodies
}

/// Asks again and again; each reply is the right one.
fn client(addr: std::net::SocketAddr, first: usize, right: &[Vec<u64>], over: &AtomicBool) -> u64 {
    let bodies = bodies();
    let mut replies = 0;
    for at in (0..bodies.len()).cycle().skip(first) {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let seen = Client::ask(addr, &bodies[at]).seen(REPLY).expect("a reply hangs");
        assert_eq!(seen.what, "whole", "reply {replies} of client {first}");
        assert!(seen.ids == right[at], "reply {replies} of client {first} has other bytes");
        replies += 1;
    }
    replies
}

/// Resident memory of every rank.
fn memory_kib(rig: &Rig) -> Vec<u64> {
    let of = |rank: usize| {
        let path = format!("/proc/{}/status", rig.rank(rank).id());
        let status = std::fs::read_to_string(path).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    (0..WORLD).map(of).collect()
}

fn siege(length: Duration, seed: u64, faults: &[&'static str]) {
    let _turn = Turn::alone();
    let mut rig = Rig::start_as("siege", &["--streams", "8"], &["--continue-s", "120"]);
    let ask = |body| Client::ask(rig.server().addr, body).seen(REPLY).unwrap().ids;
    let right: Vec<Vec<u64>> = bodies().iter().map(ask).collect();
    let (addr, over, replies) = (rig.server().addr, AtomicBool::new(false), AtomicU64::new(0));
    let (started, mut count, mut early) = (Instant::now(), 0, None);
    let mut random = Random(seed);
    std::thread::scope(|scope| {
        // However this scope ends, the clients must.
        let _end = End(&over);
        for first in 0..CLIENTS {
            let (right, over, replies) = (&right, &over, &replies);
            scope.spawn(move || {
                replies.fetch_add(client(addr, first, right, over), Ordering::Relaxed);
            });
        }
        while started.elapsed() < length || count < faults.len() {
            let (fault, rank) = (faults[count % faults.len()], random.below(WORLD));
            std::thread::sleep(Duration::from_millis(200 + 400 * random.below(4) as u64));
            strike(&mut rig, fault, rank);
            count += 1;
            // The last struck link may not have noticed yet: twice in a row is up.
            let is_up = || {
                std::thread::sleep(Duration::from_millis(20));
                (rig.ready().0 == 200).then_some(())
            };
            let up = wait_for(AGAIN, is_up).and_then(|()| wait_for(AGAIN, is_up));
            assert!(up.is_some(), "{fault} at rank {rank}: not ready again\n{}", rig.logs());
            let health = http::try_call(addr, "GET", "/health", "");
            assert!(matches!(health, Ok((200, _))), "{fault} at rank {rank}: {health:?}");
            rig.doors.iter().for_each(|door| door.forget());
            assert_eq!(rig.alive(), WORLD, "{fault} at rank {rank}");
            if early.is_none() && started.elapsed() > length / 3 {
                early = Some(memory_kib(&rig)[0]);
            }
        }
    });
    let late = memory_kib(&rig);
    rig.doors.iter().for_each(|door| door.clear());
    rig.serves_again(Instant::now(), AGAIN);
    let early = early.unwrap_or(late[0]);
    println!(
        "siege: {:.0} s, {count} faults, {} replies whole and equal, rank 0 {early} KiB at a third \
         and {} KiB at the end, seed {seed}",
        started.elapsed().as_secs_f64(),
        replies.load(Ordering::Relaxed),
        late[0]
    );
    assert!(replies.load(Ordering::Relaxed) > 0);
    // A short siege ends before buffers have grown to their size.
    if length > s(60) {
        assert!(late[0] < early + early / 10 + GROWTH_KIB, "memory grew: {early}, {late:?}");
    }
}

/// Tells the clients that it is over.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn replies_outlive_a_siege() {
    siege(Duration::ZERO, 1, &["kill", "reset", "far"]);
}

#[test]
#[ignore = "takes BATON_SIEGE_S seconds, or half an hour; run by `cargo xtask faults --loop-s`"]
fn half_an_hour_of_faults_under_load() {
    let seconds = std::env::var("BATON_SIEGE_S").ok().and_then(|v| v.parse().ok());
    let seed = Instant::now().elapsed().as_nanos() as u64 ^ u64::from(std::process::id());
    siege(s(seconds.unwrap_or(1_800)), seed, &FAULTS);
}
