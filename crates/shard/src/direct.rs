//! Exchanges between members' devices, where all members have a way: cards that see each other's
//! memory, or a library, NCCL say.
//!
//! Who may take part is proved on the group's links: over them members offer by what others find
//! them, anew in each epoch, and all say whether they did. Where one did not, all of them stay with
//! links and memory. Links and their beats stay: they say that a member is lost, and then devices
//! are told to wait for nobody any more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use stage::{Exchange, ExchangeError, Member};

use crate::Seat;
use crate::epoch::Epoch;

/// Bytes of an offer.
pub const OFFER_BYTES: usize = 128;
/// By which a member's device is found in one epoch.
pub type Offer = [u8; OFFER_BYTES];
/// Ends all that a device waits for of others, in the epoch that it was made in; called again and
/// again, from any thread.
pub type Stopper = Box<dyn Fn() + Send + Sync>;
/// How long the ends may take to find each other.
const CONNECT_MS_MAX: u64 = 30_000;
/// How often a device is looked after.
const LOOK: Duration = Duration::from_millis(50);

/// One member's way between devices. What it gives up on or refuses it says in words.
pub trait Carrier: Send {
    /// By what others find this one in a new epoch of so many members; forgets those of an earlier.
    ///
    /// # Errors
    /// What the library says.
    fn offer(&mut self, members: usize) -> Result<Offer, String>;
    /// Finds the others. Gives up soon after `over` says so.
    ///
    /// # Errors
    /// What the library says, or that it was told to give up.
    fn connect(
        &mut self,
        offers: &[Offer],
        member: Member,
        over: &dyn Fn() -> bool,
    ) -> Result<(), String>;
    /// What ends this epoch's waits.
    fn stopper(&self) -> Stopper;
    /// What went wrong since the others were found.
    fn trouble(&self) -> Option<String>;
    /// Ends what still runs, and forgets the others.
    fn leave(&mut self);
}

/// Why a member has no way between devices; none where it was asked for none.
pub type Without = Option<String>;

/// A member's place in the exchanges of its group, between devices where all members have met.
pub struct Direct {
    seat: Seat,
    carrier: Result<Box<dyn Carrier>, Without>,
    /// The epoch that was asked, and who looks after the device if all members have met in it.
    asked: Option<(Arc<Epoch>, Option<Keeper>)>,
    /// Exchanges between devices so far.
    passed: u64,
}

impl std::fmt::Debug for Direct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Direct").field("seat", &self.seat).finish_non_exhaustive()
    }
}

impl Direct {
    /// Over `seat` until all members have met by `carrier`, and where they can't.
    pub fn new(seat: Seat, carrier: Result<Box<dyn Carrier>, Without>) -> Self {
        Self { seat, carrier, asked: None, passed: 0 }
    }

    /// Who looks after the device, if all members have met in this epoch; asks them where it is
    /// new.
    fn keeper(&mut self) -> Result<Option<&Keeper>, ExchangeError> {
        let epoch = self.seat.group().live()?;
        if !matches!(&self.asked, Some((asked, _)) if Arc::ptr_eq(asked, &epoch)) {
            self.asked = None;
            let met = self.meet(&epoch)?;
            let keeper = match &mut self.carrier {
                Ok(carrier) if met => Some(Keeper::start(&epoch, carrier.stopper())),
                Ok(carrier) => {
                    carrier.leave();
                    None
                }
                Err(_) => None,
            };
            self.asked = Some((epoch, keeper));
        }
        Ok(self.asked.as_ref().and_then(|(_, keeper)| keeper.as_ref()))
    }

