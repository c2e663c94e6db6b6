//! Members that die, fall silent or fall out of step: named in time, and the group comes back.

use std::time::{Duration, Instant};

use shard::{Group, GroupConfig, Leader, Through, Times};
use stage::{Engine, Input};
use wire::plan::Op;

use crate::calls::{plan, window};
use crate::double::{Away, Double, SHAPES, TIMES, addresses, config, fake, whole};
use crate::relay::Relay;

fn open(leader: &mut Leader) -> Result<(), String> {
    let open = plan(vec![window(1, Op::Open, 0, 2, 0, 0)]);
    let stepped = leader.step(&open, Input::Tokens(&[1, 2]), &mut Vec::new());
    stepped.map_err(|error| error.to_string())
}

/// A call that any table takes.
fn probe(leader: &mut Leader) -> Result<(), String> {
    leader.logits(&[1.0; 8], &mut Vec::new()).map_err(|error| error.to_string())
}

#[test]
fn a_dead_member_is_named_within_a_second_and_replaced() {
    let (mut leader, _group, mut away) = whole(3);
    open(&mut leader).unwrap();
    let gone = away.remove(0);
    let again = config(1, gone.group.addresses());
    drop(gone);
    let start = Instant::now();
    let error = probe(&mut leader).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(error.starts_with("ShardLost: member 1: "), "{error}");
    let _back = Away::start(again, |group| Double::new(fake(), group.seat()));
    leader.reset();
    leader.prepare(&SHAPES).unwrap();
    open(&mut leader).unwrap();
}

#[test]
fn a_member_that_never_comes_is_named() {
    let addresses = addresses(3);
    let mut impatient = config(0, &addresses);
    impatient.times.join = Duration::from_millis(300);
    let _away = Away::start(config(1, &addresses), |group| Double::new(fake(), group.seat()));
    let group = Group::start(impatient).unwrap();
    let mut leader = Leader::new(group.clone(), Box::new(Double::new(fake(), group.seat())));
    let error = leader.prepare(&SHAPES).unwrap_err().to_string();
    let expected = "ShardLost: member 2: NotJoined: member 2 did not connect within 300 ms: is it \
                    running?";
    assert!(error.starts_with(expected), "{error}");
    group.shutdown();
}

#[test]
fn a_member_whose_ready_word_does_not_come_is_named_in_time_and_may_come_later() {
    assert_eq!(Times::default().ready, Duration::from_secs(300));
    let addresses = addresses(2);
    let mut impatient = config(0, &addresses);
    impatient.times.ready = Duration::from_millis(300);
    // It has joined and beats, and nobody says its word.
    let loading = Group::start(config(1, &addresses)).unwrap();
    let joins = loading.clone();
    let thread = std::thread::spawn(move || joins.join());
    let group = Group::start(impatient).unwrap();
    let mut leader = Leader::new(group.clone(), Box::new(Double::new(fake(), group.seat())));
    let start = Instant::now();
    let error = leader.prepare(&SHAPES).unwrap_err().to_string();
    let took = start.elapsed();
    let expected = "ShardLost: member 1: Stalled: it beats, and said nothing for 300 ms";
    assert!(error.starts_with(expected), "{error}");
    let limits = Duration::from_millis(300)..Duration::from_secs(3);
    assert!(limits.contains(&took), "{took:?}");
    thread.join().unwrap().unwrap();
    loading.shutdown();
    let _loaded = Away::start(config(1, &addresses), |group| Double::new(fake(), group.seat()));
    leader.prepare(&SHAPES).unwrap();
    open(&mut leader).unwrap();
    group.shutdown();
}

#[test]
fn a_silent_member_is_named_and_the_group_comes_back() {
    // Calls wait for the link, or go through memory until its silence ends the epoch.
    for through in [Through::Links, Through::Auto] {
        silence(through);
    }
}

fn silence(through: Through) {
    let mut all = addresses(3);
    let config = |index, all: &[String]| GroupConfig { through, ..config(index, all) };
    // Member 2 reaches the leader through a relay; whoever hears nothing of the other says so.
    let relay = Relay::to(all[0].clone());
    let first = Away::start(config(1, &all), |group| Double::new(fake(), group.seat()));
    let group = Group::start(config(0, &all)).unwrap();
    all[0] = relay.address.to_string();
    let second = Away::start(config(2, &all), |group| Double::new(fake(), group.seat()));
    let engine = Double::new(fake(), group.seat());
    let mut leader = Leader::new(group.clone(), Box::new(engine));
    leader.prepare(&SHAPES).unwrap();
    open(&mut leader).unwrap();
    relay.stall(true);
    let start = Instant::now();
    let error = loop {
        match probe(&mut leader) {
            Err(error) => break error,
            Ok(()) => assert!(through == Through::Auto && start.elapsed() < 2 * TIMES.silent),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let took = start.elapsed();
    // Both ends of the way hear nothing; who is first to say so depends on their last beats.
    assert!(error.contains("Silent: no byte for 1500 ms"), "{error}");
    assert!(took < TIMES.silent + Duration::from_secs(2), "{took:?}");
    // The others leave their exchanges too.
    let until = Instant::now() + Duration::from_secs(3);
    while first.group.lost().is_none() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    relay.stall(false);
    leader.prepare(&SHAPES).unwrap();
    open(&mut leader).unwrap();
    drop((first, second));
    group.shutdown();
}

#[test]
fn a_member_out_of_step_is_named() {
    let addresses = addresses(2);
    let _away = Away::start(config(1, &addresses), |group| {
        let mut double = Double::new(fake(), group.seat());
        double.extra = 1;
        double
    });
    let group = Group::start(config(0, &addresses)).unwrap();
    let engine = Double::new(fake(), group.seat());
    let mut leader = Leader::new(group.clone(), Box::new(engine));
    leader.prepare(&SHAPES).unwrap();
    // Its first part is of another exchange; if that went through, its second would not.
    let error = open(&mut leader).and_then(|()| probe(&mut leader)).unwrap_err();
    assert!(error.contains("another digest") || error.contains("OutOfTurn"), "{error}");
    group.shutdown();
}

#[test]
fn a_group_that_has_nothing_to_do_after_much_work_stays_whole() {
    let addresses = addresses(2);
    // So short a beat comes due while something is being written, time and again.
    let quick = |index| {
        let mut config = config(index, &addresses);
        config.times.beat = Duration::from_millis(1);
        config
    };
    let away = Away::start(quick(1), |group| Double::new(fake(), group.seat()));
    let group = Group::start(quick(0)).unwrap();
    let mut leader = Leader::new(group.clone(), Box::new(Double::new(fake(), group.seat())));
    leader.prepare(&SHAPES).unwrap();
    for _ in 0..2_000 {
        probe(&mut leader).unwrap();
    }
    std::thread::sleep(TIMES.silent + Duration::from_millis(500));
    assert_eq!([group.lost(), away.group.lost()], [None, None]);
    probe(&mut leader).unwrap();
    drop(away);
    group.shutdown();
}
