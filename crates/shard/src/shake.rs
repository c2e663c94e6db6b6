//! What members say in a handshake beyond its two messages: fields that differ, records.

use std::io;

use ring::session::SessionError;
use ring::session::record::{Opener, Sealer};
use ring::timed::Timed;
use wire::WireError;
use wire::control::{Fields, Message};
use wire::group::{Joiner, Kind, Piece};
use wire::limit::CONTROL_BYTES_MAX;

/// Why a handshake went no further.
#[derive(Debug)]
pub(crate) enum Broke {
    /// The connection.
    Io(io::Error),
    /// What was on it.
    Session(SessionError),
    /// A hello or fields that are refused.
    Wire(WireError),
}

impl From<io::Error> for Broke {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<SessionError> for Broke {
    fn from(error: SessionError) -> Self {
        Self::Session(error)
    }
}

impl From<WireError> for Broke {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

/// Writes a message in records.
pub(crate) fn write_pieces(
    timed: &mut Timed<'_>,
    sealer: &mut Sealer,
    kind: Kind,
    payload: &[u8],
) -> io::Result<()> {
    for piece in Piece::cut(kind, 0, payload) {
        let mut record = Vec::new();
        sealer.seal(&piece.header(), piece.payload, &mut record);
        timed.write_all(&record)?;
    }
    Ok(())
}

/// After a refused fingerprint: this end's fields, and the other's. The end that was refused
/// speaks first.
pub(crate) fn exchange_fields(
    timed: &mut Timed<'_>,
    (sealer, opener): (&mut Sealer, &mut Opener),
    fields: &Fields,
    first: bool,
) -> Result<Fields, Broke> {
    let own = Message::Fields(fields.clone()).encode()?;
    if first {
        write_pieces(timed, sealer, Kind::Report, &own)?;
    }
    let mut joiner = Joiner::default();
    let theirs = loop {
        let mut record = timed.read_record()?;
        let piece = Piece::decode(opener.open(&mut record)?)?;
        if let Some(whole) = joiner.push(&piece, CONTROL_BYTES_MAX)? {
            break whole;
        }
    };
    if !first {
        write_pieces(timed, sealer, Kind::Report, &own)?;
    }
    match Message::decode(&theirs)? {
        Message::Fields(fields) => Ok(fields),
        other => {
            let fault = wire::Fault::new("control.message", "fields", other.name());
            Err(WireError::OtherMessage(fault).into())
        }
    }
}
