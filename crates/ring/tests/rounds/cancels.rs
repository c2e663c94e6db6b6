//! A thousand clients that leave at random points while others run on.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use arith::base::StreamId;
use baton_ring::head::Reply;
use sched::Request;
use wire::plan::Op;

use crate::ring::{Ring, Slow, Step, Twist, request};

const WORLD: usize = 3;
const STREAMS: usize = 4;
/// Most prompt rows of a round.
const CHUNK: u32 = 8;
/// How long all ranks may take to have applied a cancel.
const APPLIED: Duration = Duration::from_secs(10);

/// A small generator; the seed is the whole input.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % limit
    }
}

/// A request that outlives any pause of this test; a prompt of one or of many chunks.
fn long(random: &mut Random) -> Request {
    let rows = [1, 5, 40, 150][random.below(4) as usize];
    Request { max_tokens: 350, ..request(rows, random.below(1_000), 0.0) }
}

/// What the cancels showed.
#[derive(Debug, Default)]
struct Found {
    /// Streams that ran when their client left; the others had ended, or waited still.
    running: u32,
    /// Most rounds, and rows, of a stream that one stage began after its client had left.
    rounds: usize,
    rows: u32,
}

/// The first step from `from` on that cancels a stream.
fn cancelled(steps: &[Step], from: usize) -> Option<(usize, StreamId)> {
    let found = |(at, step): (usize, &Step)| {
        step.rows.iter().find(|row| row.op == Op::Cancel).map(|row| (at, row.id))
    };
    steps.iter().enumerate().skip(from).find_map(found)
}

/// Waits until every rank has taken `steps` steps.
fn wait_steps(ring: &Ring, steps: usize) {
    let until = Instant::now() + APPLIED;
    while ring.histories().iter().any(|history| history.lock().unwrap().len() < steps) {
        assert!(Instant::now() < until, "a rank does not hear of a cancel");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// One client leaves. Within the steps that follow, all ranks' tables are equal and without its
/// stream, and each stage has begun at most one more round of it since rank 0 heard.
fn leave(ring: &Ring, reply: Reply, found: &mut Found) {
    let from = ring.histories()[0].lock().unwrap().len();
    let left = Instant::now();
    drop(reply);
    // Nothing to wait for if it has ended: the rings of this test never rest, so steps come.
    let until = left + APPLIED;
    let head = ring.histories().swap_remove(0);
    let (at, id) = loop {
        let steps = head.lock().unwrap();
        match cancelled(&steps, from) {
            Some(found) => break found,
            None if steps.len() > from + 40 => return,
            None => assert!(Instant::now() < until, "rank 0 rests"),
        }
        drop(steps);
        std::thread::sleep(Duration::from_micros(100));
    };
    wait_steps(ring, at + 1);
    found.running += 1;
    // Rank 0 hears clients between its steps, and may have to wait for a core before.
    let heard = head.lock().unwrap()[..=at].iter().map(|step| step.began).find(|t| *t > left);
    let heard = heard.unwrap_or(left);
    let mut tables = BTreeSet::new();
    for (rank, history) in ring.histories().iter().enumerate() {
        let steps = history.lock().unwrap();
        let table = &steps[at].table;
        assert!(!table.contains(&format!("{id:?}")), "rank {rank}: {id:?} in {table}");
        tables.insert(table.clone());
        let since = if rank == 0 { left } else { heard };
        let after = steps[..=at].iter().filter(|step| step.began > since);
        let of = |step: &Step| step.rows.iter().find(|row| row.id == id && !row.skipped).cloned();
        let rows: Vec<u32> = after.filter_map(of).map(|row| row.rows).filter(|&n| n > 0).collect();
        found.rounds = found.rounds.max(rows.len());
        found.rows = found.rows.max(rows.iter().sum());
    }
    assert_eq!(tables.len(), 1, "after step {at}: {tables:?}");
}

fn cancels(count: u32, seed: u64) -> Found {
    let slow = Slow { rank: 1, round: Duration::from_micros(200) };
    let twist = Twist { depth: Some(4), slow: Some(slow), ..Twist::default() };
    let ring = Ring::ready("0:2,2:5,5:8", CHUNK, &twist);
    let right = ring.ask(vec![request(20, 5, 0.0)]);
    let (mut random, mut found) = (Random(seed), Found::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let submit = |request| runtime.block_on(ring.handle.submit(request)).unwrap();
    // One more than there are streams: a client may leave the queue, too.
    let mut replies: Vec<Reply> = (0..=STREAMS).map(|_| submit(long(&mut random))).collect();
    for _ in 0..count {
        std::thread::sleep(Duration::from_micros(random.below(2_000)));
        let at = random.below(replies.len() as u64) as usize;
        leave(&ring, replies.swap_remove(at), &mut found);
        replies.push(submit(long(&mut random)));
    }
    drop(replies);
    assert_eq!(ring.ask(vec![request(20, 5, 0.0)]), right);
    let histories = ring.histories();
    ring.stop();
    let tables = |rank: usize| -> Vec<String> {
        histories[rank].lock().unwrap().iter().map(|step| step.table.clone()).collect()
    };
    for rank in 1..WORLD {
        assert!(tables(rank) == tables(0), "rank {rank}: another table after some round");
    }
    found
}

fn check(count: u32, seed: u64) {
    let found = cancels(count, seed);
    println!(
        "cancels: {count} (seed {seed}), {} of running streams, tables equal after every round of \
         {WORLD} ranks, at most {} rounds and {} rows a stage after a cancel",
        found.running, found.rounds, found.rows
    );
    assert!(found.running > count / 2, "{found:?}");
    assert!(found.rounds <= 1 && found.rows <= CHUNK, "{found:?}");
}

#[test]
fn clients_that_leave_at_random_points_cost_a_window_a_stage_and_no_table() {
    check(100, 1);
}

#[test]
#[ignore = "a thousand of them; run by `cargo xtask faults`"]
fn a_thousand_clients_leave_at_random_points() {
    check(1_000, 7);
}
