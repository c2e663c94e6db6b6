//! What of a round goes through the layers at once, and where its rows come from and go.

use std::ops::Range;

use backend::Walk;

use crate::model::{Piece, Record};
use crate::slots::{Effects, Span};
use crate::stage::kept_row;

/// A step's rows: zeros at first, which are written while the device works; or those of a berth.
pub(crate) struct Out<'a> {
    pub(crate) berth: Option<u32>,
    pub(crate) values: usize,
    pub(crate) rows: &'a mut Vec<f32>,
}

impl Out<'_> {
    pub(crate) fn rows(&mut self) -> &mut [f32] {
        self.rows.resize(self.values, 0.0);
        self.rows
    }
}

/// Runs of those of a piece's rows that are needed and lie one behind another in the plan too;
/// `live` says which rows of it they are.
pub(crate) fn runs(live: &[usize], needs: &impl Fn(usize) -> bool) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, &row) in live.iter().enumerate().filter(|(_, row)| needs(**row)) {
        match runs.last_mut() {
            Some(run) if run.end == at && live[at - 1] + 1 == row => run.end += 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

/// The rows of a piece of the round whose streams are not skipped, and their indices in its map.
pub(crate) fn live_rows(effects: &Effects, rows: Range<usize>) -> (Piece, Vec<usize>) {
    let (mut piece, mut live) = (Piece::default(), Vec::new());
    for Span { rows: all, track, kept_at, .. } in effects.spans.iter().filter(|span| !span.skipped)
    {
        let part = rows.start.max(all.start)..rows.end.min(all.end);
        if part.is_empty() {
            continue;
        }
        let (skipped, first) = (part.start - all.start, live.len());
        live.extend(part);
        let rows = first..live.len();
        // Later pieces of a window go on in place.
        let from = if skipped == 0 { track.from } else { Some(track.to) };
        piece.walks.push(Walk { rows: rows.clone(), from, to: track.to });
        if let Some(at) = kept_at {
            piece.records.push(Record { rows, at: kept_row(track.slot, *at) + skipped });
        }
    }
    piece.map.rows = live.iter().map(|&row| effects.map.rows[row]).collect();
    piece.map.tables.clone_from(&effects.map.tables);
    (piece, live)
}

/// Splits `rows` into pieces of at most `most`, each ending at the last cut that it can reach.
pub(crate) fn pieces(rows: usize, cuts: &[u32], most: usize) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let limit = (start + most).min(rows);
        let reach =
            cuts.iter().map(|&cut| cut as usize).filter(|cut| (start + 1..limit).contains(cut));
        let end = if limit == rows { rows } else { reach.max().unwrap_or(limit) };
        let piece = start..end;
        start = end;
        (!piece.is_empty()).then_some(piece)
    })
}
