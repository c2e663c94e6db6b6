//! Where the rows of a round stand in the paged cache, on the card.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use arith::base::TILE_KEYS;
use backend::{BackendError, RowAt, RowMap};

use crate::attention::{Cache, Kv, TILE_ROWS_MAX};
use crate::device::Device;
use crate::twice::Twice;

/// Rows of a stream that one block takes at most.
const SPAN_ROWS: usize = 64;
/// Rows of a stream from which on a block takes so many; shorter runs go in windows.
const SPAN_ROWS_MIN: usize = 32;
/// Most rows of a window.
const WINDOW_ROWS: usize = 8;
/// Words of a window: its first row, its rows, and the place of its parts.
const WINDOW_WORDS: usize = 3;

/// A round's map on the card, uploaded when it changes.
pub(crate) struct Map {
    words: Twice<Vec<i32>>,
    lists: Lists,
    /// What they were made of, and the pages that it was checked against: every layer asks again.
    given: (RowMap, usize),
}

/// Which words of a map are what: for each row where its table starts and its position; the spans
/// of rows that blocks take together, the rows that stand alone with those of windows behind them,
/// the windows, and the pages of all tables. These are last, so that a stream that takes one more
/// moves nothing else: launches of a step stay those of the step before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Lists {
    /// Rows of the round.
    rows: usize,
    spans: Range<usize>,
    alone: Range<usize>,
    /// Those that stand alone and those of windows.
    listed: Range<usize>,
    windows: Range<usize>,
    /// Of each row of a round of few, tiles at its start that the round writes nothing to.
    clean: Option<usize>,
    pages: usize,
}

impl Lists {
    /// A map's words, and which is what.
    fn of(map: &RowMap) -> (Vec<i32>, Self) {
        let mut words: Vec<i32> = map.starts().map(|start| start as i32).collect();
        words.extend(map.rows.iter().map(|row| row.position as i32));
        let runs = Runs::of(map);
        let spans = words.len()..words.len() + 2 * runs.spans.len();
        words.extend(runs.spans.iter().flat_map(|span| [span.start as i32, span.len() as i32]));
        let alone = words.len()..words.len() + runs.alone.len();
        words.extend(runs.alone.iter().map(|&row| row as i32));
        words.extend(runs.windows.iter().flat_map(|rows| rows.clone().map(|row| row as i32)));
        let listed = alone.start..words.len();
        let windows = words.len()..words.len() + WINDOW_WORDS * runs.windows.len();
        let mut part = runs.alone.len();
        for rows in runs.windows {
            words.extend([rows.start as i32, rows.len() as i32, part as i32]);
            part += rows.len();
        }
        let clean = (map.rows.len() <= TILE_ROWS_MAX).then_some(words.len());
        if clean.is_some() {
            words.extend(clean_tiles(map));
        }
        let pages = words.len();
        words.extend(map.pages().map(|page| page as i32));
        let rows = map.rows.len();
        (words, Self { rows, spans, alone, listed, windows, clean, pages })
    }
}

impl Map {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, BackendError> {
        let words = Twice::new(device, "row map")?;
        Ok(Self { words, lists: Lists::default(), given: Default::default() })
    }

    /// Makes it this map's, checking every page against the cache.
    pub(crate) fn take(&mut self, map: &RowMap, pages: usize) -> Result<(), BackendError> {
        if self.given.1 == pages && self.given.0 == *map {
            return Ok(());
        }
        self.given = Default::default();
        map.check(pages);
        let (words, lists) = Lists::of(map);
        self.lists = lists;
        self.words.take(&words, 4 * words.len(), |buffer| buffer.upload(0, &words))?;
        self.given = (map.clone(), pages);
        Ok(())
    }

    /// Rows of the round.
    pub(crate) fn rows(&self) -> usize {
        self.lists.rows
    }

    /// How many spans there are, and where the first lies.
    pub(crate) fn spans(&self) -> (usize, u64) {
        (self.lists.spans.len() / 2, self.word(self.lists.spans.start))
    }

    /// Rows in no span, and where the first one's number lies: those that stand alone come first.
    pub(crate) fn listed(&self) -> (usize, u64) {
        (self.lists.listed.len(), self.word(self.lists.listed.start))
    }

    /// Rows that stand alone.
    pub(crate) fn alone(&self) -> usize {
        self.lists.alone.len()
    }

    /// How many windows there are, and where the first lies.
    pub(crate) fn windows(&self) -> (usize, u64) {
        let Lists { windows, .. } = &self.lists;
        (windows.len() / WINDOW_WORDS, self.word(windows.start))
    }

