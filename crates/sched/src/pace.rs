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
}

/// Longest that the prompt rows of one round keep a stage from running replies. A row of a reply
/// meets each chunk once, and its gap is to stay below a second also where it meets two.
const CHUNK_NS_MAX: u64 = 250_000_000;
/// Most pieces that a prompt is thought of in.
const PIECES_MAX: u32 = 256;
/// Rows that kernels take together: a cut chunk is a multiple.
const GRAIN_ROWS: u32 = 8;

impl Pace {
    /// Rounds with decode windows that are kept in flight: one for each stage, within `depth`.
    pub(crate) fn groups(&self, depth: u32) -> u32 {
        if self.stages == 0 { depth } else { self.stages.min(depth) }
    }

    /// Rows of the next chunk of a prompt of `left` rows, at most `rows_max`, from the model
    ///
    /// `time(n) = (n - 1) * stage(c) + trip(c)`, with `n` chunks of `c = left / n` rows:
    ///
    /// the first chunk makes its trip, and each other one follows at the pace of the slowest
    /// stage. A prompt too short to win by that is not cut. Replies that run beside it bound what
    /// a chunk may take of a stage.
    pub(crate) fn chunk(&self, left: u32, rows_max: u32, beside_replies: bool) -> u32 {
        let mut most = left.min(rows_max);
        if self.stage.row_ns == 0 {
            return most;
        }
        if beside_replies {
            let fair = CHUNK_NS_MAX / self.stage.row_ns;
            most = most.min(u32::try_from(fair).unwrap_or(u32::MAX).max(1));
        }
        if self.stages < 2 || most == 0 {
            return most;
        }
        let time = |pieces: u32| {
            let rows = left.div_ceil(pieces);
            let following = u64::from(pieces - 1).saturating_mul(self.stage.at(rows));
            following.saturating_add(self.trip.at(rows))
        };
        let fewest = left.div_ceil(most);
        let pieces =
            (fewest..=fewest.saturating_add(PIECES_MAX).min(left)).min_by_key(|&n| time(n));
        let rows = left.div_ceil(pieces.unwrap_or(fewest));
        rows.next_multiple_of(GRAIN_ROWS).min(most)
    }
}

/// How much more of the stages' time prompts have had than running replies, which ride along in
/// the rounds of the prompts too, so that they keep at least half of their pace.
#[derive(Debug, Default)]
pub(crate) struct Debt {
    ns: u64,
}

impl Debt {
    /// Whether prompts wait for the replies.
    pub(crate) fn is_owed(&self) -> bool {
        self.ns > 0
    }

    /// A round was issued: `windows` decode rows and `prompt` prompt rows.
    pub(crate) fn issued(&mut self, pace: &Pace, decoding: bool, windows: u32, prompt: u32) {
        if !decoding || pace.stage.row_ns == 0 {
            self.ns = 0;
        } else if prompt > 0 {
            self.ns = self.ns.saturating_add(pace.stage.row_ns.saturating_mul(prompt.into()));
        } else if windows > 0 {
            self.ns = self.ns.saturating_sub(pace.stage.at(windows));
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
        Pace { stages, stage, trip }
    }

    #[test]
    fn one_stage_or_an_unknown_pace_cuts_nothing() {
        assert_eq!(Pace::default().chunk(1000, 512, true), 512);
        assert_eq!(pace(1, 5, 1).chunk(1000, 512, false), 512);
        assert_eq!(pace(1, 5, 1).chunk(100, 512, false), 100);
    }

    #[test]
    fn a_prompt_is_cut_where_the_pipeline_wins_and_left_whole_where_it_does_not() {
        // Two chunks of 50 rows: 55 + 110 instead of 210 ms.
        assert!(pace(2, 5, 1).chunk(100, 512, false) <= 56);
        // Cutting 10 rows saves 5 ms and costs a round of 20.
        assert_eq!(pace(2, 20, 1).chunk(10, 512, false), 10);
        // More stages want smaller chunks.
        assert!(pace(8, 5, 1).chunk(512, 512, false) < pace(2, 5, 1).chunk(512, 512, false));
    }

    #[test]
    fn a_slow_trip_behind_fast_stages_is_no_reason_to_cut() {
        let slow = Line { round_ns: 1000 * MS, row_ns: MS };
        let stage = Line { round_ns: 50 * MS, row_ns: MS };
        assert_eq!(Pace { stages: 2, stage, trip: slow }.chunk(40, 512, false), 40);
    }

    #[test]
    fn running_replies_bound_what_a_chunk_takes_of_a_stage() {
        assert_eq!(pace(1, 5, 1).chunk(1000, 512, true), 250);
        assert_eq!(pace(1, 5, 2000).chunk(1000, 512, true), 1);
    }

    #[test]
    fn prompts_pay_back_what_they_took_and_owe_nothing_to_nobody() {
        let (mut debt, pace) = (Debt::default(), pace(1, 8, 1));
        debt.issued(&pace, true, 2, 20);
        debt.issued(&pace, true, 2, 0);
        assert!(debt.is_owed());
        debt.issued(&pace, true, 2, 0);
        assert!(!debt.is_owed());
        debt.issued(&pace, true, 2, 20);
        debt.issued(&pace, false, 0, 20);
        assert!(!debt.is_owed());
    }
}
