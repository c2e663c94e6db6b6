//! Cards of one machine that see each other's memory: each member has a **shelf**, to which the
//! others write what they give it, and a word of each that says how far they are.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::{Buffer, CARD, FOUND_BY_BYTES, Seen, Side, Word};
use crate::end::{End, OFFER_BYTES, Offer, Stopper};
use crate::meet::{LINES_BYTES, MEMBERS_MAX, Meeting, PLACES, Way, many_values};
use crate::{Cuda, CudaError};

/// Words of members, a line each, then lines of two places, then places of many values.
const WORD_BYTES: usize = 128;
const MANY_AT: usize = WORD_BYTES + 2 * LINES_BYTES;
/// Meetings that those that wait are told have been, when nobody is waited for any more.
const PAST: u32 = 1 << 30;

/// Bytes of a member's part of a shelf, of which there are `others`.
fn part_bytes(others: usize) -> usize {
    MANY_AT + PLACES * 4 * many_values(others + 1)
}

/// A card's shelf, and those of the others.
pub struct Peers {
    cuda: Arc<Cuda>,
    side: Arc<Side>,
    shelf: Option<Arc<Buffer>>,
    count: Arc<Buffer>,
    stop: Arc<Stop>,
    shelves: Option<Arc<Shelves>>,
}

/// An epoch's number, and while it runs the shelf whose words others write, and how many do.
type Now = (u64, Option<(Arc<Buffer>, usize)>);

/// What ends every wait of a card for another one's values.
struct Stop {
    word: Word,
    side: Side,
    /// Which epoch may be stopped, and its words.
    now: Mutex<Now>,
}

impl Stop {
    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the waits of epoch `of`, if that is the one that runs.
    fn stop(&self, of: u64) {
        let now = self.now();
        let (epoch, Some((shelf, others))) = &*now else { return };
        if *epoch == of {
            self.word.set(1);
            for at in 0..*others {
                self.side.set(shelf, at * part_bytes(*others), 1, PAST);
            }
            self.side.finish();
        }
    }
}

fn memory(error: impl ToString) -> CudaError {
    CudaError::Memory { words: error.to_string() }
}

impl Peers {
    /// An end on a card.
    ///
    /// # Errors
    /// A card without room for a stream and a few words.
    pub fn new(cuda: &Arc<Cuda>) -> Result<Self, CudaError> {
        let device = &cuda.device;
        let (word, side) = (Word::new(device)?, Side::new(device)?);
        let stop = Stop { word, side, now: Mutex::new((0, None)) };
        let count = Buffer::new(device, "counts of meetings", 8).map_err(memory)?;
        Ok(Self {
            cuda: cuda.clone(),
            side: Arc::new(Side::new(device)?),
            shelf: None,
            count: Arc::new(count),
            stop: Arc::new(stop),
            shelves: None,
        })
    }
}

impl End for Peers {
    /// # Errors
    /// A card without room for it, or whose memory no other process may see.
    fn offer(&mut self, members: usize) -> Result<Offer, CudaError> {
        self.leave();
        let device = &self.cuda.device;
        let others = members.clamp(2, MEMBERS_MAX) - 1;
        let bytes = others * part_bytes(others);
        let shelf = match self.shelf.take().filter(|shelf| shelf.bytes() == bytes) {
            Some(shelf) => shelf,
            None => {
                let what = "what other members give";
                Arc::new(Buffer::new(device, what, bytes as u128).map_err(memory)?)
            }
        };
        let mut offer = [0; OFFER_BYTES];
        offer[..FOUND_BY_BYTES].copy_from_slice(&device.found_by(&shelf, self.cuda.ordinal)?);
        self.shelf = Some(shelf);
        Ok(offer)
    }

