#![allow(clippy::unwrap_used, reason = "tests")]

use wire::plan::{Keep, KeepOp, Want};

use super::*;

mod model;

const SHAPES: Shapes = Shapes {
    chunk_rows_max: 200,
    round_rows_max: 400,
    streams_max: 4,
    context_max: 640,
    pages: 12,
};

fn entry(id: u32, op: Op, first: u32, rows: u32, accepted: u32, generation: u32) -> Entry {
    Entry {
        id: StreamId(id),
        op,
        want: Want::Last,
        first,
        rows,
        accepted,
        resume: 0,
        generation: Generation(generation),
        parents: None,
        tokens: None,
    }
}

fn keep(key: u64, op: KeepOp, id: u32, position: u32) -> Keep {
    Keep { key, stream: StreamId(id), position, op, held: true }
}

/// A plan with keeps.
fn keeping(entries: Vec<Entry>, keeps: Vec<Keep>) -> Plan {
    Plan { entries, keeps, ..Plan::default() }
}

fn resume(id: u32, first: u32, rows: u32) -> Entry {
    Entry { resume: first, ..entry(id, Op::Resume, first, rows, 0, 0) }
}

fn plan(entries: Vec<Entry>) -> Plan {
    Plan { entries, ..Plan::default() }
}

fn opened(rows: u32) -> Slots {
    let mut slots = Slots::new(SHAPES);
    slots.apply(&plan(vec![entry(1, Op::Open, 0, rows, 0, 0)])).unwrap();
    slots
}

/// The refusal of a plan, which must leave the table alone.
fn refusal(slots: &mut Slots, plan: &Plan) -> String {
    let all = |slots: &Slots| {
        (slots.slots.clone(), slots.pages.clone(), slots.keeps.clone(), slots.spare.clone())
    };
    let before = all(slots);
    let error = slots.apply(plan).unwrap_err().to_string();
    assert_eq!(before, all(slots), "{error}");
    error
}

#[test]
fn a_window_settles_to_its_accepted_rows_and_counts_one_change() {
    let mut slots = opened(70);
    let effects = slots.apply(&plan(vec![entry(1, Op::Continue, 70, 4, 70, 1)])).unwrap();
    let track = Track { slot: 0, from: None, to: 1 };
    let settled = Settled {
        id: StreamId(1),
        rows: 70,
        accepted: 70,
        at: 0,
        is_side: false,
        skipped: false,
        track,
    };
    assert_eq!(effects.settled, [settled]);
    assert!(!settled.replays());
    assert_eq!(effects.spans[0].track, Track { slot: 0, from: Some(1), to: 0 });
    assert_eq!(effects.map.rows[0], RowAt { table: 0, position: 70 });
    assert_eq!(*effects.map.tables[0], [0, 1]);

    slots.apply(&plan(vec![entry(1, Op::Continue, 72, 0, 2, 2)])).unwrap();
    let state = slots.table()[0];
    assert_eq!((state.generation, state.first, state.rows), (Generation(3), 72, 0));

    let idle = slots.apply(&plan(vec![entry(1, Op::Continue, 72, 0, 0, 3)])).unwrap();
    assert!(idle.settled.is_empty());
    assert_eq!(slots.table()[0].generation, Generation(3), "nothing changed, nothing counts");
}

#[test]
fn an_open_without_rows_changes_nothing_but_the_table() {
    let slots = opened(0);
    let state = slots.table()[0];
    assert_eq!((state.generation, state.pages), (Generation(0), 0));
}

#[test]
fn pages_are_taken_lowest_first_and_come_back_in_the_same_plan() {
    let mut slots = opened(128);
    slots.apply(&plan(vec![entry(2, Op::Open, 0, 65, 0, 0)])).unwrap();
    let effects = slots
        .apply(&plan(vec![
            entry(1, Op::Close, 0, 0, 0, 1),
            entry(2, Op::Continue, 0, 1, 0, 1),
            entry(3, Op::Open, 0, 200, 0, 0),
        ]))
        .unwrap();
    assert_eq!(effects.closed, [StreamId(1)]);
    assert_eq!(*effects.map.tables[0], [2], "the rollback gave page 3 back");
    assert_eq!(*effects.map.tables[1], [0, 1, 3, 4]);
    assert_eq!(slots.pages_free(), 12 - 5);
}

