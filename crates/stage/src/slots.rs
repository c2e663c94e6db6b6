//! The streams of one rank: positions, windows, generations and KV pages, without any compute.
//!
//! Every rank applies the same plans to the same table, so all tables (page numbers included)
//! stay equal. The rules:
//!
//! - A settle moves a stream to `first + accepted` of its last window. `continue` always settles.
//! - Rows computed, a settled window or a resume add 1 to the generation, once an entry.
//! - A stream holds `ceil((first + rows) / 64)` pages. A plan's closes, cancels and rollbacks
//!   give pages back first; then its entries take the lowest free pages, in ascending id.
//! - A plan is checked whole before anything changes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use arith::base::{Generation, StreamId, pages_of};
use backend::{RowAt, RowMap};
use wire::plan::{Entry, KeepOp, Op, Plan};

use crate::{Shapes, SlotState, StageError};

/// The table of a rank.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    shapes: Shapes,
    slots: BTreeMap<StreamId, Slot>,
    free: BTreeSet<u32>,
    skips: BTreeSet<StreamId>,
}

/// Most streams whose cancel is known before its entry; further hints are dropped.
const SKIPS_MAX: usize = 4096;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Slot {
    generation: Generation,
    first: u32,
    rows: u32,
    pages: Arc<[u32]>,
}

/// A stream's rows inside a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The stream.
    pub id: StreamId,
    /// Position of its first row.
    pub first: u32,
    /// Its rows, in plan order.
    pub rows: Range<usize>,
    /// Whether nobody waits for these rows: they travel as zeros.
    pub skipped: bool,
}

/// A window whose outcome is now known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The stream.
    pub id: StreamId,
    /// Rows that the window had, at least one.
    pub rows: u32,
    /// Rows that stay; state rolls back to the one after them.
    pub accepted: u32,
}

/// What an applied plan asks of the compute side, in this order: forget `closed`, roll back
/// `settled`, start `opened`, then run `map`.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// Streams that are over.
    pub closed: Vec<StreamId>,
    /// Windows to roll back.
    pub settled: Vec<Settled>,
    /// New streams.
    pub opened: Vec<StreamId>,
    /// Streams with rows; `map.tables` has one table each, in this order.
    pub spans: Vec<Span>,
    /// Where every row stands.
    pub map: RowMap,
    /// Whether each keep of the plan was held. Kept states are not built: saves and drops are
    /// answered with `false`, a restore is refused.
    pub held: Vec<bool>,
}

impl Slots {
    /// An empty table with all of `shapes.pages` free.
    pub fn new(shapes: Shapes) -> Self {
        Self {
            shapes,
            slots: BTreeMap::new(),
            free: (0..shapes.pages).collect(),
            skips: BTreeSet::new(),
        }
    }

    /// The agreed shapes.
    pub fn shapes(&self) -> &Shapes {
        &self.shapes
    }

    /// Pages that no stream holds.
    pub fn pages_free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Marks the stream's rows as skipped, until its cancel or close. The stream need not be open:
    /// the hint overtakes plans.
    pub fn skip(&mut self, id: StreamId) {
        if self.skips.len() < SKIPS_MAX {
            self.skips.insert(id);
        }
    }

