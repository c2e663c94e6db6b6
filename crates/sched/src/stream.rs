//! A stream as rank 0 sees it: what the stages hold of it, and what it computes next.

use arith::base::{Generation, StreamId, TILE_KEYS, pages_of};
use wire::plan::{Entry, Op, Want};

use crate::cache::Resume;
use crate::draft::Guesses;
use crate::reply::Reply;
use crate::{DraftJob, Event, RequestId, Round, SlotState, Wanted};

/// A place for a stream; its index is the stream's id.
#[derive(Debug)]
pub(crate) enum Slot {
    Free,
    Live(Box<Stream>),
    /// The stream is over; its close or cancel rides in the next round.
    Leaving {
        op: Op,
        state: SlotState,
    },
    /// That round is in the ring. The id is free once it has come back.
    Echoing,
}

/// A running stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub state: SlotState,
    /// Rows of the last window that are known to stay. Of a decode window in the ring that is the
    /// first alone: its token is known.
    pub kept: u32,
    /// Its open was issued.
    pub opened: bool,
    /// Tokens that it began with: rows below this are prompt rows.
    pub prefill: u32,
    /// The kept state that it starts from.
    pub resume: Option<Resume>,
    /// Positions at which its state is kept, ascending: no chunk goes past one.
    pub marks: Vec<u32>,
    /// Position of its last kept state, or where it started.
    pub kept_at: u32,
    /// KV pages that it holds after the last issued round, in the ledger's numbers; before its
    /// first, those that it shares with its kept state.
    pub pages: Vec<u32>,
    /// KV pages that no other stream may take; never fewer than its next window needs.
    pub reserved: u32,
    /// Rounds in a row that left it out although it had rows to compute.
    pub passed_over: u32,
    /// Number of the last round with rows of this stream; 0 for none.
    pub last_round: u64,
    /// Who guesses its tokens, and what was guessed.
    pub guesses: Guesses,
    pub reply: Reply,
}

impl Stream {
    pub fn new(
        id: StreamId,
        reply: Reply,
        reserved: u32,
        resume: Option<Resume>,
        guesses: Guesses,
    ) -> Self {
        let first = resume.map_or(0, |resume| resume.position);
        let state = SlotState { id, generation: Generation(0), first, rows: 0, pages: 0 };
        Self {
            state,
            kept: 0,
            opened: false,
            prefill: reply.length(),
            resume,
            marks: Vec::new(),
            kept_at: first,
            pages: Vec::new(),
            reserved,
            passed_over: 0,
            last_round: 0,
            guesses,
            reply,
        }
    }

    /// Position of the next row.
    pub fn next(&self) -> u32 {
        self.state.first + self.kept
    }

    /// Whether its next window's first token is known, its drafts are made, and no slow grammar of
    /// its own would make others wait.
    pub fn is_ready(&self) -> bool {
        !self.in_prompt() && self.left() > 0 && !self.guesses.awaited && self.reply.may_ride()
    }

    /// Rows of the next decode window: the known token and the drafts for which there is room.
    /// `pages` are its own already, and the row after the window needs a page of the reserved ones.
    pub fn window(&self, pages: u32, rows_max: u32) -> u32 {
        let next = self.next();
        let own = pages * TILE_KEYS as u32 - next;
        let after = self.reserved * TILE_KEYS as u32 - next - 1;
        let ends = self.reply.rows_max() - next;
        let after = if pages_of(self.reply.rows_max()) <= self.reserved { ends } else { after };
        (1 + self.guesses.ready()).min(rows_max).min(own).min(after).min(ends).max(1)
    }

    /// Rows that it could compute now: its tokens that no round has taken.
    pub fn left(&self) -> u32 {
        self.reply.length() - self.next()
    }

    /// Rows up to the next position at which its state is kept.
    pub fn to_mark(&self) -> u32 {
        let next = self.next();
        self.marks.iter().find(|at| **at > next).map_or(u32::MAX, |at| at - next)
    }

    /// Whether its state is kept where it now stands: at a mark, or `grid` tokens into a reply.
    pub fn is_at_mark(&self, grid: u32) -> bool {
        let at = self.state.first;
        let in_reply = at >= self.prefill && grid > 0 && at - self.kept_at >= grid;
        at > self.kept_at && (in_reply || self.marks.binary_search(&at).is_ok())
    }

    /// Whether its next rows are prompt rows.
    pub fn in_prompt(&self) -> bool {
        self.next() < self.prefill
    }

