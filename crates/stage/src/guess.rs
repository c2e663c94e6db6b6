//! Chains of guesses over a program's draft head: which rows stand where, and what follows what.

use std::sync::Arc;

use backend::{RowAt, RowMap};

use crate::model::{Past, Program, Sizes};
use crate::{Chain, Pick, Slots};

/// A draft head at work; widths in values.
pub(crate) struct Guessing<'a> {
    pub(crate) program: &'a mut dyn Program,
    pub(crate) slots: &'a Slots,
    pub(crate) sizes: Sizes,
    pub(crate) hidden: usize,
    pub(crate) vocab: usize,
}

/// A chain that goes on.
struct Link {
    /// Its place among the given chains.
    at: usize,
    table: Arc<[u32]>,
    /// Position of its last row.
    position: u32,
    /// What the head made of that row.
    y: Vec<f32>,
}

impl Guessing<'_> {
    /// The tokens of each chain; none of a chain whose stream is not open.
    pub(crate) fn run(
        &mut self,
        chains: &[Chain<'_>],
        rows: &[f32],
        pick: Pick<'_>,
    ) -> Vec<Vec<u32>> {
        let mut guesses = vec![Vec::new(); chains.len()];
        let mut links = self.take_in(chains, rows);
        while !links.is_empty() {
            let tokens = self.pick(&links, pick);
            for (link, token) in links.iter().zip(&tokens) {
                guesses[link.at].push(*token);
            }
            let goes_on = |at: usize| guesses[at].len() < chains[at].length as usize;
            let rest = links.into_iter().zip(tokens).filter(|(link, _)| goes_on(link.at));
            links = self.follow(rest.collect());
        }
        guesses
    }

    /// Takes all rows in; the chains that are to guess.
    fn take_in(&mut self, chains: &[Chain<'_>], rows: &[f32]) -> Vec<Link> {
        let (mut map, mut places, mut ids) = (RowMap::default(), Vec::new(), Vec::new());
        let mut ends = Vec::new();
        for (at, chain) in chains.iter().enumerate() {
            assert_eq!(chain.tokens.len(), chain.rows.len(), "a token after each row");
            let Some(table) = self.table(chain) else { continue };
            let positions = chain.first..chain.first + chain.tokens.len() as u32;
            let own = map.tables.len();
            map.rows.extend(positions.map(|position| RowAt { table: own, position }));
            map.tables.push(table);
            places.extend(chain.rows.clone());
            ids.extend_from_slice(chain.tokens);
            if chain.length > 0 && !chain.tokens.is_empty() {
                ends.push((at, map.rows.len() - 1));
            }
        }
        let mut links = Vec::new();
        for start in (0..ids.len()).step_by(self.sizes.rows_max) {
            let piece = start..(start + self.sizes.rows_max).min(ids.len());
            let past = places[piece.clone()].iter();
            let past = past.flat_map(|row| &rows[row * self.hidden..(row + 1) * self.hidden]);
            let past: Vec<f32> = past.copied().collect();
            let part = RowMap { rows: map.rows[piece.clone()].to_vec(), ..map.clone() };
            let y = self.program.draft(Past::Residual(&past), &ids[piece.clone()], &part);
            for (at, end) in ends.iter().filter(|(_, end)| piece.contains(end)) {
                let RowAt { table, position } = map.rows[*end];
                let y = y[(end - start) * self.hidden..][..self.hidden].to_vec();
                links.push(Link { at: *at, table: map.tables[table].clone(), position, y });
            }
        }
        links
    }

    /// Draws a token for each chain.
    fn pick(&mut self, links: &[Link], pick: Pick<'_>) -> Vec<u32> {
        let mut tokens = Vec::with_capacity(links.len());
        for part in links.chunks(self.sizes.head_rows_max) {
            let y: Vec<f32> = part.iter().flat_map(|link| &link.y).copied().collect();
            let mut logits = vec![0.0; part.len() * self.vocab];
            self.program.draft_head(&y, &mut logits);
            for (link, row) in part.iter().zip(logits.chunks_exact(self.vocab)) {
                // The row after it has a token already.
                tokens.push(pick(link.at, link.position + 2, row));
            }
        }
        tokens
    }

    /// Takes in the guessed tokens, from what the head made of the rows before them.
    fn follow(&mut self, links: Vec<(Link, u32)>) -> Vec<Link> {
        let mut next = Vec::with_capacity(links.len());
        for part in links.chunks(self.sizes.rows_max) {
            let mut map = RowMap::default();
            for (table, (link, _)) in part.iter().enumerate() {
                map.rows.push(RowAt { table, position: link.position + 1 });
                map.tables.push(link.table.clone());
            }
            let past: Vec<f32> = part.iter().flat_map(|(link, _)| &link.y).copied().collect();
            let ids: Vec<u32> = part.iter().map(|(_, token)| *token).collect();
            let y = self.program.draft(Past::Guessed(&past), &ids, &map);
            for ((link, _), y) in part.iter().zip(y.chunks_exact(self.hidden)) {
                let (at, table) = (link.at, link.table.clone());
                next.push(Link { at, table, position: link.position + 1, y: y.to_vec() });
            }
        }
        next
    }

    /// The stream's pages, and one behind them that only guesses write to.
    fn table(&self, chain: &Chain<'_>) -> Option<Arc<[u32]>> {
        let (pages, slot) = self.slots.pages(chain.id, chain.accepted)?;
        let spare = self.sizes.pages as u32 + slot;
        Some(pages.iter().copied().chain([spare]).collect())
    }
}
