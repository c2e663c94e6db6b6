//! The streams of one rank: positions, windows, generations and KV pages, without any compute.
//!
//! Every rank applies the same plans to the same table, so all tables (page numbers included)
//! stay equal. The rules:
//!
//! - A settle moves a stream to `first + accepted` of its last window. `continue` always settles.
//!   A window of more than [`WINDOW_ROWS_MAX`] rows stays whole or not at all. A tree's moves the
//!   stream to the path of the last accepted row.
//! - Rows computed, a settled window or a resume add 1 to the generation, once an entry.
//! - A stream holds `ceil((first + rows) / 64)` pages; of a tree's rows those of its first path,
//!   and for each other path pages of its own from the one of `first` on. A plan's closes, cancels
//!   and rollbacks give pages back first; then its keeps are done in their order; then its entries
//!   take the lowest free pages, in ascending id, path by path.
//! - A new stream gets the lowest slot that no stream has, in ascending id, after the plan's closes
//!   and cancels; its recurrent state lives there.
//! - A plan is checked whole before anything changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arith::base::{Generation, StreamId, pages_of};
use backend::RowAt;
use wire::plan::{Entry, Op, Plan};

use crate::{Shapes, SlotState, StageError};

mod effects;
mod keeps;
mod pages;
mod tree;

pub use effects::{Effects, KeepEffect, PageCopy, Settled, Span, Track};
pub use wire::limit::WINDOW_ROWS_MAX;

use keeps::{Kept, half_full};
use pages::{Changes, Pages};
use tree::Path;

/// The table of a rank.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    shapes: Shapes,
    slots: BTreeMap<StreamId, Slot>,
    keeps: BTreeMap<u64, Kept>,
    pages: Pages,
    /// Slots that no stream has.
    spare: BTreeSet<u32>,
    skips: BTreeSet<StreamId>,
}

/// Most streams whose cancel is known before its entry; further hints are dropped.
const SKIPS_MAX: usize = 4096;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Slot {
    index: u32,
    /// Which of the slot's two places has the state at `first`.
    side: usize,
    generation: Generation,
    first: u32,
    rows: u32,
    pages: Arc<[u32]>,
    /// Of a tree window; none for a chain.
    paths: Vec<Path>,
}

impl Slot {
    fn pages_needed(&self) -> u32 {
        pages_of(self.first + self.length())
    }

    fn track(&self) -> Track {
        let place = |side| 2 * self.index as usize + side;
        let from = (self.first > 0).then(|| place(self.side));
        Track { slot: self.index, from, to: place(1 - self.side) }
    }
}

impl Slots {
    /// An empty table with all of `shapes.pages` free.
    pub fn new(shapes: Shapes) -> Self {
        Self {
            shapes,
            slots: BTreeMap::new(),
            keeps: BTreeMap::new(),
            pages: Pages::new(shapes.pages),
            spare: (0..shapes.streams_max).collect(),
            skips: BTreeSet::new(),
        }
    }

    /// The agreed shapes.
    pub fn shapes(&self) -> &Shapes {
        &self.shapes
    }

    /// Pages that no stream and no keep holds.
    pub fn pages_free(&self) -> u32 {
        self.pages.free()
    }

    /// Where the recurrent state of an open stream is, after its last row; `None` before its first.
    pub fn place(&self, id: StreamId) -> Option<usize> {
        let slot = self.slots.get(&id)?;
        let track = slot.track();
        if slot.rows > 0 { Some(track.to) } else { track.from }
    }

    /// The KV pages of an open stream whose window is about to settle by `accepted`, and its slot.
    pub fn pages(&self, id: StreamId, accepted: u32) -> Option<(Arc<[u32]>, u32)> {
        let slot = self.slots.get(&id)?;
        Some((slot.path_pages(slot.outcome(accepted).path), slot.index))
    }

    /// Marks the stream's rows as skipped, until its cancel or close. The stream need not be open:
    /// the hint overtakes plans.
    pub fn skip(&mut self, id: StreamId) {
        if self.skips.len() < SKIPS_MAX {
            self.skips.insert(id);
        }
    }

