//! KV pages: who is let in, who grows, who gives way.

use arith::base::{StreamId, TILE_KEYS, pages_of};
use wire::plan::Op;

use crate::Scheduler;
use crate::cache::Resume;
use crate::stream::{Slot, Stream};

impl Scheduler {
    /// Pages that neither a stream nor a kept state holds, and that no stream has reserved.
    fn spare(&self) -> u32 {
        let reserved = |s: &Stream| s.reserved + s.side_reserved;
        let held = |s: &Stream| (s.pages.len() + s.side.len()) as u32;
        let promised: u32 = self.live().map(|s| reserved(s) - held(s)).sum();
        self.ledger.free().checked_sub(promised).expect("more pages than there are")
    }

    /// Reserves the pages of the window after this stream's next one: from kept states where none
    /// are free, then from newer streams. False when the stream itself had to give way.
    pub(crate) fn grow(&mut self, id: StreamId) -> bool {
        let stream = self.stream(id);
        let rows = (stream.next() + 2).min(stream.reply.rows_max());
        let need = pages_of(rows).max(stream.reserved);
        let more = need - stream.reserved;
        while more > self.spare() {
            let idle = self.ledger.idle() > self.cache.pinned_pages(&self.ledger);
            if idle && self.cache.evict(&mut self.ledger, true) {
                continue;
            }
            if self.preempt_newest() == id {
                return false;
            }
        }
        // Drafts take what is free, and from nobody.
        let free = self.spare() - more;
        let stream = self.stream(id);
        let drafts = 2 * stream.guesses.ready().first_len() as u32;
        let hoped = pages_of((stream.next() + 2 + drafts).min(stream.reply.rows_max()));
        stream.reserved = hoped.clamp(need, need + free);
        let left = need + free - stream.reserved;
        let side = stream.side_wanted();
        if side <= stream.side_reserved + left {
            stream.side_reserved = side.max(stream.side_reserved);
        }
        true
    }

    /// Sends the newest stream's request back to the queue, ahead of all that are younger.
    fn preempt_newest(&mut self) -> StreamId {
        let newest = self.live().max_by_key(|stream| stream.reply.age);
        let id = newest.expect("a stream alone always fits").state.id;
        let reply = self.end(id, Op::Cancel);
        let front = self.queue.front();
        assert!(front.is_none_or(|front| front.age > reply.age));
        self.queue.push_front(reply);
        self.preemptions += 1;
        id
    }

    /// Gives free ids to waiting requests, in order of age, with the pages of their tokens and of
    /// one page more. Kept states give way, but for the one that the request starts from.
    pub(crate) fn admit(&mut self) {
        while let Some(reply) = self.queue.front() {
            let free = |slot: &Slot| matches!(slot, Slot::Free);
            let Some(at) = self.slots.iter().position(free) else {
                return;
            };
            let rows = (reply.length() + TILE_KEYS as u32).min(reply.rows_max());
            let reserved = pages_of(rows);
            let (found, matched) = match reply.is_cached() {
                true => self.cache.find(&reply.tokens, reply.resume_max()),
                false => (None, 0),
            };
            let warm = found.and_then(|found| Some((self.reserve(reserved, found.into())?, found)));
            // A state that ends inside a page holds that page beside the stream's copy of it: one
            // page more than a fresh start may need.
            let (pages, resume) = match warm {
                Some((pages, found)) => (pages, Some(found)),
                None => match self.reserve(reserved, None) {
                    Some(pages) => (pages, None),
                    None => return,
                },
            };
            let Some(reply) = self.queue.pop_front() else {
                return;
            };
            let id = StreamId(at as u32);
            let guesses = self.guesses(&reply);
            let mut stream = Stream::new(id, reply, reserved, resume, guesses);
            stream.pages = pages;
            if stream.reply.is_cached() && !stream.reply.started {
                let (starts, tokens) = (stream.reply.starts(), stream.reply.length());
                stream.marks = self.cache.marks(starts, tokens, stream.kept_at, matched);
            }
            stream.reply.start(stream.kept_at);
            self.slots[at] = Slot::Live(Box::new(stream));
        }
    }

    /// Makes room for a stream of `reserved` pages; those that it shares with the kept state that
    /// it starts from, which is pinned. `None` where there is no room even without kept states.
    fn reserve(&mut self, reserved: u32, resume: Option<Resume>) -> Option<Vec<u32>> {
        let mut pages = Vec::new();
        if let Some(resume) = resume {
            pages.extend_from_slice(self.cache.whole_pages(resume));
            self.ledger.share(&pages);
            self.cache.pin(resume);
        }
        let more = reserved - pages.len() as u32;
        let idle = self.ledger.idle() - self.cache.pinned_pages(&self.ledger);
        if more <= self.spare() + idle {
            while more > self.spare() {
                assert!(self.cache.evict(&mut self.ledger, true), "idle pages were counted");
            }
            return Some(pages);
        }
        self.ledger.resize(&mut pages, 0);
        if let Some(resume) = resume {
            self.cache.unpin(resume.key);
        }
        None
    }
}
