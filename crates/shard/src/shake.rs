//! A handshake's messages over a blocking socket, each with its deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ring::session::SessionError;
use ring::session::record::{Opener, Sealer};
use wire::WireError;
use wire::control::{Fields, Message};
use wire::group::{Joiner, Kind, Piece};
use wire::limit::CONTROL_BYTES_MAX;

/// A socket whose every read and write ends by a deadline.
pub(crate) struct Timed<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

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

impl<'a> Timed<'a> {
    pub(crate) fn new(stream: &'a TcpStream, limit: Duration) -> Self {
        Self { stream, until: Instant::now() + limit }
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(ErrorKind::TimedOut, "not within its time"));
        }
        Ok(left)
    }

    pub(crate) fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(Some(self.left()?))?;
            let count = self.stream.write(bytes)?;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    pub(crate) fn read_exact(&mut self, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_read_timeout(Some(self.left()?))?;
            match self.stream.read(bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => bytes = &mut bytes[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes a handshake message with its length.
    pub(crate) fn write_message(&mut self, message: &[u8]) -> io::Result<()> {
        let length = (message.len() as u16).to_le_bytes();
        self.write_all(&[&length, message].concat())
    }

    /// Reads a handshake message of `min..=max` bytes; nothing is allocated for any other.
    pub(crate) fn read_message(&mut self, min: usize, max: usize) -> Result<Vec<u8>, Broke> {
        let found = self.read_length()?;
        if !(min..=max).contains(&found) {
            return Err(SessionError::BadMessage { min, max, found }.into());
        }
        let mut message = vec![0; found];
        self.read_exact(&mut message)?;
        Ok(message)
    }

    /// Reads one record, without its length.
    pub(crate) fn read_record(&mut self) -> Result<Vec<u8>, Broke> {
        let mut record = vec![0; self.read_length()?];
        self.read_exact(&mut record)?;
        Ok(record)
    }

    fn read_length(&mut self) -> io::Result<usize> {
        let mut length = [0; 2];
        self.read_exact(&mut length)?;
        Ok(usize::from(u16::from_le_bytes(length)))
    }

    /// Writes a message in records.
    pub(crate) fn write_pieces(
        &mut self,
        sealer: &mut Sealer,
        kind: Kind,
        payload: &[u8],
    ) -> io::Result<()> {
        for piece in Piece::cut(kind, 0, payload) {
            let mut record = Vec::new();
            sealer.seal(&piece.header(), piece.payload, &mut record);
            self.write_all(&record)?;
        }
        Ok(())
    }

    /// After a refused fingerprint: this end's fields, and the other's. The end that was refused
    /// speaks first.
    pub(crate) fn exchange_fields(
        &mut self,
        (sealer, opener): (&mut Sealer, &mut Opener),
        fields: &Fields,
        first: bool,
    ) -> Result<Fields, Broke> {
        let own = Message::Fields(fields.clone()).encode()?;
        if first {
            self.write_pieces(sealer, Kind::Report, &own)?;
        }
        let mut joiner = Joiner::default();
        let theirs = loop {
            let record = self.read_record()?;
            let piece = Piece::decode(opener.open(&record)?)?;
            if let Some(whole) = joiner.push(&piece, CONTROL_BYTES_MAX)? {
                break whole;
            }
        };
        if !first {
            self.write_pieces(sealer, Kind::Report, &own)?;
        }
        match Message::decode(&theirs)? {
            Message::Fields(fields) => Ok(fields),
            other => {
                let fault = wire::Fault::new("control.message", "fields", other.name());
                Err(WireError::OtherMessage(fault).into())
            }
        }
    }
}