    /// Forgets every stream and keep; the shapes stay.
    pub fn reset(&mut self) {
        *self = Self::new(self.shapes);
    }

    /// Every stream, by ascending id.
    pub fn table(&self) -> Vec<SlotState> {
        let state = |(&id, slot): (&StreamId, &Slot)| SlotState {
            id,
            generation: slot.generation,
            first: slot.first,
            rows: slot.rows,
            pages: slot.pages.len() as u32 + slot.side_pages(),
        };
        self.slots.iter().map(state).collect()
    }

    /// Applies a plan, or refuses it by name and changes nothing.
    pub fn apply(&mut self, plan: &Plan) -> Result<Effects, StageError> {
        self.check_shapes(plan)?;
        let next = self.check_entries(plan)?;
        self.check_keeps(plan, &next)?;
        self.check_pages(plan, &next)?;
        Ok(self.commit(plan, next))
    }

    fn check_shapes(&self, plan: &Plan) -> Result<(), StageError> {
        let at_most = |what, most: u64, found: u64| {
            if found > most { Err(StageError::OtherShape { what, most, found }) } else { Ok(()) }
        };
        at_most("rows of a round", self.shapes.round_rows_max.into(), plan.rows() as u64)?;
        let mut streams = self.slots.len();
        for entry in &plan.entries {
            match entry.op {
                Op::Open | Op::Resume => streams += 1,
                Op::Close | Op::Cancel => {
                    at_most("rows of a close", 0, entry.rows.into())?;
                    streams = streams.saturating_sub(1);
                }
                Op::Continue => {}
            }
            at_most("rows of a stream", self.shapes.chunk_rows_max.into(), entry.rows.into())?;
            if entry.op != Op::Continue {
                let tree = entry.parents.as_ref().map_or(0, Vec::len);
                at_most("rows of a first tree", 0, tree as u64)?;
            }
            let end = u64::from(entry.first) + u64::from(tree::length(entry));
            at_most("positions of a stream", self.shapes.context_max.into(), end)?;
        }
        at_most("streams", self.shapes.streams_max.into(), streams as u64)
    }

    /// What each entry leaves behind, still without pages; `None` for a stream's end.
    fn check_entries(&self, plan: &Plan) -> Result<Vec<Option<Slot>>, StageError> {
        let mut last = None;
        let mut next = Vec::with_capacity(plan.entries.len());
        for entry in &plan.entries {
            if last >= Some(entry.id) {
                return Err(StageError::OtherStream { id: entry.id, state: "out of order" });
            }
            last = Some(entry.id);
            next.push(match (entry.op, self.slots.get(&entry.id)) {
                (Op::Open, None) => Some(check_open(entry)?),
                (Op::Resume, None) => Some(self.check_resume(plan, entry)?),
                (Op::Open | Op::Resume, Some(_)) => {
                    return Err(StageError::OtherStream { id: entry.id, state: "open already" });
                }
                (_, None) => {
                    return Err(StageError::OtherStream { id: entry.id, state: "not open" });
                }
                (Op::Continue, Some(slot)) => Some(check_continue(entry, slot)?),
                (Op::Close | Op::Cancel, Some(slot)) => {
                    check_generation(entry, slot.generation)?;
                    None
                }
            });
        }
        Ok(next)
    }

    fn check_pages(&self, plan: &Plan, next: &[Option<Slot>]) -> Result<(), StageError> {
        let mut changes = Changes::default();
        for (entry, next) in plan.entries.iter().zip(next) {
            if let Some(slot) = self.slots.get(&entry.id) {
                changes.release(&slot.settled_pages(entry.accepted, next).1);
            }
        }
        self.keep_changes(plan, next, &mut changes);
        let mut free = self.pages.free_after(&changes);
        for (entry, next) in plan.entries.iter().zip(next) {
            let Some(next) = next else { continue };
            let held = match (self.slots.get(&entry.id), entry.op) {
                (Some(slot), _) => slot.path_pages(slot.outcome(entry.accepted).path).len() as u32,
                (None, Op::Resume) => next.pages.len() as u32 - u32::from(half_full(next.first)),
                (None, _) => 0,
            };
            let need = next.pages_needed().saturating_sub(held) + next.side_pages();
            if need > free {
                return Err(StageError::TooFewPages { id: entry.id, need, free });
            }
            free -= need;
        }
        Ok(())
    }

