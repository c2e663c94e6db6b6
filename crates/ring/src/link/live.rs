//! One epoch's links over sockets, shared by the compute side and the link tasks.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arith::base::{Rank, Round};
use tokio::sync::watch;
use wire::beat::Beat;
use wire::frame::{Frame, Writer};
use wire::tally::Tally;

use super::bell::Bell;
use super::queue::{Full, Queue};
use super::relay::Place;
use super::spare::Spare;
use super::{INBOUND_FRAMES_MAX, Inbound, LinkError, Waker};
use crate::inbox::Post;
use crate::tally::resident_bytes;

/// How far an epoch's links are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// In use.
    Open,
    /// This end closes: what is queued is still written.
    Closing,
    /// Over: the tasks end.
    Ended,
}

/// Both links of an epoch.
pub(crate) struct Live {
    pub(crate) place: Place,
    pub(crate) queue: Queue,
    pub(crate) spare: Spare,
    pub(crate) inbox: Post,
    send_timeout: Duration,
    phase: watch::Sender<Phase>,
    failure: Mutex<Option<LinkError>>,
    beat: Mutex<Option<Beat>>,
    round: AtomicU64,
    done: AtomicU64,
    computed_us: AtomicU64,
    sent_bytes: AtomicU64,
    /// Rounds that the last tally of this rank counted.
    told: AtomicU64,
    /// At rank 0 the newest of each rank.
    tallies: Mutex<BTreeMap<Rank, Tally>>,
    rows_bytes_max: AtomicUsize,
}

impl Live {
    pub(crate) fn new(
        place: Place,
        bell: Option<Arc<Bell>>,
        send_timeout: Duration,
    ) -> (Self, Receiver<Inbound>) {
        let (items, inbound) = sync_channel(INBOUND_FRAMES_MAX);
        let live = Self {
            place,
            queue: Queue::default(),
            spare: Spare::default(),
            inbox: Post::new(items, bell),
            send_timeout,
            phase: watch::Sender::new(Phase::Open),
            failure: Mutex::default(),
            beat: Mutex::default(),
            round: AtomicU64::new(0),
            done: AtomicU64::new(0),
            computed_us: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            told: AtomicU64::new(0),
            tallies: Mutex::default(),
            rows_bytes_max: AtomicUsize::new(0),
        };
        (live, inbound)
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker::new(self.inbox.clone())
    }

    /// Has the I/O side send a frame to the rank after.
    pub(crate) fn send(&self, frame: Frame) -> Result<(), LinkError> {
        self.queue(frame)?;
        self.queue.ready.notify_one();
        Ok(())
    }

    /// Queues a frame for whoever writes next.
    pub(crate) fn queue(&self, frame: Frame) -> Result<(), LinkError> {
        let bytes = frame.payload_bytes();
        let writer = Writer::new(frame)?;
        self.queue.push(writer, bytes, self.send_timeout).map_err(|full| match full {
            Full::Closed => self.cause(),
            Full::Deadline => LinkError::QueueFull {
                rank: self.place.next(),
                waited_ms: self.send_timeout.as_millis() as u64,
            },
        })
    }

    /// Ends the epoch: both links close, and the compute side hears the first error.
    pub(crate) fn fail(&self, error: LinkError) {
        self.suspect(error);
        self.queue.close();
        if self.raise(Phase::Ended) == Phase::Open {
            self.tell();
        }
    }

    /// Notes an error that will end the epoch, so that its consequences do not hide it.
    pub(crate) fn suspect(&self, error: LinkError) {
        locked(&self.failure).get_or_insert(error);
    }

    /// This end wants no more: what is queued goes out, then the links close.
    pub(crate) fn close(&self) {
        self.suspect(LinkError::Closed);
        self.queue.close();
        if self.raise(Phase::Closing) == Phase::Open {
            self.tell();
        }
    }

    pub(crate) fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    pub(crate) fn is(&self, phase: Phase) -> bool {
        *self.phase.borrow() == phase
    }

    /// Why the epoch is over, once it is.
    pub(crate) fn failure(&self) -> Option<LinkError> {
        if self.is(Phase::Open) { None } else { locked(&self.failure).clone() }
    }

