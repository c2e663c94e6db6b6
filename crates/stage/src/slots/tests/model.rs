//! Random plans against a model that knows what each key and each state was made of.

use std::collections::BTreeMap;

use arith::base::TILE_KEYS;
use proptest::prelude::*;
use proptest::sample::Index;
use wire::plan::{Keep, KeepOp};

use super::*;

/// A stream as the model sees it: the stamp that each of its positions was written with, and what
/// its window's rows were written with, each by its parent where they are a tree.
#[derive(Clone, Debug, Default)]
struct Story {
    stamps: Vec<u64>,
    window: Vec<u64>,
    parents: Option<Vec<u16>>,
    generation: u32,
}

impl Story {
    /// All positions where the window's path to `row` is taken.
    fn along(&self, row: usize) -> Vec<u64> {
        let parents = self.parents.as_ref().unwrap();
        let above = |row: &usize| {
            Some(usize::from(parents[*row])).filter(|parent| *parent < self.window.len())
        };
        let rows: Vec<usize> = std::iter::successors(Some(row), above).collect();
        let own = rows.iter().rev().map(|row| self.window[*row]);
        self.stamps.iter().copied().chain(own).collect()
    }

    /// What each path would have, first leaf first.
    fn ways(&self) -> Vec<Vec<u64>> {
        let Some(parents) = &self.parents else {
            return vec![[&self.stamps[..], &self.window].concat()];
        };
        let is_leaf = |row: &usize| parents.iter().all(|parent| usize::from(*parent) != *row);
        (0..self.window.len()).filter(is_leaf).map(|row| self.along(row)).collect()
    }

    fn settle(&mut self, accepted: usize) {
        self.stamps = match (&self.parents, accepted) {
            (Some(_), 1..) => self.along(accepted - 1),
            _ => [&self.stamps, &self.window[..accepted]].concat(),
        };
        self.window.clear();
    }
}

/// What a random plan does to a stream: open, resume or continue (all with rows), or close; and
/// whether it is kept on the way.
#[derive(Clone, Debug)]
struct Deed {
    id: u32,
    close: bool,
    resume: Option<Index>,
    rows: u32,
    accepted: Index,
    save: bool,
    /// Where each row hangs, if the window is to be a tree.
    tree: Option<[Index; 6]>,
}

/// The streams and keeps of the model.
#[derive(Clone, Debug, Default)]
struct Stories {
    open: BTreeMap<u32, Story>,
    kept: BTreeMap<u64, Vec<u64>>,
    clock: u64,
}

/// What the plans were for: keys in pages, and what a recurrent state has seen.
struct Device {
    cache: Vec<u64>,
    places: Vec<Vec<u64>>,
    windows: BTreeMap<StreamId, Vec<u64>>,
    kept: BTreeMap<u64, Vec<u64>>,
}

fn deed() -> impl Strategy<Value = Deed> {
    let rows = prop_oneof![0u32..5, 30..34u32, 60..70u32, 120..140u32];
    let resume = prop::option::of(any::<Index>());
    let tree = prop::option::weighted(0.4, any::<[Index; 6]>());
    (0..5u32, prop::bool::weighted(0.15), resume, rows, any::<Index>(), any::<bool>(), tree)
        .prop_map(|(id, close, resume, rows, accepted, save, tree)| {
            let rows = if tree.is_some() { 1 + rows % 6 } else { rows };
            Deed { id, close, resume, rows, accepted, save, tree }
        })
}

impl Stories {
    fn write(&mut self, id: u32, rows: u32) {
        let story = self.open.entry(id).or_default();
        story.window = (self.clock + 1..=self.clock + u64::from(rows)).collect();
        story.parents = None;
        self.clock += u64::from(rows);
    }

    /// Applies a deed and words it as an entry; `keeps` gets what goes with it.
    fn tell(&mut self, deed: &Deed, keeps: &mut Vec<Keep>) -> Entry {
        let Deed { id, rows, .. } = *deed;
        let Some(story) = self.open.get_mut(&id) else { return self.begin(deed, keeps) };
        let generation = story.generation;
        if deed.close {
            self.open.remove(&id);
            return entry(id, Op::Close, 0, 0, 0, generation);
        }
        let accepted = match story.window.len() {
            long if long > WINDOW_ROWS_MAX as usize => deed.accepted.index(2) * long,
            window => deed.accepted.index(window + 1),
        };
        story.generation += u32::from(rows > 0 || !story.window.is_empty());
        story.settle(accepted);
        let first = story.stamps.len() as u32;
        if deed.save && first > 0 {
            let key = self.clock << 8 | u64::from(id);
            if self.kept.insert(key, story.stamps.clone()).is_none() {
                keeps.push(keep(key, KeepOp::Save, id, first));
            }
        }
        self.write(id, rows);
        let parents = deed.tree.map(|tree| {
            let hang =
                |row: u32| (tree[row as usize].index(row as usize + 1) as u16).wrapping_sub(1);
            (0..rows).map(hang).collect::<Vec<u16>>()
        });
        self.open.entry(id).or_default().parents.clone_from(&parents);
        Entry { parents, ..entry(id, Op::Continue, first, rows, accepted as u32, generation) }
    }

