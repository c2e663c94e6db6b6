//! The connecting end: reaches a member before this one.

use std::net::TcpStream;
use std::sync::Arc;

use arith::base::{Epoch as Number, Rank};
use ring::address::resolve;
use ring::session::SessionError;
use ring::session::handshake::{self, MESSAGE_OVERHEAD_BYTES};
use ring::session::record::{Opener, Sealer};
use ring::timed::Timed;
use wire::group::Kind;
use wire::hello::{ANSWER_BYTES_MAX, Answer, HELLO_BYTES, RefusalCode, Role};
use wire::preamble;

use crate::ShardError;
use crate::group::Shared;
use crate::shake::{self, Broke};

/// A link to a member, and the epoch that it is of.
pub(crate) struct Reached {
    pub(crate) stream: TcpStream,
    pub(crate) records: (Sealer, Opener),
    pub(crate) epoch: u64,
}

/// One attempt at `peer`, in `epoch`; 0 takes the leader's.
pub(crate) fn reach(shared: &Arc<Shared>, peer: usize, epoch: u64) -> Result<Reached, ShardError> {
    attempt(shared, peer, |stream| {
        let mut reached = shake(stream, shared, peer, epoch)?;
        let mut timed = Timed::new(&reached.stream, shared.config.times.handshake);
        shake::write_pieces(&mut timed, &mut reached.records.0, Kind::Beat, &[])?;
        Ok(reached)
    })
}

/// Whether `peer` would let this member in: its door answers, and nothing is joined. A member that
/// waits for its turn would.
pub(crate) fn ask(shared: &Arc<Shared>, peer: usize) -> Result<(), ShardError> {
    match attempt(shared, peer, |stream| shake(stream, shared, peer, 0)) {
        Ok(_) => Ok(()),
        Err(ShardError::Refused { error, .. }) if error.code() == "OtherEpoch" => Ok(()),
        Err(error) => Err(error),
    }
}

fn attempt<T>(
    shared: &Arc<Shared>,
    peer: usize,
    shake: impl Fn(TcpStream) -> Result<T, Broke>,
) -> Result<T, ShardError> {
    let address = &shared.config.addresses[peer];
    let unreachable = |reason: String| {
        let address = address.clone();
        ShardError::Unreachable { member: peer, address, reason }
    };
    let mut failed = unreachable("the name has no address".into());
    for socket in resolve(address).map_err(|error| unreachable(error.to_string()))? {
        shared.config.check_loopback(socket)?;
        let stream = match TcpStream::connect_timeout(&socket, shared.config.times.connect) {
            Ok(stream) => stream,
            Err(error) => {
                failed = unreachable(error.to_string());
                continue;
            }
        };
        return shake(stream).map_err(|broke| match broke {
            Broke::Io(error) => unreachable(format!("in the handshake: {error}")),
            Broke::Session(error) => ShardError::Session { member: peer, error },
            Broke::Wire(error) => ShardError::Refused { member: peer, error },
        });
    }
    Err(failed)
}

fn shake(
    stream: TcpStream,
    shared: &Arc<Shared>,
    peer: usize,
    epoch: u64,
) -> Result<Reached, Broke> {
    let config = &shared.config;
    stream.set_nodelay(true)?;
    let mut timed = Timed::new(&stream, config.times.handshake);
    let ours = preamble::encode(config.cipher);
    timed.write_all(&ours)?;
    let mut theirs = [0; preamble::PREAMBLE_BYTES];
    timed.read_exact(&mut theirs)?;
    preamble::check(config.cipher, &theirs)?;
    let prologue = preamble::prologue(&ours, &theirs);
    let hello = shared.hello(Role::Connector, Number(epoch));
    let connector = handshake::connect(&shared.key, config.cipher, &prologue);
    let (called, message) = connector.call(&hello.encode()?)?;
    timed.write_message(&message)?;
    let (min, max) =
        (HELLO_BYTES + MESSAGE_OVERHEAD_BYTES, ANSWER_BYTES_MAX + MESSAGE_OVERHEAD_BYTES);
    let message = timed.read_message(min, max).map_err(|broke| match broke {
        Broke::Io(_) => Broke::Session(SessionError::Unanswered),
        other => other,
    })?;
    let (finished, payload) = called.answered(&message)?;
    let answer = Answer::decode(&payload)?;
    let (mut sealer, mut opener) = finished.records(shared.encrypts());
    if let Some(refusal) = answer.refusal {
        let error = refusal.error(hello.rank).unranked();
        if refusal.code != RefusalCode::OtherFingerprint {
            return Err(error.into());
        }
        let records = (&mut sealer, &mut opener);
        let theirs = shake::exchange_fields(&mut timed, records, &config.fingerprint, true)?;
        let difference = config.fingerprint.first_difference(&theirs);
        return Err(difference.map_or(error, |d| d.error(hello.rank).unranked()).into());
    }
    if answer.hello.rank != Rank(peer as u32) || answer.hello.epoch == Number(0) {
        let found = format!("member {} of epoch {:016x}", answer.hello.rank, answer.hello.epoch.0);
        let fault = wire::Fault::new("hello.rank", format!("member {peer} of an epoch"), found);
        return Err(wire::WireError::NotNeighbour(fault).into());
    }
    Ok(Reached { stream, records: (sealer, opener), epoch: answer.hello.epoch.0 })
}
