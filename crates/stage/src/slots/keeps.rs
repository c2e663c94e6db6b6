//! Kept states of the prompt cache, as a rank's table knows them: `docs/wire.md`, "Keeps".
//!
//! A keep holds the pages of its positions together with the stream that wrote them. Its last page
//! may be half full: the writer goes on behind the kept keys there, and a stream that resumes gets
//! a copy.

use std::collections::BTreeSet;
use std::sync::Arc;

use arith::base::{StreamId, TILE_KEYS, pages_of};
use wire::limit::KEEPS_MAX;
use wire::plan::{Entry, Keep, KeepOp, Op, Plan};

use super::pages::Changes;
use super::{Effects, KeepEffect, Slot, Slots};
use crate::StageError;

/// One kept state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) position: u32,
    pub(super) pages: Arc<[u32]>,
    /// Whether this rank alone could not keep the state. The pages are held all the same, so that
    /// tables stay equal.
    pub(super) lost: bool,
}

/// What `next` says of the stream of `entry`, an entry of the same plan.
type Next<'a> = (&'a Entry, &'a Option<Slot>);

impl Slots {
    /// Whether the plan's keeps can be done in their order. A key is saved or dropped once a plan.
    pub(super) fn check_keeps(&self, plan: &Plan, next: &[Option<Slot>]) -> Result<(), StageError> {
        let (mut named, mut restored) = (BTreeSet::new(), BTreeSet::new());
        let mut count = self.keeps.len();
        for keep in &plan.keeps {
            let key = keep.key;
            match keep.op {
                KeepOp::Restore if named.contains(&key) => {
                    return Err(StageError::NoSuchKeep { key });
                }
                KeepOp::Restore if !restored.insert(keep.stream) => {
                    let state = "restored already";
                    return Err(StageError::OtherStream { id: keep.stream, state });
                }
                KeepOp::Restore => self.check_restore(plan, keep)?,
                KeepOp::Save if self.keeps.contains_key(&key) || !named.insert(key) => {
                    return Err(StageError::DuplicateKeep { key });
                }
                KeepOp::Save => {
                    self.check_save(keep, find(plan, next, keep.stream))?;
                    count += 1;
                    if count > KEEPS_MAX {
                        return Err(StageError::TooManyKeeps { most: KEEPS_MAX, found: count });
                    }
                }
                KeepOp::Drop if !self.keeps.contains_key(&key) || !named.insert(key) => {
                    return Err(StageError::NoSuchKeep { key });
                }
                KeepOp::Drop => count -= 1,
            }
        }
        Ok(())
    }

    fn check_restore(&self, plan: &Plan, keep: &Keep) -> Result<(), StageError> {
        let (id, kept) = (keep.stream, self.restorable(keep.key)?);
        if keep.position != kept.position {
            let (expected, found) = (kept.position, keep.position);
            return Err(StageError::OtherPosition { id, expected, found });
        }
        if plan.entries.iter().any(|entry| entry.id == id && entry.op == Op::Resume) {
            return Ok(());
        }
        Err(StageError::OtherStream { id, state: "not resumed" })
    }

    fn restorable(&self, key: u64) -> Result<&Kept, StageError> {
        self.keeps.get(&key).filter(|kept| !kept.lost).ok_or(StageError::NoSuchKeep { key })
    }

    /// A save wants a stream that was open before the plan and stays so, at the position before
    /// its unsettled rows.
    fn check_save(&self, keep: &Keep, entry: Option<Next<'_>>) -> Result<(), StageError> {
        let id = keep.stream;
        let slot = match entry {
            Some((entry, next)) if entry.op == Op::Continue => next.as_ref(),
            Some(_) => None,
            None => self.slots.get(&id),
        };
        let slot = slot.ok_or(StageError::OtherStream { id, state: "not open" })?;
        if keep.position != slot.first {
            let (expected, found) = (slot.first, keep.position);
            return Err(StageError::OtherPosition { id, expected, found });
        }
        if keep.position == 0 {
            return Err(StageError::EmptyShape { what: "positions of a keep" });
        }
        Ok(())
    }

