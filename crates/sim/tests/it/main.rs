//! Short campaigns: what holds, what is met, and what is found.
#![allow(clippy::unwrap_used, reason = "tests")]

use baton_sim::campaign::{Campaign, Outcome};
use baton_sim::{Plant, Report, Size, run};

fn campaign(seeds: u64) -> Outcome {
    Campaign { seeds, ..Campaign::default() }.run()
}

#[test]
fn rings_give_one_stages_replies_whatever_befalls_them() {
    let Outcome { sum, failures } = campaign(1_000);
    assert_eq!(failures, [], "run `cargo xtask sim --seed N --trace`");
    println!("{sum:?}");
    let enough = [
        sum.served > 2_000,
        sum.cancels > 200,
        sum.breaks > 300,
        sum.late > 300,
        sum.quiets > 1_000,
        sum.preemptions > 10,
        sum.cached > 20,
        sum.accepted > 1_000,
        sum.drafted > sum.accepted + 1_000,
    ];
    assert_eq!(enough, [true; 9], "{sum:?}");
}

#[test]
fn a_long_run_holds_too() {
    for seed in 0..20 {
        assert_eq!(run(seed, Size::Long, None, false).failure, None, "seed {seed}");
    }
}

#[test]
fn one_rank_short_of_memory_makes_the_cache_smaller_and_changes_no_reply() {
    let campaign = Campaign { seeds: 12, size: Size::Pressed, ..Campaign::default() };
    let Outcome { sum, failures } = campaign.run();
    assert_eq!(failures, [], "run `cargo xtask sim --pressed --seed N --trace`");
    println!("{sum:?}");
    let enough = [sum.served > 1_100, sum.cached > 5_000, sum.accepted > 1_000];
    assert_eq!(enough, [true; 3], "{sum:?}");
}

#[test]
fn a_seed_gives_the_same_run_each_time() {
    let mut hashes = Vec::new();
    for seed in 0..60 {
        let first = run(seed, Size::Short, None, false);
        let second = Report { trace: String::new(), ..run(seed, Size::Short, None, true) };
        assert_eq!(first, second);
        hashes.push(first.hash);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 60, "no two seeds give one run");
}

/// The first seed of those that CI runs which finds the bug, and how it shows.
fn found(plant: Plant) -> String {
    let seeds = 0..Campaign::default().seeds;
    let failed = |seed| run(seed, Size::Short, Some(plant), false).failure.map(|why| (seed, why));
    let (seed, why) = seeds.into_iter().find_map(failed).expect("no seed of CI's finds it");
    assert_eq!(run(seed, Size::Short, None, false).failure, None, "seed {seed} without it");
    println!("{plant}: seed {seed}: {why}");
    why
}

#[test]
fn a_lost_rollback_is_found() {
    let why = found(Plant::LostRollback);
    assert!(why.contains("wrong token"), "{why}");
}

#[test]
fn a_late_frame_that_is_used_is_found() {
    let why = found(Plant::LateFrame);
    assert!(why.contains("ends for nothing") && why.contains("OutOfTurn"), "{why}");
}

#[test]
fn a_page_that_is_freed_twice_is_found() {
    let why = found(Plant::FreedTwice);
    let shows = ["tables differ", "released by who holds it", "TooFewPages", "leak"];
    assert!(shows.iter().any(|show| why.contains(show)), "{why}");
}

#[test]
fn a_cancel_that_skips_a_stage_is_found() {
    let why = found(Plant::CancelSkipsStage);
    assert!(why.contains("rows after a cancel"), "{why}");
}

#[test]
fn a_state_that_is_half_kept_and_used_is_found() {
    let why = found(Plant::HalfKept);
    assert!(why.contains("NoSuchKeep") || why.contains("panic"), "{why}");
}

#[test]
fn a_lost_wakeup_is_found() {
    let why = found(Plant::LostWakeup);
    assert!(why.contains("stuck") || why.contains("a command waited"), "{why}");
}

#[test]
fn a_command_line_is_read_or_refused_by_name() {
    let parse = |text: &str| {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        Campaign::parse(&words).map_err(|error| error.to_string())
    };
    let one = Campaign { from: 7, seeds: 1, is_traced: true, ..Campaign::default() };
    assert_eq!(parse("--seed 7 --trace"), Ok(one));
    let bug = Campaign { plant: Some(Plant::LateFrame), ..Campaign::default() };
    assert_eq!(parse("--plant late-frame"), Ok(bug));
    for wrong in ["--seed", "--seed x", "--plant", "--plant x", "--trace", "x"] {
        assert!(parse(wrong).unwrap_err().contains(wrong.split(' ').next().unwrap()), "{wrong}");
    }
}
