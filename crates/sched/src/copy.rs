//! Copies of the context: where the last tokens were said before, what followed them there is the
//! guess.

use std::cmp::Reverse;
use std::collections::HashMap;

use arith::sample::mix;

use crate::draft::{Drafter, Drafts, Outlook, Proposal};
use crate::reach::Reach;

/// Least tokens that must be the same.
pub(crate) const MATCH_MIN: usize = 8;
/// Tokens back that are looked through; also bounds the index.
pub(crate) const WINDOW_MAX: usize = 65_536;
/// Places with the same last tokens that are compared, the newest first.
const PLACES_MAX: usize = 16;
/// Longest match that is told from a longer one.
const MATCH_MAX: usize = 256;

/// The drafter of one stream.
#[derive(Debug)]
pub(crate) struct Copies {
    index: Index,
    reach: Reach,
}

impl Copies {
    /// Reaches as far as it wins time, or so far.
    pub(crate) fn new(reach: Option<u32>) -> Self {
        Self { index: Index::default(), reach: Reach::new(0.9, 0.0).fixed(reach) }
    }
}

impl Drafter for Copies {
    fn propose(&mut self, outlook: &Outlook<'_>) -> Proposal {
        let tokens = outlook.tokens;
        self.index.extend(tokens);
        let places = self.index.longest(tokens);
        let Some((from, others)) = places.split_first() else { return Proposal::Nothing };
        let count = self.reach.choose(outlook, outlook.most, 0.0);
        if count == 0 {
            return Proposal::Nothing;
        }
        let mut first = follow(tokens, *from, count as usize);
        let differs = |place: &usize| {
            let other = follow(tokens, *place, first.len());
            let shared = first.iter().zip(&other).take_while(|(a, b)| a == b).count();
            (shared < first.len()).then_some((shared, other))
        };
        let Some((shared, other)) = others.iter().find_map(differs) else {
            return Proposal::Drafts(Drafts::chain(first));
        };
        let (count, second) = self.reach.fork(outlook, count, shared as u32);
        first.truncate(count as usize);
        Proposal::Drafts(Drafts::fork(first, shared, &other[shared..shared + second as usize]))
    }

    fn hear_second(&mut self, is_right: bool) {
        self.reach.hear_second(is_right);
    }

    fn hear(&mut self, drafted: u32, accepted: u32) {
        self.reach.hear(drafted, accepted);
    }
}

/// `count` tokens as they stand from `from` on; past the end goes on with what was copied.
fn follow(tokens: &[u32], from: usize, count: usize) -> Vec<u32> {
    let mut copied = Vec::with_capacity(count);
    for at in from..from + count {
        copied.push(if at < tokens.len() { tokens[at] } else { copied[at - tokens.len()] });
    }
    copied
}

/// Where each run of [`MATCH_MIN`] tokens ended last, within [`WINDOW_MAX`] tokens.
#[derive(Debug, Default)]
struct Index {
    /// By the run's hash, the place after its last occurrence.
    last: HashMap<u64, u32>,
    /// By a run's place, modulo the window: the place of the one before with the same hash, and
    /// the hash.
    before: Vec<(u32, u64)>,
    /// Tokens whose runs are in, the newest token left out.
    known: usize,
}

impl Index {
    /// Takes in runs that end before the last token: the last run is the one to look for.
    fn extend(&mut self, tokens: &[u32]) {
        let end = tokens.len().saturating_sub(1);
        let first = self.known.max(MATCH_MIN).max(end.saturating_sub(WINDOW_MAX));
        for place in first..=end {
            if place > self.known {
                self.add(place, hash(&tokens[place - MATCH_MIN..place]));
            }
        }
        self.known = self.known.max(end);
    }

    fn add(&mut self, place: usize, hash: u64) {
        let at = place % WINDOW_MAX;
        if at >= self.before.len() {
            self.before.resize(at + 1, (0, 0));
        }
        // What this place held before is out of the window.
        let (_, old) = self.before[at];
        if self.last.get(&old).is_some_and(|last| *last as usize + WINDOW_MAX <= place) {
            self.last.remove(&old);
        }
        let before = self.last.insert(hash, place as u32).unwrap_or(0);
        self.before[at] = (before, hash);
    }

    /// The places whose last tokens agree with the last ones of all, longest first, then newest.
    fn longest(&self, tokens: &[u32]) -> Vec<usize> {
        let end = tokens.len();
        if end <= MATCH_MIN {
            return Vec::new();
        }
        let mut places = Vec::new();
        let oldest = end.saturating_sub(WINDOW_MAX - 1);
        let last = self.last.get(&hash(&tokens[end - MATCH_MIN..]));
        let mut place = last.map_or(0, |place| *place as usize);
        for _ in 0..PLACES_MAX {
            if place < oldest.max(MATCH_MIN) {
                break;
            }
            let back = tokens[..place].iter().rev().zip(tokens.iter().rev());
            let same = back.take(MATCH_MAX).take_while(|(a, b)| a == b).count();
            if same >= MATCH_MIN {
                places.push((same, place));
            }
            place = self.before[place % WINDOW_MAX].0 as usize;
        }
        places.sort_by_key(|(same, _)| Reverse(*same));
        places.into_iter().map(|(_, place)| place).collect()
    }
}