    /// No call waits.
    ///
    /// # Errors
    /// Two members on one card; memory of another that this card does not reach.
    fn connect(
        &mut self,
        offers: &[Offer],
        index: usize,
        _: &dyn Fn() -> bool,
    ) -> Result<(), CudaError> {
        let device = &self.cuda.device;
        let Some(shelf) = self.shelf.clone() else {
            return Err(memory("a shelf that was not offered"));
        };
        let mut seen = Vec::new();
        for (member, offer) in offers.iter().enumerate() {
            if member == index {
                seen.push(None);
                continue;
            }
            if offer[CARD] == offers[index][CARD] {
                let words = format!("members {member} and {index} are on one card");
                return Err(CudaError::Call { call: "cuIpcOpenMemHandle", words });
            }
            let by = std::array::from_fn(|i| offer[i]);
            seen.push(Some(Seen::find(device, &by)?));
        }
        // Nobody gives anything before all members have come this far.
        let others = offers.len() - 1;
        for at in 0..others {
            self.side.set(&shelf, at * part_bytes(others), MANY_AT / 4, 0);
        }
        self.side.set(&self.count, 0, 2, 0);
        self.side.finish();
        self.stop.word.set(0);
        let mut now = self.stop.now();
        *now = (now.0 + 1, Some((shelf.clone(), others)));
        drop(now);
        let (count, stop) = (self.count.clone(), self.stop.word.at());
        let shelves = Arc::new(Shelves { own: shelf, seen, count, stop, index });
        self.shelves = Some(shelves.clone());
        let meeting = Meeting::new(&self.cuda, &self.side, Way::Shelves(shelves), index)?;
        self.cuda.set_meeting(Some(meeting));
        Ok(())
    }

    fn stopper(&self) -> Stopper {
        let (stop, epoch) = (self.stop.clone(), self.stop.now().0);
        Box::new(move || stop.stop(epoch))
    }

    fn trouble(&self) -> Option<String> {
        self.cuda.meeting_trouble()
    }

    fn leave(&mut self) {
        let epoch = self.stop.now().0;
        self.stop.stop(epoch);
        if self.shelves.is_some() {
            self.cuda.wait();
            self.side.finish();
            self.cuda.set_meeting(None);
            self.shelves = None;
        }
        self.stop.now().1 = None;
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.leave();
    }
}

/// All members' shelves, in one epoch.
pub(crate) struct Shelves {
    own: Arc<Buffer>,
    /// None of this member's own.
    seen: Vec<Option<Seen>>,
    count: Arc<Buffer>,
    stop: u64,
    index: usize,
}

impl Shelves {
    /// The part of `of`'s shelf that is `from`'s.
    fn part(&self, of: usize, from: usize) -> u64 {
        ((from - usize::from(from > of)) * part_bytes(self.seen.len() - 1)) as u64
    }

    /// Where many values of a meeting lie in a member's part.
    fn many(&self, number: u32) -> u64 {
        let bytes = 4 * many_values(self.seen.len());
        (MANY_AT + number as usize % PLACES * bytes) as u64
    }

    /// The other members, and where this one's part of their shelves is.
    fn others(&self) -> impl Iterator<Item = (usize, u64)> {
        let seen = self.seen.iter().enumerate();
        seen.filter_map(|(member, seen)| {
            Some((member, seen.as_ref()?.at() + self.part(member, self.index)))
        })
    }

    /// Lines that come from a member.
    pub(crate) fn lines(&self, from: usize) -> u64 {
        self.own.at() + self.part(self.index, from) + WORD_BYTES as u64
    }

    /// Many values that come from a member.
    pub(crate) fn place(&self, from: usize, number: u32) -> u64 {
        self.own.at() + self.part(self.index, from) + self.many(number)
    }

    /// Where lines go, the count of meetings and the word that ends waits.
    pub(crate) fn few(&self, gone: &mut [u64; MEMBERS_MAX], (count, stop): (&mut u64, &mut u64)) {
        self.others().for_each(|(member, at)| gone[member] = at + WORD_BYTES as u64);
        (*count, *stop) = (self.count.at(), self.stop);
    }

    /// Copies `bytes` bytes at `from` to every other member, says so, and waits for theirs.
    pub(crate) fn carry(
        &self,
        side: &Side,
        from: u64,
        bytes: usize,
        number: u32,
    ) -> Result<(), CudaError> {
        for (_, to) in self.others() {
            side.give(to + self.many(number), from, bytes)?;
            side.tell(to, number)?;
        }
        self.others().try_for_each(|(member, _)| {
            side.hear(self.own.at() + self.part(self.index, member), number)
        })
    }
}
