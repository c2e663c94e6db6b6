//! What rounds cost on this ring, from the times that rank 0 sees.

use std::time::Duration;

use sched::{Line, Pace};

/// Rounds of so many rows count as chunks, smaller ones as windows.
const CHUNK_ROWS: usize = 16;
/// What a new sample weighs beside the past.
const NEWEST: f64 = 0.1;

/// Mean rows and nanoseconds, the past fading.
#[derive(Clone, Copy, Debug)]
struct Mean {
    rows: f64,
    ns: f64,
}

/// A line through the mean window and the mean chunk.
#[derive(Clone, Copy, Debug, Default)]
struct Fit {
    window: Option<Mean>,
    chunk: Option<Mean>,
}

impl Fit {
    fn add(&mut self, rows: usize, time: Duration) {
        let mean = if rows < CHUNK_ROWS { &mut self.window } else { &mut self.chunk };
        let new = Mean { rows: rows as f64, ns: time.as_nanos() as f64 };
        let old = mean.unwrap_or(new);
        let blend = |old: f64, new: f64| old + (new - old) * NEWEST;
        *mean = Some(Mean { rows: blend(old.rows, new.rows), ns: blend(old.ns, new.ns) });
    }

    /// The line, once rounds of both sizes were seen.
    fn line(&self) -> Option<Line> {
        let (window, chunk) = (self.window?, self.chunk?);
        let row = ((chunk.ns - window.ns) / (chunk.rows - window.rows)).max(1.0);
        let round = (window.ns - row * window.rows).max(0.0);
        Some(Line { round_ns: round as u64, row_ns: row as u64 })
    }
}

/// Rank 0's own times, and those of everything beyond it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timing {
    own: Fit,
    rest: Fit,
}

impl Timing {
    /// Rank 0's stage took `time` for a round of `rows`.
    pub(super) fn own(&mut self, rows: usize, time: Duration) {
        self.own.add(rows, time);
    }

    /// A round that was alone in the ring was back `time` after rank 0 had sent it.
    pub(super) fn rest(&mut self, rows: usize, time: Duration) {
        self.rest.add(rows, time);
    }

    /// The pace of a ring of `world`; without lines before both are known. Of the stages beyond
    /// rank 0 only the sum is seen, so that the slowest counts as their mean.
    pub(super) fn pace(&self, world: u32) -> Pace {
        let unknown = Pace { stages: world, ..Pace::default() };
        let Some(own) = self.own.line() else { return unknown };
        if world == 1 {
            return Pace { stages: 1, stage: own, trip: own };
        }
        let Some(rest) = self.rest.line() else { return unknown };
        let others = u64::from(world - 1);
        let mean = Line { round_ns: rest.round_ns / others, row_ns: rest.row_ns / others };
        // By what a chunk of some size takes: the lines may cross.
        let stage = if mean.at(32) > own.at(32) { mean } else { own };
        let trip =
            Line { round_ns: own.round_ns + rest.round_ns, row_ns: own.row_ns + rest.row_ns };
        Pace { stages: world, stage, trip }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn windows_and_chunks_give_a_line_and_one_of_them_none() {
        let mut timing = Timing::default();
        timing.own(1, ms(6));
        timing.own(4, ms(9));
        assert_eq!(timing.pace(1), Pace { stages: 1, ..Pace::default() });
        timing.own(101, ms(106));
        let line = timing.pace(1).stage;
        assert!(line.round_ns.abs_diff(5_000_000) < 10_000, "{line:?}");
        assert!(line.row_ns.abs_diff(1_000_000) < 1_000, "{line:?}");
        // However many windows follow.
        (0..1000).for_each(|_| timing.own(1, ms(6)));
        assert!(timing.pace(1).stage.row_ns > 900_000);
    }

    #[test]
    fn the_slowest_stage_is_rank_0_or_the_mean_of_the_others() {
        let mut timing = Timing::default();
        for rows in [1, 2, 32] {
            timing.own(rows, ms(2 * rows as u64));
            timing.rest(rows, ms(10 * rows as u64));
        }
        assert!(timing.pace(3).stage.row_ns > 4_900_000);
        assert!(timing.pace(11).stage.row_ns < 2_100_000);
        assert!(timing.pace(3).trip.row_ns > 11_900_000);
    }
}