    fn commit(&mut self, plan: &Plan, mut next: Vec<Option<Slot>>) -> Effects {
        let mut effects = Effects::default();
        for (entry, next) in plan.entries.iter().zip(&next) {
            self.release(entry, next, &mut effects);
        }
        for (entry, next) in plan.entries.iter().zip(&mut next) {
            if let (Op::Open | Op::Resume, Some(slot)) = (entry.op, next) {
                slot.index = self.spare.pop_first().expect("streams were counted");
                effects.opened.push(entry.id);
            }
        }
        self.commit_keeps(plan, &next, &mut effects);
        let (mut copied, mut row) = (Vec::new(), 0);
        for (entry, next) in plan.entries.iter().zip(next) {
            let Some(mut slot) = next else { continue };
            let held = self.slots.get(&entry.id).map(|slot| slot.pages.clone());
            let held = match entry.op {
                Op::Resume => self.divide(&slot, &mut copied, &mut effects),
                _ => held.unwrap_or_default(),
            };
            slot.pages = self.grow(held, slot.pages_needed());
            self.part(&mut slot, &mut effects);
            if slot.rows > 0 {
                self.span(entry.id, &slot, row, &mut effects);
            }
            row += slot.rows as usize;
            self.slots.insert(entry.id, slot);
        }
        // Not before: no other page may take the place of one that has yet to be copied.
        self.pages.release(&copied);
        effects
    }

    /// Settles or ends one stream and gives its spare pages back.
    fn release(&mut self, entry: &Entry, next: &Option<Slot>, effects: &mut Effects) {
        let (id, Some(slot)) = (entry.id, self.slots.get_mut(&entry.id)) else { return };
        let accepted = next.as_ref().map_or(0, |_| entry.accepted);
        let outcome = slot.outcome(accepted);
        let (rows, at) = (slot.length(), slot.paths.get(outcome.path).map_or(0, |path| path.at));
        let (kept, spare) = slot.settled_pages(accepted, next);
        self.pages.release(&spare);
        slot.pages = kept;
        slot.paths.clear();
        if next.is_none() {
            self.spare.insert(slot.index);
            self.slots.remove(&id);
            self.skips.remove(&id);
            effects.closed.push(id);
        } else if slot.rows > 0 {
            let skipped = self.skips.contains(&id);
            let (accepted, is_side, track) = (outcome.rows, outcome.path > 0, slot.track());
            effects.settled.push(Settled { id, rows, accepted, at, is_side, skipped, track });
        }
    }

    /// The pages of a resumed stream: the keep's, but a copy of a half-full one.
    fn divide(&mut self, slot: &Slot, copied: &mut Vec<u32>, effects: &mut Effects) -> Arc<[u32]> {
        if !half_full(slot.first) {
            return slot.pages.clone();
        }
        let (&from, whole) = slot.pages.split_last().expect("a keep has a position");
        let to = self.pages.take();
        copied.push(from);
        effects.copies.push(PageCopy { from, to });
        whole.iter().copied().chain([to]).collect()
    }

    fn grow(&mut self, pages: Arc<[u32]>, need: u32) -> Arc<[u32]> {
        let missing = need as usize - pages.len().min(need as usize);
        if missing == 0 {
            return pages;
        }
        let lowest = (0..missing).map(|_| self.pages.take());
        pages.iter().copied().chain(lowest).collect()
    }

    /// Gives the other paths of a tree their pages, with copies of the keys before the window.
    fn part(&mut self, slot: &mut Slot, effects: &mut Effects) {
        let (before, first, is_copied) = (slot.pages_before(), slot.first, half_full(slot.first));
        for path in slot.paths.iter_mut().skip(1) {
            let count = pages_of(first + path.rows.len() as u32) as usize - before;
            path.pages = (0..count).map(|_| self.pages.take()).collect();
            if is_copied {
                effects.copies.push(PageCopy { from: slot.pages[before], to: path.pages[0] });
            }
        }
    }

