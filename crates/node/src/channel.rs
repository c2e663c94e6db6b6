//! A session between a head and an agent: the ring's preamble, handshake and records, with one
//! message a record.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use ring::address;
use ring::key::Key;
use ring::session::SessionError;
use ring::session::handshake::{self, MESSAGE_OVERHEAD_BYTES};
use ring::session::record::{BODY_BYTES_MAX, Opener, Sealer};
use ring::timed::Timed;
use serde::Serialize;
use wire::WireError;
use wire::preamble::{self, Cipher, PREAMBLE_BYTES};

use crate::NodeError;
use crate::message::encode;

/// Most bytes of a message: one record's body.
pub const MESSAGE_BYTES_MAX: usize = BODY_BYTES_MAX;
/// One attempt to connect.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A whole handshake, on either end.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
/// A message goes out within so long, or the channel is over.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(2);
/// What the first message of each end carries.
const PROTOCOL: &Hello = b"baton node 1\0\0\0\0";
const HANDSHAKE_BYTES: usize = PROTOCOL.len() + MESSAGE_OVERHEAD_BYTES;

/// The sending side.
pub struct Sender {
    stream: TcpStream,
    sealer: Sealer,
}

/// The receiving side.
pub struct Receiver {
    stream: TcpStream,
    opener: Opener,
    record: Vec<u8>,
}

/// Both sides, and the address that this end has in the session.
pub struct Channel {
    /// Messages out.
    pub sender: Sender,
    /// Messages in.
    pub receiver: Receiver,
    /// This end.
    pub local: SocketAddr,
}

/// Reaches the agent at `address`, `HOST:PORT`.
///
/// # Errors
/// Nobody there, nobody with the key, or no agent.
pub fn dial(address: &str, key: Option<&Key>) -> Result<Channel, NodeError> {
    let unreachable = |reason: String| NodeError::Unreachable { address: address.into(), reason };
    let mut failed = unreachable("the name has no address".into());
    for socket in address::resolve(address).map_err(|error| unreachable(error.to_string()))? {
        address::check_key(key, socket)?;
        let stream = match TcpStream::connect_timeout(&socket, CONNECT_TIMEOUT) {
            Ok(stream) => stream,
            Err(error) => {
                failed = unreachable(error.to_string());
                continue;
            }
        };
        return call(stream, &key_of(key)).map_err(|broke| match broke {
            Broke::Io(error) => unreachable(format!("in the handshake: {error}")),
            Broke::Other(error) => error,
        });
    }
    Err(failed)
}

/// What a connector says in its first message, and the other end in its answer.
pub type Hello = [u8; 16];

/// Who has connected to an agent.
pub enum Caller {
    /// A head.
    Head(Box<Channel>),
    /// Who said the other hello; what its handshake gave.
    Other(TcpStream, Box<(Sealer, Opener)>),
}

/// Answers a head that has connected, or who says `other`: one port serves both.
///
/// # Errors
/// As [`dial`]'s.
pub fn answer(stream: TcpStream, key: Option<&Key>, other: &Hello) -> Result<Caller, NodeError> {
    let from = stream.peer_addr().map_or_else(|e| e.to_string(), |from| from.to_string());
    let answered = take(stream, &key_of(key), other);
    answered.map_err(|broke| match broke {
        Broke::Io(error) => NodeError::Unreachable { address: from, reason: error.to_string() },
        Broke::Other(error) => error,
    })
}

fn key_of(key: Option<&Key>) -> Key {
    key.cloned().unwrap_or_else(Key::loopback)
}

enum Broke {
    Io(io::Error),
    Other(NodeError),
}