#[test]
fn every_wrong_plan_has_its_name_and_changes_nothing() {
    let open = |id, rows| entry(id, Op::Open, 0, rows, 0, 0);
    let good = || entry(1, Op::Continue, 70, 1, 70, 1);
    let cases: Vec<(&str, Vec<Entry>)> = vec![
        ("BadOpen: stream 2: first", vec![entry(2, Op::Open, 1, 1, 0, 0)]),
        ("BadOpen: stream 2: accepted", vec![entry(2, Op::Open, 0, 1, 1, 0)]),
        ("BadOpen: stream 2: generation", vec![entry(2, Op::Open, 0, 1, 0, 1)]),
        ("OtherStream: stream 1 is open already", vec![open(1, 1)]),
        ("OtherStream: stream 2 is not open", vec![good(), entry(2, Op::Close, 0, 0, 0, 0)]),
        ("OtherStream: stream 2 is not open", vec![good(), entry(2, Op::Continue, 0, 1, 0, 0)]),
        ("OtherStream: stream 2 is out of order", vec![open(3, 1), open(2, 1)]),
        ("OtherStream: stream 1 is out of order", vec![good(), good()]),
        (
            "OtherGeneration: stream 1: expected 1, found 0",
            vec![open(0, 1), Entry { generation: Generation(0), ..good() }],
        ),
        ("OtherGeneration: stream 1: expected 1", vec![entry(1, Op::Cancel, 0, 0, 0, 7)]),
        ("OtherPosition: stream 1: expected 70, found 71", vec![Entry { first: 71, ..good() }]),
        ("BadAccepted: stream 1: at most 70, found 71", vec![Entry { accepted: 71, ..good() }]),
        ("LongWindow: stream 1: all or none of 70 rows", vec![entry(1, Op::Continue, 9, 1, 9, 1)]),
        ("OtherShape: rows of a close", vec![entry(1, Op::Close, 0, 1, 0, 1)]),
        ("OtherShape: rows of a stream: at most 200, found 201", vec![open(2, 201)]),
        ("OtherShape: rows of a round", vec![open(2, 200), open(3, 200), open(4, 1)]),
        ("OtherShape: streams: at most 4", vec![open(2, 1), open(3, 1), open(4, 1), open(5, 1)]),
        ("OtherShape: rows of a first tree", {
            vec![Entry { parents: Some(vec![0xffff]), ..open(2, 1) }]
        }),
        ("OtherShape: rows of a tree: at most 1, found 2", {
            vec![Entry { parents: Some(vec![0xffff, 0]), ..good() }]
        }),
        ("OtherShape: rows without a parent: at most 1, found 2", {
            vec![Entry { parents: Some(vec![0xffff]), ..entry(1, Op::Continue, 70, 2, 70, 1) }]
        }),
        ("OtherShape: parent of a row: at most 0, found 1", {
            vec![Entry { parents: Some(vec![0xffff, 1]), ..entry(1, Op::Continue, 70, 2, 70, 1) }]
        }),
        ("OtherShape: rows of a tree: at most 32, found 33", {
            let parents = Some((0..33u16).map(|row| row.wrapping_sub(1)).collect());
            vec![Entry { parents, ..entry(1, Op::Continue, 70, 33, 70, 1) }]
        }),
        ("OtherShape: rows of a tree's paths: at most 32, found 34", {
            // Two paths of 17 rows that part at the last.
            let parents = Some((0..18u16).map(|row| row.min(16).wrapping_sub(1)).collect());
            vec![Entry { parents, ..entry(1, Op::Continue, 70, 18, 70, 1) }]
        }),
        ("NoSuchKeep: 0x0", vec![entry(2, Op::Resume, 5, 1, 0, 0)]),
    ];
    let mut slots = opened(70);
    for (expected, entries) in cases {
        let error = refusal(&mut slots, &plan(entries));
        assert!(error.starts_with(expected), "{error} is not {expected}");
    }
}