    /// Forgets every stream; the shapes stay.
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
            pages: slot.pages.len() as u32,
        };
        self.slots.iter().map(state).collect()
    }

    /// Applies a plan, or refuses it by name and changes nothing.
    pub fn apply(&mut self, plan: &Plan) -> Result<Effects, StageError> {
        self.check_shapes(plan)?;
        let next = self.check_entries(plan)?;
        self.check_pages(plan, &next)?;
        let held = check_keeps(plan)?;
        Ok(self.commit(plan, next, held))
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
            let tree = entry.parents.as_ref().map_or(0, Vec::len);
            at_most("rows of a tree", 0, tree as u64)?;
            let end = u64::from(entry.first) + u64::from(entry.rows);
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
                (Op::Resume, None) => return Err(no_keep(plan, entry.id)),
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
        let held = |id| self.slots.get(id).map_or(0, |slot| slot.pages.len() as u32);
        let need = |slot: &Option<Slot>| slot.as_ref().map_or(0, |s| pages_of(s.first + s.rows));
        let changes = || plan.entries.iter().zip(next).map(|(e, n)| (e.id, held(&e.id), need(n)));
        let returned: u32 = changes().map(|(_, held, need)| held.saturating_sub(need)).sum();
        let mut free = self.pages_free() + returned;
        for (id, held, need) in changes() {
            let need = need.saturating_sub(held);
            if need > free {
                return Err(StageError::TooFewPages { id, need, free });
            }
            free -= need;
        }
        Ok(())
    }

    fn commit(&mut self, plan: &Plan, next: Vec<Option<Slot>>, held: Vec<bool>) -> Effects {
        let mut effects = Effects { held, ..Effects::default() };
        for (entry, next) in plan.entries.iter().zip(&next) {
            self.release(entry, next.as_ref(), &mut effects);
        }
        for (entry, next) in plan.entries.iter().zip(next) {
            let Some(mut slot) = next else { continue };
            let held = self.slots.get(&entry.id).map(|slot| slot.pages.clone());
            slot.pages = self.grow(held.unwrap_or_default(), pages_of(slot.first + slot.rows));
            if slot.rows > 0 {
                self.place(entry.id, &slot, &mut effects);
            }
            self.slots.insert(entry.id, slot);
        }
        effects
    }

    /// Settles or ends one stream and gives its spare pages back.
    fn release(&mut self, entry: &Entry, next: Option<&Slot>, effects: &mut Effects) {
        let (id, Some(slot)) = (entry.id, self.slots.get_mut(&entry.id)) else {
            effects.opened.push(entry.id);
            return;
        };
        let keep = next.map_or(0, |n| pages_of(n.first + n.rows)) as usize;
        if keep < slot.pages.len() {
            self.free.extend(&slot.pages[keep..]);
            slot.pages = slot.pages[..keep].into();
        }
        if next.is_none() {
            self.slots.remove(&id);
            self.skips.remove(&id);
            effects.closed.push(id);
        } else if slot.rows > 0 {
            effects.settled.push(Settled { id, rows: slot.rows, accepted: entry.accepted });
        }
    }

    fn grow(&mut self, pages: Arc<[u32]>, need: u32) -> Arc<[u32]> {
        let missing = need as usize - pages.len().min(need as usize);
        if missing == 0 {
            return pages;
        }
        let lowest = (0..missing).map(|_| self.free.pop_first().expect("pages were counted"));
        pages.iter().copied().chain(lowest).collect()
    }

    fn place(&self, id: StreamId, slot: &Slot, effects: &mut Effects) {
        let map = &mut effects.map;
        let (table, start) = (map.tables.len(), map.rows.len());
        let positions = slot.first..slot.first + slot.rows;
        map.rows.extend(positions.map(|position| RowAt { table, position }));
        map.tables.push(slot.pages.clone());
        effects.spans.push(Span {
            id,
            first: slot.first,
            rows: start..map.rows.len(),
            skipped: self.skips.contains(&id),
        });
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
    let expected = slot.first + entry.accepted;
    if entry.first != expected {
        return Err(StageError::OtherPosition { id, expected, found: entry.first });
    }
    let changes = u32::from(entry.rows > 0 || slot.rows > 0);
    Ok(Slot {
        generation: Generation(slot.generation.0.wrapping_add(changes)),
        first: expected,
        rows: entry.rows,
        pages: Arc::default(),
    })
}

fn check_generation(entry: &Entry, expected: Generation) -> Result<(), StageError> {
    if entry.generation == expected {
        return Ok(());
    }
    Err(StageError::OtherGeneration { id: entry.id, expected, found: entry.generation })
}

fn check_keeps(plan: &Plan) -> Result<Vec<bool>, StageError> {
    match plan.keeps.iter().find(|keep| keep.op == KeepOp::Restore) {
        Some(keep) => Err(StageError::NoSuchKeep { key: keep.key }),
        None => Ok(vec![false; plan.keeps.len()]),
    }
}

/// The refusal of a resume: its key where the plan names one, else 0.
fn no_keep(plan: &Plan, id: StreamId) -> StageError {
    let mut restores = plan.keeps.iter().filter(|k| k.op == KeepOp::Restore && k.stream == id);
    StageError::NoSuchKeep { key: restores.next().map_or(0, |keep| keep.key) }
}

#[cfg(test)]
mod tests;
