//! What a known pace does: groups of replies, cuts of prompts, and their shares of the time.

use std::collections::VecDeque;

use arith::candidates::pack_rows;
use sched::{Event, Limits, Line, Pace, RequestId, Round, Scheduler};

use crate::asks::NAMES;
use crate::chosen::request;

const MS: u64 = 1_000_000;

/// A ring of equal stages and no hops, on a clock of its own: each stage does its rounds in order,
/// as soon as the stage before has done them.
struct Clocked {
    sched: Scheduler,
    stage: Line,
    /// What a stage takes for a round that is no window beside that.
    chunk_ns: u64,
    /// When each stage is free.
    free: Vec<u64>,
    flying: VecDeque<(Round, u64)>,
    now: u64,
    /// Windows of each round that carried some.
    windows: Vec<usize>,
    /// Rows of each round with prompt rows.
    chunks: Vec<u32>,
    /// Token times of request 1.
    tokens: Vec<u64>,
    done: Vec<u64>,
}

impl Clocked {
    fn new(stages: u32, depth: u32, stage: Line, chunk_rows_max: u32) -> Self {
        let limits = Limits {
            streams_max: 8,
            queue_max: 8,
            chunk_rows_max,
            round_rows_max: chunk_rows_max + 8,
            context_max: 4096,
            pages: 400,
            depth,
        };
        let mut sched = Scheduler::new(limits);
        let times = u64::from(stages);
        let trip = Line { round_ns: stage.round_ns * times, row_ns: stage.row_ns * times };
        sched.set_pace(Pace { stages, stage, trip, chunk_ns: 0 });
        Self {
            sched,
            stage,
            chunk_ns: 0,
            free: vec![0; stages as usize],
            flying: VecDeque::new(),
            now: 0,
            windows: Vec::new(),
            chunks: Vec::new(),
            tokens: Vec::new(),
            done: Vec::new(),
        }
    }

    fn ask(&mut self, id: u64, prompt: u32, tokens: u32) {
        let mut asked = request(NAMES + id as u32, prompt, tokens);
        asked.stop_tokens.clear();
        self.sched.submit(RequestId(id), asked).unwrap();
    }

    /// One thing that happens: stage 0 takes a round when it is free, else the oldest comes back.
    fn step(&mut self) {
        if self.free[0] <= self.now
            && let Some(round) = self.sched.next_round()
        {
            let rows = round.plan.rows() as u32;
            let mut at = self.now;
            for free in &mut self.free {
                at = at.max(*free) + self.stage.at(rows);
                at += if rows > 16 { self.chunk_ns } else { 0 };
                *free = at;
            }
            let windows = round.plan.entries.iter().filter(|e| e.rows == 1 && e.first > 8).count();
            if windows > 0 && rows == windows as u32 {
                self.windows.push(windows);
            }
            if rows > windows as u32 {
                self.chunks.push(rows - windows as u32);
            }
            self.flying.push_back((round, at));
            return;
        }
        let back = self.flying.front().map(|(_, at)| *at);
        let free = Some(self.free[0]).filter(|free| *free > self.now);
        self.now = back.into_iter().chain(free).min().unwrap();
        if back != Some(self.now) {
            return;
        }
        let (round, _) = self.flying.pop_front().unwrap();
        let rows: u32 = round.wanted.iter().map(|wanted| wanted.rows).sum();
        let logits = [0.0, 1.0, 0.0].repeat(rows as usize);
        for (id, event) in self.sched.complete(round.number, &pack_rows(&logits, &round.best()), 3)
        {
            match event {
                Event::Token { .. } if id == RequestId(1) => self.tokens.push(self.now),
                Event::Done { .. } => self.done.push(id.0),
                _ => {}
            }
        }
    }

    fn until(&mut self, done: u64) {
        while !self.done.contains(&done) {
            self.step();
        }
    }
}

