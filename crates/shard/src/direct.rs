//! Exchanges that a library carries between members' devices, NCCL say, where all members have it.
//!
//! Who may take part is proved on the group's links: over them the leader gives the others the id
//! by which the library's ends find each other, anew in each epoch, and all say whether they have
//! it. Where one has not, all of them stay with links and memory. Links and their beats stay: they
//! say that a member is lost, and then the library is told to give up.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use stage::{Exchange, ExchangeError, Member};

use crate::Seat;
use crate::epoch::Epoch;
use crate::seat::places;

/// Bytes of an id.
pub const ID_BYTES: usize = 128;
/// By which the ends of one epoch find each other.
pub type Id = [u8; ID_BYTES];
/// How long the ends may take to find each other.
const CONNECT_MS_MAX: u64 = 30_000;

/// One member's end of a library that moves values between devices. What it gives up on or refuses
/// it says in words.
pub trait Carrier: Send {
    /// Draws the id of a new epoch; the leader's alone is asked.
    ///
    /// # Errors
    /// What the library says.
    fn draw(&mut self) -> Result<Id, String>;
    /// Finds the others of an id. Gives up soon after `over` says so.
    ///
    /// # Errors
    /// What the library says, or that it was told to give up.
    fn connect(&mut self, id: &Id, member: Member, over: &dyn Fn() -> bool) -> Result<(), String>;
    /// Gives `own` to each of `to` and takes what each of `takes` gives, of the size of its place.
    /// Gives up soon after `over` says so.
    ///
    /// # Errors
    /// What the library says, or that it was told to give up.
    fn exchange(
        &mut self,
        own: &[f32],
        to: &[usize],
        takes: &mut [(usize, &mut [f32])],
        over: &dyn Fn() -> bool,
    ) -> Result<(), String>;
    /// Ends what still runs, and forgets the others.
    fn abort(&mut self);
}

/// A member's place in the exchanges of its group, over a library where all members have it.
pub struct Direct {
    seat: Seat,
    /// Or why this member has none.
    carrier: Result<Box<dyn Carrier>, String>,
    /// The epoch that was asked, and whether all members have met in it.
    asked: Option<(Arc<Epoch>, bool)>,
}

impl std::fmt::Debug for Direct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Direct").field("seat", &self.seat).finish_non_exhaustive()
    }
}

impl Direct {
    /// Over `seat` until all members have met by `carrier`, and where they can't.
    pub fn new(seat: Seat, carrier: Result<Box<dyn Carrier>, String>) -> Self {
        Self { seat, carrier, asked: None }
    }

    /// Whether all members have met by their carriers in this epoch; asks them where it is new.
    fn has_met(&mut self) -> Result<bool, ExchangeError> {
        let epoch = self.seat.group().live()?;
        match &self.asked {
            Some((asked, met)) if Arc::ptr_eq(asked, &epoch) => return Ok(*met),
            _ => {}
        }
        self.asked = None;
        let met = self.meet(&epoch)?;
        if !met {
            self.abort();
        }
        self.asked = Some((epoch, met));
        Ok(met)
    }

