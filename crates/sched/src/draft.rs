//! Drafts: tokens guessed ahead, to be computed in the same round as the token that is known.
//!
//! A window is that token and its drafts. A draft stays exactly when it equals what is drawn at its
//! position from the row before it, so drafts move rounds and never bytes. Who guesses is a
//! [`Drafter`]; where it needs weights it asks for a [`Proposal::Chain`], which rank 0's device
//! answers.

use std::fmt;
use std::ops::Range;

use arith::base::StreamId;
use arith::sample::Sampling;

use crate::copy::Copies;
use crate::mtp::Mtp;
use crate::price::Prices;

/// Tokens guessed ahead of a stream's newest one: a chain, each after the one before. A tree has a
/// parent a token, as [`wire::plan::Entry::parents`] has a parent a row; stages take chains today.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drafts {
    tokens: Vec<u32>,
    parents: Option<Vec<u16>>,
}

impl Drafts {
    /// Each token after the one before it.
    pub fn chain(tokens: Vec<u32>) -> Self {
        Self { tokens, parents: None }
    }

    /// The tokens, parents before children.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The parents of a tree's rows; `None` for a chain.
    pub fn parents(&self) -> Option<&[u16]> {
        self.parents.as_deref()
    }

    pub(crate) fn truncate(&mut self, most: usize) {
        self.tokens.truncate(most);
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

    /// How its last drafts fared: so many were computed, the first `accepted` of them were right.
    fn hear(&mut self, drafted: u32, accepted: u32);

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
    pub rows: Range<usize>,
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
                    assert!(drafts.parents.is_none(), "stages take chains");
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

    /// Drafts that the next window could hold.
    pub fn ready(&self) -> u32 {
        self.next.tokens.len() as u32
    }

    /// The first `count` of them go; the others are dropped.
    pub fn fly(&mut self, count: usize) {
        self.flying = std::mem::take(&mut self.next);
        self.flying.truncate(count);
    }

    /// The window is back.
    pub fn hear(&mut self, accepted: u32) {
        let drafted = std::mem::take(&mut self.flying).tokens.len() as u32;
        if let Some(author) = self.drafters.get_mut(self.author).filter(|_| drafted > 0) {
            author.hear(drafted, accepted);
        }
    }
}
