//! Chosen workloads, plan by plan.

use std::collections::BTreeMap;

use arith::base::{Generation, Round as RoundNumber, StreamId};
use arith::candidates::pack_rows;
use sched::Wanted;
use sched::{Event, Failure, Finish, Limits, Refusal, Request, RequestId, Round, Scheduler};
use wire::plan::{Entry, Mode, Op, Plan, Want};

use crate::asks::NAMES;

const LIMITS: Limits = Limits {
    streams_max: 4,
    queue_max: 2,
    chunk_rows_max: 8,
    round_rows_max: 16,
    context_max: 200,
    pages: 16,
    depth: 1,
};

/// A greedy request whose first token is `name`.
pub fn request(name: u32, prompt: u32, max_tokens: u32) -> Request {
    Request {
        prompt: (0..prompt).map(|n| if n == 0 { name } else { n % 5 }).collect(),
        max_tokens,
        stop_tokens: vec![2],
        ..Request::default()
    }
}

/// A round from its parts.
pub fn round(
    number: u64,
    mode: Mode,
    entries: Vec<Entry>,
    tokens: Vec<u32>,
    wanted: &[(u32, u32, u32)],
) -> Round {
    let wanted = wanted.iter().map(|&(id, first, rows)| Wanted {
        id: StreamId(id),
        first,
        rows,
        heads: rows,
        best: 1,
    });
    Round {
        number: RoundNumber(number),
        plan: Plan { mode, entries, ..Plan::default() },
        tokens,
        wanted: wanted.collect(),
    }
}

/// Op, id, first, rows, accepted, generation, want.
type Short = (Op, u32, u32, u32, u32, u32, Want);

fn short(round: &Round) -> Vec<Short> {
    let entry = |e: &Entry| {
        let Generation(generation) = e.generation;
        (e.op, e.id.0, e.first, e.rows, e.accepted, generation, e.want)
    };
    round.plan.entries.iter().map(entry).collect()
}

/// A scheduler whose every row draws token 1, or what `answers` says for a request's next row.
struct Desk {
    sched: Scheduler,
    events: BTreeMap<u64, Vec<Event>>,
}

const ONE: [f32; 3] = [0.0, 1.0, 0.0];
const STOP: [f32; 3] = [0.0, 1.0, 2.0];
const NAN: [f32; 3] = [f32::NAN; 3];

impl Desk {
    fn new(limits: Limits) -> Self {
        Self { sched: Scheduler::new(limits), events: BTreeMap::new() }
    }
    fn ask(&mut self, id: u64, prompt: u32, max_tokens: u32) -> Result<(), Refusal> {
        let request = request(NAMES + id as u32, prompt, max_tokens);
        self.sched.submit(RequestId(id), request)
    }
    fn issue(&mut self) -> Round {
        self.sched.next_round().unwrap()
    }
    /// Completes a round; each wanted row draws by `row`, given its stream.
    fn back(&mut self, round: &Round, row: impl Fn(u32) -> [f32; 3]) {
        let rows = round.wanted.iter();
        let logits: Vec<f32> = rows.flat_map(|w| row(w.id.0).repeat(w.heads as usize)).collect();
        for (id, event) in self.sched.complete(round.number, &pack_rows(&logits, &round.best()), 3)
        {
            self.events.entry(id.0).or_default().push(event);
        }
    }
    fn done(&self, id: u64) -> Option<Finish> {
        match self.events.get(&id)?.last()? {
            Event::Done { finish, .. } => Some(*finish),
            _ => None,
        }
    }
}