fn hash(run: &[u32]) -> u64 {
    run.iter().fold(0, |state, token| mix(state ^ u64::from(*token)).wrapping_add(state))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Prices;

    fn found(index: &mut Index, tokens: &[u32]) -> Option<usize> {
        index.extend(tokens);
        index.longest(tokens).first().copied()
    }

    #[test]
    fn eight_tokens_that_were_said_before_find_what_followed() {
        let mut tokens: Vec<u32> = (0..40).collect();
        tokens.extend(10..17);
        let mut index = Index::default();
        assert_eq!(found(&mut index, &tokens), None, "seven are too few");
        tokens.push(17);
        assert_eq!(found(&mut index, &tokens), Some(18));
        assert_eq!(follow(&tokens, 18, 3), [18, 19, 20]);
        assert_eq!(follow(&[1, 2, 3], 1, 5), [2, 3, 2, 3, 2]);
    }

    #[test]
    fn the_longest_match_wins_and_then_the_newest() {
        let mut tokens = vec![90, 91, 1, 2, 3, 4, 5, 6, 7, 8, 50];
        tokens.extend([92, 1, 2, 3, 4, 5, 6, 7, 8, 51]);
        tokens.extend([90, 91, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(found(&mut Index::default(), &tokens), Some(10));
        tokens[21] = 33;
        tokens[22] = 33;
        assert_eq!(found(&mut Index::default(), &tokens), Some(20));
    }

    #[test]
    fn a_repeated_token_copies_itself() {
        let tokens = [7; 12];
        assert_eq!(found(&mut Index::default(), &tokens), Some(11));
        assert_eq!(follow(&tokens, 11, 4), [7; 4]);
    }

    #[test]
    fn what_has_left_the_window_is_forgotten_and_the_index_stays_bounded() {
        let mut index = Index::default();
        let mut tokens: Vec<u32> = (0..WINDOW_MAX as u32 * 3).collect();
        for end in (1000..tokens.len()).step_by(1000) {
            index.extend(&tokens[..end]);
        }
        tokens.extend(100..120);
        assert_eq!(found(&mut index, &tokens), None);
        let near = WINDOW_MAX as u32 * 3 - 500;
        tokens.extend(near..near + 8);
        assert_eq!(found(&mut index, &tokens), Some(near as usize + 8));
        assert!(index.last.len() <= WINDOW_MAX + 1 && index.before.len() <= WINDOW_MAX);
    }

    #[test]
    fn an_index_that_grew_token_by_token_finds_what_a_new_one_finds() {
        let mut state = 1u64;
        let mut tokens = Vec::new();
        let mut grown = Index::default();
        for _ in 0..3000 {
            state = mix(state.wrapping_add(0x9e37_79b9_7f4a_7c15));
            tokens.push((state >> 20) as u32 % 2);
            assert_eq!(found(&mut grown, &tokens), found(&mut Index::default(), &tokens));
        }
    }

    #[test]
    fn copies_are_proposed_once_a_round_has_its_price() {
        let mut copies = Copies::new(None);
        let tokens: Vec<u32> = (0..20).chain(0..9).collect();
        let mut prices = Prices::default();
        prices.round(1, 1000);
        let outlook = Outlook { tokens: &tokens, most: 4, beside: 0, prices: &prices };
        let Proposal::Drafts(drafts) = copies.propose(&outlook) else { panic!("no drafts") };
        assert_eq!(drafts.tokens(), [9, 10, 11, 12]);
    }

    #[test]
    fn two_continuations_are_both_proposed_where_they_part() {
        let mut tokens: Vec<u32> = (0..8).chain([20, 21, 22, 23]).collect();
        tokens.extend((0..8).chain([20, 31, 32, 33]).chain(0..8));
        let mut prices = Prices::default();
        (1..=9).for_each(|rows| prices.round(rows, 1000));
        let outlook = Outlook { tokens: &tokens, most: 9, beside: 0, prices: &prices };
        let drafts = |reach| match Copies::new(reach).propose(&outlook) {
            Proposal::Drafts(drafts) => drafts,
            other => panic!("{other:?}"),
        };
        let fork = drafts(Some(4));
        assert_eq!(fork.tokens(), [20, 31, 32, 33, 21, 22, 23]);
        assert_eq!(fork.parents().map(|parents| parents[5]), Some(1));
        let mut copies = Copies::new(None);
        // The first of two is wrong as often as not, the other is right where it is.
        (0..40).for_each(|n| copies.hear(4, if n % 2 == 0 { 1 } else { 4 }));
        (0..40).for_each(|_| copies.hear_second(true));
        let Proposal::Drafts(fork) = copies.propose(&outlook) else { panic!("no drafts") };
        assert!(fork.parents().is_some(), "{fork:?}");
    }
}
