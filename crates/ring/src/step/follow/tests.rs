#![allow(clippy::unwrap_used, reason = "tests")]

use arith::base::{Generation, StreamId};
use wire::plan::{Entry, Op, Want};

use super::*;

const HIDDEN: usize = 2;

fn open(id: u32, rows: u32) -> Plan {
    let entry = Entry {
        id: StreamId(id),
        op: Op::Open,
        want: Want::Last,
        first: 0,
        rows,
        accepted: 0,
        resume: 0,
        generation: Generation(0),
        parents: None,
        tokens: None,
    };
    Plan { entries: vec![entry], ..Plan::default() }
}

/// The frames of a round of `rows` rows.
fn frames(round: u64, rows: u32) -> Vec<Frame> {
    let (plan, values) = (open(round as u32, rows), vec![1.0; rows as usize * HIDDEN]);
    let payload = plan.encode().unwrap();
    hop::frames(Round(round), &plan, payload, Hop::Onward, values, HIDDEN).0
}

fn rank(depth: u32) -> Follow {
    Follow::new(Rank(1), 2, Epoch(7), HIDDEN, depth)
}

fn stages(actions: &[Action]) -> Vec<u64> {
    let round = |action: &Action| match action {
        Action::Stage { round, .. } => Some(round.0),
        _ => None,
    };
    actions.iter().filter_map(round).collect()
}

fn take(core: &mut Follow, frames: Vec<Frame>) -> Vec<Action> {
    frames.into_iter().flat_map(|frame| core.step(Event::Frame(frame)).unwrap()).collect()
}

fn computed(core: &mut Follow, rows: usize) -> Vec<Action> {
    let values = vec![2.0; rows * HIDDEN];
    core.step(Event::Computed(Computed { values, ..Computed::default() })).unwrap()
}

#[test]
fn rounds_are_received_while_one_is_at_work_and_done_in_order() {
    let mut core = rank(3);
    assert_eq!(stages(&take(&mut core, frames(1, 2))), [1]);
    let meanwhile = [frames(2, 1), frames(3, 3)].concat();
    assert_eq!(take(&mut core, meanwhile), []);
    let actions = computed(&mut core, 2);
    // The last rank: the plan and the one wanted row go back, then the next round starts.
    let sent = |action: &Action| matches!(action, Action::Send(_));
    assert_eq!(actions.iter().filter(|a| sent(a)).count(), 2);
    assert_eq!(stages(&actions), [2]);
    assert_eq!(stages(&computed(&mut core, 1)), [3]);
    assert_eq!(core.progress(), (Round(3), 2));
}

#[test]
fn a_cancel_is_heard_while_rounds_wait() {
    let mut core = rank(3);
    take(&mut core, [frames(1, 2), frames(2, 1)].concat());
    let cancel = |epoch| {
        Frame::cancel(&Cancel { origin: Rank(0), stream: StreamId(2), epoch: Epoch(epoch) })
    };
    assert_eq!(take(&mut core, vec![cancel(7)]), [Action::Skip(StreamId(2))]);
    assert_eq!(take(&mut core, vec![cancel(6)]), [], "of another epoch");
}

#[test]
fn a_late_an_early_and_a_repeated_frame_end_the_epoch_by_name() {
    let broken = |before: &[u64], frame: Frame| {
        let mut core = rank(4);
        before.iter().for_each(|round| drop(take(&mut core, frames(*round, 1))));
        core.step(Event::Frame(frame)).unwrap_err().to_string()
    };
    let plan = |round| frames(round, 1).remove(0);
    let rows = |round| frames(round, 1).remove(1);
    for (before, frame) in [
        (&[1, 2][..], plan(1)),
        (&[1, 2], plan(2)),
        (&[1, 2], plan(4)),
        (&[], plan(2)),
        (&[1], rows(1)),
        (&[1], rows(2)),
    ] {
        let found = format!("{:?} of round {}", frame.kind, frame.round);
        let error = broken(before, frame);
        assert!(error.contains("OutOfTurn") && error.ends_with(&found), "{error}");
    }
    let mut core = rank(4);
    assert_eq!(take(&mut core, vec![plan(1)]), []);
    assert!(core.step(Event::Frame(rows(2))).is_err(), "rows of another round");
}

#[test]
fn rows_lie_in_the_rounds_berth_or_the_epoch_ends_by_name() {
    let heard = |berths, frame| {
        let mut core = rank(4).with_berths(berths);
        (1..=4).for_each(|round| drop(take(&mut core, frames(round, 1))));
        take(&mut core, vec![frames(5, 2).remove(0)]);
        core.step(Event::Frame(frame)).map(|_| core)
    };
    let berth = |round, rows, berth| Frame::berth(Round(round), rows, berth);
    // The round waits, as there are four.
    let full = heard(4, berth(5, 2, 1)).unwrap_err().to_string();
    assert!(full.contains("at most 4 rounds in flight"), "{full}");
    for (berths, frame, why) in [
        (4, berth(5, 2, 0), "berth.number: expected berth 1, found 0"),
        (4, berth(5, 2, 5), "berth.number: expected berth 1, found 5"),
        (0, berth(5, 2, 1), "berth.number: expected rows over the link, found 1"),
        (4, berth(5, 3, 1), "frame.rows: expected 2 in a berth, found 3"),
        (4, berth(6, 2, 2), "found Berth of round 6"),
    ] {
        let error = heard(berths, frame).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let mut core = rank(4).with_berths(4);
    take(&mut core, vec![frames(1, 3).remove(0)]);
    let actions = take(&mut core, vec![berth(1, 3, 1)]);
    assert!(matches!(&actions[..], [Action::Stage { rows: Rows::Berth(1), .. }]), "{actions:?}");
    // What it computed lies in a berth of the next rank.
    let computed = Computed { berth: Some(2), ..Computed::default() };
    let mut middle = Follow::new(Rank(1), 3, Epoch(7), HIDDEN, 4);
    take(&mut middle, frames(1, 3));
    let actions = middle.step(Event::Computed(computed)).unwrap();
    let last = Action::Send(Frame::berth(Round(1), 3, 2));
    assert_eq!((actions.len(), actions.last()), (2, Some(&last)));
}

#[test]
fn more_rounds_than_the_depth_are_refused() {
    let mut core = rank(2);
    take(&mut core, [frames(1, 1), frames(2, 1)].concat());
    let mut third = frames(3, 1).into_iter();
    core.step(Event::Frame(third.next().unwrap())).unwrap();
    let error = core.step(Event::Frame(third.next().unwrap())).unwrap_err().to_string();
    assert!(error.contains("at most 2 rounds in flight"), "{error}");
}
