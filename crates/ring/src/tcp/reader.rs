//! From the socket of the rank before to the compute side.

use std::sync::Arc;
use std::sync::mpsc::TrySendError;
use std::time::Duration;

use arith::base::Rank;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use wire::frame::{self, Frame};
use wire::limit::HEADER_BYTES;
use wire::stop::Stop;

use crate::link::live::{Live, Phase, until};
use crate::link::relay::Relay;
use crate::link::{Inbound, LinkError};
use crate::session::SessionError;
use crate::session::record::{BODY_BYTES_MAX, Opener, first_record};

/// Bytes read ahead: a few whole records.
const BUFFER_BYTES: usize = 256 << 10;
/// Pause while the compute side's inbox is full, which the rounds in flight never make it.
const FULL_PAUSE: Duration = Duration::from_millis(5);

pub(super) struct Reader {
    stream: TcpStream,
    opener: Opener,
    frames: frame::Reader,
    cut: Cut,
    live: Arc<Live>,
    phase: watch::Receiver<Phase>,
    from: Rank,
    silent: Duration,
    buffer: Vec<u8>,
    /// Unread bytes of `buffer`.
    start: usize,
    end: usize,
    /// When the last byte came.
    heard: Instant,
}

impl Reader {
    pub(super) fn new(
        stream: TcpStream,
        opener: Opener,
        live: Arc<Live>,
        silent: Duration,
    ) -> Self {
        Self {
            stream,
            opener,
            frames: frame::Reader::new(),
            cut: Cut::default(),
            phase: live.phase(),
            from: live.place.previous(),
            live,
            silent,
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            heard: Instant::now(),
        }
    }

    /// Reads until the link ends, then ends the epoch.
    pub(super) async fn run(mut self, first: Vec<u8>) {
        let error = match self.serve(&first).await {
            Ok(never) => match never {},
            Err(error) => error,
        };
        if self.live.is(Phase::Open) {
            // Whoever is after this rank can't see what happened before it.
            let place = self.live.place;
            let stop = Stop { origin: place.rank, reason: error.to_string() };
            let _ = self.live.send(Frame::stop(&stop));
        }
        self.live.fail(error);
    }

    async fn serve(&mut self, first: &[u8]) -> Result<std::convert::Infallible, LinkError> {
        let mut frames = Vec::new();
        self.take(first, &mut frames)?;
        self.deliver(&mut frames).await?;
        loop {
            while let Some(record) = first_record(&self.buffer[self.start..self.end]) {
                let at = self.start + 2..self.start + 2 + record.len();
                self.start = at.end;
                let body = self.opener.open(&self.buffer[at]);
                let body = body.map_err(|error| session(self.from, error))?;
                push(&mut self.frames, &mut self.cut, &self.live, self.from, body, &mut frames)?;
                self.deliver(&mut frames).await?;
            }
            self.fill().await?;
        }
    }

    fn take(&mut self, body: &[u8], frames: &mut Vec<Frame>) -> Result<(), LinkError> {
        push(&mut self.frames, &mut self.cut, &self.live, self.from, body, frames)
    }

    /// Reads more bytes behind those that are there.
    async fn fill(&mut self) -> Result<(), LinkError> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        loop {
            match self.stream.try_read(&mut self.buffer[self.end..]) {
                Ok(0) => return Err(closed(self.from, "closed the link")),
                Ok(bytes) => {
                    self.end += bytes;
                    self.heard = Instant::now();
                    if self.end == self.buffer.len() {
                        // More may wait; the link's other tasks come first.
                        tokio::task::yield_now().await;
                    }
                    return Ok(());
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(closed(self.from, &error.to_string())),
            }
            tokio::select! {
                biased;
                () = until(&mut self.phase, Phase::Ended) => return Err(LinkError::Closed),
                ready = self.stream.readable() => {
                    ready.map_err(|error| closed(self.from, &error.to_string()))?;
                }
                () = sleep_until(self.heard + self.silent) => {
                    let silent_ms = self.silent.as_millis() as u64;
                    return Err(LinkError::RingSilent { rank: self.from, silent_ms });
                }
            }
        }
    }

