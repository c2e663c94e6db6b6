//! One epoch after another: what arrived, what departed, and who waits for both.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

use arith::base::Epoch;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::Shared;
use super::accept::Arrival;
use super::connect::reach;
use super::inlet::Inlet;
use super::outlet::Outlet;
use super::reader::Reader;
use super::writer::Writer;
use crate::inbox::Inbox;
use crate::link::bell::Bell;
use crate::link::door::Door;
use crate::link::live::{Live, Phase, until};
use crate::link::relay::Place;
use crate::link::{Inbound, LinkError, Neighbours, Outbound, Port};

/// How long a shutdown lets the last frames go out.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// What the supervisor reacts to.
pub(super) enum Happening {
    /// The compute side wants its neighbours.
    Join(Joiner),
    /// The rank before proved itself.
    Arrived(Arrival),
    /// The rank after was reached, or can't be.
    Reached(Epoch, Result<Arc<Outlet>, LinkError>),
    /// An epoch's links are over.
    Ended(Epoch),
    /// No more epochs.
    Shutdown,
}

/// A compute side that waits.
pub(super) struct Joiner {
    /// The new epoch, on rank 0.
    pub(super) epoch: Option<Epoch>,
    pub(super) deadline: Duration,
    pub(super) since: Instant,
    pub(super) answer: SyncSender<Result<Neighbours, LinkError>>,
}

/// The links of the newest epoch.
struct Active {
    live: Arc<Live>,
    /// Until the compute side takes it.
    inbound: Option<Receiver<Inbound>>,
    bell: Option<Arc<Bell>>,
    /// When the rank before proved itself, and its link.
    arrived: Option<(Instant, Arc<Inlet>)>,
    /// The link to the rank after.
    reached: Option<Arc<Outlet>>,
    onward: JoinHandle<()>,
}

pub(super) struct Supervisor {
    shared: Arc<Shared>,
    events: UnboundedReceiver<Happening>,
    active: Option<Active>,
    joiner: Option<Joiner>,
    /// The newest epoch that there was; it never comes again.
    last: Epoch,
}

impl Supervisor {
    pub(super) fn new(shared: Arc<Shared>, events: UnboundedReceiver<Happening>) -> Self {
        Self { shared, events, active: None, joiner: None, last: Epoch(0) }
    }

    /// Until shutdown.
    pub(super) async fn run(mut self) {
        loop {
            let deadline = self.deadline();
            let at = deadline.unwrap_or_else(Instant::now);
            let happening = tokio::select! {
                happening = self.events.recv() => happening,
                () = sleep_until(at), if deadline.is_some() => {
                    self.give_up();
                    continue;
                }
            };
            match happening {
                Some(Happening::Join(joiner)) => self.join(joiner),
                Some(Happening::Arrived(arrival)) => self.arrived(arrival),
                Some(Happening::Reached(epoch, result)) => self.reached(epoch, result),
                Some(Happening::Ended(epoch)) => self.ended(epoch),
                Some(Happening::Shutdown) | None => return self.shut_down().await,
            }
            self.finish();
        }
    }

    fn leads(&self) -> bool {
        self.shared.config.rank.0 == 0
    }

    fn join(&mut self, joiner: Joiner) {
        if let Some(epoch) = joiner.epoch {
            self.shared.forget_refusal();
            self.begin(epoch, LinkError::Closed);
        } else if let Some(active) = self.active.take_if(|active| active.inbound.is_none()) {
            active.live.fail(LinkError::Closed);
        }
        self.joiner = Some(joiner);
    }

    /// Starts an epoch; the one before is over, for the reason given.
    fn begin(&mut self, epoch: Epoch, over: LinkError) {
        if let Some(old) = self.active.take() {
            old.live.fail(over);
        }
        self.last = epoch;
        self.shared.begin(epoch);
        let config = &self.shared.config;
        let place = Place { rank: config.rank, world: config.world, epoch };
        // Without one the I/O side reads everything, which only costs wake-ups.
        let bell = Bell::new().ok().map(Arc::new);
        let (live, inbound) = Live::new(place, bell.clone(), config.times.send);
        let live = Arc::new(live);
        let onward = tokio::spawn(onward(self.shared.clone(), live.clone()));
        tokio::spawn(report_end(self.shared.clone(), live.clone()));
        let inbound = Some(inbound);
        self.active = Some(Active { live, inbound, bell, arrived: None, reached: None, onward });
    }

    fn arrived(&mut self, arrival: Arrival) {
        let rank = self.shared.config.rank;
        let epoch = arrival.epoch;
        if !self.leads() {
            if epoch == self.last || epoch == Epoch(0) {
                tracing::debug!("rank {rank}: dropped a second link of epoch {:016x}", epoch.0);
                return;
            }
            let previous = self.shared.previous_rank();
            self.begin(epoch, LinkError::Replaced { rank: previous, epoch });
        }
        let Some(active) = self.active.as_mut().filter(|a| a.live.place.epoch == epoch) else {
            tracing::debug!("rank {rank}: dropped a link of epoch {:016x}", epoch.0);
            return;
        };
        if active.arrived.is_some() || !active.live.is(Phase::Open) {
            return;
        }
        let Arrival { stream, opener, first, .. } = arrival;
        let inlet = stream
            .into_std()
            .and_then(|socket| Inlet::new(socket, opener, active.live.clone(), &first));
        match inlet {
            Ok(inlet) => {
                let inlet = Arc::new(inlet);
                active.arrived = Some((Instant::now(), inlet.clone()));
                let silent = self.shared.config.times.silent;
                tokio::spawn(Reader::new(inlet, active.live.clone(), silent).run());
            }
            Err(error) => {
                let (rank, reason) = (self.shared.previous_rank(), error.to_string());
                active.live.fail(LinkError::LinkClosed { rank, reason });
            }
        }
    }

