//! Prompts of a group in pairs: the bytes of prompts alone, when they may, what they cost.

use std::sync::atomic::Ordering;

use baton_stage::{Engine, Fault, PAIR_ROWS_MIN, Shapes, Share, Split, share_need_bytes};
use weights::Checkpoint;
use wire::plan::{Entry, Op, Want};

use crate::chain::{Chain, LONG, entry, same, say, tokens};
use crate::group::Together;
use crate::shares::{alone, costs, models, whole, wide, wide_hybrid};

/// Fewest rows of a second half here: see [`Together::pairing`].
const LEAST: usize = 32;

type One = Chain<dyn Engine>;

/// A group of two that pairs or not, and what reads and clears the count of its exchanges.
fn two(checkpoint: &Checkpoint, shapes: &Shapes, on: bool) -> (One, impl Fn() -> usize + use<>) {
    let config = whole(checkpoint);
    let group = Together::pairing(checkpoint, &config, (Split::Shards, 2), None, |_| on);
    let meter = group.meter.clone();
    let chain = Chain::sized(vec![Box::new(group) as Box<dyn Engine>], shapes);
    meter.exchanges.store(0, Ordering::Relaxed);
    (chain, move || meter.exchanges.swap(0, Ordering::Relaxed))
}

#[test]
fn prompts_in_pairs_have_the_bytes_of_prompts_alone() {
    let text = tokens(7, 200);
    for (name, checkpoint, shapes) in models() {
        let mut expected = Chain::sized(vec![alone(checkpoint)], &shapes);
        let prompt = expected.feed(1, &text, 100);
        let next = expected.round(&[say(1, 100, &[9])]).unwrap();
        let mut counts = Vec::new();
        for on in [false, true] {
            let (mut chain, counted) = two(checkpoint, &shapes, on);
            let case = format!("{name}, pairs {on}");
            same(&chain.feed(1, &text, 100), &prompt, &case);
            counts.push(counted());
            same(&chain.round(&[say(1, 100, &[9])]).unwrap(), &next, &case);
            counts.push(counted());
        }
        // Twice as many exchanges, each of half the rows, and none more where a reply goes on.
        assert_eq!([counts[2], counts[3]], [2 * counts[0], counts[1]], "{name}");
    }
}

#[test]
fn a_second_half_of_too_few_rows_is_none() {
    let (_, checkpoint, shapes) = models()[0];
    let [layers, _] = costs(checkpoint.config(), Split::Shards, 2);
    let (mut chain, counted) = two(checkpoint, &shapes, true);
    for (id, rows, halves) in [(1, 2 * LEAST - 1, 1), (2, 2 * LEAST, 2), (3, 2 * LEAST + 1, 2)] {
        chain.round(&[say(id, 0, &tokens(id, rows))]).unwrap();
        assert_eq!(counted(), halves * layers.exchanges, "{rows} rows");
    }
}

#[test]
fn a_prompt_beside_a_reply_goes_alone() {
    let (_, checkpoint, shapes) = models()[0];
    let [layers, _] = costs(checkpoint.config(), Split::Shards, 2);
    let (mut chain, counted) = two(checkpoint, &shapes, true);
    chain.feed(1, &tokens(8, 3), 3);
    counted();
    chain.round(&[say(1, 3, &[4]), say(2, 0, &tokens(9, 100))]).unwrap();
    assert_eq!(counted(), layers.exchanges);
    // Once nobody decodes the next ones go in pairs again.
    chain.close(1, Op::Close).unwrap();
    counted();
    chain.round(&[say(3, 0, &tokens(9, 100))]).unwrap();
    assert_eq!(counted(), 2 * layers.exchanges);
}

/// For their logprobs, or for a draft head that takes them in.
#[test]
fn a_prompt_all_of_whose_rows_are_wanted_goes_alone() {
    let (_, checkpoint, shapes) = models()[0];
    let [layers, _] = costs(checkpoint.config(), Split::Shards, 2);
    let (mut chain, counted) = two(checkpoint, &shapes, true);
    let text = tokens(9, 100);
    for (id, want, halves) in [(1, Want::All, 1), (2, Want::Last, 2), (3, Want::None, 2)] {
        let entry = Entry { want, ..entry(id, Op::Open, 0, 100, 0, 0) };
        chain.run(vec![entry], &text).unwrap();
        assert_eq!(counted(), halves * layers.exchanges, "{want:?}");
    }
}

