//! What rounds cost on this ring, from the times that rank 0 sees.

use std::time::Duration;

use sched::{Line, Pace};

/// Rounds of so many rows count as chunks, smaller ones as windows.
const CHUNK_ROWS: usize = 16;
/// The least part of a window that a round costs whatever its rows: weights are read either way. A
/// chunk that was slow once makes rows look dear, and would leave less than that for the round.
const ROUND_SHARE: f64 = 0.5;
/// By chunks of so many rows ranks' devices are compared.
const ALIKE_ROWS: u32 = 512;
/// What a new sample weighs beside the past.
const NEWEST: f64 = 0.1;

/// Mean rows and nanoseconds, the past fading.
#[derive(Clone, Copy, Debug)]
struct Mean {
    rows: f64,
    ns: f64,
}

impl Mean {
    fn blend(mean: &mut Option<Self>, rows: usize, time: Duration) {
        let new = Self { rows: rows as f64, ns: time.as_nanos() as f64 };
        let old = mean.unwrap_or(new);
        let blend = |old: f64, new: f64| old + (new - old) * NEWEST;
        *mean = Some(Self { rows: blend(old.rows, new.rows), ns: blend(old.ns, new.ns) });
    }
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
        Mean::blend(mean, rows, time);
    }

    /// The line, once rounds of both sizes were seen.
    fn line(&self) -> Option<Line> {
        let (window, chunk) = (self.window?, self.chunk?);
        let row = (chunk.ns - window.ns) / (chunk.rows - window.rows);
        let round = (window.ns - row * window.rows).clamp(window.ns * ROUND_SHARE, window.ns);
        let row = ((chunk.ns - round) / chunk.rows).max(1.0);
        Some(Line { round_ns: round as u64, row_ns: row as u64 })
    }
}

/// Rank 0's own times, and those of everything beyond it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timing {
    own: Fit,
    rest: Fit,
    /// Chunks that came back, and how long after the one before.
    flow: Option<Mean>,
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

    /// A round that had followed another one closely was back `time` after it: no stage takes
    /// longer for it. Long prompts show it, whose rounds are never alone.
    pub(super) fn flow(&mut self, rows: usize, time: Duration) {
        if rows >= CHUNK_ROWS {
            Mean::blend(&mut self.flow, rows, time);
        }
    }

    /// Everything beyond rank 0, by the better of what one chunk alone took, maybe long ago, and of
    /// what the chunks of a prompt take now.
    fn beyond(&self, others: u64) -> Option<Line> {
        let mut rest = self.rest;
        if let (Some(chunk), Some(flow)) = (rest.chunk, self.flow) {
            let flow = Mean { ns: flow.ns * others as f64, ..flow };
            if flow.ns / flow.rows < chunk.ns / chunk.rows {
                rest.chunk = Some(flow);
            }
        }
        rest.line()
    }

    /// The pace of a ring of `world`; without lines before both are known. Of the stages beyond
    /// rank 0 only the sum is seen, so that the slowest counts as their mean.
    pub(super) fn pace(&self, world: u32, cost_rows: u32) -> Pace {
        let unknown = Pace { stages: world, ..Pace::default() };
        let Some(own) = self.own.line() else { return unknown };
        if world == 1 {
            return Pace { stages: 1, stage: own, trip: own, chunk_ns: 0 };
        }
        let others = u64::from(world - 1);
        let Some(rest) = self.beyond(others) else { return unknown };
        let mean = Line { round_ns: rest.round_ns / others, row_ns: rest.row_ns / others };
        // By what a chunk of some size takes: the lines may cross.
        let stage = if mean.at(32) > own.at(32) { mean } else { own };
        let trip =
            Line { round_ns: own.round_ns + rest.round_ns, row_ns: own.row_ns + rest.row_ns };
        // The others' devices are taken to be like rank 0's where they are about as fast.
        let alike = mean.at(ALIKE_ROWS) <= own.at(ALIKE_ROWS).saturating_mul(2);
        let chunk_ns = if alike { own.row_ns.saturating_mul(cost_rows.into()) } else { 0 };
        Pace { stages: world, stage, trip, chunk_ns }
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
        assert_eq!(timing.pace(1, 0), Pace { stages: 1, ..Pace::default() });
        timing.own(101, ms(106));
        let line = timing.pace(1, 0).stage;
        assert!(line.round_ns.abs_diff(5_000_000) < 10_000, "{line:?}");
        assert!(line.row_ns.abs_diff(1_000_000) < 1_000, "{line:?}");
        // However many windows follow.
        (0..1000).for_each(|_| timing.own(1, ms(6)));
        assert!(timing.pace(1, 0).stage.row_ns > 900_000);
    }

    #[test]
    fn a_chunk_s_own_cost_is_rank_0_s_where_the_others_are_about_as_fast() {
        let chunk_ns = |times: u64| {
            let mut timing = Timing::default();
            for rows in [1, 512] {
                timing.own(rows, ms(2 + rows as u64));
                timing.rest(rows, ms(times * (2 + rows as u64)));
            }
            timing.pace(2, 100).chunk_ns
        };
        assert!(chunk_ns(1).abs_diff(100_000_000) < 1_000_000, "{}", chunk_ns(1));
        assert_eq!(chunk_ns(3), 0);
    }

    #[test]
    fn the_slowest_stage_is_rank_0_or_the_mean_of_the_others() {
        let mut timing = Timing::default();
        for rows in [1, 2, 32] {
            timing.own(rows, ms(2 * rows as u64));
            timing.rest(rows, ms(10 * rows as u64));
        }
        assert!(timing.pace(3, 0).stage.row_ns > 4_900_000);
        assert!(timing.pace(11, 0).stage.row_ns < 2_100_000);
        assert!(timing.pace(3, 0).trip.row_ns > 11_700_000);
    }

    #[test]
    fn a_slow_probe_cuts_prompts_no_smaller_than_a_round_is_worth_and_is_forgotten() {
        let mut timing = Timing::default();
        timing.own(1, ms(3));
        timing.rest(1, ms(3));
        timing.own(32, ms(34));
        // Cold: ten times what it takes later.
        timing.rest(32, ms(340));
        assert!(timing.pace(2, 0).stage.round_ns >= 1_500_000);
        assert!(timing.pace(2, 0).stage.row_ns > 10_000_000);
        (0..40).for_each(|_| timing.flow(64, ms(66)));
        let pace = timing.pace(2, 0);
        assert!((900_000..1_100_000).contains(&pace.stage.row_ns), "{pace:?}");
    }
}
