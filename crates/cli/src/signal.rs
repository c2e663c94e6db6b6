//! SIGINT, SIGTERM and SIGHUP as futures, and the signal of a closed pipe.

use std::io::IsTerminal;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Handlers, from their making on.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    /// A terminal that closes is an end; elsewhere SIGHUP asks to read settings again.
    at_a_terminal: bool,
}

impl Signals {
    /// Takes the three signals over; inside a runtime.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            at_a_terminal: std::io::stderr().is_terminal(),
        })
    }

    /// The first that came and asks for the end, by name.
    pub async fn ended(&mut self) -> &'static str {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.hang_up.recv() => if self.at_a_terminal {
                    return "SIGHUP";
                },
            }
        }
    }

    /// The next SIGHUP, wherever from.
    pub async fn hung_up(&mut self) {
        self.hang_up.recv().await;
    }
}

/// How long after the first signal another counts as a second one: terminals, `timeout` and service
/// managers may send the same wish to a process and to its group.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// The first signal and the one after it, by name. The second never completes if there is none.
///
/// # Errors
/// As [`Signals::new`].
pub fn twice()
-> std::io::Result<(impl Future<Output = &'static str>, impl Future<Output = &'static str>)> {
    let mut signals = Signals::new()?;
    let (tell, told) = tokio::sync::oneshot::channel();
    let first = async move {
        let name = signals.ended().await;
        let _ = tell.send(());
        name
    };
    let second = async move {
        if told.await.is_ok() {
            tokio::time::sleep(AGAIN_AFTER).await;
            if let Ok(mut signals) = Signals::new() {
                return signals.ended().await;
            }
        }
        std::future::pending().await
    };
    Ok((first, second))
}

/// Lets a command end when the reader of its output has left, as in `baton chat | head`. Not for a
/// server, which outlives whoever reads its log.
pub fn end_with_the_reader() {
    // SAFETY: sets a disposition to its default; no handler of ours runs. Sockets don't raise it:
    // the standard library writes to them with MSG_NOSIGNAL.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}
