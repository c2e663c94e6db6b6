//! The prompt cache, plan by plan.

use arith::base::StreamId;
use arith::candidates::pack_rows;
use sched::{Caching, Event, Limits, Request, RequestId, Round, Scheduler};
use wire::plan::{Keep, KeepOp, Op};

const LIMITS: Limits = Limits {
    streams_max: 4,
    queue_max: 8,
    chunk_rows_max: 256,
    round_rows_max: 256,
    context_max: 512,
    pages: 8,
    depth: 1,
};

const CACHING: Caching = Caching { keeps_max: 16, prefix_min: 8, spacing: 16, grid: 512 };

const ONE: [f32; 3] = [0.0, 1.0, 0.0];

struct Desk {
    sched: Scheduler,
    cached: Vec<(u64, u32)>,
}

/// What was done at which positions.
type At<T> = Vec<(T, u32)>;

impl Desk {
    fn new(limits: Limits, caching: Caching) -> Self {
        let mut sched = Scheduler::new(limits);
        sched.set_cache(caching);
        Self { sched, cached: Vec::new() }
    }

    fn ask(&mut self, id: u64, request: Request) {
        self.sched.submit(RequestId(id), request).unwrap();
    }

    /// Completes a round of which every stage held what `holds` says.
    fn back(&mut self, round: &Round, holds: bool) {
        let echo = round.plan.keeps.iter().map(|keep| Keep { held: holds, ..*keep });
        self.sched.echo(&echo.collect::<Vec<_>>());
        let rows = round.plan.wanted().len();
        for (id, event) in
            self.sched.complete(round.number, &pack_rows(&ONE.repeat(rows), &round.best()), 3)
        {
            if let Event::Done { cached, .. } = event {
                self.cached.push((id.0, cached));
            }
        }
    }

    /// Runs all that was asked for; the keeps of its plans, and what opened streams.
    fn run(&mut self, holds: bool) -> (At<KeepOp>, At<Op>) {
        let (mut keeps, mut opened) = (Vec::new(), Vec::new());
        while let Some(round) = self.sched.next_round() {
            keeps.extend(round.plan.keeps.iter().map(|keep| (keep.op, keep.position)));
            let opens = |op| matches!(op, Op::Open | Op::Resume);
            let entries = round.plan.entries.iter().filter(|entry| opens(entry.op));
            opened.extend(entries.map(|entry| (entry.op, entry.first)));
            self.back(&round, holds);
        }
        (keeps, opened)
    }
}

fn prompt(length: u32) -> Vec<u32> {
    (0..length).map(|n| n % 7).collect()
}

fn request(prompt: Vec<u32>, marks: &[u32]) -> Request {
    Request { prompt, max_tokens: 2, marks: marks.to_vec(), draft: false, ..Request::default() }
}

#[test]
fn a_prompt_asked_twice_starts_one_token_before_its_end() {
    let mut desk = Desk::new(LIMITS, CACHING);
    desk.ask(1, request(prompt(100), &[5, 40, 50]));
    let (keeps, opened) = desk.run(true);
    // 5 is no prefix worth a state, and 50 is close to 40; but it is the last message.
    let saves = [40, 50, 99].map(|at| (KeepOp::Save, at));
    assert_eq!((keeps.as_slice(), opened.as_slice()), (&saves[..], &[(Op::Open, 0)][..]));
    desk.ask(2, request(prompt(100), &[5, 40, 50]));
    let (keeps, opened) = desk.run(true);
    assert_eq!((keeps, opened), (vec![(KeepOp::Restore, 99)], vec![(Op::Resume, 99)]));
    let mut longer = prompt(60);
    longer.extend([9; 30]);
    desk.ask(3, request(longer, &[]));
    let (keeps, opened) = desk.run(true);
    // Where it parts from the first prompt others may part too.
    let saves = [(KeepOp::Restore, 50), (KeepOp::Save, 60), (KeepOp::Save, 89)];
    assert_eq!((keeps.as_slice(), opened.as_slice()), (&saves[..], &[(Op::Resume, 50)][..]));
    assert_eq!(desk.cached, [(1, 0), (2, 99), (3, 50)]);
}

