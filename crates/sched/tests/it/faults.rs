//! The model turns red: each fault is planted in one round of a workload that passes without it.

use arith::base::{Generation, StreamId};
use sched::{Limits, Round};
use wire::plan::{Entry, Mode, Op, Want};

use crate::asks::{Ask, NAMES};
use crate::chosen::{request, round};
use crate::model::{Model, Watched};
use crate::world::World;

/// Plants a fault where it can; the rules that may then be named.
type Fault = (fn(&mut Round) -> bool, &'static [&'static str]);

fn find(round: &mut Round, which: fn(&Entry) -> bool) -> Option<&mut Entry> {
    round.plan.entries.iter_mut().find(|e| which(e))
}

/// Takes an entry out, with its tokens and its wanted rows.
fn remove(round: &mut Round, which: fn(&Entry) -> bool) -> bool {
    let Some(at) = round.plan.entries.iter().position(which) else {
        return false;
    };
    let before: u32 = round.plan.entries[..at].iter().map(|e| e.rows).sum();
    let entry = round.plan.entries.remove(at);
    let tokens = before as usize..(before + entry.rows) as usize;
    round.tokens.drain(tokens);
    round.wanted.retain(|wanted| wanted.id != entry.id);
    true
}

const FAULTS: &[Fault] = &[
    (
        |round| {
            let two = round.plan.entries.len() > 1;
            round.plan.entries.reverse();
            two
        },
        &["Ascending"],
    ),
    (
        |round| {
            let entry = find(round, |e| e.op != Op::Open);
            entry.map(|e| e.generation.0 += 1).is_some()
        },
        &["Generation"],
    ),
    (
        |round| {
            let entry = find(round, |e| e.accepted > 0);
            entry.map(|e| e.accepted -= 1).is_some()
        },
        &["Accepted"],
    ),
    (
        // A draft stays though it differs.
        |round| {
            let entry = find(round, |e| e.op == Op::Continue && e.accepted > 0);
            entry.map(|e| (e.accepted, e.first) = (e.accepted + 1, e.first + 1)).is_some()
        },
        &["Accepted"],
    ),
    (
        |round| {
            let entry = find(round, |e| e.op == Op::Continue && e.rows > 0);
            entry.map(|e| e.first += 1).is_some()
        },
        &["Position"],
    ),
    (
        |round| remove(round, |e| matches!(e.op, Op::Close | Op::Cancel)),
        &["EndNotIssued", "Unsettled", "Useless", "Table"],
    ),
    (|round| remove(round, |e| e.rows == 0 && e.accepted > 0), &["Unsettled"]),
    (
        |round| remove(round, |e| e.op == Op::Continue && e.rows > 0),
        &["Unsettled", "Mode", "Useless", "Table"],
    ),
    (
        |round| {
            let entry = find(round, |e| e.op == Op::Close);
            entry.map(|e| (e.op, e.rows) = (Op::Continue, 0)).is_some()
        },
        &["Accepted", "Nothing", "Position", "RowsAfterEnd", "Useless"],
    ),
    (
        |round| {
            let entry = find(round, |e| e.want == Want::Last);
            entry.map(|e| e.want = Want::None).is_some()
        },
        &["Want"],
    ),
    (
        |round| {
            let entry = find(round, |e| e.rows > 0 && e.want == Want::None);
            entry.map(|e| e.want = Want::Last).is_some()
        },
        &["Want"],
    ),
    (
        |round| {
            round.plan.mode = match round.plan.mode {
                Mode::Prompt => Mode::Window,
                Mode::Window => Mode::Prompt,
            };
            true
        },
        &["Mode"],
    ),
    (
        |round| {
            let at = round.plan.entries.iter().position(|e| e.op == Op::Continue && e.rows > 0);
            let rows = at.map(|at| round.plan.entries[..at].iter().map(|e| e.rows as usize).sum());
            let token = rows.and_then(|rows: usize| round.tokens.get_mut(rows));
            token.map(|token| *token += 1).is_some()
        },
        &["OtherTokens"],
    ),
    (|round| round.wanted.pop().is_some(), &["Wanted"]),
    (
        |round| {
            round.number.0 += 1;
            true
        },
        &["Number"],
    ),
];

#[test]
fn every_planted_fault_is_named() {
    for (n, (fault, rules)) in FAULTS.iter().enumerate() {
        let mut named = 0;
        for seed in 0..40 {
            let (mut planted, mut skip) = (false, seed % 7);
            // Not always the first round that could carry it.
            let mut plant = |round: &mut Round| {
                let mut changed = round.clone();
                if !fault(&mut changed) {
                    return false;
                }
                if skip > 0 {
                    skip -= 1;
                    return false;
                }
                *round = changed;
                planted = true;
                true
            };
            let verdict = World::new(seed).run(12, Some(&mut plant));
            match verdict {
                Ok(_) => assert!(!planted, "fault {n}, seed {seed}: nobody noticed"),
                Err(broken) => {
                    let rule = broken.split(':').next().unwrap();
                    assert!(rules.contains(&rule), "fault {n}, seed {seed}: {broken}");
                    named += 1;
                }
            }
        }
        assert!(named > 5, "fault {n} was planted {named} times");
    }
}

fn model(limits: Limits, asks: u32) -> Model {
    let mut model = Model::new(limits);
    for name in NAMES + 1..=NAMES + asks {
        let ask = Ask::new(name, request(name, 2, 4), false, limits.context_max);
        let watched = Watched { known: ask.prompt(), shown: 0, absorbs: false, over: false, ask };
        model.watched.insert(name, watched);
    }
    model
}

const LIMITS: Limits = Limits {
    streams_max: 2,
    queue_max: 2,
    chunk_rows_max: 8,
    round_rows_max: 8,
    context_max: 100,
    pages: 2,
    depth: 2,
};

fn open(id: u32, rows: u32) -> Entry {
    Entry {
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
    }
}

#[test]
fn an_id_that_has_not_echoed_is_named() {
    let mut model = model(LIMITS, 2);
    let tokens = |n: u32| request(NAMES + n, 2, 4).prompt;
    let first = round(1, Mode::Prompt, vec![open(0, 2)], tokens(1), &[(0, 1, 1)]);
    model.execute(&first).unwrap();
    model.complete();
    model.watched.get_mut(&(NAMES + 1)).unwrap().over = true;
    let close =
        Entry { op: Op::Close, want: Want::None, rows: 0, generation: Generation(1), ..open(0, 2) };
    model.execute(&round(2, Mode::Window, vec![close], vec![], &[])).unwrap();
    let again = round(3, Mode::Prompt, vec![open(0, 2)], tokens(2), &[(0, 1, 1)]);
    let broken = model.execute(&again).unwrap_err();
    assert!(broken.starts_with("NotEchoed"), "{broken}");
}

#[test]
fn rows_that_no_page_is_left_for_are_named() {
    let mut model = model(Limits { pages: 1, ..LIMITS }, 2);
    let both = [request(NAMES + 1, 2, 4).prompt, request(NAMES + 2, 2, 4).prompt].concat();
    let entries = vec![open(0, 2), open(1, 2)];
    let plan = round(1, Mode::Prompt, entries, both, &[(0, 1, 1), (1, 1, 1)]);
    let broken = model.execute(&plan).unwrap_err();
    assert!(broken.starts_with("Pages"), "{broken}");
}