    /// Rows of the largest window, 0 if there is none.
    pub(crate) fn window_rows(&self) -> usize {
        let windows = self.words.key()[self.lists.windows.clone()].chunks(WINDOW_WORDS);
        windows.map(|window| window[1] as usize).max().unwrap_or(0)
    }

    /// Where the counts of clean tiles lie; 0 where none are.
    pub(crate) fn clean(&self) -> u64 {
        self.lists.clean.map_or(0, |clean| self.word(clean))
    }

    /// Keys that the row with the most sees, of those that are listed.
    pub(crate) fn visible_max(&self) -> usize {
        let words = self.words.key();
        let listed = words[self.lists.listed.clone()].iter();
        let positions = listed.map(|&row| words[self.lists.rows + row as usize]);
        positions.map(|p| p as usize + 1).max().unwrap_or(0)
    }

    /// As [`Map::visible_max`], of all rows.
    pub(crate) fn visible_most(&self) -> usize {
        let rows = self.lists.rows;
        let positions = &self.words.key()[rows..2 * rows];
        positions.iter().map(|&p| p as usize + 1).max().unwrap_or(0)
    }

    /// The address of a word.
    fn word(&self, index: usize) -> u64 {
        self.words.buffer().at() + 4 * index as u64
    }

    pub(crate) fn cache(&self, kv: &Kv) -> Cache {
        let Lists { rows, pages, .. } = self.lists;
        Cache::new(kv, [0, rows, pages].map(|index| self.word(index)))
    }
}

/// Of each row, how many tiles come before the first that a row of this round writes to: their keys
/// may be read while ops of this round still run.
fn clean_tiles(map: &RowMap) -> impl Iterator<Item = i32> {
    let page = |row: &RowAt| map.tables[row.table][row.position as usize / TILE_KEYS];
    let written: HashSet<u32> = map.rows.iter().map(page).collect();
    let clean: Vec<i32> = map
        .tables
        .iter()
        .map(|table| table.iter().take_while(|page| !written.contains(page)).count() as i32)
        .collect();
    map.rows.iter().map(move |row| clean[row.table])
}

/// Rows at successive positions of a table: long runs in spans, short ones in windows, and the rows
/// that are in neither.
#[derive(Debug, Default, PartialEq, Eq)]
struct Runs {
    spans: Vec<Range<usize>>,
    windows: Vec<Range<usize>>,
    alone: Vec<usize>,
}

impl Runs {
    fn of(map: &RowMap) -> Self {
        let mut runs = Self::default();
        let mut first = 0;
        for end in 1..=map.rows.len() {
            let goes_on = map.rows.get(end).is_some_and(|row| {
                let before = map.rows[end - 1];
                row.table == before.table && row.position == before.position + 1
            });
            if goes_on {
                continue;
            }
            let cut = |rows: usize| {
                (first..end).step_by(rows).map(move |start| start..end.min(start + rows))
            };
            match end - first {
                1 => runs.alone.push(first),
                2..SPAN_ROWS_MIN => runs.windows.extend(cut(WINDOW_ROWS)),
                _ => runs.spans.extend(cut(SPAN_ROWS)),
            }
            first = end;
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_table_are_spans_or_windows_by_their_length() {
        let run = |table, from: u32, rows: u32| (from..from + rows).map(move |p| (table, p));
        let all = run(0, 5, 100).chain(run(1, 105, 7)).chain(run(1, 0, 32)).chain(run(0, 32, 1));
        let all = all.chain(run(2, 60, 9));
        let rows = all.map(|(table, position)| RowAt { table, position }).collect();
        let Runs { spans, windows, alone } = Runs::of(&RowMap { rows, tables: Vec::new() });
        assert_eq!(spans, [0..64, 64..100, 107..139]);
        assert_eq!(windows, [100..107, 140..148, 148..149]);
        assert_eq!(alone, [139]);
    }

    #[test]
    fn a_stream_that_takes_a_page_moves_nothing_but_pages() {
        // Two streams that decode, and the window of a third.
        let lists = |positions: [u32; 3]| {
            let rows = positions.iter().enumerate().flat_map(|(table, &position)| {
                let rows = if table == 2 { 4 } else { 1 };
                (0..rows).map(move |row| RowAt { table, position: position + row })
            });
            let pages = |&position: &u32| (0..=(position + 4) / TILE_KEYS as u32).collect();
            let tables = positions.iter().map(pages).collect();
            Lists::of(&RowMap { rows: rows.collect(), tables })
        };
        let (before, places) = lists([60, 200, 130]);
        let (after, same) = lists([130, 260, 190]);
        assert_eq!(places, same);
        assert_eq!((before.len(), after.len()), (places.pages + 9, places.pages + 12));
    }
}