#[test]
fn a_state_is_not_used_before_every_stage_has_said_that_it_holds_it() {
    let limits = Limits { depth: 4, ..LIMITS };
    let mut desk = Desk::new(limits, CACHING);
    desk.ask(1, request(prompt(100), &[40]));
    let first: Vec<Round> = (0..3).map_while(|_| desk.sched.next_round()).collect();
    assert_eq!(first[1].plan.keeps[0].op, KeepOp::Save);
    desk.ask(2, request(prompt(100), &[40]));
    let second = desk.sched.next_round().unwrap();
    let opened = second.plan.entries.iter().find(|entry| entry.id == StreamId(1)).unwrap();
    assert_eq!((opened.op, opened.first), (Op::Open, 0), "the save has not come back");
    first.iter().chain([&second]).for_each(|round| desk.back(round, true));
}

#[test]
fn a_state_that_some_stage_refused_is_dropped_and_no_more_are_asked_for() {
    let mut desk = Desk::new(LIMITS, CACHING);
    desk.ask(1, request(prompt(100), &[]));
    assert_eq!(desk.run(false).0, [(KeepOp::Save, 99), (KeepOp::Drop, 0)]);
    assert_eq!((desk.sched.keeps(), desk.sched.pages_kept()), (0, 0));
    desk.ask(2, request(prompt(100), &[]));
    let (keeps, opened) = desk.run(true);
    assert_eq!((keeps, opened), (vec![], vec![(Op::Open, 0)]), "there is no room for any");
}

#[test]
fn kept_states_give_way_to_streams_and_the_least_used_goes_first() {
    let mut desk = Desk::new(LIMITS, CACHING);
    let other = |n: u32| (0..150).map(|at| (at * n) % 11).collect::<Vec<u32>>();
    for (id, n) in [(1, 2), (2, 3), (3, 2)] {
        desk.ask(id, request(other(n), &[]));
        desk.run(true);
    }
    // Two states of three pages each; the first was used.
    assert_eq!((desk.sched.keeps(), desk.sched.pages_kept()), (2, 6));
    desk.ask(4, request(other(5), &[]));
    let (keeps, _) = desk.run(true);
    assert_eq!(keeps, [(KeepOp::Drop, 0), (KeepOp::Save, 149)]);
    desk.ask(5, request(other(2), &[]));
    assert_eq!(desk.run(true).1, [(Op::Resume, 149)]);
    assert_eq!(desk.sched.preemptions(), 0);
}

#[test]
fn a_request_that_wants_no_cache_or_all_rows_starts_afresh() {
    let mut desk = Desk::new(LIMITS, CACHING);
    desk.ask(1, request(prompt(100), &[]));
    desk.run(true);
    desk.ask(2, Request { cached: false, ..request(prompt(100), &[]) });
    assert_eq!(desk.run(true), (vec![], vec![(Op::Open, 0)]));
    desk.ask(3, Request { prompt_logits: true, ..request(prompt(100), &[]) });
    assert_eq!(desk.run(true).1, [(Op::Open, 0)]);
}

#[test]
fn a_new_epoch_knows_no_states() {
    let mut desk = Desk::new(LIMITS, CACHING);
    desk.ask(1, request(prompt(100), &[]));
    desk.run(true);
    assert_eq!(desk.sched.keeps(), 1);
    desk.sched.fail_all(&sched::Failure::Draining);
    assert_eq!((desk.sched.keeps(), desk.sched.pages_kept()), (0, 0));
    desk.ask(2, request(prompt(100), &[]));
    assert_eq!(desk.run(true).1, [(Op::Open, 0)]);
}
