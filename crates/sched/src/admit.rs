//! KV pages: who is let in, who grows, who gives way.

use arith::base::{StreamId, TILE_KEYS, pages_of};
use wire::plan::Op;

use crate::Scheduler;
use crate::stream::{Slot, Stream};

impl Scheduler {
    /// Pages reserved by all streams, those included whose end is not issued yet.
    pub(crate) fn reserved(&self) -> u32 {
        let pages = |slot: &Slot| match slot {
            Slot::Live(stream) => stream.reserved,
            Slot::Leaving { reserved, .. } => *reserved,
            Slot::Free | Slot::Echoing => 0,
        };
        self.slots.iter().map(pages).sum()
    }

    /// Pages reserved by running streams: what is left after the next round.
    pub(crate) fn kept(&self) -> u32 {
        self.live().map(|stream| stream.reserved).sum()
    }

    /// Reserves the pages of the window after this stream's next one, from newer streams where
    /// none are free. False when the stream itself had to give way.
    ///
    /// The next window has its pages already. So what is gained here may be pages that this
    /// round's closes give back: they are free when the round after it needs them, and a stage
    /// never has to reorder entries.
    pub(crate) fn grow(&mut self, id: StreamId) -> bool {
        let stream = self.stream(id);
        let rows = (stream.next() + 2).min(stream.reply.rows_max());
        let need = pages_of(rows).max(stream.reserved);
        let more = need - stream.reserved;
        while self.kept() + more > self.limits.pages {
            if self.preempt_newest() == id {
                return false;
            }
        }
        self.stream(id).reserved = need;
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

    /// Gives free ids to waiting requests, in order of age. `held` is what was reserved before
    /// this round gave anything back: only pages outside it can be written in this round.
    pub(crate) fn admit(&mut self, mut held: u32) {
        while let Some(reply) = self.queue.front() {
            let free = |slot: &Slot| matches!(slot, Slot::Free);
            let Some(at) = self.slots.iter().position(free) else {
                return;
            };
            let rows = (reply.length() + TILE_KEYS as u32).min(reply.rows_max());
            let need = pages_of(rows);
            if held.max(self.kept()) + need > self.limits.pages {
                return;
            }
            held += need;
            let Some(mut reply) = self.queue.pop_front() else {
                return;
            };
            reply.started = true;
            let id = StreamId(at as u32);
            self.slots[at] = Slot::Live(Box::new(Stream::new(id, reply, need)));
        }
    }
}
