//! Chains of the model's own draft head (multi-token prediction), which rank 0's device runs.
//!
//! The head takes in every row that stays: the trunk's normed residual with the token after it. So
//! its keys reach as far as the stream's, in pages of the same table. A stream whose guesses lose
//! time lets it go for good, and its rows are taken in no more. Where no guess could win at the
//! prices that earlier streams paid, a stream starts without it: rows that are taken in cost time.

use crate::draft::{Drafter, Opening, Outlook, Proposal};
use crate::reach::Reach;

/// Longest chain: the head was trained for its first guess, and each next one is worse.
pub(crate) const CHAIN_MAX: u32 = 8;
/// Windows in a row without a guess before the head is let go.
const IDLE_MAX: u32 = 8;
/// One request in so many tries the head whatever the prices say, so that they stay known.
const TRIES: u64 = 16;

/// The drafter of one stream.
#[derive(Debug)]
pub(crate) struct Mtp {
    reach: Reach,
    is_off: bool,
}

impl Mtp {
    /// Reaches as far as it wins time, or so far.
    pub(crate) fn new(reach: Option<u32>) -> Self {
        Self { reach: Reach::new(0.85, 0.05).fixed(reach), is_off: false }
    }

    /// Whether a stream that begins now should have it.
    pub(crate) fn is_worth(&self, opening: &Opening<'_>) -> bool {
        let prices = opening.prices;
        let tries = opening.nth.is_multiple_of(TRIES);
        tries || self.reach.may_win(prices, CHAIN_MAX, prices.step_ns())
    }
}

impl Drafter for Mtp {
    fn propose(&mut self, outlook: &Outlook<'_>) -> Proposal {
        if self.is_off {
            return Proposal::Nothing;
        }
        let step_ns = outlook.prices.step_ns();
        match self.reach.choose(outlook, CHAIN_MAX, step_ns) {
            0 => {
                self.is_off = self.reach.idle >= IDLE_MAX;
                Proposal::Nothing
            }
            chain => Proposal::Chain(chain),
        }
    }

    fn hear(&mut self, drafted: u32, accepted: u32) {
        self.reach.hear(drafted, accepted);
    }

    fn absorbs(&self) -> bool {
        !self.is_off
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Prices;

    #[test]
    fn a_stream_starts_without_a_head_that_could_only_lose() {
        let head = Mtp::new(None);
        let worth = |prices: &Prices, nth| head.is_worth(&Opening { prices, nth });
        let mut dear = Prices::default();
        assert!(worth(&dear, 1), "nothing is known yet");
        (1..=4).for_each(|rows| dear.round(rows, 1_000 * u64::from(rows)));
        dear.chains(1, 500);
        assert!(!worth(&dear, 1) && worth(&dear, TRIES));
        assert!(Mtp::new(Some(2)).is_worth(&Opening { prices: &dear, nth: 1 }));
        let mut cheap = Prices::default();
        (1..=4).for_each(|rows| cheap.round(rows, 1_000 + u64::from(rows)));
        assert!(worth(&cheap, 1));
    }
}
