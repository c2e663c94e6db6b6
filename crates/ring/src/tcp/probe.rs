//! Asks at a rank's door whether this rank would be let in, without becoming its neighbour.
//!
//! A probe is the hello of a connector with epoch 0, which no ring has. The answer is that to any
//! other hello; then both ends hang up, so that a ring that serves stays as it is.

use std::net::TcpStream;

use arith::base::Epoch;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::timeout;

use super::connect::{Failed, shake};
use super::{Shared, TcpConfig};
use crate::link::LinkError;

/// The epoch of a hello that only asks.
pub(super) const PROBE: Epoch = Epoch(0);

/// Says `config`'s hello to the rank after on a fresh connection, and hangs up once it is answered.
///
/// # Errors
/// What keeps the two from being neighbours, as [`super::Transport::join`] would say it;
/// `Unreachable` when no answer came.
pub fn probe(config: TcpConfig, stream: TcpStream) -> Result<(), LinkError> {
    config.check()?;
    let address = stream.peer_addr().map_or_else(|e| e.to_string(), |a| a.to_string());
    let (events, _happenings) = unbounded_channel();
    let shared = Shared::new(config, events);
    let rank = shared.next_rank();
    let failed = |reason: String| LinkError::Unreachable { rank, address: address.clone(), reason };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| failed(e.to_string()))?;
    let limit = shared.config.times.handshake;
    let answered = runtime.block_on(async {
        stream.set_nonblocking(true)?;
        let stream = tokio::net::TcpStream::from_std(stream)?;
        let shaken = shake(stream, &shared, rank, PROBE);
        std::io::Result::Ok(timeout(limit, shaken).await)
    });
    let late = |_| failed(format!("no handshake within {} ms", limit.as_millis()));
    let answered = answered.map_err(|e| failed(e.to_string()))?.map_err(late)?;
    match answered {
        Ok(_) => Ok(()),
        // Rank 0 compares epochs after all else.
        Err(Failed::Later(error) | Failed::Never(error)) if error.code() == "OtherEpoch" => Ok(()),
        Err(Failed::Later(error) | Failed::Never(error)) => Err(error),
    }
}
