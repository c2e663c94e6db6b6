//! The listening end: strangers are dropped, members above this one are let in.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arith::base::Epoch as Number;
use ring::session::handshake::{self, MESSAGE_OVERHEAD_BYTES};
use ring::timed::Timed;
use wire::hello::{Answer, HELLO_BYTES, Hello, RefusalCode, Role};
use wire::preamble;

use crate::group::Shared;
use crate::shake::{self, Broke};

/// Most connections in a handshake at once; one more ends the oldest.
pub(crate) const HALF_OPEN_MAX: usize = 16;
const MESSAGE_1_BYTES: usize = HELLO_BYTES + MESSAGE_OVERHEAD_BYTES;
/// How long the listener rests when the system refuses it a connection.
const REST: Duration = Duration::from_millis(50);

/// Connections in a handshake, oldest first.
#[derive(Default)]
pub(crate) struct HalfOpen(Mutex<Vec<(u64, TcpStream)>>);

impl HalfOpen {
    fn entries(&self) -> MutexGuard<'_, Vec<(u64, TcpStream)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, id: u64, stream: TcpStream) {
        let mut entries = self.entries();
        if entries.len() >= HALF_OPEN_MAX {
            let (_, oldest) = entries.remove(0);
            let _ = oldest.shutdown(Shutdown::Both);
        }
        entries.push((id, stream));
    }

    fn leave(&self, id: u64) {
        self.entries().retain(|(entry, _)| *entry != id);
    }
}

/// Accepts until the group is shut down.
pub(crate) fn run(listener: &TcpListener, shared: &Arc<Shared>) {
    let half_open = Arc::new(HalfOpen::default());
    for id in 0.. {
        let accepted = listener.accept();
        if shared.is_over() {
            return;
        }
        // Out of descriptors, or the peer left already: neither ends a listener.
        let entered = accepted.and_then(|(stream, from)| {
            half_open.enter(id, stream.try_clone()?);
            Ok((stream, from))
        });
        let Ok((stream, from)) = entered else {
            std::thread::sleep(REST);
            continue;
        };
        let (shared, places) = (shared.clone(), half_open.clone());
        let attend = move || {
            attend(&stream, from, &shared);
            places.leave(id);
        };
        if std::thread::Builder::new().name("baton-door".into()).spawn(attend).is_err() {
            half_open.leave(id);
        }
    }
}

fn attend(stream: &TcpStream, from: SocketAddr, shared: &Arc<Shared>) {
    match shake(stream, shared) {
        Ok(()) => {}
        // Anybody can make these; only those with the secret are worth a warning.
        Err(Broke::Io(error)) => tracing::debug!("{from}: dropped: {error}"),
        Err(Broke::Wire(error)) if matches!(error.code(), "BadMagic" | "OtherEpoch") => {
            tracing::debug!("{from}: dropped: {error}");
        }
        Err(Broke::Wire(error)) => shared.refused(from, &error.to_string()),
        Err(Broke::Session(error)) => shared.refused(from, &error.to_string()),
    }
}

fn shake(stream: &TcpStream, shared: &Arc<Shared>) -> Result<(), Broke> {
    let config = &shared.config;
    stream.set_nodelay(true)?;
    let mut timed = Timed::new(stream, config.times.first_message);
    let ours = preamble::encode(config.cipher);
    timed.write_all(&ours)?;
    let mut theirs = [0; preamble::PREAMBLE_BYTES];
    timed.read_exact(&mut theirs)?;
    preamble::check(config.cipher, &theirs)?;
    let message = timed.read_message::<Broke>(MESSAGE_1_BYTES, MESSAGE_1_BYTES)?;
    let prologue = preamble::prologue(&theirs, &ours);
    let acceptor = handshake::accept(&shared.key, config.cipher, &prologue);
    let (answering, payload) = acceptor.called(&message)?;
    let peer = Hello::decode(&payload)?;
    let mut timed = Timed::new(stream, config.times.handshake);
    // One that is over lets nobody in: who comes waits for the next one, and does not try at once.
    let epoch = shared.epoch().filter(|epoch| epoch.lost().is_none());
    let number = epoch.as_ref().map_or(0, |epoch| epoch.number);
    let hello = shared.hello(Role::Acceptor, Number(number));
    let refusal = hello.refuse_member(&peer);
    let answer = Answer { hello, refusal: refusal.clone() }.encode()?;
    let (finished, message) = answering.answer(&answer)?;
    timed.write_message(&message)?;
    let (mut sealer, mut opener) = finished.records(shared.encrypts());
    if let Some(refusal) = refusal {
        let error = refusal.error(peer.rank).unranked();
        if refusal.code != RefusalCode::OtherFingerprint {
            return Err(error.into());
        }
        let records = (&mut sealer, &mut opener);
        let theirs = shake::exchange_fields(&mut timed, records, &config.fingerprint, false)?;
        let difference = config.fingerprint.first_difference(&theirs);
        return Err(difference.map_or(error, |d| d.error(peer.rank).unranked()).into());
    }
    // A replayed first message gets this far; its record does not open.
    opener.open(&mut timed.read_record()?)?;
    if let Some(epoch) = epoch {
        let added = epoch.add(peer.rank.0 as usize, stream.try_clone()?, (sealer, opener));
        added.map_err(|error| std::io::Error::other(error.to_string()))?;
    }
    Ok(())
}
