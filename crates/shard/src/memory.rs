//! Exchanges between members of one machine: rings of words in memory that they share.
//!
//! The leader makes one segment a group and epoch and tells the others its place over their links;
//! those that can open it meet there. Each of them has a bell, which whoever gives to it or takes
//! from it rings, and to each other one a ring of words: a message's number, its values, then the
//! values, two a word. One thread gives and takes in turns, so that no size of a message blocks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ring::segment::Segment;
use stage::{ExchangeError, Member};

use crate::epoch::Epoch;

mod call;
mod load;

pub(crate) use load::{Load, Place};

/// Words of a ring; a power of two.
const RING_WORDS: usize = 1 << 15;
/// Words between what different processors write.
const APART: usize = 16;
/// Words before a message's values.
const HEAD_WORDS: usize = 2;
/// Longest sleep: whoever wakes the sleeper late costs no more.
const SLEEP: Duration = Duration::from_millis(100);
/// Looks before a sleep, a few microseconds of them.
const LOOKS: u32 = 200;

/// This member's part of the segment.
#[derive(Debug)]
pub(crate) struct Memory {
    segment: Segment,
    member: Member,
    /// Whether each member meets here.
    here: Vec<bool>,
}

/// What a segment begins with, so that a member knows the one that it was told of.
pub(crate) type Token = [u8; 16];

/// A message for one member, and how far it is.
struct Give<'a> {
    to: usize,
    number: u64,
    load: Load<'a>,
    /// Words written.
    done: usize,
}

/// A message of one member, and how far it is.
pub(crate) struct Take<'a> {
    pub(crate) from: usize,
    pub(crate) place: Place<'a>,
    /// Words read.
    pub(crate) done: usize,
}

/// Words of the segment of `count` members: the token, a bell and a sleeper each, the rings.
fn segment_words(count: usize) -> usize {
    APART + 2 * APART * count + count * count * (2 * APART + RING_WORDS)
}

impl Memory {
    /// A new segment that begins with `token`.
    pub(crate) fn create(member: Member, token: &Token) -> std::io::Result<Self> {
        let segment = Segment::create(segment_words(member.count))?;
        for (word, half) in segment.words().iter().zip(halves(token)) {
            word.store(half, Ordering::Release);
        }
        Ok(Self { segment, member, here: vec![false; member.count] })
    }

    /// The leader's segment, if it is at `place` on this machine.
    pub(crate) fn open(member: Member, place: &str, token: &Token) -> std::io::Result<Self> {
        let segment = Segment::open(place, segment_words(member.count))?;
        let mut found = segment.words().iter().zip(halves(token));
        if found.all(|(word, half)| word.load(Ordering::Acquire) == half) {
            return Ok(Self { segment, member, here: vec![false; member.count] });
        }
        Err(std::io::Error::other("another segment"))
    }

    /// Where the others find it.
    pub(crate) fn place(&self) -> String {
        self.segment.place()
    }

    /// Who meets here; this member among them.
    pub(crate) fn set_here(&mut self, here: Vec<bool>) {
        self.here = here;
    }

    /// Whether a member meets here.
    pub(crate) fn has(&self, member: usize) -> bool {
        self.here[member]
    }

    fn bell(&self, member: usize) -> usize {
        APART + 2 * APART * member
    }

    fn ring_at(&self, from: usize, to: usize) -> usize {
        let count = self.member.count;
        let rings = APART + 2 * APART * count;
        rings + (from * count + to) * (2 * APART + RING_WORDS)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.segment.words()[at]
    }

    /// Wakes a member, or has it not fall asleep.
    pub(crate) fn wake(&self, member: usize) {
        let bell = self.bell(member);
        self.word(bell).fetch_add(1, Ordering::SeqCst);
        if self.word(bell + APART).load(Ordering::SeqCst) != 0 {
            self.segment.wake(bell);
        }
    }

