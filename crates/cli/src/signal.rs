//! SIGINT and SIGTERM as a future.

use tokio::signal::unix::{SignalKind, signal};

/// Resolves at the first SIGTERM, or SIGINT where that counts; else SIGINT is ignored.
///
/// # Errors
/// The system refuses a handler.
pub async fn ended(interrupt_counts: bool) -> std::io::Result<&'static str> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    loop {
        tokio::select! {
            _ = interrupt.recv() => if interrupt_counts { return Ok("SIGINT") },
            _ = terminate.recv() => return Ok("SIGTERM"),
        }
    }
}
