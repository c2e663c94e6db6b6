//! From connected links to an agreed, warm ring: describe, agree, ready, each once round the ring.
//!
//! Every rank forwards what came before its own, so rank 0 hears all ranks in order and its own
//! message last of all hops; what comes back proves that the ring is closed. [`Boot`] is that
//! conversation without I/O, on either side.

use std::time::Duration;

use arith::base::Rank;
use wire::control::{Agree, Berths, Describe, Fields, Message, Offer, Ready, Shapes};
use wire::describe::{Digest, Ends};
use wire::frame::{Frame, Kind};
use wire::layout::Layout;
use wire::ring_check::{self, Expected};

use crate::error::RingError;
use crate::offers::Offers;
use crate::step::{Action, Now, Stepped, Want};

/// Bounds of a boot.
#[derive(Clone, Copy, Debug)]
pub struct BootTimes {
    /// For all ranks to describe themselves.
    pub describe: Duration,
    /// For a rank to allocate and warm up, one after another.
    pub ready: Duration,
}

impl Default for BootTimes {
    fn default() -> Self {
        Self { describe: Duration::from_secs(30), ready: Duration::from_secs(300) }
    }
}

/// What rank 0 knows of the model and holds the others to.
#[derive(Clone, Debug)]
pub struct ModelFacts {
    /// Layers of the trunk.
    pub layers: u32,
    /// A digest a layer; empty where rank 0 has only its own.
    pub layer_digests: Vec<Digest>,
    /// The ends' digests.
    pub ends: Option<Ends>,
}

/// What rank 0 expects of the others and asks of them.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Who holds what.
    pub layout: Layout,
    /// What the ranks' tensors are held against.
    pub model: ModelFacts,
    /// Rank 0's wishes; the ring agrees on the minimum over ranks.
    pub shapes: Shapes,
    /// Rounds in flight.
    pub depth: u32,
    /// Whether ranks may compute functions of their own.
    pub mixed: bool,
}

impl Terms {
    fn expected<'a>(&'a self, own: &'a Describe) -> Expected<'a> {
        Expected {
            layout: &self.layout,
            layers: self.model.layers,
            engine: &own.engine,
            arith: own.arith,
            mixed: self.mixed,
            hidden: own.hidden,
            planes: own.planes,
            row_dtype: own.row_dtype,
            kv: own.kv,
            context_min: self.shapes.context_max,
            streams_min: self.shapes.streams_max,
            layer_digests: &self.model.layer_digests,
            ends: self.model.ends,
        }
    }
}

#[derive(Clone, Debug)]
enum Stage {
    /// The description of this rank is next.
    Descriptions(Rank),
    /// Rank 0's word, on its first trip.
    Agreement,
    /// This rank's stage makes room.
    Preparing(Agree),
    /// Rank 0: its own word, which has been everywhere.
    Echo(Agree),
    /// The readiness of this rank is next.
    Readiness(Rank, Agree),
    Done(Agree),
}

/// One rank's boot.
#[derive(Debug)]
pub struct Boot {
    own: Describe,
    /// Rank 0's.
    terms: Option<Terms>,
    times: BootTimes,
    /// Rank 0: what came.
    ranks: Vec<Describe>,
    stage: Stage,
    /// By what the rank before finds this one's berths.
    offer: Option<Offer>,
    /// Those of the others.
    passing: Offers,
    /// When the frame that is owed is late, once somebody waits for it.
    until: Option<Now>,
}

fn decode(from: Rank, payload: &[u8]) -> Result<Message, RingError> {
    Message::decode(payload).map_err(|error| RingError::Wire { from, error })
}

fn send(message: &Message) -> Result<Action, RingError> {
    Ok(Action::Send(Frame::control(message.encode()?)))
}

impl Boot {
    /// Rank 0's, with `terms`, or any other rank's; and what goes out first.
    ///
    /// # Errors
    /// A description of its own that can't be sent.
    pub fn new(
        own: Describe,
        terms: Option<Terms>,
        times: BootTimes,
    ) -> Result<(Self, Vec<Action>), RingError> {
        let first = match terms {
            Some(_) => vec![send(&Message::Describe(own.clone()))?],
            None => Vec::new(),
        };
        let (ranks, stage) = (Vec::new(), Stage::Descriptions(Rank(0)));
        let passing = Offers::new(own.rank, own.world);
        Ok((Self { own, terms, times, ranks, stage, offer: None, passing, until: None }, first))
    }

