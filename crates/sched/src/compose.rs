//! The next round: decode windows first, then chunks of prompts in the rows that are left.

use std::cmp::Reverse;

use arith::base::{Round as RoundNumber, StreamId};
use wire::limit::WINDOW_ROWS_MAX;
use wire::plan::{Mode, Plan};

use crate::scheduler::Flight;
use crate::stream::{Slot, Stream, end};
use crate::{Round, Scheduler};

/// Rounds that may leave a prompt out before it goes ahead of shorter ones.
const PASSED_OVER_MAX: u32 = 8;

impl Scheduler {
    /// The next round, or `None` while `depth` rounds are in the ring or nothing can be done.
    ///
    /// Replies whose last token is known ride with one row. They are kept in as many rounds as
    /// there are stages, of about the same size: a round takes no more than its share, and while
    /// enough of them are in the ring the others wait to ride together; one that is left out rides
    /// within `depth` rounds. Prompts share the other rows, fewest tokens left first, and no more
    /// of the stages' time than the replies beside them. Ends of streams never wait: a round may
    /// carry nothing else. A window is settled in the first round after its outcome is known, also
    /// where its stream computes no rows in it.
    pub fn next_round(&mut self) -> Option<Round> {
        if self.flights.len() >= self.limits.depth as usize {
            return None;
        }
        let mut rows = vec![0; self.slots.len()];
        let windows = self.pick_windows(&mut rows);
        self.admit();
        let replies = self.live().filter(|s| !s.in_prompt()).count() as u32;
        let decoding = replies > 0;
        let is_due = decoding && self.debt.is_due(&self.pace);
        let waits = is_due && (windows > 0 || !self.flights.is_empty());
        let budget = if waits { 0 } else { self.limits.round_rows_max - windows };
        let prompt = self.pick_chunks(budget, decoding, &mut rows);
        let leaving = |slot: &Slot| matches!(slot, Slot::Leaving { .. });
        if windows == 0 && prompt == 0 && !self.slots.iter().any(leaving) {
            return None;
        }
        self.debt.issued(&self.pace, self.limits.depth, replies, windows, prompt);
        let mode = if prompt > 0 { Mode::Prompt } else { Mode::Window };
        Some(self.issue(mode, windows, &rows))
    }

    /// Gives rows to each decode window of this round; how many. Rows of a stream that gives way to
    /// a later one of them are counted, and not issued. Every window that is ready has a row before
    /// any has a draft.
    fn pick_windows(&mut self, rows: &mut [u32]) -> u32 {
        let depth = self.limits.depth;
        let groups = self.pace.groups(depth);
        let decoding = self.live().filter(|s| !s.in_prompt()).count();
        let flying = self.flights.iter().filter(|flight| flight.windows > 0).count();
        let is_enough = self.pace.stages > 0 && flying >= groups as usize;
        let mut share = if is_enough { 0 } else { decoding.div_ceil(groups as usize) };
        let mut ready: Vec<_> = self
            .live()
            .filter(|s| s.is_ready())
            .map(|s| (s.last_round, s.reply.age, s.state.id))
            .collect();
        ready.sort_unstable();
        let window_rows_max = self.limits.chunk_rows_max.min(WINDOW_ROWS_MAX);
        let mut spare = self.limits.round_rows_max - ready.len() as u32;
        if !self.queue.is_empty() || self.live().any(Stream::in_prompt) {
            spare /= 2; // the rest is for prompts
        }
        for (_, _, id) in ready {
            if !matches!(self.slots[id.0 as usize], Slot::Live(_)) {
                continue; // an older stream has taken its pages
            }
            let stream = self.stream(id);
            if share == 0 && stream.passed_over + 1 < depth {
                continue;
            }
            share = share.saturating_sub(1);
            let reserved = self.stream(id).reserved;
            if !self.grow(id) {
                continue;
            }
            let window = self.stream(id).window(reserved, window_rows_max.min(1 + spare));
            spare -= window - 1;
            rows[id.0 as usize] = window;
        }
        rows.iter().sum()
    }

    /// Shares `budget` rows among the prompts; how many were given.
    fn pick_chunks(&mut self, mut budget: u32, decoding: bool, rows: &mut [u32]) -> u32 {
        let before = budget;
        let mut prompts: Vec<_> = self
            .live()
            .filter(|s| s.in_prompt())
            .map(|s| {
                let late = Some(s.passed_over).filter(|rounds| *rounds >= PASSED_OVER_MAX);
                (Reverse(late), s.left(), s.reply.age, s.state.id)
            })
            .collect();
        prompts.sort_unstable();
        for (_, left, _, id) in prompts {
            let most = self.limits.chunk_rows_max.min(budget);
            let stream = self.stream(id);
            let (prompt, to_mark) = (stream.prefill, stream.to_mark());
            let chunk = self.pace.chunk(prompt, left, most, decoding).min(to_mark);
            rows[id.0 as usize] = chunk;
            budget -= chunk;
        }
        before - budget
    }

    /// Counts the rounds in a row that leave out streams with rows to compute.
    fn count_passed_over(&mut self, rows: &[u32]) {
        for (slot, &rows) in self.slots.iter_mut().zip(rows) {
            if let Slot::Live(stream) = slot
                && stream.left() > 0
            {
                stream.passed_over = if rows > 0 { 0 } else { stream.passed_over + 1 };
            }
        }
    }

    /// Writes the round and puts it in flight.
    fn issue(&mut self, mode: Mode, windows: u32, rows: &[u32]) -> Round {
        self.count_passed_over(rows);
        self.number += 1;
        let mut round = Round {
            number: RoundNumber(self.number),
            plan: Plan { mode, ..Plan::default() },
            tokens: Vec::new(),
            wanted: Vec::new(),
        };
        let mut ended: Vec<StreamId> = Vec::new();
        for (slot, &rows) in self.slots.iter_mut().zip(rows) {
            match slot {
                Slot::Live(stream) => {
                    let was_open = stream.opened;
                    if rows > 0 || stream.owes_settle() {
                        stream.settle_side(&mut self.ledger);
                    }
                    if stream.issue(rows, &mut round) {
                        stream.take_pages(&mut self.ledger);
                        let keep = self.cache.pass(stream, was_open, &mut self.ledger);
                        round.plan.keeps.extend(keep);
                    }
                }
                Slot::Leaving { op, state, .. } => {
                    round.plan.entries.push(end(*op, state));
                    ended.push(state.id);
                    *slot = Slot::Echoing;
                }
                Slot::Free | Slot::Echoing => {}
            }
        }
        self.cache.close_plan(&mut round.plan.keeps);
        self.flights.push_back(Flight {
            number: round.number,
            windows,
            wanted: round.wanted.clone(),
            ended,
        });
        round
    }
}
