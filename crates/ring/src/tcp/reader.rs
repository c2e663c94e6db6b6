//! The I/O side of a link's receiving end: reads while the compute side has other things to do,
//! and ends the epoch when the rank before is silent or gone.

use std::sync::Arc;
use std::time::Duration;

use arith::base::Rank;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until};
use wire::frame::Frame;
use wire::stop::Stop;

use super::inlet::{Inlet, Took};
use super::switch::Switch;
use crate::link::LinkError;
use crate::link::live::{Live, Phase, until};

/// Pause while the compute side's inbox is full.
const FULL_PAUSE: Duration = Duration::from_millis(5);

pub(super) struct Reader {
    inlet: Arc<Inlet>,
    live: Arc<Live>,
    phase: watch::Receiver<Phase>,
    from: Rank,
    silent: Duration,
}

impl Reader {
    pub(super) fn new(inlet: Arc<Inlet>, live: Arc<Live>, silent: Duration) -> Self {
        Self { inlet, phase: live.phase(), from: live.place.previous(), live, silent }
    }

    /// Reads until the link ends, then ends the epoch.
    pub(super) async fn run(mut self) {
        let error = match self.serve().await {
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

    async fn serve(&mut self) -> Result<std::convert::Infallible, LinkError> {
        let watched = self.inlet.switch().watch().map_err(|error| self.closed(&error))?;
        loop {
            match self.inlet.take()? {
                // More may wait; the link's other tasks come first.
                Took::Bytes => tokio::task::yield_now().await,
                Took::Nothing => self.wait(&watched).await?,
                Took::Full => {
                    tokio::select! {
                        () = until(&mut self.phase, Phase::Ended) => return Err(LinkError::Closed),
                        () = sleep(FULL_PAUSE) => {}
                    }
                }
            }
        }
    }

    /// Waits for bytes that this side is to read.
    async fn wait(&mut self, watched: &AsyncFd<Arc<Switch>>) -> Result<(), LinkError> {
        // The compute side may have heard something since this was asked for.
        let silent_at = self.inlet.heard() + self.silent;
        tokio::select! {
            biased;
            () = until(&mut self.phase, Phase::Ended) => Err(LinkError::Closed),
            () = self.inlet.over.notified() => Ok(()),
            ready = watched.readable() => {
                ready.map_err(|error| self.closed(&error))?.clear_ready();
                watched.get_ref().forget();
                Ok(())
            }
            () = sleep_until(silent_at.into()) => {
                let is_empty = self.inlet.take()? == Took::Nothing;
                if is_empty && self.inlet.heard() + self.silent <= silent_at {
                    let silent_ms = self.silent.as_millis() as u64;
                    return Err(LinkError::RingSilent { rank: self.from, silent_ms });
                }
                Ok(())
            }
        }
    }

    fn closed(&self, error: &std::io::Error) -> LinkError {
        LinkError::LinkClosed { rank: self.from, reason: error.to_string() }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Also when the task panics: the compute side must never wait for a link without a task.
        self.live.fail(LinkError::Closed);
        self.inlet.close();
    }
}
