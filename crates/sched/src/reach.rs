//! How many drafts a window should hold: as many as give most tokens a time.
//!
//! With `p_i` the measured chance that draft `i` is right once those before it are, a window of `d`
//! drafts gives `1 + p_1 + p_1 p_2 + ..` tokens and takes what the ring's prices say of its rows,
//! with the guessing. The `d` of the best ratio is the reach; 0 is to leave it.

use wire::limit::WINDOW_ROWS_MAX;

use crate::Prices;
use crate::draft::Outlook;

/// Drafts whose chances are measured one by one; those behind share the last.
const CHANCES: usize = 8;
/// What a new outcome weighs beside the past, and where many drafts share one chance.
const NEWEST: f64 = 0.15;
const NEWEST_SHARED: f64 = 0.05;
/// How fast a chance that is not tried goes back to what was hoped for.
const HOPE: f64 = 0.01;
/// One window in so many tries one draft more, and one in so many none, so that their chances and
/// prices stay known.
const DEEPER: u32 = 8;
const PLAIN: u32 = 32;
/// How often a second guess is hoped to be right where the first is wrong.
const SECOND: f64 = 0.5;
/// What drafts must win before they are worth their risk.
const LEAST_GAIN: f64 = 1.02;

/// Chances of a drafter's drafts in one stream.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    hoped: [f64; CHANCES],
    chances: [f64; CHANCES],
    second: f64,
    windows: u32,
    fixed: Option<u32>,
    /// Windows in a row that were better left alone.
    pub idle: u32,
}

impl Reach {
    /// Hopes that the first draft is right with chance `first`, each later one less by `less`.
    pub fn new(first: f64, less: f64) -> Self {
        let hoped = std::array::from_fn(|i| first - less * i as f64);
        Self { hoped, chances: hoped, second: SECOND, windows: 0, fixed: None, idle: 0 }
    }

    /// Always the same, where it is said.
    pub fn fixed(self, fixed: Option<u32>) -> Self {
        Self { fixed, ..self }
    }

    /// So many drafts were computed and the first `accepted` were right.
    pub fn hear(&mut self, drafted: u32, accepted: u32) {
        for draft in 0..drafted.min(accepted + 1) {
            let at = (draft as usize).min(CHANCES - 1);
            let weight = if at == CHANCES - 1 { NEWEST_SHARED } else { NEWEST };
            let right = f64::from(u32::from(draft < accepted));
            self.chances[at] += (right - self.chances[at]) * weight;
        }
    }

    /// Drafts for the next window, `most` at most; each costs `step_ns` to guess.
    pub fn choose(&mut self, outlook: &Outlook<'_>, most: u32, step_ns: f64) -> u32 {
        let most = most.min(outlook.most);
        if let Some(fixed) = self.fixed {
            return fixed.min(most);
        }
        let plain = outlook.prices.round_ns(outlook.beside + 1);
        self.windows = self.windows.wrapping_add(1);
        if plain <= 0.0 {
            // Nothing is known yet: the first windows are plain ones.
            return 0;
        }
        let best = self.best(outlook.prices, outlook.beside, most, step_ns);
        if best == 0 {
            self.idle += 1;
            for (chance, hoped) in self.chances.iter_mut().zip(self.hoped) {
                *chance += (hoped - *chance).max(0.0) * HOPE;
            }
            return 0;
        }
        self.idle = 0;
        match self.windows {
            n if n % PLAIN == 0 => 0,
            n if n % DEEPER == 0 => (best + 1).min(most),
            _ => best,
        }
    }

    /// Whether a stream that is alone could win with drafts that fare as they do now, or nobody
    /// knows.
    pub fn may_win(&self, prices: &Prices, most: u32, step_ns: f64) -> bool {
        let is_known = self.fixed.is_none() && prices.round_ns(1) > 0.0;
        !is_known || self.best(prices, 0, most, step_ns) > 0
    }

    /// The drafts of the best ratio.
    fn best(&self, prices: &Prices, beside: u32, most: u32, step_ns: f64) -> u32 {
        let plain = prices.round_ns(beside + 1);
        let (mut best, mut ratio) = (0, LEAST_GAIN / plain);
        let (mut tokens, mut chance) = (1.0, 1.0);
        for drafts in 1..=most {
            chance *= self.chance(drafts - 1);
            tokens += chance;
            let rows = prices.round_ns(beside + 1 + drafts).max(plain);
            let ns = rows + step_ns * f64::from(drafts);
            // Others that ride along wait as long.
            let shared = f64::from(beside);
            let won = (tokens + shared) / (1.0 + shared) / ns;
            if won > ratio {
                (best, ratio) = (drafts, won);
            }
        }
        best
    }

