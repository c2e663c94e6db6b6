//! Drafts: tokens guessed ahead, to be computed in the same round as the token that is known.
//!
//! A window is that token and its drafts. A draft stays exactly when it equals what is drawn at its
//! position from the row before it, so drafts move rounds and never bytes. Who guesses is a
//! [`Drafter`]; where it needs weights it asks for a [`Proposal::Chain`], which rank 0's device
//! answers.

use std::fmt;

use arith::base::StreamId;
use arith::sample::Sampling;
use wire::limit::WINDOW_ROWS_MAX;
use wire::plan::ROOT;

use crate::copy::Copies;
use crate::mtp::Mtp;
use crate::price::Prices;

/// Tokens guessed ahead of a stream's newest one: a chain, each after the one before, or two that
/// part behind some token. The window's rows are the newest token, row 0, and these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drafts {
    tokens: Vec<u32>,
    fork: Option<Fork>,
}

/// Where a second chain leaves the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fork {
    /// Tokens of the first chain.
    pub first: usize,
    /// Those of them that both have.
    pub shared: usize,
}

impl Drafts {
    /// Each token after the one before it.
    pub fn chain(tokens: Vec<u32>) -> Self {
        Self { tokens, fork: None }
    }

    /// Two guesses: `first`, and `second` behind the first `shared` tokens of it. What the window
    /// can't hold, or a second path longer than the first, leaves the first alone.
    pub fn fork(first: Vec<u32>, shared: usize, second: &[u32]) -> Self {
        let paths = 2 + first.len() + shared + second.len();
        let fits = shared + second.len() <= first.len() && paths <= WINDOW_ROWS_MAX as usize;
        if second.is_empty() || !fits || first.get(shared) == second.first() {
            return Self::chain(first);
        }
        let fork = Some(Fork { first: first.len(), shared });
        Self { tokens: [&first, second].concat(), fork }
    }

    /// The tokens, parents before children.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens of the first chain.
    pub fn first_len(&self) -> usize {
        self.fork.map_or(self.tokens.len(), |fork| fork.first)
    }

    /// The parents of a tree window's rows; `None` for a chain.
    pub fn parents(&self) -> Option<Vec<u16>> {
        let fork = self.fork?;
        let parent = |row: usize| match row {
            0 => ROOT,
            row if row == fork.first + 1 => fork.shared as u16,
            row => row as u16 - 1,
        };
        Some((0..=self.tokens.len()).map(parent).collect())
    }

    /// Positions behind the newest token of the longer chain other than the first.
    pub(crate) fn side_len(&self) -> Option<usize> {
        self.fork.map(|fork| fork.shared + self.tokens.len() - fork.first)
    }

    /// The row that is `token` behind `row`.
    pub(crate) fn child(&self, row: usize, token: u32) -> Option<usize> {
        let is = |child: &usize| self.tokens.get(child - 1) == Some(&token);
        match self.fork {
            Some(fork) if row == fork.first => None,
            Some(fork) if row == fork.shared => [row + 1, fork.first + 1].into_iter().find(is),
            _ => Some(row + 1).filter(is),
        }
    }

    /// The rows from 0 to `row`.
    pub(crate) fn path(&self, row: usize) -> Vec<usize> {
        match self.fork.filter(|fork| row > fork.first) {
            Some(fork) => (0..=fork.shared).chain(fork.first + 1..=row).collect(),
            None => (0..=row).collect(),
        }
    }

    /// The first `most` tokens; a second chain stays whole or not at all.
    pub(crate) fn truncate(&mut self, most: usize) {
        if most < self.tokens.len() {
            self.tokens.truncate(self.first_len().min(most));
            self.fork = None;
        }
    }
}

/// What a drafter is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Outlook<'a> {
    /// All tokens known, prompt and reply; the last is the next window's first row.
    pub tokens: &'a [u32],
    /// Most drafts that the window can hold; at least 1.
    pub most: u32,
    /// Rows of other streams that ride in the same round, about.
    pub beside: u32,
    /// What rounds cost.
    pub prices: &'a Prices,
}

/// What a drafter has for a stream's next window.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Proposal {
    /// Nothing: the next drafter is asked.
    Nothing,
    /// Drafts, at once.
    Drafts(Drafts),
    /// So many tokens of the draft head, one after another, as a [`DraftJob`].
    Chain(u32),
}

/// Guesses tokens of one stream. It is a function of what it is told: no clock, no device.
pub trait Drafter: fmt::Debug + Send {
    /// What the next window should hold.
    fn propose(&mut self, outlook: &Outlook<'_>) -> Proposal;

    /// How its last drafts fared: so many were computed, the first `accepted` of them were right;
    /// of two chains the first one's.
    fn hear(&mut self, drafted: u32, accepted: u32);

    /// A second chain's first token was right or wrong where the first chain's next was wrong.
    fn hear_second(&mut self, is_right: bool) {
        let _ = is_right;
    }

    /// Whether the draft head has to take in every row that stays, the prompt's too: they are then
    /// sent back to rank 0. A drafter that stops asking for it never asks again.
    fn absorbs(&self) -> bool {
        false
    }
}

/// What is known where a stream begins.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// What rounds cost.
    pub prices: &'a Prices,
    /// The request's number among those submitted.
    pub nth: u64,
}