    /// A frame, or room for the agreed shapes in stage and link, before [`Boot::prepared`].
    pub fn want(&mut self, now: Now) -> Want {
        if let Stage::Preparing(agree) = &self.stage {
            return Want::Prepare(agree.clone());
        }
        let patience = self.due().2;
        Want::Sleep(Some(*self.until.get_or_insert(now + patience)))
    }

    /// What was agreed, once all ranks before this one are ready.
    pub fn agreed(&self) -> Option<&Agree> {
        match &self.stage {
            Stage::Done(agree) => Some(agree),
            _ => None,
        }
    }

    /// Takes a frame of the rank before; cancels are passed over.
    ///
    /// # Errors
    /// The first refusal, by name and rank; a frame out of turn.
    pub fn frame(&mut self, frame: Frame) -> Stepped {
        if frame.kind == Kind::Cancel {
            return Ok(Vec::new());
        }
        let (owing, what, _) = self.due();
        if frame.kind != Kind::Control {
            return Err(RingError::OutOfTurn {
                expected: format!("{what} of rank {owing}"),
                found: format!("{:?}", frame.kind),
            });
        }
        let message = decode(owing, &frame.payload)?;
        if matches!((&self.stage, &message), (Stage::Readiness(..), Message::Berths(_))) {
            // Whoever is owed waits no longer for it.
            return self.passing.pass(message, frame);
        }
        self.until = None;
        match (&self.stage, message) {
            (Stage::Descriptions(rank), Message::Describe(describe)) => {
                self.described(*rank, describe, frame)
            }
            (Stage::Agreement, Message::Agree(agree)) => {
                self.stage = Stage::Preparing(agree);
                Ok(vec![Action::Send(frame)])
            }
            (Stage::Echo(agree), Message::Agree(echo)) if echo == *agree => {
                self.stage = Stage::Readiness(Rank(0), echo);
                Ok(vec![send(&Message::Ready(Ready { rank: Rank(0) }))?])
            }
            (Stage::Readiness(rank, agree), Message::Ready(ready)) if ready.rank == *rank => {
                let (next, agree) = (Rank(rank.0 + 1), agree.clone());
                self.stage = Stage::Readiness(next, agree);
                let mut actions = match self.terms {
                    Some(_) => Vec::new(),
                    None => vec![Action::Send(frame)],
                };
                actions.extend(self.all_ready()?);
                Ok(actions)
            }
            (_, other) => Err(RingError::OutOfTurn {
                expected: format!("{what} of rank {owing}"),
                found: other.name().into(),
            }),
        }
    }

    /// Rank 0: what the ranks said of themselves, by rank.
    pub fn ranks(&self) -> &[Describe] {
        &self.ranks
    }

    /// The frame that is owed has not come in time.
    pub fn late(&self) -> RingError {
        let (rank, what, waited) = self.due();
        RingError::BootTimeout { rank, what, waited }
    }

    /// Whether the rank before is told of berths.
    pub(crate) fn offers(&self) -> bool {
        self.offer.is_some()
    }

    /// Berths of other ranks, of which some have passed.
    pub(crate) fn passing(&self) -> Offers {
        self.passing
    }

    /// The stage and the link have room for what was agreed; so has the device, where it offers.
    pub fn prepared(&mut self, offer: Option<Offer>) {
        self.offer = offer;
        if let Stage::Preparing(agree) = &self.stage {
            let agree = agree.clone();
            self.stage = match self.terms {
                Some(_) => Stage::Echo(agree),
                None => Stage::Readiness(Rank(0), agree),
            };
        }
    }

