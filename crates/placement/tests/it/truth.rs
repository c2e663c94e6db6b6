//! When measured times ask for another plan, and when they do not.

use placement::truth::{AGREEING, Advice, Expected, Truth, WINDOWS, Window};

fn expected() -> Expected {
    Expected {
        decode_s: 0.010,
        round_s: 0.020,
        streams: 5,
        prompt_s: 2.0,
        prompt_tokens: 1_000,
        chunk_rows: 256,
        memory_bytes: vec![1 << 30, 1 << 29],
    }
}

/// Ten busy seconds in which a token of one stream took `ms`.
fn decoding(ms: f64) -> Window {
    Window {
        seconds: 10.0,
        at_work_s: 9.0,
        tokens: 500,
        between_s: 0.5 * ms,
        streams: 1.0,
        ..Window::default()
    }
}

fn after(windows: &[Window]) -> Truth {
    let mut truth = Truth::new(expected());
    windows.iter().for_each(|window| truth.add(window));
    truth
}

fn is_kept(windows: &[Window]) -> bool {
    after(windows).advice() == Advice::Keep
}

#[test]
fn sustained_slowness_asks_for_a_plan_and_says_by_how_much() {
    let windows = vec![decoding(15.0); AGREEING];
    let Advice::Replan(ratios) = after(&windows).advice() else { panic!("kept") };
    assert!((ratios.decode.unwrap() - 1.5).abs() < 1e-9 && ratios.prompt.is_none(), "{ratios:?}");
    assert!(is_kept(&windows[1..]), "one window less is too few");
    assert!(!is_kept(&vec![decoding(7.0); WINDOWS]), "far faster is another machine too");
    assert!(is_kept(&vec![decoding(12.0); WINDOWS]), "a fifth is no reason");
}

#[test]
fn one_odd_window_neither_makes_nor_stops_a_plan() {
    let mut windows = vec![decoding(15.0); WINDOWS];
    windows[2] = decoding(10.0);
    assert!(!is_kept(&windows));
    windows[4] = decoding(10.0);
    assert!(is_kept(&windows), "two do");
    let old = [vec![decoding(15.0); WINDOWS], vec![decoding(10.0); 2]].concat();
    assert!(is_kept(&old), "what is long past is forgotten");
}

#[test]
fn idle_windows_and_mixed_ones_are_no_evidence() {
    let idle = Window { at_work_s: 4.0, ..decoding(30.0) };
    assert!(is_kept(&vec![idle; 20]), "work in less than half of the time");
    let few = Window { tokens: 31, ..decoding(30.0) };
    assert!(is_kept(&vec![few; 20]));
    // A second of ten went into prompts, by the plan's own account: one more and it counts not.
    let mixed = |prompt_tokens| Window { prompt_tokens, streams: 2.0, ..decoding(30.0) };
    assert!(!is_kept(&vec![mixed(500); 20]));
    assert!(is_kept(&vec![mixed(501); 20]));
    let asleep = Window { seconds: 0.0, at_work_s: 0.0, ..decoding(30.0) };
    assert!(is_kept(&vec![asleep; 20]));
}

#[test]
fn many_streams_are_held_against_what_many_streams_take() {
    let of = |streams| Window { streams, ..decoding(17.0) };
    assert!(is_kept(&vec![of(5.0); WINDOWS]), "20 ms are expected of five");
    assert!(!is_kept(&vec![of(1.5); WINDOWS]), "11 ms of one or two");
    assert!(is_kept(&vec![of(40.0); WINDOWS]), "past what was planned the last is taken");
}

#[test]
fn prompts_count_where_they_were_alone() {
    let taken = |streams, first_s| Window {
        tokens: 0,
        prompt_tokens: 4_000,
        first_s,
        streams,
        ..decoding(0.0)
    };
    let truth = after(&vec![taken(0.9, 12.0); WINDOWS]);
    let Advice::Replan(ratios) = truth.advice() else { panic!("kept") };
    assert!((ratios.prompt.unwrap() - 1.5).abs() < 1e-9, "{ratios:?}");
    assert!((truth.measured().prompt_token_s.unwrap() - 0.003).abs() < 1e-9);
    assert!(is_kept(&vec![taken(2.0, 12.0); WINDOWS]));
}

#[test]
fn what_ranks_hold_is_told_also_while_nothing_runs() {
    let idle = Window { seconds: 10.0, memory_bytes: vec![7, 9], ..Window::default() };
    assert_eq!(after(&[idle]).measured().memory_bytes, [7, 9]);
}