    fn begin(&mut self, deed: &Deed, keeps: &mut Vec<Keep>) -> Entry {
        let Deed { id, rows, .. } = *deed;
        // A keep of this very plan is not known to be held.
        let usable = |key: &&u64| keeps.iter().all(|keep| keep.key != **key);
        let keys: Vec<u64> = self.kept.keys().filter(usable).copied().collect();
        match deed.resume.filter(|_| !keys.is_empty()) {
            Some(which) => {
                let key = keys[which.index(keys.len())];
                let stamps = self.kept[&key].clone();
                let first = stamps.len() as u32;
                self.open.insert(id, Story { stamps, generation: 1, ..Story::default() });
                self.write(id, rows);
                keeps.push(keep(key, KeepOp::Restore, id, first));
                resume(id, first, rows)
            }
            None => {
                let story = Story { generation: u32::from(rows > 0), ..Story::default() };
                self.open.insert(id, story);
                self.write(id, rows);
                entry(id, Op::Open, 0, rows, 0, 0)
            }
        }
    }

    /// Keeps a stream that the plan does not name, at the position before its open window.
    fn save_idle(&mut self, which: Index, entries: &[Entry], keeps: &mut Vec<Keep>) {
        let idle = |id: &u32| entries.iter().all(|entry| entry.id.0 != *id);
        let open = self.open.iter().filter(|(id, story)| idle(id) && !story.stamps.is_empty());
        let found: Vec<(u32, Vec<u64>)> =
            open.map(|(&id, story)| (id, story.stamps.clone())).collect();
        if found.is_empty() {
            return;
        }
        let (id, stamps) = &found[which.index(found.len())];
        self.clock += 1;
        let key = self.clock << 8 | u64::from(*id);
        self.clock += 1;
        keeps.push(keep(key, KeepOp::Save, *id, stamps.len() as u32));
        self.kept.insert(key, stamps.clone());
    }

    /// Forgets a keep that the plan neither saves nor, later than that, restores.
    fn forget(&mut self, which: Index, keeps: &mut Vec<Keep>) {
        let saved = |key: &u64| keeps.iter().any(|k| k.key == *key && k.op == KeepOp::Save);
        let keys: Vec<u64> = self.kept.keys().filter(|key| !saved(key)).copied().collect();
        if !keys.is_empty() {
            let key = keys[which.index(keys.len())];
            self.kept.remove(&key);
            keeps.push(keep(key, KeepOp::Drop, 0, 0));
        }
    }
}

impl Device {
    fn new() -> Self {
        let cache = vec![0; SHAPES.pages as usize * TILE_KEYS];
        let places = vec![Vec::new(); 2 * SHAPES.streams_max as usize];
        Self { cache, places, windows: BTreeMap::new(), kept: BTreeMap::new() }
    }

    fn run(&mut self, plan: &Plan, effects: &Effects, stories: &Stories) {
        for settled in effects.settled.iter().filter(|settled| settled.replays()) {
            let mut state = settled.track.from.map_or(Vec::new(), |from| self.places[from].clone());
            let at = settled.at as usize;
            let window = &self.windows[&settled.id];
            state.extend(&window[at..at + settled.accepted as usize]);
            self.places[settled.track.to] = state;
        }
        for effect in &effects.keeps {
            match *effect {
                KeepEffect::Save { key, place, .. } => {
                    self.kept.insert(key, self.places[place].clone());
                }
                KeepEffect::Drop { key } => drop(self.kept.remove(&key)),
                KeepEffect::Restore { key, place, .. } => {
                    self.places[place] = self.kept[&key].clone();
                }
            }
        }
        for PageCopy { from, to } in &effects.copies {
            let from = *from as usize * TILE_KEYS;
            self.cache.copy_within(from..from + TILE_KEYS, *to as usize * TILE_KEYS);
        }
        self.windows.retain(|id, _| effects.spans.iter().all(|span| span.id != *id));
        for span in &effects.spans {
            let before = plan.entries.iter().take_while(|entry| entry.id != span.id);
            let start: u32 = before.map(|entry| entry.rows).sum();
            let rows = &stories.open[&span.id.0].window;
            let window: Vec<u64> = effects.origins[span.rows.clone()]
                .iter()
                .map(|origin| rows[origin - start as usize])
                .collect();
            for (row, stamp) in effects.map.rows[span.rows.clone()].iter().zip(&window) {
                let key = key_of(&effects.map.tables[row.table], row.position as usize);
                self.cache[key] = *stamp;
            }
            let Track { from, to, .. } = span.track;
            let mut state = from.map_or(Vec::new(), |from| self.places[from].clone());
            state.extend(&window);
            self.places[to] = state;
            let kept = self.windows.entry(span.id).or_default();
            assert!(span.kept_at.is_none_or(|at| at as usize == kept.len()));
            kept.extend(window);
        }
    }

