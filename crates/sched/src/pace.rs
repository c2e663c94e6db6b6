//! What rows cost on this ring, and what follows from it: how a prompt is cut, how decoding
//! streams are grouped, and how prompts and running replies share the stages' time.
//!
//! All of it is plain data that a driver has measured. It moves rows between rounds, never bytes:
//! a scheduler that knows nothing gives the same replies.

/// A cost that grows with a round's rows: `round_ns + rows * row_ns`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Nanoseconds of a round, whatever its rows.
    pub round_ns: u64,
    /// Nanoseconds more for each row.
    pub row_ns: u64,
}

impl Line {
    /// Nanoseconds of a round of `rows`.
    pub fn at(self, rows: u32) -> u64 {
        self.round_ns.saturating_add(self.row_ns.saturating_mul(rows.into()))
    }
}

/// What is known of a ring's stages and links; zeros where nothing is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// Stages that work at the same time.
    pub stages: u32,
    /// The slowest of them, its hop included: what a row of rounds in flight costs each.
    pub stage: Line,
    /// One round alone, from its first stage until it is back.
    pub trip: Line,
    /// Nanoseconds of a chunk on the slowest stage beside its rows, where that is more than a
    /// round takes whatever its rows: some devices take rows dearly until there are many.
    pub chunk_ns: u64,
}

/// Longest that a burst of chunks is to keep a running reply waiting; its gap stays below a second
/// also where costs are half as much again.
const BURST_NS_MAX: u64 = 600_000_000;
/// Longest chunk beside running replies: one stage alone needs no more to work well.
const CHUNK_NS_MAX: u64 = 200_000_000;
/// Of what a prompt takes, one part in so many is owed on top: costs are means.
const SLACK: u64 = 8;
/// Rows that kernels take together: a cut chunk is a multiple.
const GRAIN_ROWS: u32 = 8;

impl Pace {
    /// Rounds with decode windows that are kept in flight: one for each stage, within `depth`.
    pub(crate) fn groups(&self, depth: u32) -> u32 {
        if self.stages == 0 { depth } else { self.stages.min(depth) }
    }

    /// Rows of the next chunk of a prompt of `prompt` rows, `left` of which are left; at most
    /// `rows_max`. From the model
    ///
    /// `time(n) = (n - 1) * stage(c) + trip(c)`, with `n` chunks of `c = prompt / n` rows:
    ///
    /// the first chunk makes its trip, and each other one follows at the pace of the slowest
    /// stage. A prompt too short to win by that is not cut. Replies that run beside it bound what
    /// a chunk may take of a stage.
    pub(crate) fn chunk(&self, prompt: u32, left: u32, rows_max: u32, beside_replies: bool) -> u32 {
        let mut most = left.min(rows_max);
        if self.stage.row_ns == 0 || most == 0 {
            return most;
        }
        if beside_replies {
            let burst = u64::from(2 * self.stages.max(1) - 1);
            let fair = CHUNK_NS_MAX.min(BURST_NS_MAX / burst) / self.stage.row_ns;
            most = most.min(u32::try_from(fair).unwrap_or(u32::MAX).max(1));
        }
        if self.stages < 2 {
            return most;
        }
        // The sum is least where n^2 = prompt * (trip.row - stage.row) / stage.round.
        let filling = self.trip.row_ns.saturating_sub(self.stage.row_ns);
        let round = self.stage.round_ns.max(self.chunk_ns).max(1);
        let squared = u64::from(prompt).saturating_mul(filling) / round;
        let best = u32::try_from(squared.isqrt()).unwrap_or(u32::MAX);
        let pieces = best.clamp(prompt.div_ceil(most), prompt);
        // What is left in equal pieces of about that size, so that no crumb makes a trip.
        let rows = prompt.div_ceil(pieces).min(most);
        left.div_ceil(left.div_ceil(rows)).next_multiple_of(GRAIN_ROWS).min(most)
    }
}

/// How much longer prompts have kept running replies waiting than replies went on without them, so
/// that replies keep at least half of their pace.
///
/// A chunk goes ahead of the replies through every stage, which costs each of them its whole trip;
/// chunks right behind it cost one stage's time more each. So they come in bursts of one a stage,
/// and then wait until the replies have had as much time.
#[derive(Debug, Default)]
pub(crate) struct Debt {
    ns: u64,
    /// Chunks in a row until now.
    burst: u32,
}

impl Debt {
    /// Whether prompts wait for the replies.
    pub(crate) fn is_due(&self, pace: &Pace) -> bool {
        let goes_on = (1..pace.stages).contains(&self.burst);
        self.ns > 0 && !goes_on
    }

