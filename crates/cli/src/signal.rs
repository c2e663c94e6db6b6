//! SIGINT and SIGTERM as a future.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Handlers, from their making on.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Takes both signals over; inside a runtime.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The first that came, by name.
    pub async fn ended(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
