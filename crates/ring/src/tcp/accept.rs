//! The accepting end: strangers are dropped, the rank before is let in once a record proves it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arith::base::Epoch;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use wire::hello::{Answer, HELLO_BYTES, Hello, Refusal, RefusalCode, Role};
use wire::{WireError, preamble};

use super::Shared;
use super::half_open::{HalfOpen, Place};
use super::measure;
use super::probe::PROBE;
use super::supervisor::Happening;
use super::wire_io::{Broke, exchange_fields, read_message, read_record, write_message};
use crate::link::LinkError;
use crate::session::handshake::{self, Finished, MESSAGE_OVERHEAD_BYTES};
use crate::session::record::{Opener, Sealer};

const MESSAGE_1_BYTES: usize = HELLO_BYTES + MESSAGE_OVERHEAD_BYTES;
/// How long the listener rests when the system refuses it a connection.
const REST: Duration = Duration::from_millis(50);

/// The rank before, proved by a first record.
pub(super) struct Arrival {
    pub(super) stream: TcpStream,
    pub(super) epoch: Epoch,
    pub(super) opener: Opener,
    /// The body of the first record.
    pub(super) first: Vec<u8>,
}

/// Who proved to hold the key.
enum Came {
    Neighbour(Arrival),
    Measurer(TcpStream, Sealer, Opener),
}

/// Accepts for ever.
pub(super) async fn listen(listener: TcpListener, shared: Arc<Shared>, half_open: HalfOpen) {
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            // Out of descriptors, or the peer left already: neither ends a listener.
            sleep(REST).await;
            continue;
        };
        let place = half_open.enter();
        let id = place.id();
        let task = tokio::spawn(attend(stream, from, shared.clone(), place));
        half_open.attend(id, task.abort_handle());
    }
}

async fn attend(stream: TcpStream, from: SocketAddr, shared: Arc<Shared>, place: Place) {
    let came = match shake(stream, &shared, &place).await {
        Ok(Came::Neighbour(arrival)) => {
            drop(place);
            shared.happened(Happening::Arrived(arrival));
            Ok(())
        }
        // It keeps its place, so that measurers are as few as strangers.
        Ok(Came::Measurer(stream, sealer, opener)) => {
            let _turn = shared.measured.lock().await;
            measure::answer(stream, sealer, opener).await
        }
        Err(broke) => Err(broke),
    };
    match came {
        Ok(()) => {}
        // Anybody can make these; only those with the secret are worth a warning.
        Err(Broke::Io(error)) => tracing::debug!("{from}: dropped: {error}"),
        Err(Broke::Session(error)) if error.code() == "BadMagic" => {
            tracing::debug!("{from}: dropped: {error}");
        }
        Err(Broke::Session(error)) => {
            let rank = shared.config.rank;
            tracing::warn!("rank {rank}: refused {from}: {error}");
        }
    }
}

fn late(what: &str, limit: Duration) -> Broke {
    let text = format!("no {what} within {} ms", limit.as_millis());
    Broke::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, text))
}

/// The end of a connection that only wanted the answer.
fn asked() -> Broke {
    Broke::Io(std::io::Error::other("it only asked, and knows now"))
}

async fn shake(mut stream: TcpStream, shared: &Shared, place: &Place) -> Result<Came, Broke> {
    let times = &shared.config.times;
    stream.set_nodelay(true)?;
    let limit = times.first_message;
    let (answering, peer) = timeout(limit, hear(&mut stream, shared))
        .await
        .map_err(|_| late("first message", limit))??;
    place.authenticate();
    let limit = times.handshake;
    timeout(limit, prove(stream, shared, answering, peer))
        .await
        .map_err(|_| late("valid record", limit))?
}

/// Up to message 1.
async fn hear(
    stream: &mut TcpStream,
    shared: &Shared,
) -> Result<(handshake::Answering, Hello), Broke> {
    let cipher = shared.config.cipher;
    let ours = preamble::encode(cipher);
    stream.write_all(&ours).await?;
    let mut theirs = [0; preamble::PREAMBLE_BYTES];
    stream.read_exact(&mut theirs).await?;
    preamble::check(cipher, &theirs)?;
    let message = read_message(stream, MESSAGE_1_BYTES, MESSAGE_1_BYTES).await?;
    let prologue = preamble::prologue(&theirs, &ours);
    let acceptor = handshake::accept(&shared.key, cipher, &prologue);
    let (answering, payload) = acceptor.called(&message)?;
    Ok((answering, Hello::decode(&payload)?))
}

/// Message 2, and the first record.
async fn prove(
    mut stream: TcpStream,
    shared: &Shared,
    answering: handshake::Answering,
    peer: Hello,
) -> Result<Came, Broke> {
    let hello = shared.hello(Role::Acceptor, shared.accepts());
    let measures = peer.role == Role::Measurer;
    let refusal = if measures { hello.refuse_measurer(&peer) } else { hello.refuse(&peer) };
    let answer = Answer { hello, refusal: refusal.clone() }.encode()?;
    let (finished, message) = answering.answer(&answer)?;
    write_message(&mut stream, &message).await?;
    if measures && refusal.is_none() {
        let (sealer, opener) = finished.records(shared.encrypts());
        return Ok(Came::Measurer(stream, sealer, opener));
    }
    if peer.epoch == PROBE && refusal.as_ref().is_none_or(|r| r.code == RefusalCode::OtherEpoch) {
        return Err(asked());
    }
    if let Some(refusal) = refusal {
        let error = refuse(&mut stream, shared, finished, &refusal, &peer).await;
        shared.note_refusal(LinkError::Wire(error.clone()));
        return Err(error.into());
    }
    let (_, mut opener) = finished.records(shared.encrypts());
    let mut record = read_record(&mut stream).await?;
    let first = opener.open(&mut record)?.to_vec();
    Ok(Came::Neighbour(Arrival { stream, epoch: peer.epoch, opener, first }))
}

/// What the refusal means, with the first differing field where it is the fingerprint's.
async fn refuse(
    stream: &mut TcpStream,
    shared: &Shared,
    finished: Finished,
    refusal: &Refusal,
    peer: &Hello,
) -> WireError {
    if refusal.code == RefusalCode::OtherFingerprint {
        let records = finished.records(shared.encrypts());
        let ours = &shared.config.fingerprint;
        if let Ok(theirs) = exchange_fields(stream, records, ours).await
            && let Some(difference) = ours.first_difference(&theirs)
        {
            return difference.error(peer.rank);
        }
    }
    refusal.error(peer.rank)
}
