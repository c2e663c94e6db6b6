//! Handshake bytes over a socket, and the exchange of fields after a refused fingerprint.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wire::control::{Fields, Message};
use wire::frame::{Frame, Reader, Writer};

use crate::session::SessionError;
use crate::session::record::{Opener, RECORD_BYTES_MAX, Sealer};

/// Why bytes did not come or go.
#[derive(Debug)]
pub(crate) enum Broke {
    /// The connection.
    Io(io::Error),
    /// What was on it.
    Session(SessionError),
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

impl From<wire::WireError> for Broke {
    fn from(error: wire::WireError) -> Self {
        Self::Session(error.into())
    }
}

/// Writes a handshake message with its length.
pub(super) async fn write_message(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let mut out = Vec::with_capacity(2 + message.len());
    out.extend_from_slice(&(message.len() as u16).to_le_bytes());
    out.extend_from_slice(message);
    stream.write_all(&out).await
}

/// Reads a handshake message of `min..=max` bytes; nothing is allocated for any other.
pub(super) async fn read_message(
    stream: &mut TcpStream,
    min: usize,
    max: usize,
) -> Result<Vec<u8>, Broke> {
    let found = usize::from(stream.read_u16_le().await?);
    if !(min..=max).contains(&found) {
        return Err(SessionError::BadMessage { min, max, found }.into());
    }
    let mut message = vec![0; found];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

/// Reads one record, without its length.
pub(super) async fn read_record(
    stream: &mut (impl AsyncReadExt + Unpin),
) -> Result<Vec<u8>, Broke> {
    let mut record = vec![0; usize::from(stream.read_u16_le().await?)];
    debug_assert!(record.len() <= RECORD_BYTES_MAX);
    stream.read_exact(&mut record).await?;
    Ok(record)
}

/// After a refused fingerprint: sends this end's fields and hears the other's.
pub(super) async fn exchange_fields(
    stream: &mut TcpStream,
    (mut sealer, mut opener): (Sealer, Opener),
    fields: &Fields,
) -> Result<Fields, Broke> {
    let mut out = Vec::new();
    let mut writer = Writer::new(Frame::control(Message::Fields(fields.clone()).encode()?))?;
    while let Some(part) = writer.next_part() {
        sealer.seal(&part.header, part.payload, &mut out);
    }
    let (mut read, mut write) = stream.split();
    // Both at once: neither end may wait for the other to read first.
    let ((), theirs) =
        tokio::try_join!(async { write.write_all(&out).await.map_err(Broke::Io) }, async {
            let (mut reader, mut frames) = (Reader::new(), Vec::new());
            while frames.is_empty() {
                let mut record = read_record(&mut read).await?;
                reader.push(opener.open(&mut record)?, &mut frames)?;
            }
            Ok(frames)
        })?;
    match Message::decode(&theirs[0].payload)? {
        Message::Fields(fields) => Ok(fields),
        other => {
            let fault = wire::Fault::new("control.message", "fields", other.name());
            Err(wire::WireError::OtherMessage(fault).into())
        }
    }
}
