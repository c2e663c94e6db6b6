//! A ring inside one process: the same ends, without sockets. World 1 is this.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arith::base::{Epoch, Rank};
use wire::frame::{Frame, Kind};
use wire::{Fault, WireError};

use crate::inbox::{Inbox, Post};
use crate::link::relay::{Place, Relay};
use crate::link::{INBOUND_FRAMES_MAX, Inbound, LinkError, Neighbours, Outbound, Port, Waker};

/// How long a send waits for a rank that does not read.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Ring {
    epoch: Epoch,
    ranks: Vec<Seat>,
    /// Who closed the ring, once somebody has.
    closed: Mutex<Option<Rank>>,
}

#[derive(Debug)]
struct Seat {
    inbox: Post,
    rows_bytes_max: AtomicUsize,
}

/// One rank's end.
#[derive(Debug)]
pub(crate) struct End {
    ring: Arc<Ring>,
    rank: Rank,
}

/// The links of all ranks, by rank, in `epoch`.
///
/// # Panics
/// When `world` is 0.
pub fn ring(world: u32, epoch: Epoch) -> Vec<Neighbours> {
    assert!(world > 0, "a ring has at least one rank");
    let (seats, inbounds): (Vec<Seat>, Vec<Receiver<Inbound>>) = (0..world)
        .map(|_| {
            let (items, inbound) = sync_channel(INBOUND_FRAMES_MAX);
            let inbox = Post::new(items, None);
            (Seat { inbox, rows_bytes_max: AtomicUsize::new(0) }, inbound)
        })
        .unzip();
    let ring = Arc::new(Ring { epoch, ranks: seats, closed: Mutex::default() });
    let seat = |(rank, inbound)| {
        let rank = Rank(rank);
        let waker = Waker::new(ring.seat(rank).inbox.clone());
        let end = End { ring: ring.clone(), rank };
        let inbound = Inbox::new(inbound, None);
        Neighbours { epoch, inbound, outbound: Outbound::new(Port::Memory(end)), waker }
    };
    (0..world).zip(inbounds).map(seat).collect()
}

impl End {
    pub(crate) fn send(&self, frame: Frame) -> Result<(), LinkError> {
        let mut to = self.ring.place(self.rank).next();
        loop {
            if let Some(error) = self.failure() {
                return Err(error);
            }
            let place = self.ring.place(to);
            match place.relay(&frame)? {
                Relay::Deliver { onward: true } => self.deliver(to, frame.clone())?,
                Relay::Deliver { onward: false } => return self.deliver(to, frame),
                Relay::Drop | Relay::Beat(_) | Relay::Tally { .. } => return Ok(()),
            }
            to = place.next();
        }
    }

    pub(crate) fn set_rows_bytes_max(&self, rows_bytes_max: usize) {
        self.ring.seat(self.rank).rows_bytes_max.store(rows_bytes_max, Ordering::Release);
    }

    /// Why this rank's links are gone, once they are.
    pub(crate) fn failure(&self) -> Option<LinkError> {
        (*self.ring.closed()).map(|closer| self.ring.error(closer, self.rank))
    }

    pub(crate) fn close(&self) {
        let closer = {
            let mut closed = self.ring.closed();
            if closed.is_some() {
                return;
            }
            *closed.insert(self.rank)
        };
        for (rank, seat) in (0..).map(Rank).zip(&self.ring.ranks) {
            let broken = Inbound::Broken(self.ring.error(closer, rank));
            if let Err(TrySendError::Full(broken)) = seat.inbox.post(broken) {
                let inbox = seat.inbox.clone();
                std::thread::spawn(move || inbox.wait_to_post(broken));
            }
        }
    }

    fn deliver(&self, to: Rank, frame: Frame) -> Result<(), LinkError> {
        let seat = self.ring.seat(to);
        let max = seat.rows_bytes_max.load(Ordering::Acquire);
        if frame.kind == Kind::Rows && frame.payload_bytes() > max {
            let found = frame.payload_bytes();
            let fault = Fault::new("frame.rows_bytes", format!("at most {max}"), found);
            self.close();
            return Err(WireError::TooLarge(fault).at(self.rank).into());
        }
        let until = Instant::now() + SEND_TIMEOUT;
        let mut item = Inbound::Frame(frame);
        loop {
            match seat.inbox.post(item) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(_)) => return Err(self.ring.error(to, self.rank)),
                Err(TrySendError::Full(back)) if Instant::now() < until => item = back,
                Err(TrySendError::Full(_)) => {
                    let waited_ms = SEND_TIMEOUT.as_millis() as u64;
                    return Err(LinkError::QueueFull { rank: to, waited_ms });
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Ring {
    fn seat(&self, rank: Rank) -> &Seat {
        &self.ranks[rank.0 as usize]
    }

    fn place(&self, rank: Rank) -> Place {
        Place { rank, world: self.ranks.len() as u32, epoch: self.epoch }
    }

    fn closed(&self) -> MutexGuard<'_, Option<Rank>> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `rank` hears when `closer` has closed the ring.
    fn error(&self, closer: Rank, rank: Rank) -> LinkError {
        if closer == rank {
            return LinkError::Closed;
        }
        LinkError::LinkClosed { rank: closer, reason: "closed the link".into() }
    }
}