    /// Who owes what, and how long it may take.
    fn due(&self) -> (Rank, &'static str, Duration) {
        let BootTimes { describe, ready } = self.times;
        match &self.stage {
            Stage::Descriptions(rank) => (*rank, "description", describe),
            Stage::Readiness(rank, _) => (*rank, "readiness", ready),
            Stage::Echo(_) => (Rank(self.own.world - 1), "agreement", ready),
            _ => (Rank(0), "agreement", describe),
        }
    }

    fn described(&mut self, rank: Rank, describe: Describe, frame: Frame) -> Stepped {
        let next = Rank(rank.0 + 1);
        self.stage = Stage::Descriptions(next);
        let Some(terms) = &self.terms else {
            let mut actions = vec![Action::Send(frame)];
            if next == self.own.rank {
                actions.push(send(&Message::Describe(self.own.clone()))?);
                self.stage = Stage::Agreement;
            }
            return Ok(actions);
        };
        self.ranks.push(describe);
        if next.0 < self.own.world {
            return Ok(Vec::new());
        }
        ring_check::check_ring(&self.ranks, &terms.expected(&self.own))?;
        let agree = Agree::of(&self.ranks, terms.shapes, terms.depth, Fields::new())?;
        self.stage = Stage::Preparing(agree.clone());
        Ok(vec![send(&Message::Agree(agree))?])
    }

    /// Done once every rank before this one is ready; for rank 0 that is every rank.
    fn all_ready(&mut self) -> Stepped {
        let Stage::Readiness(rank, agree) = &self.stage else { return Ok(Vec::new()) };
        let last = if self.terms.is_some() { self.own.world } else { self.own.rank.0 };
        if rank.0 < last {
            return Ok(Vec::new());
        }
        self.stage = Stage::Done(agree.clone());
        let rank = self.own.rank;
        let mut actions = Vec::new();
        if self.terms.is_none() {
            // Before its readiness, so that they have come round before any plan does.
            if let Some(offer) = self.offer {
                actions.push(send(&Message::Berths(Berths { rank, offer }))?);
            }
            actions.push(send(&Message::Ready(Ready { rank }))?);
        }
        Ok(actions)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use arith::attention::KvDtype;
    use wire::describe::RowDtype;

    use super::*;

    /// Rank 1 of 3, about to hear that rank 0 is ready.
    fn boot() -> Boot {
        let shapes = Shapes {
            chunk_rows_max: 8,
            round_rows_max: 8,
            streams_max: 1,
            context_max: 64,
            pages: 1,
        };
        let own = |rank| Describe {
            rank: Rank(rank),
            world: 3,
            engine: String::new(),
            backend: String::new(),
            arith: 1,
            device: String::new(),
            layers: vec![[0; 32]],
            range: rank..rank + 1,
            hidden: 2,
            planes: 1,
            row_dtype: RowDtype::F32,
            kv: KvDtype::F16,
            shapes,
            states: 1,
            taps: Vec::new(),
            drafter_width: 0,
            ends: None,
            layer_us: None,
        };
        let (mut boot, _) = Boot::new(own(1), None, BootTimes::default()).unwrap();
        let agree = Agree { shapes, depth: 2, settings: Fields::new() };
        for message in [Message::Describe(own(0)), Message::Agree(agree)] {
            boot.frame(Frame::control(message.encode().unwrap())).unwrap();
        }
        boot.prepared(None);
        boot
    }

    #[test]
    fn berths_that_pass_give_nobody_more_time() {
        let mut boot = boot();
        let due = boot.want(Duration::from_secs(1));
        let berths = Message::Berths(Berths { rank: Rank(2), offer: [7; 128] });
        let frame = Frame::control(berths.encode().unwrap());
        let reach = [Action::Reach(Box::new([7; 128]))];
        assert_eq!(boot.frame(frame.clone()).unwrap(), reach);
        assert_eq!(boot.want(Duration::from_secs(99)), due);
        assert!(boot.frame(frame).is_err(), "a second time");
        let ready = Message::Ready(Ready { rank: Rank(0) });
        boot.frame(Frame::control(ready.encode().unwrap())).unwrap();
        let frame = Frame::control(berths.encode().unwrap());
        assert!(boot.passing().take(frame).is_err(), "a second time after the boot");
    }
}