    /// A second guess was right or not where the first was wrong.
    pub fn hear_second(&mut self, is_right: bool) {
        self.second += (f64::from(u32::from(is_right)) - self.second) * NEWEST;
    }

    /// Tokens of the first of two chains that part behind `shared` tokens, and of the second from
    /// there on: those that win time over one chain of `count`. The second path is no longer than
    /// the first; stages compute what both share twice.
    pub fn fork(&self, outlook: &Outlook<'_>, count: u32, shared: u32) -> (u32, u32) {
        let room = |first: u32| {
            let paths = WINDOW_ROWS_MAX.saturating_sub(2 + first + shared);
            paths.min(outlook.most - first).min(first - shared)
        };
        if self.fixed.is_some() {
            return (count, room(count));
        }
        let others = f64::from(outlook.beside);
        let rate = |tokens: f64, rows: u32| {
            (tokens + others) / outlook.prices.round_ns(outlook.beside + 1 + rows)
        };
        let (mut best, mut ratio) = ((count, 0), rate(self.tokens(count), count) * LEAST_GAIN);
        for first in [count, count - count / 4, count - count / 2] {
            if first <= shared {
                continue;
            }
            let mut tokens = self.tokens(first);
            let parts: f64 = (0..shared).map(|draft| self.chance(draft)).product();
            let mut chance = parts * (1.0 - self.chance(shared)) * self.second;
            for second in 1..=room(first) {
                tokens += chance;
                chance *= self.chance(shared + second);
                let won = rate(tokens, first + 1 + shared + second);
                if won > ratio {
                    (best, ratio) = ((first, second), won);
                }
            }
        }
        best
    }

    /// Tokens that a window of a chain of `drafts` gives, in the mean.
    fn tokens(&self, drafts: u32) -> f64 {
        let mut chance = 1.0;
        let chances = (0..drafts).map(|draft| {
            chance *= self.chance(draft);
            chance
        });
        1.0 + chances.sum::<f64>()
    }

    /// The chance of a draft, the first is 0, once those before it are right.
    fn chance(&self, draft: u32) -> f64 {
        self.chances[(draft as usize).min(CHANCES - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Prices;

    /// Windows of `rows` cost `fixed + row * rows`.
    fn prices(fixed: u64, row: u64) -> Prices {
        let mut prices = Prices::default();
        for rows in [1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32] {
            prices.round(rows, fixed + row * u64::from(rows));
        }
        prices
    }

    fn outlook(prices: &Prices) -> Outlook<'_> {
        Outlook { tokens: &[1], most: 31, beside: 0, prices }
    }

    /// The mean of many choices while each draft is right with chance `right` of 16.
    fn mean(prices: &Prices, right: u32) -> f64 {
        let (mut reach, mut sum, mut state) = (Reach::new(0.85, 0.05), 0, 1u64);
        for _ in 0..500 {
            let drafted = reach.choose(&outlook(prices), 31, 0.0);
            let mut luck = || {
                state = arith::sample::mix(state.wrapping_add(0x9e37_79b9_7f4a_7c15));
                state % 16 < u64::from(right)
            };
            let accepted = (0..drafted).take_while(|_| luck()).count() as u32;
            reach.hear(drafted, accepted);
            sum += drafted;
        }
        f64::from(sum) / 500.0
    }

    #[test]
    fn cheap_rows_and_good_guesses_reach_far_and_dear_or_bad_ones_do_not() {
        let flat = prices(1_000_000, 1_000);
        let steep = prices(1_000, 1_000_000);
        assert!(mean(&flat, 16) > 25.0);
        assert!(mean(&steep, 8) < 0.2);
        let half = mean(&prices(1_000_000, 100_000), 8);
        assert!((1.0..5.0).contains(&half), "{half}");
        assert!(mean(&flat, 0) < 6.0);
    }

    #[test]
    fn nothing_is_drafted_before_a_plain_round_has_its_price() {
        let prices = Prices::default();
        assert_eq!(Reach::new(0.9, 0.0).choose(&outlook(&prices), 31, 0.0), 0);
    }
}
