//! All of a run's chance, from its seed.

use arith::sample::mix;

/// A generator of splitmix64.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Of a seed.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed.wrapping_add(0x5851_f42d_4c95_7f2d)))
    }

    /// Any number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// `0 .. n`; 0 for 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// `low ..= high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// As [`Rng::within`], small.
    pub fn count(&mut self, low: u32, high: u32) -> u32 {
        self.within(low.into(), high.into()) as u32
    }

    /// True in so many of a hundred cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of them.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// From `low` to `high` on a scale of ratios.
    pub fn ratio(&mut self, low: u64, high: u64) -> u64 {
        let doublings = (high / low.max(1)).max(1).ilog2();
        let base = low << self.below(u64::from(doublings) + 1);
        self.within(base, (base * 2).min(high).max(base))
    }
}