    pub(crate) fn set_progress(&self, round: Round, done: u64) {
        self.round.store(round.0, Ordering::Relaxed);
        self.done.store(done, Ordering::Relaxed);
    }

    /// This rank's beat now.
    pub(crate) fn own_beat(&self) -> Beat {
        Beat {
            rank: self.place.rank,
            epoch: self.place.epoch,
            round: Round(self.round.load(Ordering::Relaxed)),
            done: self.done.load(Ordering::Relaxed),
        }
    }

    /// The device computed for so long.
    pub(crate) fn computed(&self, time: Duration) {
        self.computed_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    /// So many bytes went to the rank after.
    pub(crate) fn wrote(&self, bytes: usize) {
        self.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Whether rounds were done since this rank's last tally.
    pub(crate) fn has_news(&self) -> bool {
        self.done.load(Ordering::Relaxed) != self.told.load(Ordering::Relaxed)
    }

    /// This rank's tally now.
    pub(crate) fn own_tally(&self, link_us: u32) -> Tally {
        let done = self.done.load(Ordering::Relaxed);
        self.told.store(done, Ordering::Relaxed);
        Tally {
            origin: self.place.rank,
            link_us,
            epoch: self.place.epoch,
            done,
            computed_us: self.computed_us.load(Ordering::Relaxed),
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            memory_bytes: resident_bytes(),
        }
    }

    /// Keeps a tally for rank 0's compute side, which shows it with its own next facts.
    pub(crate) fn keep(&self, tally: Tally) {
        locked(&self.tallies).insert(tally.origin, tally);
        self.waker().wake();
    }

    /// The newest tally of each rank that sent one, by rank.
    pub(crate) fn tallies(&self) -> Vec<Tally> {
        locked(&self.tallies).values().copied().collect()
    }

    pub(crate) fn hear(&self, beat: Beat) {
        *locked(&self.beat) = Some(beat);
    }

    pub(crate) fn last_beat(&self) -> Option<Beat> {
        *locked(&self.beat)
    }

    pub(crate) fn set_rows_bytes_max(&self, rows_bytes_max: usize) {
        self.rows_bytes_max.store(rows_bytes_max, Ordering::Release);
    }

    pub(crate) fn rows_bytes_max(&self) -> usize {
        self.rows_bytes_max.load(Ordering::Acquire)
    }

    /// Why the epoch ends, or will: known before the queue closes and the phase is raised.
    fn cause(&self) -> LinkError {
        locked(&self.failure).clone().unwrap_or(LinkError::Closed)
    }

    /// Raises the phase; what it was.
    fn raise(&self, to: Phase) -> Phase {
        let mut was = to;
        self.phase.send_if_modified(|phase| {
            was = *phase;
            *phase = was.max(to);
            *phase != was
        });
        was
    }

    fn tell(&self) {
        let full = self.inbox.post(Inbound::Broken(self.cause()));
        if let Err(TrySendError::Full(broken)) = full {
            // Rare, and neither the caller's nor the I/O thread's time to spend.
            let inbox = self.inbox.clone();
            std::thread::spawn(move || inbox.wait_to_post(broken));
        }
    }
}

/// Waits until the phase is at least `to`.
pub(crate) async fn until(phase: &mut watch::Receiver<Phase>, to: Phase) {
    // An error means that the links are dropped altogether, which is past every phase.
    let _ = phase.wait_for(|phase| *phase >= to).await;
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("place", &self.place).finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is inside is replaced as a whole, so a panic elsewhere leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use arith::base::Epoch;

    use super::*;

    #[test]
    fn a_send_between_the_queue_s_end_and_the_epoch_s_tells_why_it_ends() {
        let place = Place { rank: Rank(0), world: 2, epoch: Epoch(1) };
        let (live, _inbound) = Live::new(place, None, Duration::ZERO);
        let stalled = LinkError::SendStalled { rank: Rank(1), waited_ms: 500 };
        live.suspect(stalled.clone());
        live.queue.close();
        let refused = live.send(Frame::beat(&live.own_beat()));
        assert_eq!((refused, live.is(Phase::Open)), (Err(stalled), true));
    }
}