    /// Gives `own` to those of `to` and takes what is to come from others, in exchange `number`.
    ///
    /// # Errors
    /// Why the epoch is over; a member that is out of step, or stands still for too long.
    pub(crate) fn exchange(
        &self,
        epoch: &Epoch,
        number: u64,
        (own, to): (&[f32], &[usize]),
        takes: &mut [Take<'_>],
    ) -> Result<(), ExchangeError> {
        let give = |&to: &usize| Give { to, number, load: Load::Values(own), done: 0 };
        self.pass(epoch, number, &mut to.iter().map(give).collect::<Vec<_>>(), takes)
    }

    /// Gives and takes until all is through.
    fn pass(
        &self,
        epoch: &Epoch,
        number: u64,
        gives: &mut [Give<'_>],
        takes: &mut [Take<'_>],
    ) -> Result<(), ExchangeError> {
        let (mut looks, mut since) = (0, Instant::now());
        loop {
            let seen = self.seen();
            let (mut moved, mut waits) = (false, None);
            for give in &mut *gives {
                moved |= self.give(epoch, give)?;
                waits = waits.or((give.done < HEAD_WORDS + give.load.words()).then_some(give.to));
            }
            for take in &mut *takes {
                moved |= self.take(epoch, number, take)?;
                waits = waits
                    .or((take.done < HEAD_WORDS + take.place.load().words()).then_some(take.from));
            }
            let Some(peer) = waits else { return Ok(()) };
            if moved {
                (looks, since) = (0, Instant::now());
                continue;
            }
            if let Some(lost) = epoch.lost() {
                return Err(lost);
            }
            if since.elapsed() >= epoch.stalled() {
                let ms = epoch.stalled().as_millis();
                let reason = format!("Stalled: it beats, and gave and took nothing for {ms} ms");
                return Err(epoch.fail(peer, reason));
            }
            self.rest(&mut looks, seen);
        }
    }

    /// How often this member's bell has rung.
    fn seen(&self) -> u64 {
        self.word(self.bell(self.member.index)).load(Ordering::SeqCst)
    }

    /// Goes on at the next ring of the bell after those that were seen: looks for it a while, then
    /// sleeps.
    fn rest(&self, looks: &mut u32, seen: u64) {
        if *looks < LOOKS {
            *looks += 1;
            std::hint::spin_loop();
            return;
        }
        let bell = self.bell(self.member.index);
        self.word(bell + APART).store(1, Ordering::SeqCst);
        self.segment.wait(bell, seen, SLEEP);
        self.word(bell + APART).store(0, Ordering::SeqCst);
    }

    /// Writes what there is room for; whether that was something.
    fn give(&self, epoch: &Epoch, give: &mut Give<'_>) -> Result<bool, ExchangeError> {
        let all = HEAD_WORDS + give.load.words();
        if give.done == all {
            return Ok(false);
        }
        let at = self.ring_at(self.member.index, give.to);
        let (head, tail) = (self.word(at), self.word(at + APART));
        let (mut written, read) = (head.load(Ordering::Relaxed), tail.load(Ordering::Acquire));
        let used = used(epoch, give.to, written, read)?;
        let count = (RING_WORDS - used).min(all - give.done);
        let mut left = count;
        while left > 0 {
            let words = self.run(at, written);
            let words = &words[..left.min(words.len())];
            let done = match give.done {
                0 => one(&words[0], give.number),
                1 => one(&words[0], give.load.size()),
                done => give.load.write(done - HEAD_WORDS, words),
            };
            written += done as u64;
            give.done += done;
            left -= done;
        }
        if count > 0 {
            head.store(written, Ordering::Release);
            self.wake(give.to);
        }
        Ok(count > 0)
    }

    /// Reads what is there of a message; whether that was something.
    fn take(&self, epoch: &Epoch, number: u64, take: &mut Take<'_>) -> Result<bool, ExchangeError> {
        let all = HEAD_WORDS + take.place.load().words();
        if take.done == all {
            return Ok(false);
        }
        let at = self.ring_at(take.from, self.member.index);
        let (head, tail) = (self.word(at), self.word(at + APART));
        let (written, mut read) = (head.load(Ordering::Acquire), tail.load(Ordering::Relaxed));
        let used = used(epoch, take.from, written, read)?;
        let count = used.min(all - take.done);
        let mut left = count;
        while left > 0 {
            let words = self.run(at, read);
            let words = &words[..left.min(words.len())];
            let done = match take.done {
                done @ ..HEAD_WORDS => {
                    head_word(epoch, (number, done), take, words[0].load(Ordering::Relaxed))?;
                    1
                }
                done => take.place.read(done - HEAD_WORDS, words),
            };
            read += done as u64;
            take.done += done;
            left -= done;
        }
        if count > 0 {
            tail.store(read, Ordering::Release);
        }
        // It may wait for room.
        if 2 * used >= RING_WORDS {
            self.wake(take.from);
        }
        Ok(count > 0)
    }

    /// The words of a ring from the one of `index` up to its end.
    fn run(&self, ring: usize, index: u64) -> &[AtomicU64] {
        let words = &self.segment.words()[ring + 2 * APART..][..RING_WORDS];
        &words[index as usize % RING_WORDS..]
    }
}

/// Takes a word before a message's values.
fn head_word(
    epoch: &Epoch,
    (number, at): (u64, usize),
    take: &Take<'_>,
    word: u64,
) -> Result<(), ExchangeError> {
    let size = take.place.load().size();
    let reason = match at {
        0 if word != number => format!("OutOfTurn: expected exchange {number}, found {word}"),
        1 if word != size => {
            format!("OtherRows: exchange {number}: expected {size} values of it, found {word}")
        }
        _ => return Ok(()),
    };
    Err(epoch.fail(take.from, reason))
}

fn one(word: &AtomicU64, value: u64) -> usize {
    word.store(value, Ordering::Relaxed);
    1
}

/// Words that are written and not read.
fn used(epoch: &Epoch, member: usize, written: u64, read: u64) -> Result<usize, ExchangeError> {
    match usize::try_from(written.wrapping_sub(read)) {
        Ok(used) if used <= RING_WORDS => Ok(used),
        _ => Err(epoch.fail(member, format!("OtherRing: {read} read of {written} words"))),
    }
}

fn halves(token: &Token) -> [u64; 2] {
    let (halves, _) = token.as_chunks::<8>();
    [halves[0], halves[1]].map(u64::from_le_bytes)
}
