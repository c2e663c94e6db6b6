//! The paths of a tree window, from its first row to each leaf.
//!
//! A stage computes each path as the chain that it is: keys in pages of its own behind those that
//! all share, the recurrent state from the one before the window. A row that several paths have is
//! computed once for each, with the same result. Paths run from the last leaf to the first, so what
//! stands after the window is the first path's.

use std::sync::Arc;

use arith::base::{TILE_KEYS, pages_of};
use wire::limit::WINDOW_ROWS_MAX;
use wire::plan::{Entry, ROOT};

use super::Slot;
use crate::StageError;

/// One path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Path {
    /// Its rows within the window, ascending.
    pub rows: Vec<u16>,
    /// Place of its first row among those of all paths as they run.
    pub at: u32,
    /// Pages that it alone holds, from the one of the window's first position on; none for the
    /// first path, whose pages are the stream's.
    pub pages: Arc<[u32]>,
}

/// What of a window stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    /// The path; 0 for a chain.
    pub path: usize,
    /// Its first rows that stay.
    pub rows: u32,
}

/// Positions of an entry's rows: of its longest path.
pub(super) fn length(entry: &Entry) -> u32 {
    let Some(parents) = &entry.parents else { return entry.rows };
    let mut depths: Vec<u32> = Vec::with_capacity(parents.len().min(WINDOW_ROWS_MAX as usize));
    for parent in parents.iter().take(WINDOW_ROWS_MAX as usize) {
        depths.push(depths.get(usize::from(*parent)).map_or(1, |depth| depth + 1));
    }
    depths.into_iter().max().unwrap_or(0)
}

/// The paths of an entry's window, by their leaves; none for a chain.
pub(super) fn paths(entry: &Entry) -> Result<Vec<Path>, StageError> {
    let Some(parents) = &entry.parents else { return Ok(Vec::new()) };
    let most = WINDOW_ROWS_MAX.min(entry.rows);
    at_most("rows of a tree", most.into(), parents.len())?;
    at_most("rows without a parent", parents.len() as u64, entry.rows as usize)?;
    for (row, parent) in parents.iter().enumerate().filter(|(_, parent)| **parent != ROOT) {
        at_most("parent of a row", (row as u64).saturating_sub(1), usize::from(*parent))?;
    }
    let is_leaf = |row: &u16| !parents.contains(row);
    let leaves: Vec<u16> = (0..parents.len() as u16).filter(is_leaf).collect();
    if leaves.len() <= 1 {
        return Ok(Vec::new());
    }
    let mut paths = Vec::with_capacity(leaves.len());
    for leaf in leaves {
        let above = |row: &u16| Some(parents[usize::from(*row)]).filter(|parent| *parent != ROOT);
        let mut rows: Vec<u16> = std::iter::successors(Some(leaf), above).collect();
        rows.reverse();
        paths.push(Path { rows, ..Path::default() });
    }
    let mut at = 0;
    for path in paths.iter_mut().rev() {
        path.at = at;
        at += path.rows.len() as u32;
    }
    at_most("rows of a tree's paths", WINDOW_ROWS_MAX.into(), at as usize)?;
    Ok(paths)
}

fn at_most(what: &'static str, most: u64, found: usize) -> Result<(), StageError> {
    let found = found as u64;
    if found > most { Err(StageError::OtherShape { what, most, found }) } else { Ok(()) }
}

impl Slot {
    /// Positions of the window's first path.
    pub(super) fn length(&self) -> u32 {
        self.paths.first().map_or(self.rows, |path| path.rows.len() as u32)
    }

    /// What stays of the window where `accepted` settles it.
    pub(super) fn outcome(&self, accepted: u32) -> Outcome {
        let Some(last) = accepted.checked_sub(1).filter(|_| !self.paths.is_empty()) else {
            return Outcome { path: 0, rows: accepted };
        };
        let on = |path: &Path| path.rows.iter().position(|row| u32::from(*row) == last);
        let mut paths = self.paths.iter().enumerate();
        let found = paths.find_map(|(path, own)| Some((path, on(own)?)));
        let (path, at) = found.expect("every row of a tree is on a path");
        Outcome { path, rows: at as u32 + 1 }
    }

    /// Whole pages before the window.
    pub(super) fn pages_before(&self) -> usize {
        self.first as usize / TILE_KEYS
    }

    /// Pages of the window's other paths.
    pub(super) fn side_pages(&self) -> u32 {
        let own = |path: &Path| pages_of(self.first + path.rows.len() as u32);
        self.paths.iter().skip(1).map(|path| own(path) - self.pages_before() as u32).sum()
    }

    /// All pages under the positions up to the end of a path.
    pub(super) fn path_pages(&self, path: usize) -> Arc<[u32]> {
        match self.paths.get(path).filter(|_| path > 0) {
            None => self.pages.clone(),
            Some(own) => {
                let before = self.pages[..self.pages_before()].iter();
                before.chain(own.pages.iter()).copied().collect()
            }
        }
    }

    /// The pages that the stream goes on with, and those that it gives back.
    pub(super) fn settled_pages(
        &self,
        accepted: u32,
        next: &Option<Slot>,
    ) -> (Arc<[u32]>, Vec<u32>) {
        let stays = next.as_ref().map(|_| self.outcome(accepted).path);
        let pages = stays.map_or_else(Arc::default, |path| self.path_pages(path));
        let most = next.as_ref().map_or(0, |next| pages.len().min(next.pages_needed() as usize));
        let mut spare = pages[most..].to_vec();
        // What the other paths alone hold; all of it where the stream ends.
        let shared = stays.map_or(0, |_| self.pages_before());
        if stays != Some(0) {
            spare.extend_from_slice(&self.pages[shared..]);
        }
        for (path, own) in self.paths.iter().enumerate().filter(|(path, _)| Some(*path) != stays) {
            debug_assert!(path > 0 || own.pages.is_empty(), "the first path has the stream's");
            spare.extend_from_slice(&own.pages);
        }
        (if most < pages.len() { pages[..most].into() } else { pages }, spare)
    }
}