    /// A round was issued: `windows` rows of `replies` running replies, and `prompt` prompt rows.
    ///
    /// A round of windows alone gives back the time until its group's next one, in which the groups
    /// that are there overlap.
    pub(crate) fn issued(
        &mut self,
        pace: &Pace,
        depth: u32,
        replies: u32,
        windows: u32,
        prompt: u32,
    ) {
        if replies == 0 || pace.stage.row_ns == 0 {
            *self = Self::default();
        } else if prompt > 0 {
            let row_ns = if self.burst == 0 { pace.trip.row_ns } else { pace.stage.row_ns };
            let taken = row_ns.saturating_mul(prompt.into());
            self.ns = self.ns.saturating_add(taken.saturating_add(taken / SLACK));
            self.burst += 1;
        } else if windows > 0 {
            let groups = pace.groups(depth).min(replies).max(1);
            let time = (pace.trip.at(windows) / u64::from(groups)).max(pace.stage.at(windows));
            self.ns = self.ns.saturating_sub(time);
            self.burst = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn pace(stages: u32, round_ms: u64, row_ms: u64) -> Pace {
        let stage = Line { round_ns: round_ms * MS, row_ns: row_ms * MS };
        let times = u64::from(stages);
        let trip = Line { round_ns: stage.round_ns * times, row_ns: stage.row_ns * times };
        Pace { stages, stage, trip, chunk_ns: 0 }
    }

    #[test]
    fn one_stage_or_an_unknown_pace_cuts_nothing() {
        assert_eq!(Pace::default().chunk(1000, 1000, 512, true), 512);
        assert_eq!(pace(1, 5, 1).chunk(1000, 1000, 512, false), 512);
        assert_eq!(pace(1, 5, 1).chunk(100, 100, 512, false), 100);
    }

    #[test]
    fn a_prompt_is_cut_where_the_pipeline_wins_and_left_whole_where_it_does_not() {
        // Two chunks of 50 rows: 55 + 110 instead of 210 ms.
        assert!(pace(2, 5, 1).chunk(100, 100, 512, false) <= 56);
        // Cutting 10 rows saves 5 ms and costs a round of 20.
        assert_eq!(pace(2, 20, 1).chunk(10, 10, 512, false), 10);
        // More stages want smaller chunks.
        assert!(
            pace(8, 5, 1).chunk(512, 512, 512, false) < pace(2, 5, 1).chunk(512, 512, 512, false)
        );
    }

    #[test]
    fn a_slow_trip_behind_fast_stages_is_no_reason_to_cut() {
        let slow = Line { round_ns: 1000 * MS, row_ns: MS };
        let stage = Line { round_ns: 50 * MS, row_ns: MS };
        assert_eq!(
            Pace { stages: 2, stage, trip: slow, chunk_ns: 0 }.chunk(40, 40, 512, false),
            40
        );
    }

    #[test]
    fn chunks_are_fewer_where_each_costs_more_than_a_round() {
        let cheap = pace(2, 5, 1);
        let dear = Pace { chunk_ns: 80 * MS, ..cheap };
        assert_eq!(
            (cheap.chunk(2048, 2048, 2048, false), dear.chunk(2048, 2048, 2048, false)),
            (104, 416)
        );
        // What a round costs whatever its rows counts where that is more.
        let less = Pace { chunk_ns: 2 * MS, ..cheap };
        assert_eq!(less.chunk(2048, 2048, 2048, false), 104);
    }

    #[test]
    fn running_replies_bound_what_a_chunk_takes_of_a_stage() {
        assert_eq!(pace(1, 5, 1).chunk(1000, 1000, 512, true), 200);
        assert_eq!(pace(1, 5, 2000).chunk(1000, 1000, 512, true), 1);
    }

    #[test]
    fn prompts_pay_back_what_they_took_and_owe_nothing_to_nobody() {
        let (mut debt, pace) = (Debt::default(), pace(1, 8, 1));
        debt.issued(&pace, 1, 2, 2, 20);
        debt.issued(&pace, 1, 2, 2, 0);
        debt.issued(&pace, 1, 2, 2, 0);
        assert!(debt.is_due(&pace));
        debt.issued(&pace, 1, 2, 2, 0);
        assert!(!debt.is_due(&pace));
        debt.issued(&pace, 1, 2, 2, 20);
        debt.issued(&pace, 1, 0, 0, 20);
        assert!(!debt.is_due(&pace));
    }
}
