//! A request's way through the ranks: each says, of a stream that ends, what it spent on it.
//!
//! All ranks know the epoch, the stream and the round that opened it, so they give it the same name
//! without a word on the wire. A log of level `debug` has one line a stream and rank; a subscriber
//! that wants spans takes them from the target [`TARGET`].

use std::collections::HashMap;
use std::time::{Duration, Instant};

use arith::base::{Epoch, Rank, Round, StreamId};
use sched::RequestId;
use wire::plan::{Op, Plan};

/// Target of the events that are spans. Their fields: `trace`, `rank`, `request` (0 but on rank 0),
/// `stream`, `took_us` from its opening here to its end, which is now, `rounds`, `rows`,
/// `computed_us`.
pub const TARGET: &str = "baton::span";

/// A stream that is open on this rank.
#[derive(Clone, Copy, Debug)]
struct Open {
    trace: u64,
    request: RequestId,
    since: Instant,
    rounds: u64,
    rows: u64,
    computed: Duration,
}

/// The streams that are open on a rank in one epoch, at most as many as it has slots.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    rank: Rank,
    epoch: Epoch,
    open: HashMap<StreamId, Open>,
}

impl Spans {
    /// None yet, of a new epoch.
    pub fn new(rank: Rank, epoch: Epoch) -> Self {
        Self { rank, epoch, open: HashMap::new() }
    }

    /// A round was computed, which took so long; `request` says whose a stream is, where it is
    /// known. Of a round's time each stream has its rows' share.
    pub fn round(
        &mut self,
        round: Round,
        plan: &Plan,
        took: Duration,
        request: impl Fn(StreamId) -> Option<RequestId>,
    ) {
        if !tracing::enabled!(target: TARGET, tracing::Level::DEBUG) {
            return;
        }
        let rows = plan.rows().max(1) as u32;
        for entry in &plan.entries {
            if matches!(entry.op, Op::Open | Op::Resume) {
                let open = Open {
                    trace: name(self.epoch, round, entry.id),
                    request: request(entry.id).unwrap_or(RequestId(0)),
                    since: Instant::now().checked_sub(took).unwrap_or_else(Instant::now),
                    rounds: 0,
                    rows: 0,
                    computed: Duration::ZERO,
                };
                self.open.insert(entry.id, open);
            }
            if let Some(open) = self.open.get_mut(&entry.id) {
                open.rounds += u64::from(entry.rows > 0);
                open.rows += u64::from(entry.rows);
                open.computed += took * entry.rows / rows;
            }
            if matches!(entry.op, Op::Close | Op::Cancel) {
                self.close(entry.id);
            }
        }
    }

    fn close(&mut self, stream: StreamId) {
        let Some(open) = self.open.remove(&stream) else { return };
        tracing::debug!(
            target: TARGET,
            trace = format_args!("{:016x}", open.trace),
            rank = self.rank.0,
            request = open.request.0,
            stream = stream.0,
            took_us = open.since.elapsed().as_micros() as u64,
            rounds = open.rounds,
            rows = open.rows,
            computed_us = open.computed.as_micros() as u64,
            "stream"
        );
    }
}

/// The same on every rank, and another for every stream that a ring ever opens: splitmix64's
/// finish over what names it.
fn name(epoch: Epoch, round: Round, stream: StreamId) -> u64 {
    let mut x = epoch.0 ^ round.0.rotate_left(32) ^ u64::from(stream.0).rotate_left(16);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (x ^ (x >> 31)).max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_name_is_of_the_stream_and_of_its_opening() {
        let mut names = BTreeSet::new();
        for epoch in [1, 2] {
            for round in [1, 2, 1 << 20] {
                names.extend((0..8).map(|id| name(Epoch(epoch), Round(round), StreamId(id))));
            }
        }
        assert_eq!(names.len(), 48);
    }
}
