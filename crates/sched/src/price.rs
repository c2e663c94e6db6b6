//! What rounds of decode windows take on this ring, by their rows: the whole ring's time, not one
//! machine's.

/// Row counts that share a mean from here on: 1, 2, .. each alone, then ever wider.
const EDGES: [u32; 20] =
    [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 28, 32, 48, 64, 96, 128, 256, 512];
/// What a new sample weighs beside many old ones.
const NEWEST: f64 = 0.1;
/// A sample counts as at most so many times the mean: one slow round is no price.
const OUTLIER: f64 = 3.0;

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    samples: u32,
    rows: f64,
    ns: f64,
}

impl Mean {
    fn add(&mut self, rows: f64, ns: f64) {
        let ns = if self.samples > 2 { ns.min(self.ns * OUTLIER) } else { ns };
        self.samples = self.samples.saturating_add(1);
        let weight = NEWEST.max(1.0 / f64::from(self.samples));
        self.rows += (rows - self.rows) * weight;
        self.ns += (ns - self.ns) * weight;
    }
}

/// Measured prices, fading; plain data that a driver fills.
#[derive(Clone, Debug, Default)]
pub struct Prices {
    rounds: [Mean; EDGES.len()],
    step: Mean,
}

impl Prices {
    /// A round of decode windows with `rows` rows was back after `ns`, from the first rank's work
    /// to its logits.
    pub fn round(&mut self, rows: u32, ns: u64) {
        let at = EDGES.partition_point(|edge| *edge <= rows.max(1)) - 1;
        self.rounds[at].add(f64::from(rows), ns as f64);
    }

    /// The draft head took `ns` for chains of `steps` tokens in all, its rows taken in.
    pub fn chains(&mut self, steps: u32, ns: u64) {
        if steps > 0 {
            self.step.add(1.0, ns as f64 / f64::from(steps));
        }
    }

    /// Nanoseconds of one guess of the draft head.
    pub fn step_ns(&self) -> f64 {
        self.step.ns
    }

    /// Nanoseconds of a round of `rows`, between the measured ones; 0 where none is. Beyond them
    /// as the last two say, and flat where there is only one: whoever hopes will find out.
    pub fn round_ns(&self, rows: u32) -> f64 {
        let rows = f64::from(rows);
        let (mut below, mut above): (Option<Mean>, Option<Mean>) = (None, None);
        let mut before = None;
        for mean in self.rounds.iter().filter(|mean| mean.samples > 0) {
            if mean.rows > rows {
                above = above.or(Some(*mean));
            } else {
                before = below;
                below = Some(*mean);
            }
        }
        let line = |a: Mean, b: Mean| {
            let slope = ((b.ns - a.ns) / (b.rows - a.rows)).max(0.0);
            b.ns + slope * (rows - b.rows)
        };
        match (before, below, above) {
            (_, Some(a), Some(b)) => line(a, b).min(b.ns.max(a.ns)),
            (Some(a), Some(b), None) => line(a, b),
            (_, Some(one), None) | (_, None, Some(one)) => one.ns,
            (_, None, None) => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_lie_between_what_was_measured_and_go_on_beyond_it() {
        let mut prices = Prices::default();
        assert!(prices.round_ns(3) == 0.0);
        prices.round(1, 100);
        assert!(prices.round_ns(9) == 100.0);
        prices.round(5, 180);
        assert!(prices.round_ns(3) == 140.0 && prices.round_ns(7) == 220.0);
        prices.round(31, 400);
        assert!(prices.round_ns(31) == 400.0);
    }

    #[test]
    fn a_slow_round_hardly_moves_a_price_and_many_do() {
        let mut prices = Prices::default();
        (0..50).for_each(|_| prices.round(1, 100));
        prices.round(1, 1_000_000);
        assert!(prices.round_ns(1) <= 120.0);
        (0..100).for_each(|_| prices.round(1, 200));
        assert!(prices.round_ns(1) > 190.0);
    }
}
