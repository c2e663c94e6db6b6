#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use wire::plan::{Keep, Want};

use arith::base::TILE_KEYS;

use super::*;

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
    let before = (slots.slots.clone(), slots.free.clone());
    let error = slots.apply(plan).unwrap_err().to_string();
    assert_eq!(before, (slots.slots.clone(), slots.free.clone()), "{error}");
    error
}

#[test]
fn a_window_settles_to_its_accepted_rows_and_counts_one_change() {
    let mut slots = opened(70);
    let effects = slots.apply(&plan(vec![entry(1, Op::Continue, 70, 4, 70, 1)])).unwrap();
    assert_eq!(effects.settled, [Settled { id: StreamId(1), rows: 70, accepted: 70 }]);
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
            entry(2, Op::Continue, 10, 1, 10, 1),
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
        ("OtherShape: rows of a close", vec![entry(1, Op::Close, 0, 1, 0, 1)]),
        ("OtherShape: rows of a stream: at most 200, found 201", vec![open(2, 201)]),
        ("OtherShape: rows of a round", vec![open(2, 200), open(3, 200), open(4, 1)]),
        ("OtherShape: streams: at most 4", vec![open(2, 1), open(3, 1), open(4, 1), open(5, 1)]),
        ("OtherShape: rows of a tree", vec![Entry { parents: Some(vec![0xffff]), ..good() }]),
        ("NoSuchKeep: 0x0", vec![entry(2, Op::Resume, 5, 1, 0, 0)]),
    ];
    let mut slots = opened(70);
    for (expected, entries) in cases {
        let error = refusal(&mut slots, &plan(entries));
        assert!(error.starts_with(expected), "{error} is not {expected}");
    }
    let restore =
        Keep { key: 0xab, stream: StreamId(2), position: 5, op: KeepOp::Restore, held: true };
    let mut keeps = plan(vec![good()]);
    keeps.keeps = vec![restore];
    assert!(refusal(&mut slots, &keeps).starts_with("NoSuchKeep: 0xab"));
    keeps.keeps[0].op = KeepOp::Save;
    assert_eq!(slots.apply(&keeps).unwrap().held, [false]);
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

/// A stream as the model sees it: the stamp that each of its positions was written with.
#[derive(Clone, Debug, Default)]
struct Story {
    stamps: Vec<u64>,
    window: usize,
    generation: u32,
}

/// What a random plan does to a stream: open or continue (both with rows), or close.
#[derive(Clone, Debug)]
struct Deed {
    id: u32,
    close: bool,
    rows: u32,
    accepted: prop::sample::Index,
}

fn deed() -> impl Strategy<Value = Deed> {
    let rows = prop_oneof![0u32..4, 60..70u32, 120..140u32];
    (0..5u32, prop::bool::weighted(0.15), rows, any::<prop::sample::Index>())
        .prop_map(|(id, close, rows, accepted)| Deed { id, close, rows, accepted })
}

/// Applies a deed to the model and words it as an entry.
fn tell(stories: &mut BTreeMap<u32, Story>, deed: &Deed, clock: &mut u64) -> Entry {
    let Deed { id, rows, .. } = *deed;
    let mut stamp = |story: &mut Story| {
        for _ in 0..rows {
            *clock += 1;
            story.stamps.push(*clock);
        }
        story.window = rows as usize;
    };
    let Some(story) = stories.get_mut(&id) else {
        let mut story = Story { generation: u32::from(rows > 0), ..Story::default() };
        stamp(&mut story);
        stories.insert(id, story);
        return entry(id, Op::Open, 0, rows, 0, 0);
    };
    let generation = story.generation;
    if deed.close {
        stories.remove(&id);
        return entry(id, Op::Close, 0, 0, 0, generation);
    }
    let accepted = deed.accepted.index(story.window + 1);
    story.generation += u32::from(rows > 0 || story.window > 0);
    story.stamps.truncate(story.stamps.len() - story.window + accepted);
    let first = story.stamps.len() as u32;
    stamp(story);
    entry(id, Op::Continue, first, rows, accepted as u32, generation)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Streams never share a page, never lose an accepted row, and twins hold the same pages.
    #[test]
    fn tables_keep_what_the_model_keeps(plans in prop::collection::vec(
        prop::collection::vec(deed(), 1..4), 1..24,
    )) {
        let mut slots = Slots::new(SHAPES);
        let mut twin = Slots::new(SHAPES);
        let mut stories = BTreeMap::<u32, Story>::new();
        let mut cache = vec![0u64; SHAPES.pages as usize * TILE_KEYS];
        let mut clock = 0;
        for mut deeds in plans {
            deeds.sort_by_key(|deed| deed.id);
            deeds.dedup_by_key(|deed| deed.id);
            let before = (stories.clone(), clock);
            let entries = deeds.iter().map(|deed| tell(&mut stories, deed, &mut clock)).collect();
            let plan = plan(entries);
            let Ok(effects) = slots.apply(&plan) else {
                prop_assert!(twin.apply(&plan).is_err());
                (stories, clock) = before;
                continue;
            };
            twin.apply(&plan).unwrap();
            prop_assert_eq!(&slots.slots, &twin.slots);
            for span in &effects.spans {
                for row in &effects.map.rows[span.rows.clone()] {
                    let page = effects.map.tables[row.table][row.position as usize / TILE_KEYS];
                    let key = page as usize * TILE_KEYS + row.position as usize % TILE_KEYS;
                    cache[key] = stories[&span.id.0].stamps[row.position as usize];
                }
            }
            prop_assert_eq!(slots.table().len(), stories.len());
            let mut pages = 0;
            for (state, story) in slots.table().iter().zip(stories.values()) {
                prop_assert_eq!(state.generation.0, story.generation);
                prop_assert_eq!((state.first + state.rows) as usize, story.stamps.len());
                prop_assert_eq!(state.pages, pages_of(state.first + state.rows));
                pages += state.pages;
                for (position, stamp) in story.stamps.iter().enumerate() {
                    let page = slots.slots[&state.id].pages[position / TILE_KEYS] as usize;
                    prop_assert_eq!(cache[page * TILE_KEYS + position % TILE_KEYS], *stamp);
                }
            }
            prop_assert_eq!(pages + slots.pages_free(), SHAPES.pages);
        }
    }
}