/// A kept state is of the row before a step, so that it starts no second half.
#[test]
fn a_state_kept_between_pairs_is_one_machines() {
    let (text, rest) = (tokens(7, 200), tokens(3, 70));
    for (name, checkpoint, shapes) in models() {
        let mut found = Vec::new();
        for on in [false, true] {
            let (mut chain, counted) = two(checkpoint, &shapes, on);
            chain.round(&[say(1, 0, &text[..100])]).unwrap();
            let second = chain.saving(&[say(1, 100, &text[100..])], &[(5, 1)]).unwrap();
            counted();
            // Begins where the kept state is, with a second half of its own.
            let resumed = chain.resume(2, 5, &text[100..]).unwrap();
            same(&resumed, &second, name);
            let count = counted();
            chain.close(1, Op::Close).unwrap();
            found.push((second, chain.resume(3, 5, &rest).unwrap(), count));
        }
        same(&found[1].0, &found[0].0, name);
        same(&found[1].1, &found[0].1, name);
        assert_eq!(found[1].2, 2 * found[0].2, "{name}");
    }
}

/// Every recurrent layer's state after a prompt of two pieces, each of which goes in a pair.
#[test]
fn a_step_of_several_pieces_pairs_each() {
    let (_, checkpoint, _) = models()[1];
    let [layers, _] = costs(checkpoint.config(), Split::Shards, 2);
    let text = tokens(5, 2_200);
    let (mut chain, counted) = two(checkpoint, &LONG, true);
    let rows = chain.round(&[say(1, 0, &text)]).unwrap();
    assert_eq!(counted(), 4 * layers.exchanges);
    let mut expected = Chain::sized(vec![alone(checkpoint)], &LONG);
    same(&rows, &expected.round(&[say(1, 0, &text)]).unwrap(), "2,200 rows");
    let next = expected.round(&[say(1, 2_200, &[9])]).unwrap();
    same(&chain.round(&[say(1, 2_200, &[9])]).unwrap(), &next, "after 2,200 rows");
}

#[test]
fn a_member_that_pairs_where_another_does_not_is_named() {
    let (_, checkpoint, shapes) = models()[2];
    let config = whole(checkpoint);
    let group =
        Together::pairing(checkpoint, &config, (Split::Shards, 2), None, |index| index == 0);
    let mut chain = Chain::sized(vec![Box::new(group) as Box<dyn Engine>], &shapes);
    let error = chain.round(&[say(1, 0, &tokens(8, 100))]).unwrap_err().to_string();
    assert!(
        error.starts_with("ShardLost: member 1: expected 12800 values, found 25600"),
        "{error}"
    );
}

#[test]
fn a_stale_twin_changes_bytes_where_there_is_a_twin_alone() {
    let (_, checkpoint, shapes) = models()[2];
    let (config, fault) = (whole(checkpoint), Some(Fault::StaleTwin));
    for (rows, stale) in [(2 * LEAST - 1, false), (2 * LEAST, true)] {
        let group = Together::pairing(checkpoint, &config, (Split::Shards, 2), fault, |_| true);
        let mut faulty = Chain::sized(vec![Box::new(group) as Box<dyn Engine>], &shapes);
        let text = tokens(8, rows);
        let found = faulty.round(&[say(1, 0, &text)]).unwrap();
        let mut right = Chain::sized(vec![alone(checkpoint)], &shapes);
        let expected = right.round(&[say(1, 0, &text)]).unwrap();
        assert_eq!(found != expected, stale, "{rows} rows");
    }
}

#[test]
fn a_twin_costs_a_member_of_a_group_that_may_pair_and_nobody_else() {
    let rows = |round_rows_max| Shapes { round_rows_max, ..models()[3].2 };
    let least = 2 * PAIR_ROWS_MIN as u32;
    for checkpoint in [wide(), wide_hybrid()] {
        let config = whole(checkpoint);
        let need = |count, rows_max| {
            let share = Share { index: 0, count, split: Split::Shards };
            share_need_bytes(checkpoint, &config, share, &rows(rows_max)).unwrap()
        };
        let (two, small) = (need(2, 2 * least), need(2, least - 1));
        assert_eq!([need(1, 2 * least).twin_bytes, small.twin_bytes], [0, 0]);
        // Half the rows, and no head.
        let (twin, first) = (two.twin_bytes, two.buffers_bytes);
        assert!(twin > first / 4 && twin <= first / 2, "{twin} of {first}");
        let parts = two.weights_bytes + two.kv_bytes + two.state_bytes + first;
        assert_eq!(two.total_bytes(), parts + twin);
    }
}