#[test]
fn a_lone_request_is_chunked_then_decoded_then_closed() {
    let mut desk = Desk::new(LIMITS);
    desk.ask(1, 10, 5).unwrap();
    let expected: [(&[Short], Mode, [f32; 3]); 4] = [
        (&[(Op::Open, 0, 0, 8, 0, 0, Want::None)], Mode::Prompt, ONE),
        (&[(Op::Continue, 0, 8, 2, 8, 1, Want::Last)], Mode::Prompt, ONE),
        (&[(Op::Continue, 0, 10, 1, 2, 2, Want::Last)], Mode::Window, STOP),
        (&[(Op::Close, 0, 0, 0, 0, 3, Want::None)], Mode::Window, ONE),
    ];
    for (entries, mode, row) in expected {
        let round = desk.issue();
        assert_eq!((short(&round).as_slice(), round.plan.mode), (entries, mode));
        assert_eq!(desk.sched.next_round(), None, "depth is 1");
        desk.back(&round, |_| row);
    }
    let told = &desk.events[&1];
    assert_eq!(told[0], Event::Token { id: 1, logprobs: None });
    assert!(matches!(
        told[1],
        Event::Done {
            finish: Finish::Stop,
            prompt_tokens: 10,
            reply_tokens: 1,
            logits_sha256: None,
            ..
        }
    ));
    assert!(desk.sched.idle() && desk.sched.next_round().is_none());
}

#[test]
fn at_depth_two_the_next_chunk_follows_at_once_and_a_window_waits() {
    let mut desk = Desk::new(Limits { depth: 2, ..LIMITS });
    desk.ask(1, 10, 5).unwrap();
    let (one, two) = (desk.issue(), desk.issue());
    assert_eq!(short(&two), [(Op::Continue, 0, 8, 2, 8, 1, Want::Last)]);
    desk.back(&one, |_| ONE);
    assert_eq!(desk.sched.next_round(), None, "the token is not known");
    desk.back(&two, |_| ONE);
    let three = desk.issue();
    assert_eq!(short(&three), [(Op::Continue, 0, 10, 1, 2, 2, Want::Last)]);
}

#[test]
fn replies_that_become_ready_together_are_spread_over_the_depth() {
    let mut desk = Desk::new(Limits { depth: 2, ..LIMITS });
    desk.ask(1, 3, 9).unwrap();
    desk.ask(2, 3, 9).unwrap();
    let prompts = desk.issue();
    desk.back(&prompts, |_| ONE);
    let (one, two) = (desk.issue(), desk.issue());
    let settled = (Op::Continue, 1, 3, 0, 3, 1, Want::None);
    assert_eq!(short(&one), [(Op::Continue, 0, 3, 1, 3, 1, Want::Last), settled]);
    assert_eq!(short(&two), [(Op::Continue, 1, 3, 1, 0, 2, Want::Last)]);
}

#[test]
fn a_reply_left_out_once_rides_next_although_fewer_run_then() {
    let mut desk = Desk::new(Limits { depth: 2, ..LIMITS });
    for (id, most) in [(1, 2), (2, 2), (3, 9), (4, 9)] {
        desk.ask(id, 3, most).unwrap();
    }
    let prompts = desk.issue();
    desk.back(&prompts, |_| ONE);
    let one = desk.issue();
    assert_eq!(one.wanted.len(), 2);
    desk.back(&one, |_| ONE);
    let ids: Vec<u32> = desk.issue().wanted.iter().map(|w| w.id.0).collect();
    assert_eq!(ids, [2, 3]);
}

#[test]
fn a_long_prompt_leaves_running_replies_a_row_in_every_round() {
    let mut desk = Desk::new(LIMITS);
    desk.ask(1, 2, 60).unwrap();
    let opened = desk.issue();
    desk.back(&opened, |_| ONE);
    desk.ask(2, 150, 1).unwrap();
    let mut rounds = 0;
    while desk.done(2).is_none() {
        let round = desk.issue();
        assert_eq!(round.wanted[0].id, StreamId(0), "round {}", round.number);
        desk.back(&round, |_| ONE);
        rounds += 1;
    }
    assert_eq!(rounds, 150_u32.div_ceil(8));
}

#[test]
fn short_prompts_go_first_and_a_long_one_is_not_passed_over_for_ever() {
    let mut desk = Desk::new(Limits { round_rows_max: 8, queue_max: 100, ..LIMITS });
    desk.ask(1, 40, 1).unwrap();
    for id in 2..40 {
        desk.ask(id, 8, 1).unwrap();
    }
    let mut chunks = Vec::new();
    while desk.done(1).is_none() {
        let round = desk.issue();
        let long = round.plan.entries.iter().find(|e| e.id.0 == 0 && e.rows > 0);
        chunks.push(long.map_or(0, |e| e.rows));
        desk.back(&round, |_| ONE);
    }
    assert_eq!(chunks[0], 0);
    let most = chunks.split(|rows| *rows > 0).map(<[u32]>::len).max();
    assert_eq!(most, Some(8), "{chunks:?}");
}

