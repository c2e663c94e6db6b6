//! What a rank's I/O side does with a frame of the rank before: the same over sockets and in
//! memory.

use arith::base::{Epoch, Rank};
use wire::beat::Beat;
use wire::cancel::Cancel;
use wire::frame::{Frame, Kind};
use wire::stop::Stop;
use wire::tally::Tally;
use wire::{Fault, WireError};

/// Where a rank stands.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The rank.
    pub rank: Rank,
    /// Ranks of the ring.
    pub world: u32,
    /// Of the rank's links.
    pub epoch: Epoch,
}

/// What to do with a frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Relay {
    /// Deliver it to the compute side, and pass it on first if `onward`.
    Deliver {
        /// It goes on to the rank after.
        onward: bool,
    },
    /// It was for the I/O side.
    Beat(Beat),
    /// The same; it goes on to the rank after if `onward`.
    Tally {
        /// What it says.
        tally: Tally,
        /// This is not rank 0.
        onward: bool,
    },
    /// It is of another epoch, or has been everywhere.
    Drop,
}

impl Place {
    /// The rank before.
    pub fn previous(self) -> Rank {
        Rank((self.rank.0 + self.world - 1) % self.world)
    }

    /// The rank after.
    pub fn next(self) -> Rank {
        Rank((self.rank.0 + 1) % self.world)
    }

    /// Decides about a frame of the rank before.
    ///
    /// # Errors
    /// A stop, beat, cancel or tally that breaks the protocol.
    pub fn relay(self, frame: &Frame) -> Result<Relay, WireError> {
        let decided = match frame.kind {
            Kind::Control | Kind::Plan | Kind::Rows | Kind::Berth => {
                Ok(Relay::Deliver { onward: false })
            }
            Kind::Beat => self.beat(Beat::decode(&frame.payload)?),
            Kind::Tally => self.tally(Tally::decode(&frame.payload)?),
            Kind::Stop => self.pass(Stop::decode(&frame.payload)?.origin),
            Kind::Cancel => {
                let cancel = Cancel::decode(&frame.payload)?;
                if cancel.epoch == self.epoch { self.pass(cancel.origin) } else { Ok(Relay::Drop) }
            }
        };
        decided.map_err(|error| error.at(self.previous()))
    }

    fn pass(self, origin: Rank) -> Result<Relay, WireError> {
        if origin.0 >= self.world {
            let expected = format!("below {}", self.world);
            return Err(WireError::BadRank(Fault::new("origin", expected, origin)));
        }
        if origin == self.rank {
            return Ok(Relay::Drop);
        }
        Ok(Relay::Deliver { onward: origin != self.next() })
    }

    /// Tallies go up to rank 0, so none comes back to its origin.
    fn tally(self, tally: Tally) -> Result<Relay, WireError> {
        if tally.epoch != self.epoch {
            return Ok(Relay::Drop);
        }
        let origin = tally.origin;
        let before = if self.rank == Rank(0) { self.world } else { self.rank.0 };
        if !(1..before).contains(&origin.0) {
            let expected = format!("1 to {}", before.saturating_sub(1));
            return Err(WireError::BadRank(Fault::new("tally.origin", expected, origin)));
        }
        Ok(Relay::Tally { tally, onward: self.rank != Rank(0) })
    }

    fn beat(self, beat: Beat) -> Result<Relay, WireError> {
        let previous = self.previous();
        if beat.rank != previous {
            return Err(WireError::BadRank(Fault::new("beat.rank", previous, beat.rank)));
        }
        if beat.epoch != self.epoch {
            let (ours, theirs) = (self.epoch.0, beat.epoch.0);
            let fault = Fault::new("beat.epoch", format!("{ours:016x}"), format!("{theirs:016x}"));
            return Err(WireError::OtherEpoch(fault));
        }
        Ok(Relay::Beat(beat))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_before_the_origin_keeps_a_stop_to_itself() {
        let world = 3;
        let place = |rank| Place { rank: Rank(rank), world, epoch: Epoch(1) };
        let stop = |origin| Frame::stop(&Stop { origin: Rank(origin), reason: String::new() });
        let relay = |rank, origin| place(rank).relay(&stop(origin)).ok();
        assert_eq!(relay(0, 2), Some(Relay::Deliver { onward: true }));
        assert_eq!(relay(1, 2), Some(Relay::Deliver { onward: false }));
        assert_eq!(relay(2, 2), Some(Relay::Drop), "it has been everywhere");
        assert_eq!(relay(1, world), None, "a rank that is not there");
    }

    #[test]
    fn a_report_goes_up_to_rank_0_and_comes_from_a_rank_before() {
        let relay = |rank, origin, epoch| {
            let place = Place { rank: Rank(rank), world: 3, epoch: Epoch(1) };
            let tally = Tally { origin: Rank(origin), epoch: Epoch(epoch), ..Tally::default() };
            let relayed = place.relay(&Frame::tally(&tally)).map_err(|e| e.code())?;
            Ok(match relayed {
                Relay::Tally { onward, .. } => Some(onward),
                _ => None,
            })
        };
        assert_eq!((relay(2, 1, 1), relay(0, 2, 1)), (Ok(Some(true)), Ok(Some(false))));
        assert_eq!(relay(0, 1, 2), Ok(None), "another epoch's");
        for (rank, origin) in [(1, 1), (2, 2), (0, 3), (0, 0), (1, 2)] {
            assert_eq!(relay(rank, origin, 1), Err("BadRank"), "{origin} at {rank}");
        }
    }

    #[test]
    fn a_beat_is_the_neighbours_and_of_this_epoch() {
        let place = Place { rank: Rank(0), world: 3, epoch: Epoch(1) };
        let relay = |rank, epoch| {
            let beat = Beat {
                rank: Rank(rank),
                epoch: Epoch(epoch),
                round: arith::base::Round(0),
                done: 0,
            };
            place.relay(&Frame::beat(&beat)).map_err(|e| e.code())
        };
        assert!(matches!(relay(2, 1), Ok(Relay::Beat(_))));
        assert_eq!(relay(1, 1), Err("BadRank"));
        assert_eq!(relay(2, 2), Err("OtherEpoch"));
    }
}
