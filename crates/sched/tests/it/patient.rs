//! A reply whose grammar is slow waits alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arith::candidates::pack_rows;
use sched::sample::{Grammar, Guide, Mask, Verdict};
use sched::{Event, Limits, RequestId, Scheduler};

use crate::chosen::request;

/// Cuts nothing, and lets its reply ride only while it is told to.
#[derive(Clone, Debug)]
struct Slow(Arc<AtomicBool>);

impl Grammar for Slow {
    fn start(&self) -> Box<dyn Mask> {
        Box::new(self.clone())
    }
}

impl Mask for Slow {
    fn cut(&mut self, _: &mut [f32]) -> Verdict {
        Verdict::Cut
    }
    fn push(&mut self, _: u32) {}
    fn may_ride(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Does a round; the tokens that each of two requests got.
fn turn(sched: &mut Scheduler) -> Option<[usize; 2]> {
    let round = sched.next_round()?;
    let heads: u32 = round.wanted.iter().map(|wanted| wanted.heads).sum();
    let logits = [0.0, 1.0, 0.0].repeat(heads as usize);
    let mut tokens = [0; 2];
    for (id, event) in sched.complete(round.number, &pack_rows(&logits, &round.best()), 3) {
        tokens[id.0 as usize - 1] += usize::from(matches!(event, Event::Token { .. }));
    }
    Some(tokens)
}

#[test]
fn a_reply_whose_mask_is_slow_misses_rounds_and_holds_up_none() {
    let limits = Limits {
        streams_max: 2,
        queue_max: 2,
        chunk_rows_max: 8,
        round_rows_max: 16,
        context_max: 200,
        pages: 16,
        depth: 1,
    };
    let (mut sched, rides) = (Scheduler::new(limits), Arc::new(AtomicBool::new(true)));
    let mut slow = request(0, 3, 50);
    slow.guide = Guide { grammar: Some(Arc::new(Slow(rides.clone()))), ..Guide::default() };
    sched.submit(RequestId(1), slow).unwrap();
    sched.submit(RequestId(2), request(0, 3, 20)).unwrap();
    let mut got = [0; 2];
    let mut run = |sched: &mut Scheduler, rounds: usize| {
        let before = got;
        for _ in 0..rounds {
            let Some(tokens) = turn(sched) else { break };
            got = [got[0] + tokens[0], got[1] + tokens[1]];
        }
        [got[0] - before[0], got[1] - before[1]]
    };
    assert_eq!(run(&mut sched, 5), [5, 5]);
    rides.store(false, Ordering::SeqCst);
    assert_eq!(run(&mut sched, 5), [0, 5], "the other goes on");
    assert_eq!(run(&mut sched, 50)[0], 0, "and there is no round for nothing");
    assert!(sched.next_round().is_none());
    rides.store(true, Ordering::SeqCst);
    assert_eq!(run(&mut sched, 5)[0], 5);
}
