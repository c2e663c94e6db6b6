//! The life of every rank but 0: waits for rank 0, boots, then computes what the plans say.

use arith::base::{Epoch, Rank, Round};
use wire::control::{Describe, Offer};
use wire::frame::Kind;

use super::{Action, Computed, Event, Follow, Now, Stepped, Want};
use crate::boot::{Boot, BootTimes};
use crate::error::RingError;
use crate::inbox::{self, Wake};
use crate::link::Inbound;
use crate::offers::Offers;

/// A follower over all its epochs.
#[derive(Debug)]
pub struct Following {
    own: Describe,
    times: BootTimes,
    /// Values of a boundary row.
    hidden: usize,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Waiting,
    Boot(Epoch, Box<Boot>),
    Rounds(Box<Rounds>),
}

#[derive(Debug)]
struct Rounds {
    core: Follow,
    passing: Offers,
    /// What the device is to do next.
    work: Option<Action>,
    /// The inbox is empty. All that is there is taken before the device is busy, since a cancel
    /// may spare it rows.
    looked: bool,
}

impl Following {
    /// Before its first epoch.
    pub fn new(own: Describe, times: BootTimes, hidden: usize) -> Self {
        Self { own, times, hidden, phase: Phase::Waiting }
    }

    /// What this rank waits for.
    pub fn want(&mut self, now: Now) -> Want {
        match &mut self.phase {
            Phase::Waiting => Want::Join,
            Phase::Boot(_, boot) => boot.want(now),
            Phase::Rounds(rounds) if !rounds.looked => Want::Inbox,
            Phase::Rounds(rounds) => {
                rounds.looked = false;
                rounds.work.take().map_or(Want::Sleep(None), Want::Compute)
            }
        }
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.own.rank
    }

    /// The round on the device (0 when idle) and the rounds done.
    pub fn progress(&self) -> (Round, u64) {
        match &self.phase {
            Phase::Rounds(rounds) => rounds.core.progress(),
            _ => (Round(0), 0),
        }
    }

    /// Whether it takes rounds.
    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Rounds(_))
    }

    /// Links stand.
    ///
    /// # Errors
    /// A description of its own that can't be sent.
    pub fn joined(&mut self, epoch: Epoch) -> Stepped {
        let (boot, actions) = Boot::new(self.own.clone(), None, self.times)?;
        self.phase = Phase::Boot(epoch, Box::new(boot));
        Ok(actions)
    }

    /// What the inbox held; `None` when it was empty, or when nothing came in time. Pokes mean
    /// nothing here.
    ///
    /// # Errors
    /// What ends the epoch.
    pub fn inbox(&mut self, item: Option<Inbound>) -> Stepped {
        let wake = item.map(inbox::woken).transpose()?;
        match (&mut self.phase, wake) {
            (Phase::Boot(epoch, boot), Some(Wake::Frame(frame))) => {
                let actions = boot.frame(frame)?;
                if let Some(agree) = boot.agreed() {
                    let (rank, world) = (self.own.rank, self.own.world);
                    let core = Follow::new(rank, world, *epoch, self.hidden, agree.depth);
                    let core = core.with_berths(if boot.offers() { agree.depth } else { 0 });
                    let passing = boot.passing();
                    let rounds = Rounds { core, passing, work: None, looked: false };
                    self.phase = Phase::Rounds(Box::new(rounds));
                }
                Ok(actions)
            }
            (Phase::Boot(_, boot), None) => Err(boot.late()),
            // Those of the rank after come round when this rank is ready.
            (Phase::Rounds(rounds), Some(Wake::Frame(frame))) if frame.kind == Kind::Control => {
                rounds.passing.take(frame)
            }
            (Phase::Rounds(rounds), Some(Wake::Frame(frame))) => rounds.step(Event::Frame(frame)),
            (Phase::Rounds(rounds), None) => {
                rounds.looked = true;
                Ok(Vec::new())
            }
            (_, Some(Wake::Poke)) | (Phase::Waiting, _) => Ok(Vec::new()),
        }
    }

    /// Stage and link have room for what was agreed; the device has berths where it offers some, as
    /// many as rounds may be in flight.
    pub fn prepared(&mut self, offer: Option<Offer>) {
        if let Phase::Boot(_, boot) = &mut self.phase {
            boot.prepared(offer);
        }
    }

    /// The device is done.
    ///
    /// # Errors
    /// What ends the epoch.
    pub fn computed(&mut self, computed: Computed) -> Stepped {
        match &mut self.phase {
            Phase::Rounds(rounds) => rounds.step(Event::Computed(computed)),
            _ => Ok(Vec::new()),
        }
    }

    /// The epoch is over. Weights stay loaded, and the rank waits for the next.
    pub fn broke(&mut self, error: &RingError) -> Vec<Action> {
        match std::mem::replace(&mut self.phase, Phase::Waiting) {
            Phase::Waiting => Vec::new(),
            _ => vec![error.tell(self.own.rank), Action::Reset],
        }
    }
}

impl Rounds {
    fn step(&mut self, event: Event) -> Stepped {
        let mut actions = self.core.step(event)?;
        let is_work = |action: &Action| matches!(action, Action::Stage { .. });
        if let Some(at) = actions.iter().position(is_work) {
            assert!(self.work.is_none(), "the device does one thing at a time");
            self.work = Some(actions.remove(at));
        }
        Ok(actions)
    }
}
