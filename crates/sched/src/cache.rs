//! The prompt cache: which prefixes have a kept state on every stage, and which go when room is
//! wanted.
//!
//! A state is saved by one plan and used only once the plan's echo said that every stage held it;
//! what a stage could not keep is dropped everywhere. Rank 0 alone decides, so a stage that is
//! short of memory makes the cache smaller, never different.

use std::collections::BTreeMap;

use arith::base::{StreamId, TILE_KEYS, pages_of};
use wire::limit::KEEPS_MAX;
use wire::plan::{Keep, KeepOp};

use crate::index::{Index, NodeId};
use crate::ledger::Ledger;
use crate::stream::Stream;

/// Most states that one prompt leaves behind.
const MARKS_MAX: usize = 8;

/// What the prompt cache may hold and where it keeps states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caching {
    /// Most kept states, 4,096 at most; 0 turns the cache off.
    pub keeps_max: u32,
    /// Shortest prefix that is worth a state; a shorter prompt leaves none.
    pub prefix_min: u32,
    /// Least tokens between two message starts that are kept.
    pub spacing: u32,
    /// Tokens between states where nothing else marks a place, in prompts and in replies.
    pub grid: u32,
}

impl Caching {
    /// No cache.
    pub const OFF: Self = Self { keeps_max: 0, prefix_min: 0, spacing: 0, grid: 0 };
}

impl Default for Caching {
    fn default() -> Self {
        Self { keeps_max: 1024, prefix_min: 128, spacing: 256, grid: 512 }
    }
}

/// A kept state that a stream starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resume {
    pub key: u64,
    pub position: u32,
}

#[derive(Debug)]
struct Kept {
    node: NodeId,
    position: u32,
    pages: Vec<u32>,
    /// Every stage has said that it holds it.
    held: bool,
    /// Streams that are to start from it in a plan to come.
    pins: u32,
    /// When it was last used; `None` for never.
    used: Option<u64>,
}

/// Kept states by key.
#[derive(Debug)]
pub(crate) struct Cache {
    caching: Caching,
    index: Index,
    kept: BTreeMap<u64, Kept>,
    /// Most states that the tightest stage is known to have room for.
    room: usize,
    /// Dropped here, not yet on the stages.
    dropped: Vec<u64>,
    next_key: u64,
    clock: u64,
}

impl Cache {
    pub fn new(caching: Caching) -> Self {
        Self {
            room: KEEPS_MAX.min(caching.keeps_max as usize),
            caching,
            index: Index::new(),
            kept: BTreeMap::new(),
            dropped: Vec::new(),
            next_key: 1,
            clock: 0,
        }
    }

    pub fn caching(&self) -> Caching {
        self.caching
    }

    /// Kept states, those included that no stage has answered for.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// The longest usable prefix of `tokens` up to `most`, and how far any kept prefix goes along.
    pub fn find(&self, tokens: &[u32], most: u32) -> (Option<Resume>, u32) {
        let (keys, matched) = self.index.find(tokens);
        let of = |key: &u64| {
            let kept = &self.kept[key];
            let usable = kept.held && kept.position <= most;
            usable.then_some(Resume { key: *key, position: kept.position })
        };
        (keys.iter().rev().find_map(of), matched)
    }

    /// Whole pages of a kept state: what a stream that starts from it shares.
    pub fn whole_pages(&self, resume: Resume) -> &[u32] {
        &self.kept[&resume.key].pages[..resume.position as usize / TILE_KEYS]
    }

    /// Pages that kept states alone hold and that a drop can't give back, since a stream is to
    /// start from one of them: half-full last ones.
    pub fn pinned_pages(&self, ledger: &Ledger) -> u32 {
        let pinned = self.kept.values().filter(|kept| kept.pins > 0);
        let last = pinned.filter_map(|kept| kept.pages.last());
        let mut idle: Vec<u32> = last.copied().filter(|page| ledger.is_idle(*page)).collect();
        idle.sort_unstable();
        idle.dedup();
        idle.len() as u32
    }

    /// A stream is to start from a kept state, which stays until [`Cache::unpin`].
    pub fn pin(&mut self, resume: Resume) {
        self.clock += 1;
        let kept = self.kept.get_mut(&resume.key).expect("it was found");
        kept.pins += 1;
        kept.used = Some(self.clock);
    }

    pub fn unpin(&mut self, key: u64) {
        let kept = self.kept.get_mut(&key).expect("a pinned state stays");
        kept.pins -= 1;
    }

