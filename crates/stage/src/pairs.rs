//! Which prompts of a group go in pairs: two halves of a piece, one's exchange under the other's
//! compute.
//!
//! A step's choice follows from its plan and from settings that all members share, so that each
//! makes the same one, once, for all pieces and both halves. A kept state is of the row before a
//! step: none starts inside one, where a second half would begin.

use wire::plan::{Plan, Want};

use crate::slots::{Span, WINDOW_ROWS_MAX};

/// Fewest rows of the second half of a pair: the smallest for which a gain has been measured
/// (docs/performance/shards.md).
pub const PAIR_ROWS_MIN: usize = 32;

/// Rows of the second half of a piece of `rows`; 0 where that is fewer than `least`, and where
/// nothing goes in pairs.
pub(crate) fn twin_rows(rows: usize, least: Option<usize>) -> usize {
    least.map(|least| least.max(1)).filter(|least| rows / 2 >= *least).map_or(0, |_| rows / 2)
}

/// Whether a step's prompts may go in pairs. Not beside a stream that decodes, whose round a pair
/// would lengthen; nor where all rows of a prompt are wanted, for their logprobs or a draft head.
pub(crate) fn may(plan: &Plan, spans: &[Span]) -> bool {
    let window = 1..=WINDOW_ROWS_MAX as usize;
    let decodes = spans.iter().any(|span| window.contains(&span.rows.len()));
    let wanted = plan.entries.iter().any(|entry| entry.want == Want::All && entry.rows > 0);
    !decodes && !wanted
}

#[cfg(test)]
mod tests {
    use super::twin_rows;

    #[test]
    fn a_second_half_has_enough_rows_or_there_is_none() {
        let cases = [(512, Some(128), 256), (257, Some(128), 128), (255, Some(128), 0)];
        for (rows, least, expected) in cases {
            assert_eq!(twin_rows(rows, least), expected, "{rows} rows, {least:?} at least");
        }
        assert_eq!((twin_rows(512, None), twin_rows(1, Some(0))), (0, 0));
    }
}