#[test]
fn replies_ride_in_as_many_equal_groups_as_there_are_stages() {
    for (stages, depth, sizes) in [(2, 3, &[4][..]), (3, 4, &[2, 3]), (1, 1, &[8]), (4, 8, &[2])] {
        let stage = Line { round_ns: 5 * MS, row_ns: MS };
        let mut ring = Clocked::new(stages, depth, stage, 64);
        (1..=8).for_each(|id| ring.ask(id, 9 + id as u32, 100));
        ring.until(1);
        let late = &ring.windows[ring.windows.len() / 2..];
        assert!(late.iter().all(|n| sizes.contains(n)), "{stages} stages: {:?}", ring.windows);
    }
}

#[test]
fn a_long_prompt_on_two_stages_takes_about_half_of_its_time_on_one() {
    let stage = Line { round_ns: 4 * MS, row_ns: MS };
    let mut ring = Clocked::new(2, 3, stage, 512);
    ring.ask(1, 2048, 1);
    ring.until(1);
    let whole = 2 * 2048 * MS;
    assert!(ring.now < whole * 56 / 100, "{} ms: {:?}", ring.now / MS, ring.chunks);
    // A short one is no slower than in one piece.
    for rows in [4, 20, 60, 130] {
        let mut ring = Clocked::new(2, 3, stage, 512);
        ring.ask(1, rows, 1);
        ring.until(1);
        assert!(ring.now <= 2 * stage.at(rows), "{rows} rows: {} ms", ring.now / MS);
    }
}

#[test]
fn stages_that_take_chunks_dearly_get_fewer_and_are_sooner_done() {
    // About half of a 27B model on a card, in microseconds of 128 rows.
    let stage = Line { round_ns: 2_500_000, row_ns: 80_000 };
    let run = |told, prompt| {
        let mut ring = Clocked::new(2, 4, stage, 2048);
        ring.chunk_ns = 128 * stage.row_ns;
        let trip = Line { round_ns: 2 * stage.round_ns, row_ns: 2 * stage.row_ns };
        ring.sched.set_pace(Pace { stages: 2, stage, trip, chunk_ns: told });
        ring.ask(1, prompt, 1);
        ring.until(1);
        (ring.now, ring.chunks.len())
    };
    for prompt in [512, 1024, 4000] {
        let (untold, told) = (run(0, prompt), run(128 * stage.row_ns, prompt));
        println!("{prompt} rows: {untold:?}, told {told:?}");
        assert!(told.1 < untold.1 && told.0 < untold.0, "{prompt} rows: {untold:?}, {told:?}");
    }
    assert!(run(128 * stage.row_ns, 4000).0 * 100 < run(0, 4000).0 * 95);
}

#[test]
fn a_reply_keeps_half_of_its_pace_and_no_gap_of_a_second_beside_a_long_prompt() {
    for (stages, depth, row_us) in [(1, 1, 1000), (2, 3, 1000), (3, 4, 5000), (2, 3, 20_000)] {
        let stage = Line { round_ns: 5 * MS, row_ns: row_us * 1000 };
        let mut ring = Clocked::new(stages, depth, stage, 512);
        ring.ask(1, 9, 2000);
        while ring.tokens.len() < 50 {
            ring.step();
        }
        let alone = (ring.tokens[49] - ring.tokens[9]) / 40;
        ring.ask(2, 3000, 1);
        let from = ring.tokens.len();
        let since = ring.now;
        while !ring.done.contains(&2) && ring.tokens.len() < 1900 {
            ring.step();
        }
        let gaps = ring.tokens[from - 1..].windows(2).map(|t| t[1] - t[0]);
        let worst = gaps.max().unwrap();
        assert!(worst <= 1000 * MS, "{stages} stages, {row_us} us: {} ms", worst / MS);
        let beside = (ring.now - since) / (ring.tokens.len() - from) as u64;
        let share = alone as f64 / beside as f64;
        assert!(share >= 0.5, "{stages} stages, {row_us} us: {share}");
    }
}