#[test]
fn every_wrong_keep_has_its_name_and_changes_nothing() {
    let mut slots = opened(70);
    let settle = entry(1, Op::Continue, 70, 0, 70, 1);
    slots.apply(&keeping(vec![settle], vec![keep(7, KeepOp::Save, 1, 70)])).unwrap();
    slots.apply(&keeping(vec![], vec![keep(8, KeepOp::Save, 1, 70)])).unwrap();
    slots.lose(8);
    let (save, drop, restore) = (KeepOp::Save, KeepOp::Drop, KeepOp::Restore);
    let back = |first| vec![resume(2, first, 1)];
    let cases = [
        ("NoSuchKeep: 0x0", back(70), vec![]),
        ("NoSuchKeep: 0x9", back(70), vec![keep(9, restore, 2, 70)]),
        ("NoSuchKeep: 0x8", back(70), vec![keep(8, restore, 2, 70)]),
        ("NoSuchKeep: 0x9", vec![], vec![keep(9, drop, 0, 0)]),
        ("NoSuchKeep: 0x7", vec![], vec![keep(7, drop, 0, 0), keep(7, drop, 0, 0)]),
        ("NoSuchKeep: 0x7", back(70), vec![keep(7, drop, 0, 0), keep(7, restore, 2, 70)]),
        ("DuplicateKeep: 0x7", vec![], vec![keep(7, save, 1, 70)]),
        ("DuplicateKeep: 0x9", vec![], vec![keep(9, save, 1, 70), keep(9, save, 1, 70)]),
        ("DuplicateKeep: 0x7", vec![], vec![keep(7, drop, 0, 0), keep(7, save, 1, 70)]),
        ("OtherPosition: stream 1: expected 70, found 69", vec![], vec![keep(9, save, 1, 69)]),
        ("OtherPosition: stream 2: expected 70, found 69", back(69), vec![keep(7, restore, 2, 70)]),
        ("OtherPosition: stream 2: expected 70, found 69", back(70), {
            vec![keep(7, restore, 2, 69)]
        }),
        ("OtherStream: stream 2 is not resumed", vec![], vec![keep(7, restore, 2, 70)]),
        ("OtherStream: stream 2 is restored already", back(70), {
            vec![keep(7, restore, 2, 70), keep(7, restore, 2, 70)]
        }),
        ("OtherStream: stream 2 is not open", vec![], vec![keep(9, save, 2, 1)]),
        ("OtherStream: stream 1 is not open", vec![entry(1, Op::Close, 0, 0, 0, 2)], {
            vec![keep(9, save, 1, 70)]
        }),
        (
            "BadOpen: stream 2: generation",
            vec![Entry { generation: Generation(1), ..resume(2, 70, 1) }],
            { vec![keep(7, restore, 2, 70)] },
        ),
    ];
    for (expected, entries, keeps) in cases {
        let error = refusal(&mut slots, &keeping(entries, keeps));
        assert!(error.starts_with(expected), "{error} is not {expected}");
    }
    // No key is special: a resume that names no keep gets none, even where 0 is a key.
    slots.apply(&keeping(vec![], vec![keep(0, KeepOp::Save, 1, 70)])).unwrap();
    assert!(refusal(&mut slots, &plan(back(70))).starts_with("NoSuchKeep: 0x0"));
    let start = keeping(vec![], vec![keep(9, save, 1, 0)]);
    let error = refusal(&mut opened(70), &start);
    assert_eq!(error, "EmptyShape: positions of a keep: expected at least 1, found 0");
    let mut many = opened(1);
    let settle = entry(1, Op::Continue, 1, 0, 1, 1);
    let keeps = |keys: std::ops::Range<u64>| keys.map(|key| keep(key, save, 1, 1)).collect();
    many.apply(&keeping(vec![settle], keeps(0..4096))).unwrap();
    let error = refusal(&mut many, &keeping(vec![], keeps(4096..4097)));
    assert_eq!(error, "TooManyKeeps: at most 4096, found 4097");
}

#[test]
fn a_keep_shares_whole_pages_and_a_resume_copies_a_half_full_one() {
    let mut slots = opened(130);
    let settle = entry(1, Op::Continue, 130, 1, 130, 1);
    slots.apply(&keeping(vec![settle], vec![keep(7, KeepOp::Save, 1, 130)])).unwrap();
    slots.apply(&plan(vec![entry(1, Op::Close, 0, 0, 0, 2)])).unwrap();
    assert_eq!(slots.pages_free(), 12 - 3, "the keep's pages stay");

    // The dropped keep's last page is copied first, so no other stream may take it.
    let keeps = vec![
        keep(7, KeepOp::Restore, 2, 130),
        keep(7, KeepOp::Restore, 3, 130),
        keep(7, KeepOp::Drop, 0, 0),
    ];
    let effects =
        slots.apply(&keeping(vec![resume(2, 130, 1), resume(3, 130, 64)], keeps)).unwrap();
    assert_eq!(effects.copies, [PageCopy { from: 2, to: 3 }, PageCopy { from: 2, to: 4 }]);
    assert_eq!(*effects.map.tables[0], [0, 1, 3]);
    assert_eq!(*effects.map.tables[1], [0, 1, 4, 5]);
    assert_eq!(slots.pages_free(), 12 - 5, "page 2 is free again");
    assert_eq!(slots.table()[0].generation, Generation(1));
}