#[test]
fn a_cancel_rides_in_the_next_round_and_its_id_waits_for_the_echo() {
    let mut desk = Desk::new(Limits { streams_max: 1, depth: 2, ..LIMITS });
    desk.ask(1, 10, 5).unwrap();
    desk.ask(2, 2, 5).unwrap();
    let one = desk.issue();
    assert!(desk.sched.cancel(RequestId(1)).is_some());
    assert_eq!(desk.sched.cancelled(), [StreamId(0)]);
    assert_eq!(desk.sched.cancelled(), []);
    let two = desk.issue();
    assert_eq!(short(&two), [(Op::Cancel, 0, 0, 0, 0, 1, Want::None)]);
    desk.back(&one, |_| ONE);
    assert_eq!(desk.sched.next_round(), None, "the cancel has not echoed");
    desk.back(&two, |_| ONE);
    let three = desk.issue();
    assert_eq!(short(&three), [(Op::Open, 0, 0, 2, 0, 0, Want::Last)]);
    assert!(!desk.events.contains_key(&1));
}

#[test]
fn a_request_cancelled_in_the_queue_never_reaches_a_stage() {
    let mut desk = Desk::new(LIMITS);
    desk.ask(1, 10, 5).unwrap();
    let cancelled = desk.sched.cancel(RequestId(1));
    assert!(matches!(cancelled, Some(Event::Done { .. })));
    assert!(desk.sched.next_round().is_none() && desk.sched.idle());
}

#[test]
fn a_stream_cancelled_before_its_first_rows_never_reaches_a_stage() {
    let mut desk = Desk::new(Limits { round_rows_max: 8, ..LIMITS });
    desk.ask(1, 8, 1).unwrap();
    desk.ask(2, 9, 1).unwrap();
    let round = desk.issue();
    assert_eq!(desk.sched.running(), 2);
    assert!(desk.sched.cancel(RequestId(2)).is_some());
    desk.back(&round, |_| ONE);
    let ends = short(&desk.issue());
    assert_eq!(ends, [(Op::Close, 0, 0, 0, 0, 1, Want::None)]);
}

#[test]
fn pages_that_a_round_gives_back_are_taken_in_it() {
    let mut desk = Desk::new(Limits { pages: 6, ..LIMITS });
    desk.ask(1, 4, 100).unwrap();
    desk.issue();
    desk.sched.cancel(RequestId(1));
    desk.ask(2, 4, 100).unwrap();
    desk.ask(3, 130, 60).unwrap();
    let held = desk.sched.complete(RoundNumber(1), &pack_rows(&ONE, &[1]), 3);
    assert_eq!(held, []);
    let round = desk.issue();
    let ops: Vec<Op> = round.plan.entries.iter().map(|e| e.op).collect();
    assert_eq!(ops, [Op::Cancel, Op::Open, Op::Open]);
}

#[test]
fn a_page_that_a_reply_grows_into_is_not_given_away() {
    let mut desk = Desk::new(Limits { pages: 4, ..LIMITS });
    desk.ask(1, 60, 100).unwrap();
    while desk.sched.table().first().is_none_or(|s| s.first < 126) {
        let round = desk.issue();
        desk.back(&round, |_| ONE);
    }
    // Of the two pages that are free, one is the next but one window's.
    desk.ask(2, 60, 100).unwrap();
    assert_eq!(short(&desk.issue()).len(), 1);
    assert_eq!(desk.sched.waiting(), 1);
}

#[test]
fn what_can_not_be_taken_in_is_refused_by_name() {
    let mut desk = Desk::new(LIMITS);
    assert_eq!(desk.ask(1, 0, 1), Err(Refusal::Empty));
    let too_long = Refusal::TooLong { prompt: 200, context_max: 200 };
    assert_eq!(desk.ask(1, 200, 1), Err(too_long));
    desk.ask(1, 199, 1).unwrap();
    for id in 2..=6 {
        desk.ask(id, 1, 1).unwrap();
    }
    let full = Refusal::QueueFull { waiting: 6 };
    assert_eq!(desk.ask(7, 1, 1), Err(full));
    let mut narrow = Desk::new(Limits { pages: 1, ..LIMITS });
    let too_long = Refusal::TooLong { prompt: 64, context_max: 64 };
    assert_eq!(narrow.ask(1, 64, 1), Err(too_long));
}

