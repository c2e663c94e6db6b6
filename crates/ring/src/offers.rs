//! What ranks tell of their berths, on its way round to those that may write to them.

use arith::base::{Rank, WORLD_MAX};
use wire::control::{Berths, Message};
use wire::frame::Frame;

use crate::error::RingError;
use crate::step::{Action, Stepped};

/// The berths that pass a rank in an epoch: those of each other rank once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offers {
    own: Rank,
    world: u32,
    /// A bit a rank whose berths have passed.
    passed: u64,
}

const _: () = assert!(WORLD_MAX <= u64::BITS, "a bit a rank");

impl Offers {
    /// None yet, at rank `own` of `world`.
    pub(crate) fn new(own: Rank, world: u32) -> Self {
        Self { own, world, passed: 0 }
    }

    /// Takes a control frame after this rank's boot: berths of the rank after are to be reached,
    /// others go on.
    ///
    /// # Errors
    /// Another message; berths of this rank, of none of the ring's, or a second time.
    pub(crate) fn take(&mut self, frame: Frame) -> Stepped {
        let from = Rank((self.own.0 + self.world - 1) % self.world);
        let message = Message::decode(&frame.payload);
        self.pass(message.map_err(|error| RingError::Wire { from, error })?, frame)
    }

    /// The same of a frame's message.
    ///
    /// # Errors
    /// As [`Offers::take`]'s.
    pub(crate) fn pass(&mut self, message: Message, frame: Frame) -> Stepped {
        let Message::Berths(Berths { rank, offer }) = message else {
            return Err(self.other(message.name().into()));
        };
        let is_other = rank.0 < self.world && rank != self.own;
        if !is_other || self.passed & (1 << rank.0) != 0 {
            return Err(self.other(format!("berths of rank {rank}")));
        }
        self.passed |= 1 << rank.0;
        Ok(vec![match rank.0 == self.own.0 + 1 {
            true => Action::Reach(Box::new(offer)),
            false => Action::Send(frame),
        }])
    }

    fn other(&self, found: String) -> RingError {
        let expected = format!("once the berths of each of {} ranks but {}", self.world, self.own);
        RingError::OutOfTurn { expected, found }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use wire::control::Ready;

    use super::*;

    fn frame(message: &Message) -> Frame {
        Frame::control(message.encode().unwrap())
    }

    fn berths(rank: u32) -> Frame {
        frame(&Message::Berths(Berths { rank: Rank(rank), offer: [7; 128] }))
    }

    #[test]
    fn berths_of_the_rank_after_are_reached_and_others_go_on() {
        for (own, world) in [(0, 2), (0, 4), (1, 3), (2, 4)] {
            let mut offers = Offers::new(Rank(own), world);
            for rank in (1..world).filter(|rank| *rank != own) {
                let expected = match rank == own + 1 {
                    true => Action::Reach(Box::new([7; 128])),
                    false => Action::Send(berths(rank)),
                };
                assert_eq!(offers.take(berths(rank)).unwrap(), [expected], "{rank} at {own}");
            }
        }
    }

    #[test]
    fn berths_of_no_other_rank_and_those_that_come_again_end_the_epoch_by_name() {
        let of = |own: u32, found: Frame| {
            let mut offers = Offers::new(Rank(own), 3);
            let _ = offers.take(berths(if own == 1 { 2 } else { 1 })).unwrap();
            offers.take(found).unwrap_err().to_string()
        };
        for (own, found, why) in [
            (1, berths(1), "found berths of rank 1"),
            (1, berths(2), "found berths of rank 2"),
            (0, berths(1), "found berths of rank 1"),
            // The last rank's rows go back to rank 0 over the link, whatever somebody offers.
            (2, berths(3), "found berths of rank 3"),
            (0, berths(63), "found berths of rank 63"),
            (1, frame(&Message::Ready(Ready { rank: Rank(2) })), "found ready"),
        ] {
            let error = of(own, found);
            assert!(error.ends_with(why), "{error}");
        }
        let error = of(1, Frame::control(vec![0; 8]));
        assert!(error.contains("rank 0") && error.contains("BadMagic"), "{error}");
    }
}