/// A window of a known token, two rows behind it, and three more beside those.
fn fork(first: u32, accepted: u32, generation: u32) -> Entry {
    let parents = Some(vec![0xffff, 0, 1, 0, 3, 4]);
    Entry { parents, ..entry(1, Op::Continue, first, 6, accepted, generation) }
}

#[test]
fn each_path_of_a_tree_has_pages_of_its_own_and_the_accepted_one_s_stay() {
    let mut slots = opened(126);
    let effects = slots.apply(&plan(vec![fork(126, 126, 1)])).unwrap();
    // The other path first: its page is a copy, and its fourth row needs one more.
    assert_eq!(effects.copies, [PageCopy { from: 1, to: 3 }]);
    let tables: Vec<&[u32]> = effects.map.tables.iter().map(|table| &**table).collect();
    assert_eq!(tables, [&[0, 3, 4][..], &[0, 1, 2]]);
    assert_eq!(effects.origins, [0, 3, 4, 5, 0, 1, 2]);
    let positions: Vec<u32> = effects.map.rows.iter().map(|row| row.position).collect();
    assert_eq!(positions, [126, 127, 128, 129, 126, 127, 128]);
    let kept: Vec<_> = effects.spans.iter().map(|span| (span.kept_at, span.track)).collect();
    let track = Track { slot: 0, from: Some(1), to: 0 };
    assert_eq!(kept, [(Some(0), track), (Some(4), track)]);
    assert_eq!(slots.table()[0].pages, 5);

    let mut other = slots.clone();
    let effects = slots.apply(&plan(vec![entry(1, Op::Continue, 129, 1, 5, 2)])).unwrap();
    let settled = effects.settled[0];
    assert_eq!((settled.rows, settled.accepted, settled.at, settled.is_side), (3, 3, 0, true));
    assert!(settled.replays());
    assert_eq!(*effects.map.tables[0], [0, 3, 4]);
    assert_eq!(slots.pages_free(), 12 - 3);

    let effects = other.apply(&plan(vec![entry(1, Op::Continue, 129, 1, 3, 2)])).unwrap();
    assert!(!effects.settled[0].replays(), "the first path's state stands");
    assert_eq!(*effects.map.tables[0], [0, 1, 2]);
    other.apply(&plan(vec![entry(1, Op::Close, 0, 0, 9, 3)])).unwrap();
    assert_eq!(other.pages_free(), 12);
}

#[test]
fn slots_are_taken_lowest_first_and_come_back_in_the_same_plan() {
    let mut slots = Slots::new(SHAPES);
    let open = |id| entry(id, Op::Open, 0, 1, 0, 0);
    let taken =
        |effects: Effects| effects.spans.iter().map(|span| span.track.slot).collect::<Vec<_>>();
    assert_eq!(
        taken(slots.apply(&plan(vec![open(3), open(5), open(6), open(8)])).unwrap()),
        [0, 1, 2, 3]
    );
    let closes = [5, 8].map(|id| entry(id, Op::Close, 0, 0, 0, 1));
    let entries = vec![open(1), closes[0].clone(), open(7), closes[1].clone()];
    assert_eq!(taken(slots.apply(&plan(entries)).unwrap()), [1, 3]);
}

#[test]
fn a_context_or_a_cache_that_is_full_is_refused() {
    let mut slots = opened(200);
    let on = |first, generation| entry(1, Op::Continue, first, 200, 200, generation);
    slots.apply(&plan(vec![on(200, 1)])).unwrap();
    slots.apply(&plan(vec![on(400, 2)])).unwrap();
    let error = refusal(&mut slots, &plan(vec![on(600, 3)]));
    assert_eq!(error, "OtherShape: positions of a stream: at most 640, found 800");
    let error = refusal(&mut slots, &plan(vec![entry(2, Op::Open, 0, 129, 0, 0)]));
    assert_eq!(error, "TooFewPages: stream 2 needs 3 pages, 2 are free");
    // What the same plan gives back counts as free.
    let open = |id| entry(id, Op::Open, 0, 192, 0, 0);
    slots.apply(&plan(vec![entry(1, Op::Close, 0, 0, 0, 3), open(2), open(3)])).unwrap();
    assert_eq!(slots.pages_free(), 12 - 6);
}
