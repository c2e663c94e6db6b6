//! From the compute side to the socket of the rank after, and beats in between.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arith::base::Rank;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use wire::frame::{self, Frame};

use super::config::Times;
use super::connect::Departure;
use crate::link::LinkError;
use crate::link::live::{Live, Phase, until};

/// Frames are gathered up to so many bytes before they are written.
const GATHER_BYTES: usize = 64 << 10;
/// What a link that is over may still take to write what is begun and a last stop.
const GRACE: Duration = Duration::from_millis(300);
/// How long the loss of the rank after waits for word from the rank before, which may know whose
/// loss began it.
const HEARSAY: Duration = Duration::from_millis(250);

pub(super) struct Writer {
    departure: Departure,
    live: Arc<Live>,
    phase: watch::Receiver<Phase>,
    to: Rank,
    times: Times,
    /// Sealed bytes that are not written yet.
    out: Vec<u8>,
    /// When the last frame went out.
    sent: Instant,
}

impl Writer {
    pub(super) fn new(departure: Departure, live: Arc<Live>, times: Times) -> Self {
        Self {
            departure,
            phase: live.phase(),
            to: live.place.next(),
            live,
            times,
            out: Vec::new(),
            sent: Instant::now(),
        }
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
        // The first record proves this rank to the next one.
        self.beat().await?;
        loop {
            while !self.live.is(Phase::Ended)
                && let Some(frame) = self.live.queue.pop()
            {
                self.frame(frame).await?;
            }
            self.flush().await?;
            if self.live.is(Phase::Ended) {
                self.last_words().await?;
                return Ok(());
            }
            if self.live.is(Phase::Closing) {
                return Ok(());
            }
            self.wait().await?;
        }
    }

    /// Waits for something to write; a beat when nothing comes.
    async fn wait(&mut self) -> Result<(), LinkError> {
        let beat_at = self.sent + self.times.beat;
        tokio::select! {
            biased;
            () = self.live.queue.ready.notified() => Ok(()),
            _ = self.phase.changed() => Ok(()),
            ready = self.departure.stream.readable() => {
                ready.map_err(|error| self.closed(&error))?;
                self.listen_back()
            }
            () = sleep_until(beat_at) => self.beat().await,
        }
    }

    async fn beat(&mut self) -> Result<(), LinkError> {
        let beat = self.live.own_beat();
        self.seal(frame::Writer::new(Frame::beat(&beat))?);
        self.flush().await
    }

    fn seal(&mut self, mut frame: frame::Writer) {
        while let Some(part) = frame.next_part() {
            self.departure.sealer.seal(&part.header, part.payload, &mut self.out);
        }
    }

    /// Seals a frame part by part; urgent frames go between the parts.
    async fn frame(&mut self, mut frame: frame::Writer) -> Result<(), LinkError> {
        while let Some(part) = frame.next_part() {
            self.departure.sealer.seal(&part.header, part.payload, &mut self.out);
            if self.out.len() >= GATHER_BYTES {
                self.flush().await?;
            }
            if self.live.is(Phase::Ended) {
                return Ok(());
            }
            while let Some(urgent) = self.live.queue.pop_urgent() {
                self.seal(urgent);
            }
        }
        Ok(())
    }

    /// What is urgent still goes out when the epoch is over.
    async fn last_words(&mut self) -> Result<(), LinkError> {
        while let Some(urgent) = self.live.queue.pop_urgent() {
            self.seal(urgent);
        }
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), LinkError> {
        let mut at = 0;
        let mut progress = Instant::now();
        while at < self.out.len() {
            match self.departure.stream.try_write(&self.out[at..]) {
                Ok(bytes) => {
                    at += bytes;
                    progress = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.writable(progress).await?;
                }
                Err(error) => return Err(self.closed(&error)),
            }
        }
        if at > 0 {
            self.sent = Instant::now();
        }
        self.out.clear();
        Ok(())
    }

    /// Waits until the socket takes bytes.
    async fn writable(&mut self, progress: Instant) -> Result<(), LinkError> {
        let waited_ms = self.times.write.as_millis() as u64;
        let is_over = self.live.is(Phase::Ended);
        let stream = &self.departure.stream;
        tokio::select! {
            biased;
            ready = stream.writable() => ready.map_err(|error| self.closed(&error)),
            ready = stream.readable() => {
                ready.map_err(|error| self.closed(&error))?;
                self.listen_back()
            }
            () = until(&mut self.phase, Phase::Ended), if !is_over => Ok(()),
            () = sleep(GRACE), if is_over => Err(LinkError::Closed),
            () = sleep_until(progress + self.times.write) => {
                Err(LinkError::SendStalled { rank: self.to, waited_ms })
            }
        }
    }

    /// The way back carries nothing but the end.
    fn listen_back(&self) -> Result<(), LinkError> {
        match self.departure.stream.try_read(&mut [0; 1]) {
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
    }
}