impl From<io::Error> for Broke {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<SessionError> for Broke {
    fn from(error: SessionError) -> Self {
        Self::Other(error.into())
    }
}

impl From<WireError> for Broke {
    fn from(error: WireError) -> Self {
        Self::Other(error.into())
    }
}

impl From<NodeError> for Broke {
    fn from(error: NodeError) -> Self {
        Self::Other(error)
    }
}

fn call(stream: TcpStream, key: &Key) -> Result<Channel, Broke> {
    stream.set_nodelay(true)?;
    let mut timed = Timed::new(&stream, HANDSHAKE_TIMEOUT);
    let ours = preamble::encode(Cipher::ChaChaPoly);
    timed.write_all(&ours)?;
    let theirs = their_preamble(&mut timed)?;
    let prologue = preamble::prologue(&ours, &theirs);
    let (called, message) =
        handshake::connect(key, Cipher::ChaChaPoly, &prologue).call(PROTOCOL)?;
    timed.write_message(&message)?;
    let message = timed.read_message::<Broke>(HANDSHAKE_BYTES, HANDSHAKE_BYTES).map_err(
        |broke| match broke {
            Broke::Io(_) => Broke::Other(SessionError::Unanswered.into()),
            other => other,
        },
    )?;
    let (finished, payload) = called.answered(&message)?;
    check(&stream, &payload)?;
    Ok(Channel::new(stream, finished.records(true))?)
}

fn take(stream: TcpStream, key: &Key, other: &Hello) -> Result<Caller, Broke> {
    stream.set_nodelay(true)?;
    let mut timed = Timed::new(&stream, HANDSHAKE_TIMEOUT);
    let ours = preamble::encode(Cipher::ChaChaPoly);
    timed.write_all(&ours)?;
    let theirs = their_preamble(&mut timed)?;
    let message = timed.read_message::<Broke>(HANDSHAKE_BYTES, HANDSHAKE_BYTES)?;
    let prologue = preamble::prologue(&theirs, &ours);
    let acceptor = handshake::accept(key, Cipher::ChaChaPoly, &prologue);
    let (answering, payload) = acceptor.called(&message)?;
    let is_other = payload[..] == other[..];
    if !is_other {
        check(&stream, &payload)?;
    }
    let (finished, message) = answering.answer(if is_other { other } else { PROTOCOL })?;
    timed.write_message(&message)?;
    let records = finished.records(true);
    Ok(match is_other {
        true => Caller::Other(stream, Box::new(records)),
        false => Caller::Head(Box::new(Channel::new(stream, records)?)),
    })
}

fn check(stream: &TcpStream, payload: &[u8]) -> Result<(), NodeError> {
    if payload == PROTOCOL {
        return Ok(());
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    Err(NodeError::OtherPort {
        address: stream.peer_addr().map_or_else(|e| e.to_string(), |a| a.to_string()),
        expected: "baton node 1",
        found: text(payload),
    })
}

fn their_preamble(timed: &mut Timed<'_>) -> Result<[u8; PREAMBLE_BYTES], Broke> {
    let mut theirs = [0; PREAMBLE_BYTES];
    timed.read_exact(&mut theirs)?;
    preamble::check(Cipher::ChaChaPoly, &theirs)?;
    Ok(theirs)
}

impl Channel {
    fn new(stream: TcpStream, (sealer, opener): (Sealer, Opener)) -> io::Result<Self> {
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let local = stream.local_addr()?;
        let receiver = Receiver { stream: stream.try_clone()?, opener, record: Vec::new() };
        Ok(Self { sender: Sender { stream, sealer }, receiver, local })
    }
}

impl Sender {
    /// Sends a message.
    ///
    /// # Errors
    /// `MessageTooLong`; `Unreachable` where the other end takes nothing any more.
    pub fn send<T: Serialize>(&mut self, message: &T) -> Result<(), NodeError> {
        let body = encode(message, MESSAGE_BYTES_MAX)?;
        let mut record = Vec::new();
        self.sealer.seal(&body, &[], &mut record);
        self.stream.write_all(&record).map_err(|error| gone(&self.stream, &error))
    }

    /// Ends the session, also for whoever receives.
    pub fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Receiver {
    /// The next message's bytes; an error where none came for `silent`.
    ///
    /// # Errors
    /// `Unreachable` at the end or after silence; a record that the other end did not seal.
    pub fn next(&mut self, silent: Duration) -> Result<&[u8], NodeError> {
        let read = |stream: &mut TcpStream| {
            stream.set_read_timeout(Some(silent))?;
            let mut length = [0; 2];
            stream.read_exact(&mut length)?;
            let mut record = vec![0; usize::from(u16::from_le_bytes(length))];
            stream.read_exact(&mut record)?;
            io::Result::Ok(record)
        };
        self.record = read(&mut self.stream).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                let ms = silent.as_millis();
                let reason = io::Error::new(ErrorKind::TimedOut, format!("silent for {ms} ms"));
                gone(&self.stream, &reason)
            }
            ErrorKind::UnexpectedEof => {
                gone(&self.stream, &io::Error::new(error.kind(), "it closed the channel"))
            }
            _ => gone(&self.stream, &error),
        })?;
        Ok(self.opener.open(&mut self.record)?)
    }
}

fn gone(stream: &TcpStream, error: &io::Error) -> NodeError {
    let address = stream.peer_addr().map_or_else(|_| "the other end".into(), |a| a.to_string());
    NodeError::Unreachable { address, reason: error.to_string() }
}
