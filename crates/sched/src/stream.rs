//! A stream as rank 0 sees it: what the stages hold of it, and what it computes next.

use arith::base::{Generation, StreamId, pages_of};
use wire::plan::{Entry, Op, Want};

use crate::cache::Resume;
use crate::reply::Reply;
use crate::{Round, SlotState};

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
    pub reply: Reply,
}

impl Stream {
    pub fn new(id: StreamId, reply: Reply, reserved: u32, resume: Option<Resume>) -> Self {
        let first = resume.map_or(0, |resume| resume.position);
        let state = SlotState { id, generation: Generation(0), first, rows: 0, pages: 0 };
        Self {
            state,
            opened: false,
            prefill: reply.length(),
            resume,
            marks: Vec::new(),
            kept_at: first,
            pages: Vec::new(),
            reserved,
            passed_over: 0,
            last_round: 0,
            reply,
        }
    }

    /// Position of the next row.
    pub fn next(&self) -> u32 {
        self.state.first + self.state.rows
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
    /// did.
    pub fn issue(&mut self, rows: u32, round: &mut Round) -> bool {
        let settles = self.owes_settle();
        if rows == 0 && !settles {
            return false;
        }
        assert!(rows <= self.left(), "rows of tokens that are not known");
        assert!(settles || self.state.rows == 0, "an outcome is unknown");
        let first = self.next();
        let want = self.want(first, rows);
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
            accepted: self.state.rows,
            resume: self.resume.filter(|_| !self.opened).map_or(0, |resume| resume.position),
            generation: self.state.generation,
            parents: None,
            tokens: None,
        });
        let range = first as usize..(first + rows) as usize;
        round.tokens.extend_from_slice(&self.reply.tokens[range]);
        match want {
            Want::None => {}
            Want::Last => round.wanted.push((self.state.id, first + rows - 1, 1)),
            Want::All => round.wanted.push((self.state.id, first, rows)),
        }
        self.opened = true;
        self.state.generation.0 = self.state.generation.0.wrapping_add(1);
        self.state.first = first;
        self.state.rows = rows;
        self.state.pages = pages_of(first + rows);
        assert!(self.state.pages <= self.reserved, "pages were not reserved");
        if rows > 0 {
            self.last_round = round.number.0;
        }
        true
    }

    fn want(&self, first: u32, rows: u32) -> Want {
        if rows == 0 {
            Want::None
        } else if self.reply.wants_rows(first, rows) {
            Want::All
        } else if first + rows == self.reply.length() {
            Want::Last
        } else {
            Want::None
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
