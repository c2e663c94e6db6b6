//! Rows that devices give each other by themselves: the bytes of rows over links.

use std::time::Duration;

use crate::ring::{Ended, Ring, Twist, outcome, requests};

/// A ring's replies, and of each rank whether all its rows, some or none went to berths.
fn run(layout: &str, chunk: u32, twist: &Twist) -> (Vec<Ended>, Vec<&'static str>) {
    let ring = Ring::ready(layout, chunk, twist);
    let found = ring.ask(requests()).into_iter().map(Result::unwrap).collect();
    let histories = ring.histories();
    ring.stop();
    let ways = histories.iter().map(|history| {
        let steps = history.lock().unwrap();
        let rows = |step: &&crate::ring::Step| step.rows.iter().any(|row| row.rows > 0);
        let (all, by): (Vec<_>, Vec<_>) = (
            steps.iter().filter(rows).collect(),
            steps.iter().filter(|s| s.berth.is_some()).collect(),
        );
        match by.len() {
            0 => "none",
            count if count == all.len() => "all",
            _ => "some",
        }
    });
    (found, ways.collect())
}

#[test]
fn rows_in_berths_give_one_ranks_bytes() {
    let alone = outcome("0:8", 60, &Twist::default());
    for (layout, world) in [("0:8", 1), ("0:4,4:8", 2), ("0:3,3:5,5:8", 3), ("0:1,1:2,2:3,3:8", 4)]
    {
        for (chunk, depth) in [(1, 1), (7, 2), (7, 4), (60, 3)] {
            let berths = (0..world).collect();
            let twist = Twist { berths, depth: Some(depth), ..Twist::default() };
            let (found, ways) = run(layout, chunk, &twist);
            assert_eq!(found, alone, "{layout}, chunk {chunk}, depth {depth}");
            let mut expected = vec!["all"; world as usize];
            expected[world as usize - 1] = "none"; // Rows of few rounds go back, over the link.
            assert_eq!(ways, expected, "{layout}, chunk {chunk}, depth {depth}");
        }
    }
}

#[test]
fn where_one_of_two_devices_has_none_rows_go_over_the_link() {
    let alone = outcome("0:8", 60, &Twist::default());
    let layout = "0:2,2:4,4:6,6:8";
    for (berths, expected) in [
        (vec![0, 1], ["all", "none", "none", "none"]),
        (vec![1, 2], ["none", "all", "none", "none"]),
        (vec![2, 3], ["none", "none", "all", "none"]),
        (vec![0, 2], ["none"; 4]),
        (vec![0, 1, 3], ["all", "none", "none", "none"]),
    ] {
        let twist = Twist { berths: berths.clone(), depth: Some(3), ..Twist::default() };
        let (found, ways) = run(layout, 7, &twist);
        assert_eq!((found, &ways[..]), (alone.clone(), &expected[..]), "{berths:?}");
    }
}

#[test]
fn replies_go_on_in_the_berths_of_the_next_epoch() {
    let alone = outcome("0:8", 60, &Twist::default());
    for breaks in [vec![20, 30], vec![25, 26, 27]] {
        let twist = Twist {
            berths: vec![0, 1, 2],
            depth: Some(4),
            patience: Duration::from_secs(20),
            breaks,
            ..Twist::default()
        };
        let (found, ways) = run("0:2,2:5,5:8", 7, &twist);
        assert_eq!((found, &ways[..]), (alone.clone(), &["all", "all", "none"][..]));
    }
}