    async fn deliver(&mut self, frames: &mut Vec<Frame>) -> Result<(), LinkError> {
        for frame in frames.drain(..) {
            match self.live.place.relay(&frame)? {
                Relay::Beat(beat) => self.live.hear(beat),
                Relay::Drop => {}
                Relay::Deliver { onward } => {
                    if onward {
                        self.live.send(frame.clone())?;
                    }
                    hand_over(&self.live, &mut self.phase, frame).await?;
                    // A compute side that was slow to read is no silence of the rank before.
                    self.heard = Instant::now();
                }
            }
        }
        Ok(())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Also when the task panics: the compute side must never wait for a link without a task.
        self.live.fail(LinkError::Closed);
    }
}

async fn hand_over(
    live: &Live,
    phase: &mut watch::Receiver<Phase>,
    frame: Frame,
) -> Result<(), LinkError> {
    let mut item = Inbound::Frame(frame);
    loop {
        match live.inbox.try_send(item) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Disconnected(_)) => return Err(LinkError::Closed),
            Err(TrySendError::Full(back)) => item = back,
        }
        tokio::select! {
            () = until(phase, Phase::Ended) => return Err(LinkError::Closed),
            () = sleep(FULL_PAUSE) => {}
        }
    }
}

fn push(
    reader: &mut frame::Reader,
    cut: &mut Cut,
    live: &Live,
    from: Rank,
    body: &[u8],
    frames: &mut Vec<Frame>,
) -> Result<(), LinkError> {
    cut.check(body).map_err(|error| session(from, error))?;
    reader.set_rows_bytes_max(live.rows_bytes_max());
    reader.push(body, frames).map_err(|error| LinkError::Wire(error.at(from)))
}

fn session(rank: Rank, error: SessionError) -> LinkError {
    LinkError::Session { rank, error }
}

fn closed(rank: Rank, reason: &str) -> LinkError {
    LinkError::LinkClosed { rank, reason: reason.into() }
}

/// Holds the other end to its cut: a frame begins and ends with a record, and all its records but
/// the last are full.
#[derive(Default)]
struct Cut {
    /// Bytes of the frame under way that are still to come.
    left: u64,
}

impl Cut {
    fn check(&mut self, body: &[u8]) -> Result<(), SessionError> {
        let bytes = body.len() as u64;
        if self.left == 0 {
            // The header's last field; the frame reader checks the rest.
            let payload = body.get(HEADER_BYTES - 8..HEADER_BYTES).and_then(|b| b.try_into().ok());
            let payload = payload.map(u64::from_le_bytes);
            self.left = (HEADER_BYTES as u64).saturating_add(payload.unwrap_or(0));
        }
        let is_full = body.len() == BODY_BYTES_MAX;
        if bytes > self.left || (bytes < self.left && !is_full) {
            return Err(SessionError::BadCut { bytes: body.len(), left: self.left });
        }
        self.left -= bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(payload: u64) -> Vec<u8> {
        let mut head = vec![0; HEADER_BYTES];
        head[HEADER_BYTES - 8..].copy_from_slice(&payload.to_le_bytes());
        head
    }

    #[test]
    fn a_frame_begins_and_ends_with_a_record() {
        let mut cut = Cut::default();
        assert!(cut.check(&head(0)).is_ok());
        assert!(cut.check(&[head(4), vec![0; 4]].concat()).is_ok());
        let long = (BODY_BYTES_MAX + 5 - HEADER_BYTES) as u64;
        let first = [head(long), vec![0; BODY_BYTES_MAX - HEADER_BYTES]].concat();
        assert!(cut.check(&first).is_ok() && cut.check(&[0; 5]).is_ok());
        assert!(Cut::default().check(&[head(4), vec![0; 5]].concat()).is_err(), "two in a record");
        assert!(Cut::default().check(&[head(4), vec![0; 3]].concat()).is_err(), "a short record");
        assert!(Cut::default().check(&[0; 31]).is_err(), "half a header");
        assert!(Cut::default().check(&head(u64::MAX)).is_err(), "a header alone");
    }
}
