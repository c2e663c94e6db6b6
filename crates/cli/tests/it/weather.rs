//! Hops that are slow, far or halting for a while: nobody notices, and no byte changes.

use std::fmt;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::process::s;
use crate::rig::{Client, Rig, Seen, WORLD, prompt};
use crate::turn::Turn;

/// How long a halting hop stands still, again and again; far less than silence means death.
const HALT: Duration = Duration::from_millis(500);
/// Longest that the work of a cell may take.
const WORK: Duration = s(120);

/// What one hop is like while the ring works.
#[derive(Clone, Copy, Debug)]
enum Weather {
    /// So many megabits a second.
    Slow(u64),
    /// So many milliseconds each way.
    Far(u64),
    /// It stands still for [`HALT`], then goes on as long.
    Halting,
}

impl fmt::Display for Weather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slow(megabits) => write!(f, "throttled to {megabits} Mbit/s"),
            Self::Far(ms) => write!(f, "{ms} ms away"),
            Self::Halting => write!(f, "still for {} ms, again and again", HALT.as_millis()),
        }
    }
}

/// What is asked at once: a long prompt, and replies that decode beside it.
fn bodies(tokens: u32) -> Vec<Value> {
    let mut bodies = vec![prompt(2_000)];
    for seed in 1..4 {
        bodies.push(json!({"prompt": "once upon a time", "max_tokens": tokens, "seed": seed}));
    }
    bodies
}

fn work(rig: &Rig, tokens: u32) -> Vec<Client> {
    bodies(tokens).iter().map(|body| Client::ask(rig.server().addr, body)).collect()
}

fn ended(rig: &Rig, clients: Vec<Client>) -> Vec<Seen> {
    let end = |client: Client| client.seen(WORK).unwrap_or_else(|| panic!("{}", rig.logs()));
    clients.into_iter().map(end).collect()
}

/// The work in such weather before `rank`; how long it took.
fn cell(rig: &Rig, weather: Weather, rank: usize, tokens: u32, right: &[Seen]) -> Duration {
    let door = &rig.doors[rank];
    match weather {
        Weather::Slow(megabits) => door.both(|w| w.bytes_per_s = Some(megabits * 125_000)),
        Weather::Far(ms) => door.both(|w| w.delay = Duration::from_millis(ms)),
        Weather::Halting => {}
    }
    let (since, logged) = (Instant::now(), rig.logged());
    let clients = work(rig, tokens);
    if let Weather::Halting = weather {
        for _ in 0..2 {
            door.both(|w| w.stalled = true);
            std::thread::sleep(HALT);
            door.both(|w| w.stalled = false);
            std::thread::sleep(HALT);
        }
    }
    assert_eq!(rig.ready().0, 200, "{weather}, rank {rank}: {}", rig.logs());
    let found = ended(rig, clients);
    let took = since.elapsed();
    door.clear();
    for (found, right) in found.iter().zip(right) {
        assert_eq!(found.what, "whole", "{weather}, rank {rank}: {}", rig.logs());
        assert!(found.ids == right.ids, "{weather}, rank {rank}: other bytes");
    }
    let broke = (0..WORLD).map(|r| rig.rank(r).log.count_after(logged[r], "broke"));
    assert_eq!(broke.sum::<usize>(), 0, "{weather}, rank {rank}: {}", rig.logs());
    took
}

/// Prints a row a cell.
fn weathers(rig: &Rig, tokens: u32, cells: impl Iterator<Item = (Weather, usize)>) {
    let calm = Instant::now();
    let right = ended(rig, work(rig, tokens));
    println!("| hop | rank | a prompt and 3 replies | calm |\n|---|---|---|---|");
    let (calm, mut count) = (calm.elapsed().as_secs_f64(), 0);
    for (weather, rank) in cells {
        let took = cell(rig, weather, rank, tokens, &right).as_secs_f64();
        println!("| {weather} | {rank} | whole, the right bytes, {took:.1} s | {calm:.1} s |");
        count += 1;
    }
    println!("weathers: {count} cells, every reply whole and equal, no rank noticed");
}

#[test]
fn slow_far_and_halting_hops_change_no_byte_of_many_streams() {
    let _turn = Turn::alone();
    let cells = [(Weather::Slow(100), 1), (Weather::Far(20), 2), (Weather::Halting, 0)];
    weathers(&Rig::start("weather"), 30, cells.into_iter());
}

#[test]
#[ignore = "run by `cargo xtask faults`"]
fn every_weather_before_every_rank() {
    let _turn = Turn::alone();
    let all = [Weather::Slow(1_000), Weather::Slow(100), Weather::Far(5), Weather::Far(20)];
    let all = all.into_iter().chain([Weather::Far(100), Weather::Halting]);
    let cells = all.flat_map(|weather| (0..WORLD).map(move |rank| (weather, rank)));
    weathers(&Rig::start("weather-full"), 60, cells);
}