    /// The new stream of a resume, with the keep's pages.
    pub(super) fn check_resume(&self, plan: &Plan, entry: &Entry) -> Result<Slot, StageError> {
        let id = entry.id;
        let fields = [("accepted", entry.accepted), ("generation", entry.generation.0)];
        if let Some(&(field, found)) = fields.iter().find(|(_, found)| *found != 0) {
            return Err(StageError::BadOpen { id, field, found });
        }
        let mut restores = plan.keeps.iter().filter(|k| k.op == KeepOp::Restore && k.stream == id);
        let restore = restores.next().ok_or(StageError::NoSuchKeep { key: 0 })?;
        let kept = self.restorable(restore.key)?;
        if entry.first != kept.position {
            let (expected, found) = (kept.position, entry.first);
            return Err(StageError::OtherPosition { id, expected, found });
        }
        let (first, rows) = (entry.first, entry.rows);
        let generation = arith::base::Generation(1);
        Ok(Slot { generation, first, rows, pages: kept.pages.clone(), ..Slot::default() })
    }

    /// The holds and releases of the plan's keeps; a half-full page stays held until it is copied.
    pub(super) fn keep_changes(&self, plan: &Plan, next: &[Option<Slot>], changes: &mut Changes) {
        for keep in &plan.keeps {
            match keep.op {
                KeepOp::Save => {
                    let slot = &self.slots[&keep.stream];
                    let settled = find(plan, next, keep.stream);
                    let pages =
                        settled.map(|(entry, next)| slot.settled_pages(entry.accepted, next).0);
                    let pages = pages.unwrap_or_else(|| slot.pages.clone());
                    changes.hold(&pages[..pages_of(keep.position) as usize]);
                }
                KeepOp::Drop => changes.release(&self.keeps[&keep.key].pages),
                KeepOp::Restore => changes.hold(&self.keeps[&keep.key].pages),
            }
        }
    }

    /// Does the plan's keeps. `next` has the slots of new streams; the tables have the settled
    /// ones.
    pub(super) fn commit_keeps(
        &mut self,
        plan: &Plan,
        next: &[Option<Slot>],
        effects: &mut Effects,
    ) {
        for keep in &plan.keeps {
            let (key, id, position) = (keep.key, keep.stream, keep.position);
            effects.keeps.push(match keep.op {
                KeepOp::Save => {
                    let held = &self.slots[&id];
                    let pages: Arc<[u32]> = held.pages[..pages_of(position) as usize].into();
                    let slot = find(plan, next, id).and_then(|(_, next)| next.as_ref());
                    let place = slot.unwrap_or(held).track().from;
                    self.pages.hold(&pages);
                    self.keeps.insert(key, Kept { position, pages, lost: false });
                    let place = place.expect("a stream that is kept has begun");
                    KeepEffect::Save { key, id, place, skipped: self.skips.contains(&id) }
                }
                KeepOp::Drop => {
                    let kept = self.keeps.remove(&key).expect("keeps were checked");
                    self.pages.release(&kept.pages);
                    KeepEffect::Drop { key }
                }
                KeepOp::Restore => {
                    self.pages.hold(&self.keeps[&key].pages);
                    let slot = find(plan, next, id).and_then(|(_, next)| next.as_ref());
                    let place = slot.and_then(|slot| slot.track().from);
                    KeepEffect::Restore { key, id, place: place.expect("keeps were checked") }
                }
            });
        }
    }

    /// Says that the state of `key` could not be kept on this rank.
    pub fn lose(&mut self, key: u64) {
        if let Some(kept) = self.keeps.get_mut(&key) {
            kept.lost = true;
        }
    }

    /// Keys and positions of all keeps, by ascending key.
    pub fn keeps(&self) -> Vec<(u64, u32)> {
        self.keeps.iter().map(|(&key, kept)| (key, kept.position)).collect()
    }
}

/// Whether a resumed stream writes into the last page of its keep.
pub(super) fn half_full(position: u32) -> bool {
    !(position as usize).is_multiple_of(TILE_KEYS)
}

fn find<'a>(plan: &'a Plan, next: &'a [Option<Slot>], id: StreamId) -> Option<Next<'a>> {
    let at = plan.entries.binary_search_by_key(&id, |entry| entry.id).ok()?;
    Some((&plan.entries[at], &next[at]))
}