    /// Whether all members have a carrier, and those have found each other.
    fn meet(&mut self, epoch: &Epoch) -> Result<bool, ExchangeError> {
        let member = self.seat.member();
        let offered = match &mut self.carrier {
            Ok(carrier) => carrier.offer(member.count).map_err(Some),
            Err(reason) => Err(reason.clone()),
        };
        let mut own = vec![f32::from(u8::from(offered.is_ok()))];
        // As integers: whatever their bits, they arrive.
        own.extend(offered.as_ref().unwrap_or(&[0; OFFER_BYTES]).map(f32::from));
        let mut all = Vec::new();
        self.seat.gather(&own, &vec![1 + OFFER_BYTES; member.count], &mut all)?;
        let said: Vec<&[f32]> = all.chunks_exact(1 + OFFER_BYTES).collect();
        if let Some(without) = said.iter().position(|said| said[0] != 1.0) {
            tell(member, without, offered.err().flatten());
            return Ok(false);
        }
        let offer = |said: &&[f32]| std::array::from_fn(|i| said[1 + i] as u8);
        let offers: Vec<Offer> = said.iter().map(offer).collect();
        let until = Instant::now() + Duration::from_millis(CONNECT_MS_MAX);
        let over = || epoch.lost().is_some() || Instant::now() > until;
        let connected = match &mut self.carrier {
            Ok(carrier) => carrier.connect(&offers, member, &over),
            Err(_) => unreachable!("it offered something"),
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
}

/// Says once a member and epoch why exchanges stay with links: its own reason, or whose it is.
fn tell(member: Member, without: usize, reason: Option<String>) {
    match reason {
        Some(reason) => {
            tracing::warn!("{member}: {reason}; TCP and shared memory carry its exchanges");
        }
        None => tracing::debug!("{member}: member {without} has no way between devices"),
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
        self.seat.gather(own, sizes, all)
    }

    fn collect(
        &mut self,
        own: &[f32],
        sizes: &[usize],
        all: &mut Vec<f32>,
    ) -> Result<(), ExchangeError> {
        self.seat.collect(own, sizes, all)
    }

    fn is_direct(&mut self) -> Result<bool, ExchangeError> {
        Ok(self.keeper()?.is_some())
    }

    fn passed(&mut self, given: usize, taken: usize) -> Result<(), ExchangeError> {
        if let Some((epoch, Some(keeper))) = &self.asked {
            self.passed += 1;
            epoch.set_at(self.passed);
            keeper.begin();
        }
        self.seat.group().live()?;
        let counters = &self.seat.group().0.counters;
        counters.direct.fetch_add(1, Ordering::Relaxed);
        counters.count(given, taken);
        Ok(())
    }

    fn settled(&mut self) -> Result<(), ExchangeError> {
        let Some((epoch, Some(keeper))) = &self.asked else { return Ok(()) };
        keeper.end();
        epoch.set_at(0);
        if let Some(lost) = epoch.lost() {
            return Err(lost);
        }
        match self.carrier.as_ref().ok().and_then(|carrier| carrier.trouble()) {
            // Where a member is lost, that is the reason that stays.
            Some(reason) => Err(epoch.fail(self.seat.member().index, reason)),
            None => Ok(()),
        }
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.asked = None;
        if let Ok(carrier) = &mut self.carrier {
            carrier.leave();
        }
    }
}

/// A thread that has a device wait for nobody any more once a member is lost, rests while this one
/// waits for it, or gives nothing for too long: the host waits for the device alone.
struct Keeper(Arc<Kept>);

struct Kept {
    over: AtomicBool,
    /// Since when the device may wait for others.
    since: Mutex<Option<Instant>>,
}

impl Keeper {
    fn start(epoch: &Arc<Epoch>, stop: Stopper) -> Self {
        let kept = Arc::new(Kept { over: AtomicBool::new(false), since: Mutex::new(None) });
        let (epoch, looks) = (epoch.clone(), kept.clone());
        let run = move || looks.run(&epoch, &stop);
        // Without it a device that waits would be waited for without limit.
        let spawned = std::thread::Builder::new().name("baton-keeper".into()).spawn(run);
        spawned.unwrap_or_else(|error| panic!("no thread: {error}"));
        Self(kept)
    }

    fn begin(&self) {
        self.0.set(Some(Instant::now()));
    }

    fn end(&self) {
        self.0.set(None);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Release);
    }
}

impl Kept {
    fn set(&self, since: Option<Instant>) {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    fn run(&self, epoch: &Epoch, stop: &Stopper) {
        while !self.over.load(Ordering::Acquire) {
            if epoch.wait_lost(LOOK) {
                // Again, since a member that still lives may have written after it.
                stop();
                std::thread::sleep(LOOK);
            }
            let since = *self.since.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(waited) = since.map(|since| since.elapsed()) else { continue };
            let ms = waited.as_millis();
            // One that computes may take its time; one that is at no exchange has nothing to give.
            if let Some(from) = epoch.resting().filter(|_| waited > epoch.silent()) {
                let reason = format!("AtRest: it beats, and is at no exchange for {ms} ms");
                let _ = epoch.told(epoch.member.index, from, reason);
            } else if waited > epoch.stalled() {
                let from = epoch.peers().next().unwrap_or(0);
                let reason = format!("Stalled: it beats, and gave and took nothing for {ms} ms");
                let _ = epoch.fail(from, reason);
            }
        }
    }
}