#[test]
fn a_reply_is_cut_where_the_context_ends() {
    let mut desk = Desk::new(LIMITS);
    desk.ask(1, 198, 50).unwrap();
    while desk.done(1).is_none() {
        let round = desk.issue();
        desk.back(&round, |_| ONE);
    }
    assert_eq!(desk.events[&1].len(), 3);
    assert_eq!(desk.done(1), Some(Finish::Length));
}

#[test]
fn a_row_that_is_not_finite_fails_its_own_stream_alone() {
    let mut desk = Desk::new(LIMITS);
    desk.ask(1, 3, 9).unwrap();
    desk.ask(2, 3, 9).unwrap();
    let round = desk.issue();
    desk.back(&round, |id| if id == 0 { NAN } else { ONE });
    let failed = Failure::NonfiniteLogits { position: 2 };
    assert_eq!(desk.events[&1], [Event::Failed(failed)]);
    assert_eq!(desk.events[&2], [Event::Token { id: 1, logprobs: None }]);
    let ends = short(&desk.issue());
    assert_eq!(ends[0], (Op::Close, 0, 0, 0, 0, 1, Want::None));
    assert_eq!(ends[1], (Op::Continue, 1, 3, 1, 3, 1, Want::Last));
}

#[test]
fn the_newest_stream_gives_way_and_goes_on_where_it_was() {
    // Each reply grows to 3 pages; 4 are there.
    let mut desk = Desk::new(Limits { pages: 4, ..LIMITS });
    desk.ask(1, 60, 100).unwrap();
    desk.ask(2, 60, 100).unwrap();
    while !desk.sched.idle() {
        if desk.sched.preemptions() == 1 {
            assert_eq!(desk.sched.drain(), [], "it has started");
        }
        let round = desk.issue();
        desk.back(&round, |_| ONE);
    }
    assert_eq!(desk.sched.preemptions(), 1);
    for id in [1, 2] {
        assert_eq!(desk.events[&id].len(), 101, "request {id}");
        assert_eq!(desk.done(id), Some(Finish::Length));
    }
}

#[test]
fn a_drain_ends_what_waits_and_lets_the_rest_finish() {
    let mut desk = Desk::new(Limits { streams_max: 1, ..LIMITS });
    desk.ask(1, 3, 2).unwrap();
    desk.ask(2, 3, 2).unwrap();
    let round = desk.issue();
    let failed = desk.sched.drain();
    assert_eq!(failed, [(RequestId(2), Event::Failed(Failure::Draining))]);
    assert!(matches!(desk.ask(3, 1, 1), Err(Refusal::NotReady(_))));
    desk.back(&round, |_| ONE);
    while !desk.sched.idle() {
        let round = desk.issue();
        desk.back(&round, |_| ONE);
    }
    assert_eq!(desk.done(1), Some(Finish::Length));
}

#[test]
fn a_broken_ring_fails_everybody_and_the_next_epoch_starts_afresh() {
    let mut desk = Desk::new(Limits { streams_max: 1, ..LIMITS });
    desk.ask(1, 3, 2).unwrap();
    desk.ask(2, 3, 2).unwrap();
    desk.issue();
    let failure = Failure::Ring("rank 2: reset".into());
    let failed = desk.sched.fail_all(&failure);
    let expected = [1, 2].map(|id| (RequestId(id), Event::Failed(failure.clone())));
    assert_eq!(failed, expected);
    assert!(desk.sched.idle() && desk.sched.table().is_empty());
    desk.ask(3, 3, 2).unwrap();
    let round = desk.issue();
    assert_eq!(round.number, RoundNumber(1));
    assert_eq!(short(&round), [(Op::Open, 0, 0, 3, 0, 0, Want::Last)]);
}
