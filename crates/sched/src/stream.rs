//! A stream as rank 0 sees it: what the stages hold of it, and what it computes next.

use arith::base::{Generation, StreamId, TILE_KEYS, pages_of};
use wire::plan::{Entry, Op, Want};

use crate::cache::Resume;
use crate::draft::{Drafts, Guesses};
use crate::ledger::Ledger;
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
    /// What says so in a plan: of a tree 1 and the last such row.
    pub accepted: u32,
    /// Those rows of a decode window that is back.
    path: Vec<usize>,
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
    /// Those of the second path of a tree that is its last window, and whether that path stays.
    pub side: Vec<u32>,
    pub is_side: bool,
    /// Pages for that path and the next one's that no other stream may take.
    pub side_reserved: u32,
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
            accepted: 0,
            path: Vec::new(),
            opened: false,
            prefill: reply.length(),
            resume,
            marks: Vec::new(),
            kept_at: first,
            pages: Vec::new(),
            side: Vec::new(),
            is_side: false,
            side_reserved: 0,
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
    /// A tree's second path has room or is left out.
    pub fn window(&self, pages: u32, rows_max: u32) -> u32 {
        let next = self.next();
        let own = pages * TILE_KEYS as u32 - next;
        let after = self.reserved * TILE_KEYS as u32 - next - 1;
        let ends = self.reply.rows_max() - next;
        let after = if pages_of(self.reply.rows_max()) <= self.reserved { ends } else { after };
        let most = own.min(after).min(ends);
        let (first, all) = (self.guesses.ready().first_len(), self.guesses.ready().tokens().len());
        let (first, all) = (1 + first as u32, 1 + all as u32);
        if all <= rows_max && first <= most && self.side_wanted() <= self.side_reserved {
            return all;
        }
        first.min(rows_max).min(most).max(1)
    }

    /// Pages that a tree of the next window asks for beside the reserved ones: of its second path;
    /// one more where a kept state may share the page that the first path would leave, now or when
    /// the last window settles.
    pub fn side_wanted(&self) -> u32 {
        let next = self.next();
        let Some(side) = self.guesses.ready().side_len() else { return 0 };
        side_pages(next, side) + shares(next) + u32::from(self.is_side)
    }

    /// Settles the last window's second path in the ledger, as the stages do.
    pub fn settle_side(&mut self, ledger: &mut Ledger) {
        if std::mem::take(&mut self.is_side) {
            let tail = self.pages.split_off(self.state.first as usize / TILE_KEYS);
            let side = std::mem::replace(&mut self.side, tail);
            self.pages.extend(side);
        }
        ledger.resize(&mut self.side, 0);
    }

    /// Takes the pages of the window that was just issued.
    pub fn take_pages(&mut self, ledger: &mut Ledger) {
        let side = self.side_reserved.saturating_sub(shares(self.state.first));
        ledger.resize(&mut self.pages, self.state.pages - side);
        ledger.resize(&mut self.side, side);
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
    pub fn owes_settle(&self) -> bool {
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
        if rows > 0 {
            self.guesses.fly((rows - known) as usize);
        }
        let drafts = &self.guesses.flying;
        let parents = drafts.parents().filter(|_| rows > known);
        let side = drafts.side_len().filter(|_| rows > known);
        let length = side.map_or(rows, |_| 1 + drafts.first_len() as u32);
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
            accepted: self.accepted,
            resume: self.resume.filter(|_| !self.opened).map_or(0, |resume| resume.position),
            generation: self.state.generation,
            parents,
            tokens: None,
        });
        round
            .tokens
            .extend_from_slice(&self.reply.tokens[first as usize..(first + known) as usize]);
        if rows > 0 {
            round.tokens.extend_from_slice(self.guesses.flying.tokens());
        }
        let returned = match want {
            Want::None => 0,
            Want::Last => 1,
            Want::All => rows,
        };
        if returned > 0 {
            let first = first + rows - returned; // a tree returns whole
            let (id, best) = (self.state.id, self.reply.best());
            round.wanted.push(Wanted { id, first, rows: returned, heads, best });
        }
        self.opened = true;
        self.state.generation.0 = self.state.generation.0.wrapping_add(1);
        self.state.first = first;
        self.state.rows = rows;
        (self.kept, self.accepted) = (known, known);
        let (pages, side) = (pages_of(first + length), side.map(|side| side_pages(first, side)));
        assert!(pages <= self.reserved, "pages were not reserved");
        self.side_reserved = side.map_or(0, |side| side + shares(first));
        self.state.pages = pages + side.unwrap_or(0);
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
        let none = Drafts::default();
        let drafts = if wanted.first < self.prefill { &none } else { &self.guesses.flying };
        let Some(last) = self.reply.hear(first, logits, vocab, drafts, events) else {
            return false;
        };
        if wanted.first >= self.prefill {
            self.path = self.guesses.hear(last);
            (self.kept, self.accepted) = (self.path.len() as u32, last as u32 + 1);
            self.is_side = self.accepted > self.kept;
        }
        true
    }

    /// What the draft head does with the rows of `wanted` that stay.
    pub fn job(&self, wanted: &Wanted, at: usize, chain: u32) -> DraftJob {
        let first = wanted.first;
        let (rows, accepted): (Vec<usize>, u32) = if first < self.prefill {
            ((at..at + wanted.rows as usize).collect(), wanted.rows)
        } else {
            (self.path.iter().map(|row| at + row).collect(), self.accepted)
        };
        let after = (first + 1) as usize..first as usize + rows.len() + 1;
        DraftJob {
            id: self.state.id,
            first,
            rows,
            accepted,
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

/// Pages of a second path of `side` tokens behind the one at `first`.
fn side_pages(first: u32, side: usize) -> u32 {
    pages_of(first + 1 + side as u32) - first / TILE_KEYS as u32
}

/// Pages of a window at `first` that a kept state may share, and that thus may not come free when
/// its stream leaves them.
fn shares(first: u32) -> u32 {
    u32::from(!first.is_multiple_of(TILE_KEYS as u32))
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