    /// Whether its last window waits for a settle that can be written now. Every prompt row
    /// stays, so a chunk's outcome is known when it is issued; a decode window's is known once
    /// its token is.
    fn owes_settle(&self) -> bool {
        self.state.rows > 0 && (self.state.first < self.prefill || self.left() > 0)
    }

    /// Writes this stream's part of `round`: `rows` rows, a settle alone, or nothing; whether it
    /// did. The rows of a decode window behind its first are drafts.
    pub fn issue(&mut self, rows: u32, round: &mut Round) -> bool {
        let settles = self.owes_settle();
        if rows == 0 && !settles {
            return false;
        }
        assert!(settles || self.state.rows == 0, "an outcome is unknown");
        let first = self.next();
        let known = if self.in_prompt() { rows } else { rows.min(1) };
        assert!(known <= self.left(), "rows of tokens that are not known");
        let (want, heads) = self.want(first, rows);
        round.plan.entries.push(Entry {
            id: self.state.id,
            op: match self.resume {
                _ if self.opened => Op::Continue,
                Some(_) => Op::Resume,
                None => Op::Open,
            },
            want,
            first,
            rows,
            accepted: self.kept,
            resume: self.resume.filter(|_| !self.opened).map_or(0, |resume| resume.position),
            generation: self.state.generation,
            parents: None,
            tokens: None,
        });
        round
            .tokens
            .extend_from_slice(&self.reply.tokens[first as usize..(first + known) as usize]);
        if rows > 0 {
            self.guesses.fly((rows - known) as usize);
            round.tokens.extend_from_slice(self.guesses.flying.tokens());
        }
        let returned = match want {
            Want::None => 0,
            Want::Last => 1,
            Want::All => rows,
        };
        if returned > 0 {
            let first = first + rows - returned;
            round.wanted.push(Wanted { id: self.state.id, first, rows: returned, heads });
        }
        self.opened = true;
        self.state.generation.0 = self.state.generation.0.wrapping_add(1);
        self.state.first = first;
        self.state.rows = rows;
        self.kept = known;
        self.state.pages = pages_of(first + rows);
        assert!(self.state.pages <= self.reserved, "pages were not reserved");
        if rows > 0 {
            self.last_round = round.number.0;
        }
        true
    }

    /// Takes the logits of the rows of `wanted` that went through the head; false when the reply
    /// has ended.
    pub fn hear(
        &mut self,
        wanted: &Wanted,
        logits: &[f32],
        vocab: usize,
        events: &mut Vec<(RequestId, Event)>,
    ) -> bool {
        if logits.is_empty() {
            return true;
        }
        let first = wanted.first + wanted.rows - wanted.heads;
        let drafts = if wanted.first < self.prefill { &[] } else { self.guesses.flying.tokens() };
        let Some(kept) = self.reply.hear(first, logits, vocab, drafts, events) else {
            return false;
        };
        if wanted.first >= self.prefill {
            self.kept = kept;
            self.guesses.hear(kept - 1);
        }
        true
    }

    /// What the draft head does with the rows of `wanted` that stay.
    pub fn job(&self, wanted: &Wanted, at: usize, chain: u32) -> DraftJob {
        let first = wanted.first;
        let rows = if first < self.prefill { wanted.rows } else { self.kept };
        let after = (first + 1) as usize..(first + rows + 1) as usize;
        DraftJob {
            id: self.state.id,
            first,
            rows: at..at + rows as usize,
            tokens: self.reply.tokens[after].to_vec(),
            chain,
            sampling: self.reply.sampling(),
        }
    }

    /// Which rows return, and how many of them go through the head.
    fn want(&self, first: u32, rows: u32) -> (Want, u32) {
        let draws = u32::from(first + rows >= self.reply.length());
        if rows == 0 {
            (Want::None, 0)
        } else if self.reply.wants_rows(first, rows) || rows > 1 && !self.in_prompt() {
            (Want::All, rows)
        } else if rows > 1 && self.guesses.absorbs() {
            (Want::All, draws)
        } else if draws > 0 || self.guesses.absorbs() {
            (Want::Last, draws)
        } else {
            (Want::None, 0)
        }
    }
}

/// The entry that ends a stream.
pub(crate) fn end(op: Op, state: &SlotState) -> Entry {
    Entry {
        id: state.id,
        op,
        want: Want::None,
        first: 0,
        rows: 0,
        accepted: 0,
        resume: 0,
        generation: state.generation,
        parents: None,
        tokens: None,
    }
}
