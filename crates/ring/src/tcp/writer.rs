//! The I/O side of a link's sending end: writes what the compute side could not, and beats in
//! between.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arith::base::Rank;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use wire::frame::Frame;

use super::config::Times;
use super::outlet::{Outlet, Wrote};
use crate::link::LinkError;
use crate::link::live::{Live, Phase, until};
use crate::tally::{TALLY_EVERY, link_us};

/// What a link that is over may still take to write what is begun and a last stop.
const GRACE: Duration = Duration::from_millis(300);
/// How long the loss of the rank after waits for word from the rank before, which may know whose
/// loss began it.
const HEARSAY: Duration = Duration::from_millis(250);

pub(super) struct Writer {
    outlet: Arc<Outlet>,
    live: Arc<Live>,
    phase: watch::Receiver<Phase>,
    to: Rank,
    times: Times,
    /// When this rank last told what it did.
    told: Instant,
}

impl Writer {
    pub(super) fn new(outlet: Arc<Outlet>, live: Arc<Live>, times: Times) -> Self {
        let (phase, to, told) = (live.phase(), live.place.next(), Instant::now());
        Self { outlet, phase, to, live, times, told }
    }

    /// Writes until the link ends, then ends the epoch.
    pub(super) async fn run(mut self) {
        let error = match self.serve().await {
            Ok(()) => LinkError::Closed,
            Err(error) => error,
        };
        if matches!(error, LinkError::LinkClosed { .. }) && self.live.is(Phase::Open) {
            self.live.suspect(error.clone());
            let _ = timeout(HEARSAY, until(&mut self.phase, Phase::Ended)).await;
        }
        self.live.fail(error);
    }

    async fn serve(&mut self) -> Result<(), LinkError> {
        let stream = self.outlet.stream().ok_or(LinkError::Closed)?;
        // The first record proves this rank to the next one.
        self.outlet.beat(&self.live)?;
        loop {
            // Before the write, so that what is queued by then still goes out.
            let phase = *self.phase.borrow_and_update();
            match self.outlet.write(&self.live).map_err(|error| self.closed(&error))? {
                Wrote::Blocked(progress) => self.writable(&stream, progress).await?,
                Wrote::All(_) if phase != Phase::Open => return Ok(()),
                Wrote::All(sent) => self.wait(&stream, sent).await?,
            }
        }
    }

    /// Waits for something to write; a beat when nothing went out for long.
    async fn wait(&mut self, stream: &TcpStream, sent: Instant) -> Result<(), LinkError> {
        tokio::select! {
            biased;
            () = self.live.queue.ready.notified() => Ok(()),
            _ = self.phase.changed() => Ok(()),
            ready = stream.readable() => {
                ready.map_err(|error| self.closed(&error))?;
                self.listen_back(stream)
            }
            () = sleep_until(self.told + TALLY_EVERY), if self.live.has_news() => {
                self.tell(stream);
                Ok(())
            }
            () = sleep_until(sent + self.times.beat) => {
                // The compute side may have sent something since.
                if self.outlet.sent() == sent { Ok(self.outlet.beat(&self.live)?) } else { Ok(()) }
            }
        }
    }

    /// Says what this rank did. The compute side writes rounds without a word, so that this side
    /// may come to it with the next beat only.
    fn tell(&mut self, stream: &TcpStream) {
        self.told = Instant::now();
        let tally = self.live.own_tally(link_us(stream));
        if self.live.place.rank == Rank(0) {
            self.live.keep(tally);
        } else {
            // A queue that is closed says so by itself.
            let _ = self.live.send(Frame::tally(&tally));
        }
    }

    /// Waits until the socket takes bytes.
    async fn writable(&mut self, stream: &TcpStream, progress: Instant) -> Result<(), LinkError> {
        let waited_ms = self.times.write.as_millis() as u64;
        let is_over = self.live.is(Phase::Ended);
        tokio::select! {
            biased;
            ready = stream.writable() => ready.map_err(|error| self.closed(&error)),
            ready = stream.readable() => {
                ready.map_err(|error| self.closed(&error))?;
                self.listen_back(stream)
            }
            () = until(&mut self.phase, Phase::Ended), if !is_over => Ok(()),
            () = sleep(GRACE), if is_over => Err(LinkError::Closed),
            () = sleep_until(progress + self.times.write) => {
                Err(LinkError::SendStalled { rank: self.to, waited_ms })
            }
        }
    }

    /// The way back carries nothing but the end.
    fn listen_back(&self, stream: &TcpStream) -> Result<(), LinkError> {
        match stream.try_read(&mut [0; 1]) {
            Ok(0) => {
                let reason = "closed the link".into();
                Err(LinkError::LinkClosed { rank: self.to, reason })
            }
            Ok(_) => Err(LinkError::UnaskedBytes { rank: self.to }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(self.closed(&error)),
        }
    }

    fn closed(&self, error: &io::Error) -> LinkError {
        LinkError::LinkClosed { rank: self.to, reason: error.to_string() }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Also when the task panics: the compute side must never wait for a link without a task.
        self.live.fail(LinkError::Closed);
        self.outlet.close();
    }
}