    fn reached(&mut self, epoch: Epoch, result: Result<Arc<Outlet>, LinkError>) {
        let Some(active) = self.active.as_mut().filter(|a| a.live.place.epoch == epoch) else {
            return;
        };
        match result {
            Ok(outlet) => active.reached = Some(outlet),
            Err(error) => {
                active.live.fail(error.clone());
                // What is handed over hears of it through its inbox.
                if active.inbound.is_some() {
                    self.answer(Err(error));
                }
            }
        }
    }

    fn ended(&mut self, epoch: Epoch) {
        let Some(active) = self.active.take_if(|a| a.live.place.epoch == epoch) else {
            return;
        };
        // A follower waits on for rank 0's next epoch.
        if self.leads() && active.inbound.is_some() {
            let error = active.live.failure().unwrap_or(LinkError::Closed);
            self.answer(Err(self.shared.take_refusal().unwrap_or(error)));
        }
    }

    /// Hands the links over once both stand and somebody waits.
    fn finish(&mut self) {
        if self.joiner.is_none() {
            return;
        }
        let Some(active) = &mut self.active else {
            return;
        };
        let (Some((_, inlet)), Some(outlet)) = (&active.arrived, &active.reached) else {
            return;
        };
        if !active.live.is(Phase::Open) {
            return;
        }
        let Some(items) = active.inbound.take() else {
            return;
        };
        let live = active.live.clone();
        let (epoch, waker) = (live.place.epoch, live.waker());
        let bell = active.bell.clone();
        let door = bell.map(|bell| Door::new(inlet.clone(), bell));
        let inbound = Inbox::new(items, door);
        let outbound = Outbound::new(Port::Tcp(live, outlet.clone()));
        self.answer(Ok(Neighbours { epoch, inbound, outbound, waker }));
    }

    /// When whoever waits has waited long enough. A follower waits without limit for rank 0, and
    /// from then on for the rank after.
    fn deadline(&self) -> Option<Instant> {
        let joiner = self.joiner.as_ref()?;
        if self.leads() {
            return Some(joiner.since + joiner.deadline);
        }
        let (arrived, _) = self.active.as_ref()?.arrived.as_ref()?;
        Some(joiner.since.max(*arrived) + joiner.deadline)
    }

    fn give_up(&mut self) {
        let Some(joiner) = &self.joiner else { return };
        let waited_ms = joiner.deadline.as_millis() as u64;
        let reached = self.active.as_ref().is_some_and(|active| active.reached.is_some());
        let error = if reached {
            let rank = self.shared.previous_rank();
            let absent = LinkError::NoNeighbour { rank, waited_ms };
            self.shared.take_refusal().unwrap_or(absent)
        } else {
            let reason = format!("not reached within {waited_ms} ms");
            let rank = self.shared.next_rank();
            let address = self.shared.next().join(", ");
            let unreachable = LinkError::Unreachable { rank, address, reason };
            self.shared.take_attempt().unwrap_or(unreachable)
        };
        if let Some(active) = self.active.take() {
            active.live.fail(error.clone());
        }
        self.answer(Err(error));
    }

    fn answer(&mut self, result: Result<Neighbours, LinkError>) {
        if let Some(joiner) = self.joiner.take() {
            // A waiter that is gone drops the links, which closes them.
            let _ = joiner.answer.send(result);
        }
    }

    async fn shut_down(mut self) {
        self.answer(Err(LinkError::Closed));
        if let Some(active) = self.active.take() {
            active.live.close();
            let _ = timeout(SHUTDOWN_GRACE, active.onward).await;
            active.live.fail(LinkError::Closed);
        }
    }
}

/// Reaches the rank after and writes to it until the epoch is over.
async fn onward(shared: Arc<Shared>, live: Arc<Live>) {
    let epoch = live.place.epoch;
    let mut phase = live.phase();
    let reached = tokio::select! {
        biased;
        () = until(&mut phase, Phase::Closing) => Err(LinkError::Closed),
        reached = reach(&shared, epoch, |error| shared.note_attempt(error)) => reached,
    };
    match reached {
        Ok(departure) => {
            let outlet = Arc::new(Outlet::new(departure));
            shared.happened(Happening::Reached(epoch, Ok(outlet.clone())));
            Writer::new(outlet, live, shared.config.times).run().await;
        }
        Err(error) => {
            shared.happened(Happening::Reached(epoch, Err(error.clone())));
            live.fail(error);
        }
    }
}

async fn report_end(shared: Arc<Shared>, live: Arc<Live>) {
    until(&mut live.phase(), Phase::Ended).await;
    shared.happened(Happening::Ended(live.place.epoch));
}