    /// Whether all members have a carrier, and those have found each other.
    fn meet(&mut self, epoch: &Epoch) -> Result<bool, ExchangeError> {
        let member = self.seat.member();
        let drawn = match &mut self.carrier {
            Ok(carrier) if member.index == 0 => {
                carrier.abort();
                carrier.draw()
            }
            Ok(carrier) => {
                carrier.abort();
                Ok([0; ID_BYTES])
            }
            Err(reason) => Err(reason.clone()),
        };
        let mut own = vec![f32::from(u8::from(drawn.is_ok()))];
        if member.index == 0 {
            // As integers: whatever their bits, they arrive.
            own.extend(drawn.as_ref().unwrap_or(&[0; ID_BYTES]).map(f32::from));
        }
        let sizes: Vec<usize> =
            (0..member.count).map(|member| if member == 0 { 1 + ID_BYTES } else { 1 }).collect();
        let mut all = Vec::new();
        self.seat.gather(&own, &sizes, &mut all)?;
        let id: Id = std::array::from_fn(|i| all[1 + i] as u8);
        let said = |member: usize| all[if member == 0 { 0 } else { ID_BYTES + member }] == 1.0;
        if let Some(without) = (0..member.count).find(|&member| !said(member)) {
            tell(member, without, drawn.err());
            return Ok(false);
        }
        let until = Instant::now() + Duration::from_millis(CONNECT_MS_MAX);
        let over = || epoch.lost().is_some() || Instant::now() > until;
        let connected = match &mut self.carrier {
            Ok(carrier) => carrier.connect(&id, member, &over),
            Err(reason) => Err(reason.clone()),
        };
        let own = [f32::from(u8::from(connected.is_ok()))];
        self.seat.gather(&own, &vec![1; member.count], &mut all)?;
        if let Some(without) = all.iter().position(|said| *said != 1.0) {
            tell(member, without, connected.err());
            return Ok(false);
        }
        tracing::info!("{member}: exchanges go between devices");
        Ok(true)
    }

    fn abort(&mut self) {
        if let Ok(carrier) = &mut self.carrier {
            carrier.abort();
        }
    }

    /// As [`Seat`] does, by the carrier.
    fn carry(
        &mut self,
        own: &[f32],
        sizes: &[usize],
        (gives, takes): (fn(usize) -> bool, bool),
        all: &mut Vec<f32>,
    ) -> Result<(), ExchangeError> {
        let member = self.seat.member();
        let epoch = self.seat.group().live()?;
        let to: Vec<usize> = epoch.peers().filter(|&peer| gives(peer) && !own.is_empty()).collect();
        let mut places = places(member, own, (sizes, takes), all);
        places.retain(|(_, place)| !place.is_empty());
        let since = Instant::now();
        let stalled = || since.elapsed() > epoch.stalled();
        let Ok(carrier) = &mut self.carrier else { unreachable!("all members have one") };
        let over = || epoch.lost().is_some() || stalled();
        if let Err(reason) = carrier.exchange(own, &to, &mut places, &over) {
            carrier.abort();
            if stalled() {
                let (from, ms) =
                    (places.first().map(|(from, _)| *from), epoch.stalled().as_millis());
                let reason = format!("Stalled: it beats, and gave and took nothing for {ms} ms");
                let lost = from.or(to.first().copied()).unwrap_or(member.index);
                return Err(epoch.fail(lost, reason));
            }
            // Where a member is lost, that is the reason that stays.
            return Err(epoch.fail(member.index, reason));
        }
        let counters = &self.seat.group().0.counters;
        counters.count(own.len() * to.len(), places.iter().map(|(_, place)| place.len()).sum());
        counters.direct.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Says once a member and epoch why exchanges stay with links: its own reason, or whose it is.
fn tell(member: Member, without: usize, reason: Option<String>) {
    match reason {
        Some(reason) => {
            tracing::warn!("{member}: {reason}; TCP and shared memory carry its exchanges");
        }
        None => tracing::info!("{member}: member {without} has no way between devices"),
    }
}

impl Exchange for Direct {
    fn member(&self) -> Member {
        self.seat.member()
    }

    fn gather(
        &mut self,
        own: &[f32],
        sizes: &[usize],
        all: &mut Vec<f32>,
    ) -> Result<(), ExchangeError> {
        match self.has_met()? {
            true => self.carry(own, sizes, (|_| true, true), all),
            false => self.seat.gather(own, sizes, all),
        }
    }

    fn collect(
        &mut self,
        own: &[f32],
        sizes: &[usize],
        all: &mut Vec<f32>,
    ) -> Result<(), ExchangeError> {
        match self.has_met()? {
            true => {
                let is_first = self.member().index == 0;
                self.carry(own, sizes, (|peer| peer == 0, is_first), all)
            }
            false => self.seat.collect(own, sizes, all),
        }
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.abort();
    }
}
