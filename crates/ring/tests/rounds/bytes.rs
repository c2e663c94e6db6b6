//! Whatever the ring, its replies are one rank's.

use baton_ring::head::RingState;
use sched::Drafters;
use stage::Fault;

use crate::ring::{Ring, Twist, outcome, request, requests};

#[test]
fn every_layout_chunk_and_depth_gives_one_ranks_bytes() {
    let sound = Twist::default();
    let alone = outcome("0:8", 60, &sound);
    for layout in ["0:8", "0:4,4:8", "0:1,1:8", "0:3,3:5,5:8", "0:1,1:2,2:3,3:4,4:8"] {
        for chunk in [1, 7, 60] {
            assert_eq!(outcome(layout, chunk, &sound), alone, "{layout}, chunk {chunk}");
        }
        for depth in [2, 3, 8] {
            let deep = Twist { depth: Some(depth), ..Twist::default() };
            assert_eq!(outcome(layout, 7, &deep), alone, "{layout}, depth {depth}");
        }
    }
}

#[test]
fn drafts_of_the_draft_head_move_no_byte() {
    let asks = || {
        let mut asks = requests();
        asks.iter_mut().for_each(|ask| ask.max_tokens = 150);
        asks
    };
    let plain = Ring::ready("0:8", 60, &Twist::default());
    let alone = plain.ask(asks());
    plain.stop();
    let mut drafted = 0;
    for (layout, depth) in [("0:8", 1), ("0:4,4:8", 1), ("0:3,3:5,5:8", 4)] {
        let drafters = Drafters { copy: true, mtp: true, reach: None };
        let ring =
            Ring::ready(layout, 7, &Twist { drafters, depth: Some(depth), ..Twist::default() });
        assert_eq!(ring.ask(asks()), alone, "{layout}, depth {depth}");
        drafted += ring.drafts().0;
        ring.stop();
    }
    assert!(drafted > 50, "{drafted} drafted");
}

#[test]
fn a_stage_that_leaves_a_layer_out_changes_the_bytes() {
    let alone = outcome("0:8", 60, &Twist::default());
    for rank in 0..3 {
        let layer = [1, 4, 7][rank as usize];
        let fault = Some((rank, Fault::SkipLayer(layer)));
        let faulty = outcome("0:3,3:5,5:8", 60, &Twist { fault, ..Twist::default() });
        assert_ne!(faulty, alone, "layer {layer} of rank {rank}");
    }
}

#[test]
fn a_stage_one_layer_short_is_refused_at_boot_by_name() {
    for (claims, name) in [(4..7, "LayoutGap"), (3..8, "LayoutOverlap"), (4..9, "LayoutOverrun")] {
        let twist = Twist { claims: Some(claims), ..Twist::default() };
        let ring = Ring::start("0:4,4:8", 60, &twist);
        let state = ring.wait(|state| matches!(state, RingState::Waiting(_))).to_string();
        assert!(state.contains(name) && state.contains("rank 1"), "{name}: {state}");
        ring.stop();
    }
}

#[test]
fn a_dropped_generation_ends_the_epoch_by_name() {
    let fault = Some((1, Fault::DropGeneration));
    let ring = Ring::start("0:4,4:8", 60, &Twist { fault, ..Twist::default() });
    // The canary is the first to meet it.
    let state = ring.wait(|state| matches!(state, RingState::Waiting(_))).to_string();
    assert!(state.contains("rank 1: OtherGeneration"), "{state}");
    ring.stop();
}

#[test]
fn a_canary_of_other_bytes_keeps_the_ring_unready() {
    let twist = Twist { canary: Some([7; 32]), ..Twist::default() };
    let ring = Ring::start("0:4,4:8", 60, &twist);
    let state = ring.wait(|state| matches!(state, RingState::Waiting(_))).to_string();
    assert!(state.contains("OtherCanary"), "{state}");
    ring.stop();
}

#[test]
fn a_reply_that_nobody_wants_any_more_leaves_room_for_the_next() {
    let ring = Ring::ready("0:3,3:8", 8, &Twist::default());
    let alone = ring.ask(vec![request(20, 5, 0.0)]);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for _ in 0..50 {
        runtime.block_on(async {
            let mut long = request(200, 9, 0.0);
            long.max_tokens = 200;
            let mut reply = ring.handle.submit(long).await.unwrap();
            let _ = reply.next().await;
        });
    }
    assert_eq!(ring.ask(vec![request(20, 5, 0.0)]), alone);
    ring.stop();
}
