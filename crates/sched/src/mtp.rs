//! Chains of the model's own draft head (multi-token prediction), which rank 0's device runs.
//!
//! The head takes in every row that stays: the trunk's normed residual with the token after it. So
//! its keys reach as far as the stream's, in pages of the same table. A stream whose guesses lose
//! time lets it go for good, and its rows are taken in no more.

use crate::draft::{Drafter, Outlook, Proposal};
use crate::reach::Reach;

/// Longest chain: the head was trained for its first guess, and each next one is worse.
pub(crate) const CHAIN_MAX: u32 = 8;
/// Windows in a row without a guess before the head is let go.
const IDLE_MAX: u32 = 8;

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
