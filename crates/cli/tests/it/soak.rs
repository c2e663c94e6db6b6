//! Many clients at once, most of which change their minds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::http::Stream;
use crate::model::TINY;
use crate::process::{s, wait_for};
use crate::ring::{Server, greedy};
use crate::turn::Turn;

const CLIENTS: u64 = 100;
const RANKS: u32 = 3;

#[test]
fn a_crowd_of_leaving_clients_leaves_right_bytes_and_empty_tables() {
    soak(s(10));
}

#[test]
#[ignore = "takes five minutes, or BATON_SOAK_SECONDS"]
fn five_minutes_of_leaving_clients_leave_memory_flat() {
    let seconds = std::env::var("BATON_SOAK_SECONDS").ok().and_then(|v| v.parse().ok());
    soak(s(seconds.unwrap_or(300)));
}

/// What the clients met.
#[derive(Default)]
struct Counts {
    whole: AtomicU64,
    left: AtomicU64,
    refused: AtomicU64,
}

fn soak(length: Duration) {
    let _turn = Turn::alone();
    let args = ["--world", "3", "--threads", "1", "--streams", "8", "--queue", "64"];
    let args: Vec<&str> = args.into_iter().chain(["--context", "2048", "--log", "debug"]).collect();
    let mut server = Server::ready(&TINY, &args);
    let right = server.sample();
    let counts = Counts::default();
    let (started, mut early) = (Instant::now(), Vec::new());
    std::thread::scope(|scope| {
        for seed in 1..=CLIENTS {
            let (server, counts) = (&server, &counts);
            scope.spawn(move || client(server, seed, started + length, counts));
        }
        // Buffers have grown to their size by a third of the way.
        std::thread::sleep(length / 3);
        early = memory_kib(&server);
    });
    let late = memory_kib(&server);
    let idle = wait_for(s(10), || {
        let health = server.health();
        (health["running"] == 0 && health["waiting"] == 0 && health["kv_pages_used"] == 0)
            .then_some(())
    });
    assert!(idle.is_some(), "{}", server.health());
    assert_eq!(server.sample(), right);
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    println!(
        "{} s: {} whole replies, {} left, {} refused; RSS KiB a rank at a third {early:?}, at the end {late:?}",
        length.as_secs(),
        of(&counts.whole),
        of(&counts.left),
        of(&counts.refused)
    );
    assert!(of(&counts.whole) > 0 && of(&counts.left) > 0);
    for (early, late) in early.iter().zip(&late) {
        assert!(*late < early + early / 10 + 4096, "memory grew from {early} to {late} KiB");
    }
    server.process.signal(libc::SIGTERM);
    server.process.ends_well(s(20));
    for rank in 0..RANKS {
        let line = server.process.log.last(&format!("rank {rank}: table")).unwrap();
        assert!(line.ends_with("table []"), "{line}");
    }
}

/// Asks again and again; sometimes hears the reply out.
fn client(server: &Server, seed: u64, until: Instant, counts: &Counts) {
    let mut random = seed;
    let mut below = |limit: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % limit
    };
    while Instant::now() < until {
        let prompt = "tell me more ".repeat(1 + below(40) as usize);
        let mut body = greedy(&prompt, 1 + below(200) as u32);
        body["ignore_eos"] = true.into();
        body["stream"] = true.into();
        match Stream::try_open(server.addr, "/v1/completions", &body.to_string()) {
            Ok(Ok(mut stream)) => {
                let events = below(60);
                if (0..events).all(|_| stream.step()) && below(3) > 0 {
                    counts.left.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let all = stream.finish();
                assert!(all.done && all.error.is_none(), "{all:?}");
                counts.whole.fetch_add(1, Ordering::Relaxed);
            }
            Ok(Err((429, _))) => {
                counts.refused.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20 + below(200)));
            }
            Ok(Err((status, text))) => panic!("{status}: {text}"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Resident memory of every rank.
fn memory_kib(server: &Server) -> Vec<u64> {
    let own = server.process.id() as i32;
    let pids = std::iter::once(own).chain((1..RANKS).map(|rank| server.rank(rank)));
    pids.map(|pid| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    })
    .collect()
}
