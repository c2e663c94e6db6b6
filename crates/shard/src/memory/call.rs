//! The leader's calls to a member that meets in memory, in the ring that its values come in: one
//! wake-up, where a link costs one of its receiver and one of the member.

use std::sync::atomic::Ordering;

use stage::ExchangeError;
use wire::group::PIECE_BYTES_MAX;

use super::{APART, Give, HEAD_WORDS, Load, Memory, Place, Take, used};
use crate::epoch::Epoch;

/// Tells a call's number from an exchange's.
const CALL: u64 = 1 << 63;

impl Memory {
    /// Gives call `number` to a member; blocks while there is no room.
    ///
    /// # Errors
    /// Why the epoch is over; a member that takes nothing for too long.
    pub(crate) fn call(
        &self,
        epoch: &Epoch,
        to: usize,
        number: u64,
        call: &[u8],
    ) -> Result<(), ExchangeError> {
        let give = Give { to, number: number | CALL, load: Load::Bytes(call), done: 0 };
        self.pass(epoch, number | CALL, &mut [give], &mut [])
    }

    /// The leader's call `number`, which it may take its time for: of `bytes_max` bytes at most, or
    /// of a link's piece, where that is more.
    ///
    /// # Errors
    /// Why the epoch is over; another message, a longer call, and one whose rest stays away.
    pub(crate) fn next_call(
        &self,
        epoch: &Epoch,
        number: u64,
        bytes_max: usize,
    ) -> Result<Vec<u8>, ExchangeError> {
        let at = self.ring_at(0, self.member.index);
        let (head, tail) = (self.word(at), self.word(at + APART));
        let read = tail.load(Ordering::Relaxed);
        let mut looks = 0;
        loop {
            let seen = self.seen();
            if used(epoch, 0, head.load(Ordering::Acquire), read)? >= HEAD_WORDS {
                break;
            }
            if let Some(lost) = epoch.lost() {
                return Err(lost);
            }
            self.rest(&mut looks, seen);
        }
        let word = |n| self.run(at, read + n)[0].load(Ordering::Relaxed);
        let (found, size, most) = (word(0), word(1), bytes_max.max(PIECE_BYTES_MAX));
        if found != number | CALL {
            let what = if found & CALL == 0 { "exchange" } else { "call" };
            let found = found & !CALL;
            let reason = format!("OutOfTurn: expected call {number}, found {what} {found}");
            return Err(epoch.fail(0, reason));
        }
        if size > most as u64 {
            let reason = format!("TooLarge: call {number}: at most {most} bytes, found {size}");
            return Err(epoch.fail(0, reason));
        }
        tail.store(read + HEAD_WORDS as u64, Ordering::Release);
        let mut bytes = vec![0; size as usize];
        let take = Take { from: 0, place: Place::Bytes(&mut bytes), done: HEAD_WORDS };
        self.pass(epoch, number | CALL, &mut [], &mut [take])?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use stage::Member;

    use super::super::{RING_WORDS, Token};
    use super::*;
    use crate::Times;
    use crate::epoch::Watch;

    const STALLED: Duration = Duration::from_secs(2);

    /// Both members' ends of a memory, and their epochs.
    fn two() -> [(Memory, Arc<Epoch>); 2] {
        let members = [0, 1].map(|index| Member { index, count: 2 });
        let first = Memory::create(members[0], &Token::default()).unwrap();
        let second = Memory::open(members[1], &first.place(), &Token::default()).unwrap();
        let both = [first, second].map(|mut memory| {
            memory.set_here(vec![true; 2]);
            memory
        });
        let times = Times { stalled: STALLED, ..Times::default() };
        let epoch = |member| Epoch::new(1, member, times, Watch::default());
        let [first, second] = both;
        [(first, epoch(members[0])), (second, epoch(members[1]))]
    }

    #[test]
    fn calls_of_any_size_come_whole_and_in_turn_with_values() {
        let [(leader, called), (member, at)] = two();
        let sizes = [0, 1, 8, 9, 4_099, 3 * 8 * RING_WORDS + 5];
        let sent = |size: usize| (0..size).map(|n| (n * 31 % 251) as u8).collect::<Vec<u8>>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for (number, size) in (1..).zip(sizes) {
                    leader.call(&called, 1, number, &sent(size)).unwrap();
                    leader.exchange(&called, number, (&[1.5, 2.5, 3.5], &[1]), &mut []).unwrap();
                }
            });
            for (number, size) in (1..).zip(sizes) {
                let found = member.next_call(&at, number, 8 * 4 * RING_WORDS).unwrap();
                assert!(found == sent(size), "call {number} of {size} bytes");
                let mut values = [0.0; 3];
                let place = Place::Values(&mut values);
                let take = Take { from: 0, place, done: 0 };
                member.exchange(&at, number, (&[], &[]), &mut [take]).unwrap();
                assert_eq!(values, [1.5, 2.5, 3.5]);
            }
        });
    }

    #[test]
    fn what_is_not_the_due_call_ends_the_epoch_by_name() {
        let said = |give: &dyn Fn(&Memory, &Epoch), bytes_max| {
            let [(leader, called), (member, at)] = two();
            give(&leader, &called);
            let error = member.next_call(&at, 1, bytes_max).unwrap_err().to_string();
            assert_eq!(at.lost().unwrap().to_string(), error);
            error
        };
        let other = said(&|memory, epoch| memory.call(epoch, 1, 2, b"x").unwrap(), 9);
        assert_eq!(other, "member 0: OutOfTurn: expected call 1, found call 2");
        let give = |memory: &Memory, epoch: &Epoch| {
            memory.exchange(epoch, 1, (&[1.0], &[1]), &mut []).unwrap();
        };
        let exchange = said(&give, 9);
        assert_eq!(exchange, "member 0: OutOfTurn: expected call 1, found exchange 1");
        let long = vec![0; PIECE_BYTES_MAX + 1];
        let long = said(&|memory, epoch| memory.call(epoch, 1, 1, &long).unwrap(), 9);
        let (most, found) = (PIECE_BYTES_MAX, PIECE_BYTES_MAX + 1);
        let expected = format!("member 0: TooLarge: call 1: at most {most} bytes, found {found}");
        assert_eq!(long, expected);
    }

    #[test]
    fn a_member_that_takes_no_calls_is_named_in_time() {
        let [(leader, called), (_member, _at)] = two();
        // All that a ring holds: there is no room for the next one.
        let fits = vec![7; 8 * (RING_WORDS - HEAD_WORDS)];
        leader.call(&called, 1, 1, &fits).unwrap();
        let since = Instant::now();
        let error = leader.call(&called, 1, 2, b"").unwrap_err().to_string();
        let took = since.elapsed();
        let ms = STALLED.as_millis();
        let expected = format!("Stalled: it beats, and gave and took nothing for {ms} ms");
        assert_eq!(error, format!("member 1: {expected}"));
        assert!((STALLED..5 * STALLED).contains(&took), "{took:?}");
        assert_eq!(called.lost().unwrap().to_string(), error);
    }

    #[test]
    fn a_member_that_waits_for_a_call_leaves_with_its_epoch() {
        let [_leader, (member, at)] = two();
        let ended = at.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            let _ = ended.fail(1, "over".into());
            Instant::now()
        });
        let error = member.next_call(&at, 1, 9).unwrap_err();
        let late = Instant::now().duration_since(thread.join().unwrap());
        assert_eq!(error.to_string(), "member 1: over");
        assert!(late < Duration::from_secs(5), "{late:?}");
    }
}
