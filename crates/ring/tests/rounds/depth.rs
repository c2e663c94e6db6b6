//! Several rounds in flight.

use std::time::Duration;

use sched::Request;

use crate::ring::{Ended, Ring, Slow, Twist, request};

/// Six requests for four streams: prompts of many chunks, of one and of less.
fn busy() -> Vec<Request> {
    let prompts = [150, 3, 64, 1, 90, 17];
    let seeds = (1..).map(|seed| (seed, [0.0, 1.0, 0.7][seed as usize % 3]));
    prompts.into_iter().zip(seeds).map(|(rows, (seed, heat))| request(rows, seed, heat)).collect()
}

fn outcome(layout: &str, depth: u32, requests: Vec<Request>) -> Vec<Ended> {
    let ring = Ring::ready(layout, 7, &Twist { depth: Some(depth), ..Twist::default() });
    let outcomes = ring.ask(requests).into_iter().map(Result::unwrap).collect();
    ring.stop();
    outcomes
}

#[test]
fn every_depth_world_and_number_of_streams_gives_one_streams_bytes() {
    // One after another, one round at a time.
    let alone = |request| outcome("0:8", 1, vec![request]).remove(0);
    let alone: Vec<Ended> = busy().into_iter().map(alone).collect();
    for layout in ["0:8", "0:4,4:8", "0:2,2:5,5:8"] {
        for depth in 1..=4 {
            for streams in [1, 2, 6] {
                let found = outcome(layout, depth, busy().into_iter().take(streams).collect());
                assert_eq!(found, alone[..streams], "{layout}, depth {depth}, {streams} streams");
            }
        }
    }
}

#[test]
fn a_slow_middle_rank_holds_the_ring_up_and_never_wedges_it() {
    let alone = outcome("0:8", 1, busy());
    for rank in 0..3 {
        let slow = Slow { rank, round: Duration::from_micros(500) };
        let twist = Twist { depth: Some(8), slow: Some(slow), ..Twist::default() };
        let ring = Ring::ready("0:2,2:5,5:8", 3, &twist);
        let found: Vec<Ended> = ring.ask(busy()).into_iter().map(Result::unwrap).collect();
        ring.stop();
        assert_eq!(found, alone, "rank {rank}");
    }
}

#[test]
fn cancels_at_depth_three_free_all_and_spare_the_queued_rows() {
    let slow = Slow { rank: 1, round: Duration::from_millis(2) };
    let twist = Twist { depth: Some(3), slow: Some(slow), ..Twist::default() };
    let ring = Ring::ready("0:2,2:5,5:8", 8, &twist);
    let expected = ring.ask(vec![request(20, 5, 0.0)]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    for after in 0..24 {
        runtime.block_on(async {
            let mut replies = Vec::new();
            for seed in 0..3 {
                let mut long = request(200, seed, 0.0);
                long.max_tokens = 200;
                replies.push(ring.handle.submit(long).await.unwrap());
            }
            tokio::time::sleep(Duration::from_micros(700 * after)).await;
        });
        if after % 6 == 0 {
            assert_eq!(ring.ask(vec![request(20, 5, 0.0)]), expected, "after {after}");
        }
    }
    assert_eq!(ring.ask(vec![request(20, 5, 0.0)]), expected);
    for _ in 0..1000 {
        if ring.handle.facts().pages_used == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let facts = ring.handle.facts();
    assert_eq!((facts.pages_used, facts.running, facts.waiting), (0, 0, 0), "{facts:?}");
    let tables = ring.tables();
    ring.stop();
    for (rank, table) in tables.iter().enumerate() {
        let table = table.lock().unwrap();
        assert!(table.as_ref().is_some_and(Vec::is_empty), "rank {rank}: {table:?}");
    }
}
