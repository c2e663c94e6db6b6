//! The connecting end: reaches the rank after, again and again until it is there.

use std::net::SocketAddr;
use std::time::Duration;

use arith::base::{Epoch, Rank};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use wire::hello::{ANSWER_BYTES_MAX, Answer, HELLO_BYTES, RefusalCode, Role};
use wire::preamble;

use super::Shared;
use super::wire_io::{Broke, exchange_fields, read_message, write_message};
use crate::address;
use crate::link::LinkError;
use crate::session::SessionError;
use crate::session::handshake::{self, MESSAGE_OVERHEAD_BYTES};
use crate::session::record::Sealer;

/// First pause between attempts; doubles up to the longest.
const PAUSE: Duration = Duration::from_millis(20);
/// Longest pause between attempts.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Unanswered first messages in a row that mean another secret. Fewer may be a busy acceptor's
/// evictions.
const UNANSWERED_MAX: u32 = 3;

/// A link to the rank after.
pub(super) struct Departure {
    pub(super) stream: TcpStream,
    pub(super) sealer: Sealer,
}

/// How an attempt failed.
pub(super) enum Failed {
    /// It may work later.
    Later(LinkError),
    /// It never will.
    Never(LinkError),
}

/// Connects to the rank after in `epoch`; ends with a link, or with what no retry mends. Failures
/// on the way are reported through `note`.
pub(super) async fn reach(
    shared: &Shared,
    epoch: Epoch,
    mut note: impl FnMut(LinkError),
) -> Result<Departure, LinkError> {
    let (mut pause, mut unanswered) = (PAUSE, 0);
    loop {
        for address in shared.next() {
            let error = match try_address(shared, &address, epoch).await {
                Ok(departure) => return Ok(departure),
                Err(Failed::Never(error)) => return Err(error),
                Err(Failed::Later(error)) => error,
            };
            let is_unanswered =
                matches!(error, LinkError::Session { error: SessionError::Unanswered, .. });
            unanswered = if is_unanswered { unanswered + 1 } else { 0 };
            if unanswered >= UNANSWERED_MAX {
                return Err(error);
            }
            tracing::debug!("rank {}: {error}", shared.config.rank);
            note(error);
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

async fn try_address(shared: &Shared, address: &str, epoch: Epoch) -> Result<Departure, Failed> {
    let rank = shared.next_rank();
    let unreachable = |reason: String| {
        Failed::Later(LinkError::Unreachable { rank, address: address.into(), reason })
    };
    let times = &shared.config.times;
    let resolved = match timeout(times.connect, resolve(address)).await {
        Ok(resolved) => resolved.map_err(|e| unreachable(e.to_string()))?,
        Err(_) => return Err(unreachable("its name was not resolved in time".into())),
    };
    let mut failed = unreachable("the name has no address".into());
    for socket in resolved {
        shared.config.check_loopback(socket).map_err(Failed::Never)?;
        let stream = match timeout(times.connect, TcpStream::connect(socket)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                failed = unreachable(error.to_string());
                continue;
            }
            Err(_) => {
                failed = unreachable(format!("no answer in {} ms", times.connect.as_millis()));
                continue;
            }
        };
        let shaken = timeout(times.handshake, shake(stream, shared, rank, epoch)).await;
        return shaken.unwrap_or_else(|_| {
            let ms = times.handshake.as_millis();
            Err(unreachable(format!("no handshake within {ms} ms")))
        });
    }
    Err(failed)
}

async fn resolve(address: &str) -> std::io::Result<Vec<SocketAddr>> {
    if let Ok(socket) = address.parse() {
        return Ok(vec![socket]);
    }
    Ok(tokio::net::lookup_host(address::split(address)?).await?.collect())
}

pub(super) async fn shake(
    mut stream: TcpStream,
    shared: &Shared,
    rank: Rank,
    epoch: Epoch,
) -> Result<Departure, Failed> {
    let closed = |error: std::io::Error| {
        let reason = format!("in the handshake: {error}");
        Failed::Later(LinkError::LinkClosed { rank, reason })
    };
    let bad = |error: SessionError| LinkError::Session { rank, error };
    stream.set_nodelay(true).map_err(closed)?;
    let cipher = shared.config.cipher;
    let ours = preamble::encode(cipher);
    stream.write_all(&ours).await.map_err(closed)?;
    let mut theirs = [0; preamble::PREAMBLE_BYTES];
    stream.read_exact(&mut theirs).await.map_err(closed)?;
    preamble::check(cipher, &theirs).map_err(|e| Failed::Never(LinkError::Wire(e.at(rank))))?;
    let prologue = preamble::prologue(&ours, &theirs);
    let hello = shared.hello(Role::Connector, epoch);
    let payload = hello.encode().map_err(|e| Failed::Never(e.into()))?;
    let connector = handshake::connect(&shared.key, cipher, &prologue);
    let (called, message) = connector.call(&payload).map_err(|e| Failed::Later(bad(e)))?;
    write_message(&mut stream, &message).await.map_err(closed)?;
    let (min, max) =
        (HELLO_BYTES + MESSAGE_OVERHEAD_BYTES, ANSWER_BYTES_MAX + MESSAGE_OVERHEAD_BYTES);
    let message = read_message(&mut stream, min, max).await.map_err(|broke| match broke {
        Broke::Io(_) => Failed::Later(bad(SessionError::Unanswered)),
        Broke::Session(error) => Failed::Later(bad(error)),
    })?;
    let (finished, payload) = called.answered(&message).map_err(|e| Failed::Later(bad(e)))?;
    let answer = Answer::decode(&payload).map_err(|e| Failed::Never(e.at(rank).into()))?;
    let records = finished.records(shared.encrypts());
    if let Some(refusal) = answer.refusal {
        let error = LinkError::Wire(refusal.error(rank));
        return Err(match refusal.code {
            RefusalCode::OtherFingerprint => {
                let ours = &shared.config.fingerprint;
                let theirs = exchange_fields(&mut stream, records, ours).await.ok();
                let difference = theirs.and_then(|theirs| ours.first_difference(&theirs));
                Failed::Never(difference.map_or(error, |d| d.error(rank).into()))
            }
            // Rank 0 may not have begun this epoch yet, or has left it.
            RefusalCode::OtherEpoch => Failed::Later(error),
            _ => Failed::Never(error),
        });
    }
    // The acceptor has taken this rank's epoch or has the same.
    let theirs = wire::hello::Hello { epoch, ..answer.hello };
    if let Some(refusal) = hello.refuse(&theirs) {
        return Err(Failed::Never(LinkError::Wire(refusal.error(rank))));
    }
    Ok(Departure { stream, sealer: records.0 })
}