    /// What a plan that moves `stream` does for the cache: the stream starts from a kept state, or
    /// leaves one where it stands. What a plan names stays until [`Cache::close_plan`].
    pub fn pass(
        &mut self,
        stream: &mut Stream,
        was_open: bool,
        ledger: &mut Ledger,
    ) -> Option<Keep> {
        let (id, position) = (stream.state.id, stream.state.first);
        if !was_open {
            let Resume { key, position } = stream.resume?;
            return Some(Keep { key, stream: id, position, op: KeepOp::Restore, held: true });
        }
        let Caching { keeps_max, grid, .. } = self.caching;
        if keeps_max == 0 || !stream.reply.is_cached() || !stream.is_at_mark(grid) {
            return None;
        }
        stream.kept_at = position;
        let tokens = &stream.reply.tokens[..position as usize];
        let pages = &stream.pages[..pages_of(position) as usize];
        let key = self.save(tokens, pages, ledger)?;
        Some(Keep { key, stream: id, position, op: KeepOp::Save, held: true })
    }

    /// Keeps the state after `tokens` on `pages`, pinned; `None` where that prefix is kept already
    /// or there is no room.
    fn save(&mut self, tokens: &[u32], pages: &[u32], ledger: &mut Ledger) -> Option<u64> {
        let (keys, _) = self.index.find(tokens);
        let position = tokens.len() as u32;
        if keys.last().is_some_and(|key| self.kept[key].position == position) {
            return None;
        }
        while self.kept.len() >= self.room {
            if !self.evict(ledger, false) {
                return None;
            }
        }
        let key = self.next_key;
        let node = self.index.insert(tokens, key)?;
        self.next_key += 1;
        ledger.keep(pages);
        let pages = pages.to_vec();
        self.kept.insert(key, Kept { node, position, pages, held: false, pins: 1, used: None });
        Some(key)
    }

    /// Ends a plan with these keeps: drops go first, and what it names may go from the next on.
    pub fn close_plan(&mut self, keeps: &mut Vec<Keep>) {
        for keep in keeps.iter() {
            self.unpin(keep.key);
        }
        let drop =
            |key| Keep { key, stream: StreamId(0), position: 0, op: KeepOp::Drop, held: true };
        keeps.splice(0..0, self.dropped.drain(..).map(drop));
    }

    /// Drops one state: one that was never used, or else the one that was used longest ago; where
    /// pages are wanted, rather one that gives a page back. False where all are pinned.
    pub fn evict(&mut self, ledger: &mut Ledger, for_pages: bool) -> bool {
        let gives = |kept: &Kept| kept.pages.last().is_some_and(|&page| ledger.is_last(page));
        let last = |kept: &Kept| for_pages && !gives(kept);
        let unpinned = self.kept.iter().filter(|(_, kept)| kept.pins == 0);
        let first = unpinned.min_by_key(|(key, kept)| (last(kept), kept.used, **key));
        let Some(key) = first.map(|(key, _)| *key) else { return false };
        self.drop_key(key, ledger);
        true
    }

    fn drop_key(&mut self, key: u64, ledger: &mut Ledger) {
        let kept = self.kept.remove(&key).expect("it is kept");
        self.index.remove(kept.node);
        ledger.drop_kept(&kept.pages);
        self.dropped.push(key);
    }

    /// What the stages said of a plan's saves. Where one had no room, so many states are kept from
    /// now on; `is_over` says which streams have ended, whose states may be missing for that
    /// alone.
    pub fn echo(
        &mut self,
        keeps: &[Keep],
        ledger: &mut Ledger,
        is_over: impl Fn(StreamId) -> bool,
    ) {
        for keep in keeps.iter().filter(|keep| keep.op == KeepOp::Save) {
            let Some(kept) = self.kept.get_mut(&keep.key) else { continue };
            kept.held = keep.held;
            if !keep.held {
                self.drop_key(keep.key, ledger);
                if !is_over(keep.stream) {
                    self.room = self.kept.values().filter(|kept| kept.held).count();
                }
            }
        }
    }

    /// Where a prompt that goes on from `from` leaves states, ascending: before the last of its
    /// `tokens`, where its messages start, where it parts from another (`matched`), on a grid.
    pub fn marks(&self, starts: &[u32], tokens: u32, from: u32, matched: u32) -> Vec<u32> {
        let Caching { keeps_max, prefix_min, spacing, grid } = self.caching;
        let end = tokens - 1;
        if keeps_max == 0 || end < prefix_min || end <= from {
            return Vec::new();
        }
        let inside = |at: &u32| *at > from && *at >= prefix_min && *at < end;
        let step = grid.max(end / MARKS_MAX as u32).max(1);
        let mut marks = Vec::new();
        let mut last = from;
        let mut spread: Vec<u32> = starts.iter().copied().filter(inside).collect();
        spread.extend((1..=end / step).map(|n| n * step).filter(inside));
        spread.sort_unstable();
        for at in spread {
            let is_start = starts.binary_search(&at).is_ok();
            if at - last >= if is_start { spacing } else { grid } {
                marks.push(at);
                last = at;
            }
        }
        let surplus = marks.len().saturating_sub(MARKS_MAX - 3);
        marks.drain(1.min(marks.len())..).take(surplus).for_each(drop);
        marks.extend(starts.last().copied().filter(inside));
        marks.extend(Some(matched).filter(inside));
        marks.push(end);
        marks.sort_unstable();
        marks.dedup();
        marks
    }
}
