//! Drafters that know the answers and lie now and then, and windows that they fill.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use sched::{Drafter, Drafting, Drafts, Opening, Outlook, Proposal};

use crate::asks::{Rng, VOCAB};

/// Whole replies by name.
pub type Answers = Arc<Mutex<BTreeMap<u32, Vec<u32>>>>;

/// Gives drafters to some streams, by their number.
#[derive(Clone, Debug, Default)]
pub struct Oracles {
    pub answers: Answers,
    /// Whether drafts come from the draft head.
    pub chains: bool,
}

/// The guesses for a stream that has `tokens`: the answer, and lies in it.
pub fn guesses(answers: &Answers, rng: &mut Rng, tokens: &[u32], count: u32) -> Vec<u32> {
    let answers = answers.lock().unwrap();
    let whole = &answers[&tokens[0]];
    let guess = |at: usize| {
        let lies = rng.chance(15) || at >= whole.len();
        if lies { rng.below(VOCAB as u32) } else { whole[at] }
    };
    (tokens.len()..tokens.len() + count as usize).map(guess).collect()
}

impl Drafting for Oracles {
    fn open(&self, _: &Opening<'_>) -> Vec<Box<dyn Drafter>> {
        let oracle = || Oracle { told: self.clone(), rng: Rng(0), drafted: 0, lives: 40 };
        vec![Box::new(oracle()) as Box<dyn Drafter>]
    }
}

#[derive(Debug)]
struct Oracle {
    told: Oracles,
    rng: Rng,
    drafted: u32,
    /// Windows until it lets the draft head go.
    lives: u32,
}

impl Drafter for Oracle {
    fn propose(&mut self, outlook: &Outlook<'_>) -> Proposal {
        assert!(outlook.most > 0);
        self.rng.0 = self.rng.0.wrapping_add(u64::from(outlook.tokens[0]));
        let count = self.rng.within(0, outlook.most.min(9) + 1);
        self.drafted = count.min(outlook.most);
        self.lives = self.lives.saturating_sub(1);
        if self.told.chains {
            return if self.lives > 0 { Proposal::Chain(count) } else { Proposal::Nothing };
        }
        let mut tokens = guesses(&self.told.answers, &mut self.rng, outlook.tokens, self.drafted);
        if count == 0 {
            return Proposal::Nothing;
        }
        let most = outlook.most - self.drafted;
        let mut second = guesses(&self.told.answers, &mut self.rng, outlook.tokens, self.drafted);
        let shared = self.rng.below(self.drafted) as usize;
        if tokens[shared] == second[shared] {
            let lie = if self.rng.chance(50) { &mut tokens } else { &mut second };
            lie[shared] = (lie[shared] + 1) % VOCAB as u32;
        }
        let left = (self.drafted as usize - shared).min(most as usize);
        let drafts = match self.rng.chance(50) {
            true => Drafts::fork(tokens, shared, &second[shared..shared + left]),
            false => Drafts::chain(tokens),
        };
        Proposal::Drafts(drafts)
    }

    fn hear(&mut self, drafted: u32, accepted: u32) {
        assert!((1..=10).contains(&drafted) && accepted <= drafted);
    }

    fn absorbs(&self) -> bool {
        self.told.chains && self.lives > 0
    }
}