/// Gives each stream its drafters, first come first asked.
pub trait Drafting: fmt::Debug + Send {
    /// The drafters of a new stream.
    fn open(&self, opening: &Opening<'_>) -> Vec<Box<dyn Drafter>>;
}

/// The drafters there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drafters {
    /// Copies of what prompt and reply said before.
    pub copy: bool,
    /// Chains of the model's own draft head.
    pub mtp: bool,
    /// So many drafts a window whatever they cost, for checks; `None` for what wins time.
    pub reach: Option<u32>,
}

impl Drafting for Drafters {
    fn open(&self, opening: &Opening<'_>) -> Vec<Box<dyn Drafter>> {
        let copy = self.copy.then(|| Box::new(Copies::new(self.reach)) as Box<dyn Drafter>);
        let mtp = self.mtp.then(|| Mtp::new(self.reach)).filter(|mtp| mtp.is_worth(opening));
        let mtp = mtp.map(|mtp| Box::new(mtp) as Box<dyn Drafter>);
        copy.into_iter().chain(mtp).collect()
    }
}

/// What the draft head does for one stream: it takes rows in, and then guesses a chain.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftJob {
    /// The stream.
    pub id: StreamId,
    /// Position of its first row.
    pub first: u32,
    /// Its rows among those that the round brought back.
    pub rows: Vec<usize>,
    /// What the stream's next entry settles its window by, where it is known.
    pub accepted: u32,
    /// The token after each of them.
    pub tokens: Vec<u32>,
    /// Tokens to guess after the last of `tokens`; 0 only takes the rows in.
    pub chain: u32,
    /// How the stream draws: a guess is drawn alike.
    pub sampling: Sampling,
}

/// A stream's drafters and the window that they filled.
#[derive(Debug, Default)]
pub(crate) struct Guesses {
    drafters: Vec<Box<dyn Drafter>>,
    /// For the next window.
    next: Drafts,
    /// Who made them.
    author: usize,
    /// The draft head is at work on them.
    pub awaited: bool,
    /// In the last window.
    pub flying: Drafts,
}

impl Guesses {
    pub fn new(drafters: Vec<Box<dyn Drafter>>) -> Self {
        Self { drafters, ..Self::default() }
    }

    pub fn absorbs(&self) -> bool {
        self.drafters.iter().any(|drafter| drafter.absorbs())
    }

    /// Asks for the next window's drafts; the length of a chain that the draft head is to make.
    pub fn ask(&mut self, outlook: &Outlook<'_>) -> u32 {
        self.next = Drafts::default();
        for (author, drafter) in self.drafters.iter_mut().enumerate() {
            match drafter.propose(outlook) {
                Proposal::Nothing => {}
                Proposal::Drafts(drafts) => {
                    (self.author, self.next) = (author, drafts);
                    return 0;
                }
                Proposal::Chain(length) => {
                    self.author = author;
                    self.awaited = length > 0;
                    return length;
                }
            }
        }
        0
    }

    /// The draft head's answer.
    pub fn answer(&mut self, tokens: Vec<u32>) {
        self.awaited = false;
        self.next = Drafts::chain(tokens);
    }

    /// What the next window could hold.
    pub fn ready(&self) -> &Drafts {
        &self.next
    }

    /// The first `count` of them go; the others are dropped.
    pub fn fly(&mut self, count: usize) {
        self.flying = std::mem::take(&mut self.next);
        self.flying.truncate(count);
    }

    /// The window is back, and `row` is the last that stays. The rows that do.
    pub fn hear(&mut self, row: usize) -> Vec<usize> {
        let drafts = std::mem::take(&mut self.flying);
        let path = drafts.path(row);
        let drafted = drafts.first_len();
        let Some(author) = self.drafters.get_mut(self.author).filter(|_| drafted > 0) else {
            return path;
        };
        let is_second = row > drafted;
        let shared = drafts.fork.map(|fork| fork.shared);
        let accepted = shared.filter(|_| is_second).unwrap_or(row);
        author.hear(drafted as u32, accepted as u32);
        if Some(accepted) == shared {
            author.hear_second(is_second);
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_has_two_chains_and_fits_a_window() {
        let fork = Drafts::fork(vec![1, 2, 3], 1, &[7, 8]);
        assert_eq!(fork.tokens(), [1, 2, 3, 7, 8]);
        assert_eq!(fork.parents(), Some(vec![ROOT, 0, 1, 2, 1, 4]));
        assert_eq!(
            (fork.child(1, 2), fork.child(1, 7), fork.child(3, 7)),
            (Some(2), Some(4), None)
        );
        assert_eq!((fork.path(3), fork.path(5)), (vec![0, 1, 2, 3], vec![0, 1, 4, 5]));
        let mut cut = fork.clone();
        cut.truncate(4);
        assert_eq!(cut, Drafts::chain(vec![1, 2, 3]));
        for (second, shared) in [(&[2][..], 1), (&[7, 8, 9], 1), (&[], 0)] {
            assert_eq!(Drafts::fork(vec![1, 2, 3], shared, second).parents(), None);
        }
        let long: Vec<u32> = (0..20).collect();
        assert_eq!(Drafts::fork(long.clone(), 0, &[99; 10]).tokens().len(), 30);
        assert_eq!(Drafts::fork(long, 1, &[99; 10]).parents(), None, "33 rows of paths");
    }
}
