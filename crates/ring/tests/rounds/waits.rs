//! Replies that outlive their ring.

use std::time::{Duration, Instant};

use baton_ring::head::RingState;
use sched::{Event, Failure, Finish, Request};

use crate::ring::{Ended, Ring, Twist, end_of, request};

const PATIENT: Duration = Duration::from_secs(20);

fn requests() -> Vec<Request> {
    let long = |rows, seed, heat| Request { max_tokens: 120, ..request(rows, seed, heat) };
    vec![long(150, 1, 0.0), long(3, 2, 1.0), long(64, 3, 0.7), long(1, 4, 0.0), long(9, 5, 1.0)]
}

#[test]
fn replies_go_on_with_the_same_bytes_after_every_break() {
    let ring = Ring::ready("0:2,2:5,5:8", 7, &Twist::default());
    let expected: Vec<Ended> = ring.ask(requests()).into_iter().map(Result::unwrap).collect();
    ring.stop();
    for breaks in [&[40_u64][..], &[25, 60, 90], &[30, 31, 32]] {
        for depth in [1, 4] {
            let twist = Twist {
                depth: Some(depth),
                patience: PATIENT,
                breaks: breaks.to_vec(),
                ..Twist::default()
            };
            let ring = Ring::ready("0:2,2:5,5:8", 7, &twist);
            let found: Vec<_> = ring.ask(requests());
            ring.stop();
            let found: Vec<Ended> = found.into_iter().map(Result::unwrap).collect();
            assert_eq!(found, expected, "breaks at {breaks:?}, depth {depth}");
        }
    }
}

#[test]
fn a_ring_that_is_left_hands_its_replies_to_one_that_is_laid_out_otherwise() {
    let twist = Twist { patience: PATIENT, ..Twist::default() };
    let ring = Ring::ready("0:8", 7, &twist);
    let expected: Vec<Ended> = ring.ask(requests()).into_iter().map(Result::unwrap).collect();
    ring.stop();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut ring = Ring::ready("0:2,2:5,5:8", 7, &twist);
        let mut replies = Vec::new();
        for request in requests() {
            replies.push(ring.handle.submit(request).await.unwrap());
        }
        // Also one that is left while it boots, and a ring of one.
        for layout in ["0:4,4:8", "0:1,1:8", "0:8"] {
            let left = ring.leave();
            ring = Ring::start_on(layout, 7, &twist, left);
            if layout == "0:1,1:8" {
                ring.wait(|state| *state == RingState::Ready);
            }
        }
        let mut found = Vec::new();
        for reply in &mut replies {
            found.push(end_of(reply).await.unwrap());
        }
        assert_eq!(found, expected);
        let mut later = ring.handle.submit(requests().remove(1)).await.unwrap();
        assert_eq!(end_of(&mut later).await.unwrap(), expected[1]);
        ring.stop();
    });
}

#[test]
fn a_ring_that_does_not_come_back_fails_replies_by_name_when_their_time_is_up() {
    let patience = Duration::from_millis(700);
    let twist = Twist { patience, breaks: (90..100_000).collect(), ..Twist::default() };
    let ring = Ring::ready("0:4,4:8", 7, &twist);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut replies = Vec::new();
        let since = Instant::now();
        for request in requests().into_iter().take(2) {
            replies.push(ring.handle.submit(request).await.unwrap());
        }
        for reply in &mut replies {
            match end_of(reply).await {
                Err(Failure::Ring(why)) => assert!(why.contains("rank 1"), "{why}"),
                other => panic!("{other:?}"),
            }
        }
        assert!(since.elapsed() > patience / 2, "{:?}", since.elapsed());
        assert!(since.elapsed() < patience * 4, "{:?}", since.elapsed());
    });
    ring.stop();
}

#[test]
fn a_request_that_comes_while_the_ring_is_down_waits_for_it() {
    let twist = Twist { patience: PATIENT, breaks: vec![30], ..Twist::default() };
    let ring = Ring::ready("0:4,4:8", 7, &twist);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut running = ring.handle.submit(requests().remove(0)).await.unwrap();
        ring.wait(|state| *state != RingState::Ready);
        assert_eq!(ring.handle.refusal(), None);
        let mut waiting = ring.handle.submit(request(3, 2, 1.0)).await.unwrap();
        assert!(end_of(&mut running).await.is_ok() && end_of(&mut waiting).await.is_ok());
    });
    ring.stop();
}

#[test]
fn without_patience_a_broken_ring_fails_replies_at_once() {
    let ring = Ring::ready("0:4,4:8", 7, &Twist { breaks: vec![80], ..Twist::default() });
    let found = ring.ask(requests().into_iter().take(2).collect());
    assert!(found.iter().all(Result::is_err), "{found:?}");
    ring.stop();
}

#[test]
fn whoever_is_told_that_the_ring_broke_finds_it_so() {
    for patience in [Duration::ZERO, PATIENT] {
        let twist = Twist { patience, breaks: vec![30], ..Twist::default() };
        let ring = Ring::ready("0:4,4:8", 7, &twist);
        drop(ring.ask(requests()));
        let told = ring.told.lock().unwrap().clone();
        assert_eq!(told.len(), 1, "{told:?}");
        let (line, state) = &told[0];
        assert!(line.contains("the ring broke"), "{line}");
        assert!(matches!(state, RingState::Waiting(_)), "{line}: {state:?}");
        ring.stop();
    }
}

#[test]
fn a_reply_that_is_taken_back_ends_with_what_it_took() {
    let ring = Ring::ready("0:4,4:8", 7, &Twist::default());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let last = runtime.block_on(async {
        let mut long = request(20, 5, 1.0);
        long.max_tokens = 400;
        let mut reply = ring.handle.submit(long).await.unwrap();
        assert!(matches!(reply.next().await, Some(Event::Token { .. })));
        reply.cancel();
        loop {
            match reply.next().await {
                Some(Event::Token { .. }) => {}
                last => break last,
            }
        }
    });
    ring.stop();
    let cancelled =
        matches!(&last, Some(Event::Done { finish: Finish::Cancelled, reply_tokens: 1.., .. }));
    assert!(cancelled, "{last:?}");
}