    fn reads(&self, pages: &[u32], positions: usize) -> Vec<u64> {
        (0..positions).map(|position| self.cache[key_of(pages, position)]).collect()
    }
}

fn key_of(pages: &[u32], position: usize) -> usize {
    pages[position / TILE_KEYS] as usize * TILE_KEYS + position % TILE_KEYS
}

/// Every page is held as often as streams and keeps have it.
fn check_pages(slots: &Slots) -> Result<(), TestCaseError> {
    let mut all = Pages::new(SHAPES.pages);
    let of = |slot: &Slot| slot.paths.iter().map(|path| path.pages.clone()).collect::<Vec<_>>();
    let sides: Vec<Arc<[u32]>> = slots.slots.values().flat_map(of).collect();
    let streams = slots.slots.values().map(|slot| &slot.pages).chain(&sides);
    let mut held = BTreeMap::<u32, u32>::new();
    for pages in streams.chain(slots.keeps.values().map(|kept| &kept.pages)) {
        pages.iter().for_each(|page| *held.entry(*page).or_default() += 1);
    }
    prop_assert_eq!(slots.pages_free() + held.len() as u32, SHAPES.pages);
    for _ in 0..SHAPES.pages {
        all.take();
    }
    for page in 0..SHAPES.pages {
        match held.get(&page) {
            Some(&holders) => (1..holders).for_each(|_| all.hold(&[page])),
            None => all.release(&[page]),
        }
    }
    prop_assert_eq!(&slots.pages, &all);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Streams never lose or share what they write, keeps never change, no page leaks, and twins
    /// hold the same pages.
    #[test]
    fn tables_keep_what_the_model_keeps(plans in prop::collection::vec(
        (
            prop::collection::vec(deed(), 1..4),
            prop::option::weighted(0.3, any::<Index>()),
            prop::option::weighted(0.3, any::<Index>()),
        ),
        1..32,
    )) {
        let (mut slots, mut twin) = (Slots::new(SHAPES), Slots::new(SHAPES));
        let (mut stories, mut device) = (Stories::default(), Device::new());
        for (mut deeds, idle, drop) in plans {
            deeds.sort_by_key(|deed| deed.id);
            deeds.dedup_by_key(|deed| deed.id);
            let before = stories.clone();
            let mut keeps = Vec::new();
            let entries: Vec<Entry> =
                deeds.iter().map(|deed| stories.tell(deed, &mut keeps)).collect();
            if let Some(which) = idle {
                stories.save_idle(which, &entries, &mut keeps);
            }
            if let Some(which) = drop {
                stories.forget(which, &mut keeps);
            }
            let plan = keeping(entries, keeps);
            let Ok(effects) = slots.apply(&plan) else {
                prop_assert!(twin.apply(&plan).is_err());
                stories = before;
                continue;
            };
            twin.apply(&plan).unwrap();
            prop_assert_eq!((&slots.slots, &slots.keeps), (&twin.slots, &twin.keeps));
            device.run(&plan, &effects, &stories);
            check_pages(&slots)?;
            prop_assert_eq!(slots.table().len(), stories.open.len());
            for (state, story) in slots.table().iter().zip(stories.open.values()) {
                prop_assert_eq!(state.generation.0, story.generation);
                prop_assert_eq!(state.first as usize, story.stamps.len());
                prop_assert_eq!(state.rows as usize, story.window.len());
                let slot = &slots.slots[&state.id];
                let ways = story.ways();
                let shared = state.first / TILE_KEYS as u32;
                let pages = ways.iter().map(|way| pages_of(way.len() as u32) - shared);
                prop_assert_eq!(state.pages, shared + pages.sum::<u32>());
                for (path, way) in ways.iter().enumerate() {
                    prop_assert_eq!(&device.reads(&slot.path_pages(path), way.len()), way);
                }
                let seen = slots.place(state.id).map_or(&[][..], |place| &device.places[place]);
                prop_assert_eq!(seen, &ways[0][..]);
            }
            prop_assert_eq!(&device.kept, &stories.kept);
            for (key, stamps) in &stories.kept {
                let pages = &slots.keeps[key].pages;
                prop_assert_eq!(&device.reads(pages, stamps.len()), stamps);
            }
        }
    }
}