    /// A span a path, the first one's last; `row` is the plan's first row of the stream.
    fn span(&self, id: StreamId, slot: &Slot, row: usize, effects: &mut Effects) {
        let is_kept = (2..=WINDOW_ROWS_MAX).contains(&slot.rows);
        for path in (0..slot.paths.len().max(1)).rev() {
            let (map, origins) = (&mut effects.map, &mut effects.origins);
            let (table, start) = (map.tables.len(), map.rows.len());
            let own = slot.paths.get(path);
            match own {
                Some(own) => origins.extend(own.rows.iter().map(|at| row + usize::from(*at))),
                None => origins.extend(row..row + slot.rows as usize),
            }
            let positions = slot.first..slot.first + (origins.len() - start) as u32;
            map.rows.extend(positions.map(|position| RowAt { table, position }));
            map.tables.push(slot.path_pages(path));
            effects.spans.push(Span {
                id,
                first: slot.first,
                rows: start..map.rows.len(),
                kept_at: is_kept.then(|| own.map_or(0, |own| own.at)),
                skipped: self.skips.contains(&id),
                track: slot.track(),
            });
        }
    }

    /// Pages of the streams that a plan ends.
    #[doc(hidden)]
    pub fn pages_ended(&self, plan: &Plan) -> Vec<u32> {
        let ends = |entry: &&Entry| matches!(entry.op, Op::Close | Op::Cancel);
        let slots = plan.entries.iter().filter(ends).filter_map(|entry| self.slots.get(&entry.id));
        slots.flat_map(|slot| slot.pages.iter().copied()).collect()
    }

    /// Gives pages back whoever holds them.
    #[doc(hidden)]
    pub fn free_again(&mut self, pages: &[u32]) {
        self.pages.free_again(pages);
    }

    /// Takes back the last count of a stream's changes.
    #[doc(hidden)]
    pub fn forget_generation(&mut self, id: StreamId) {
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.generation.0 = slot.generation.0.wrapping_sub(1);
        }
    }
}

fn check_open(entry: &Entry) -> Result<Slot, StageError> {
    let fields =
        [("first", entry.first), ("accepted", entry.accepted), ("generation", entry.generation.0)];
    if let Some(&(field, found)) = fields.iter().find(|(_, found)| *found != 0) {
        return Err(StageError::BadOpen { id: entry.id, field, found });
    }
    Ok(Slot {
        generation: Generation(u32::from(entry.rows > 0)),
        rows: entry.rows,
        ..Slot::default()
    })
}

fn check_continue(entry: &Entry, slot: &Slot) -> Result<Slot, StageError> {
    let id = entry.id;
    check_generation(entry, slot.generation)?;
    if entry.accepted > slot.rows {
        return Err(StageError::BadAccepted { id, most: slot.rows, found: entry.accepted });
    }
    if slot.rows > WINDOW_ROWS_MAX && (1..slot.rows).contains(&entry.accepted) {
        let (rows, most, found) = (slot.rows, WINDOW_ROWS_MAX, entry.accepted);
        return Err(StageError::LongWindow { id, rows, most, found });
    }
    let expected = slot.first + slot.outcome(entry.accepted).rows;
    if entry.first != expected {
        return Err(StageError::OtherPosition { id, expected, found: entry.first });
    }
    let changes = u32::from(entry.rows > 0 || slot.rows > 0);
    Ok(Slot {
        generation: Generation(slot.generation.0.wrapping_add(changes)),
        first: expected,
        rows: entry.rows,
        index: slot.index,
        side: if entry.accepted > 0 { 1 - slot.side } else { slot.side },
        pages: Arc::default(),
        paths: tree::paths(entry)?,
    })
}

fn check_generation(entry: &Entry, expected: Generation) -> Result<(), StageError> {
    if entry.generation == expected {
        return Ok(());
    }
    Err(StageError::OtherGeneration { id: entry.id, expected, found: entry.generation })
}

#[cfg(test)]
mod tests;
