//! A link to another store: the ring's handshake and records over a blocking socket.

use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use ring::address::{check_key, resolve};
use ring::key::Key;
use ring::session::SessionError;
use ring::session::handshake::{self, MESSAGE_OVERHEAD_BYTES};
use ring::session::record::{Opener, Sealer};
use ring::timed::Timed;
use wire::hello::Encryption;
use wire::preamble::{self, Cipher, PREAMBLE_BYTES};

use crate::StoreError;
use crate::message::{HEAD_BYTES, Kind};
use crate::pull::TRIES;

/// What a connector says in its first message, and the other end in its answer, before a byte that
/// is 1 where records are enciphered and 2 where they are only authenticated.
pub const HELLO: &[u8; 15] = b"baton store 1.0";
/// Bytes of a first message.
pub const HELLO_BYTES: usize = HELLO.len() + 1;
/// A handshake message of ours, which has one size.
const MESSAGE_BYTES: usize = HELLO_BYTES + MESSAGE_OVERHEAD_BYTES;

/// A connection is there or not within this time.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// A handshake is done or given up within this time, at the end that connects.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// The same at the end that accepted, where strangers come too.
const ACCEPT_LIMIT: Duration = Duration::from_secs(2);
/// A link on which nothing moves for so long is broken.
const SILENCE: Duration = Duration::from_secs(60);
/// Bytes that are read from the socket at once, where they are there.
const READ_BYTES: usize = 256 << 10;

/// How a link is made; both ends must agree in all but the tries.
#[derive(Clone, Debug)]
pub struct Access {
    /// The key; without one only loopback is allowed.
    pub key: Option<Key>,
    /// The cipher.
    pub cipher: Cipher,
    /// Whether records are enciphered.
    pub encryption: Encryption,
    /// How often an address may fail in a row.
    pub tries: u32,
}

impl Access {
    /// With `key`, enciphered, as rings have it unless told otherwise.
    pub fn of(key: Option<Key>) -> Self {
        Self { key, cipher: Cipher::default(), encryption: Encryption::On, tries: TRIES }
    }

    /// The first message of either end.
    pub fn hello(&self) -> [u8; HELLO_BYTES] {
        let mut hello = [self.encryption as u8; HELLO_BYTES];
        hello[..HELLO.len()].copy_from_slice(HELLO);
        hello
    }
}

/// An authenticated connection to another store.
pub struct Link {
    reader: BufReader<TcpStream>,
    sealer: Sealer,
    opener: Opener,
    peer: String,
    /// The record at hand, sealed.
    record: Vec<u8>,
    /// Records to be written.
    out: Vec<u8>,
}

impl Link {
    /// Of a connection whose handshake is done. The first record of the end that accepted proves
    /// that the other end's first message was no replay; until then it gives nothing away.
    ///
    /// # Errors
    /// The system's.
    pub fn new(stream: TcpStream, (sealer, opener): (Sealer, Opener)) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        let peer = stream.peer_addr().map_or_else(|error| error.to_string(), |a| a.to_string());
        let reader = BufReader::with_capacity(READ_BYTES, stream);
        Ok(Self { reader, sealer, opener, peer, record: Vec::new(), out: Vec::new() })
    }

    /// Connects to `address`, host:port.
    ///
    /// # Errors
    /// [`StoreError::Link`] with what kept the two apart.
    pub fn connect(address: &str, access: &Access) -> Result<Self, StoreError> {
        let broken = |reason: String| StoreError::Link { peer: address.to_owned(), reason };
        let mut failed = broken("the name has no address".to_owned());
        for socket in resolve(address).map_err(|error| broken(error.to_string()))? {
            check_key(access.key.as_ref(), socket).map_err(|error| broken(error.to_string()))?;
            match TcpStream::connect_timeout(&socket, CONNECT_LIMIT) {
                Ok(stream) => return connect(stream, access).map_err(broken),
                Err(error) => failed = broken(error.to_string()),
            }
        }
        Err(failed)
    }

    /// Takes in whoever connected on `stream` from `from`, if it has the key.
    ///
    /// # Errors
    /// [`StoreError::Link`].
    pub fn accept(
        stream: TcpStream,
        from: SocketAddr,
        access: &Access,
    ) -> Result<Self, StoreError> {
        let broken = |reason: String| StoreError::Link { peer: from.to_string(), reason };
        check_key(access.key.as_ref(), from).map_err(|error| broken(error.to_string()))?;
        accept(stream, access).map_err(broken)
    }

    /// The other end's address.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// An error of this link.
    pub(crate) fn broken(&self, reason: impl ToString) -> StoreError {
        StoreError::Link { peer: self.peer.clone(), reason: reason.to_string() }
    }

    /// An error about what came over it.
    pub(crate) fn odd(
        &self,
        field: &'static str,
        expected: impl ToString,
        found: impl ToString,
    ) -> StoreError {
        let (expected, found) = (expected.to_string(), found.to_string());
        StoreError::Message { peer: self.peer.clone(), field, expected, found }
    }

    /// Another handle of its socket, to end it from elsewhere.
    pub(crate) fn socket(&self) -> io::Result<TcpStream> {
        self.reader.get_ref().try_clone()
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`StoreError::Link`].
    pub fn send(&mut self, kind: Kind, payload: &[u8]) -> Result<(), StoreError> {
        let (min, max) = kind.bytes();
        assert!((min..=max).contains(&payload.len()), "{kind:?} of {} bytes", payload.len());
        let mut head = [0; HEAD_BYTES];
        head[0] = kind as u8;
        head[4..].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        self.out.clear();
        self.sealer.seal(&head, payload, &mut self.out);
        self.reader.get_ref().write_all(&self.out).map_err(|error| self.broken(said(&error)))
    }

    /// Receives a message into `payload`; nothing is taken for one beyond its limit.
    ///
    /// # Errors
    /// [`StoreError::Link`], [`StoreError::Message`].
    pub fn receive(&mut self, payload: &mut Vec<u8>) -> Result<Kind, StoreError> {
        payload.clear();
        self.read_record()?;
        let opened = self.opener.open(&mut self.record).map_err(|error| error.to_string());
        let body = match opened {
            Ok(body) => body,
            Err(error) => return Err(self.broken(error)),
        };
        let (kind, count, first) = match head(body) {
            Some(found) => found,
            None => return Err(self.odd("message", "a head of a kind", "none")),
        };
        let (min, max) = kind.bytes();
        if !(min..=max).contains(&count) {
            return Err(self.odd("message.bytes", format!("{min}..={max}"), count));
        }
        payload.reserve_exact(count);
        payload.extend_from_slice(first);
        while payload.len() < count {
            self.read_record()?;
            match self.opener.open(&mut self.record) {
                Ok(body) => payload.extend_from_slice(body),
                Err(error) => return Err(self.broken(error)),
            }
        }
        if payload.len() > count {
            return Err(self.odd("message.bytes", count, payload.len()));
        }
        Ok(kind)
    }

    fn read_record(&mut self) -> Result<(), StoreError> {
        let mut length = [0; 2];
        let read = self.reader.read_exact(&mut length);
        read.map_err(|error| self.broken(said(&error)))?;
        self.record.resize(usize::from(u16::from_le_bytes(length)), 0);
        let read = self.reader.read_exact(&mut self.record);
        read.map_err(|error| self.broken(said(&error)))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = self.reader.get_ref().shutdown(Shutdown::Both);
    }
}

/// The head at the start of a message: kind, bytes of the payload, and its first ones.
fn head(body: &[u8]) -> Option<(Kind, usize, &[u8])> {
    let (head, rest) = body.split_first_chunk::<HEAD_BYTES>()?;
    let [kind, 0, 0, 0, count @ ..] = *head else {
        return None;
    };
    Some((Kind::of(kind)?, u32::from_le_bytes(count) as usize, rest))
}

/// An error of a socket, in words.
fn said(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof => "it closed the link".to_owned(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            format!("nothing moved for {} s", SILENCE.as_secs())
        }
        _ => error.to_string(),
    }
}

/// Why a handshake went no further.
enum Broke {
    Io(io::Error),
    /// A message of no store.
    Other,
}

impl From<io::Error> for Broke {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<SessionError> for Broke {
    fn from(_: SessionError) -> Self {
        Self::Other
    }
}

impl Broke {
    fn said(&self) -> String {
        match self {
            Self::Io(error) => said(error),
            Self::Other => "its first message is no store's".to_owned(),
        }
    }
}

fn preambles(timed: &mut Timed<'_>, cipher: Cipher) -> Result<[[u8; PREAMBLE_BYTES]; 2], String> {
    let (ours, mut theirs) = (preamble::encode(cipher), [0; PREAMBLE_BYTES]);
    timed.write_all(&ours).map_err(|error| said(&error))?;
    timed.read_exact(&mut theirs).map_err(|error| said(&error))?;
    preamble::check(cipher, &theirs).map_err(|error| error.to_string())?;
    Ok([ours, theirs])
}

fn check_hello(ours: &[u8], theirs: &[u8]) -> Result<(), String> {
    match theirs == ours {
        true => Ok(()),
        false if theirs[..HELLO.len()] == ours[..HELLO.len()] => {
            Err("OtherEncryption: one end enciphers, the other does not".to_owned())
        }
        false => Err("expected a store of this version".to_owned()),
    }
}

fn connect(stream: TcpStream, access: &Access) -> Result<Link, String> {
    let io = |error: io::Error| said(&error);
    stream.set_nodelay(true).map_err(io)?;
    let mut timed = Timed::new(&stream, HANDSHAKE_LIMIT);
    let [ours, theirs] = preambles(&mut timed, access.cipher)?;
    let key = access.key.clone().unwrap_or_else(Key::loopback);
    let connector = handshake::connect(&key, access.cipher, &preamble::prologue(&ours, &theirs));
    let said_first = connector.call(&access.hello()).map_err(|error| error.to_string());
    let (called, message) = said_first?;
    timed.write_message(&message).map_err(io)?;
    let message =
        timed.read_message(MESSAGE_BYTES, MESSAGE_BYTES).map_err(|broke| match broke {
            Broke::Io(error)
                if matches!(
                    error.kind(),
                    ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
                ) =>
            {
                "BadSecret: it closed the link on our first message: is the key the same?"
                    .to_owned()
            }
            broke => broke.said(),
        })?;
    let (finished, theirs) = called.answered(&message).map_err(|error| error.to_string())?;
    check_hello(&access.hello(), &theirs)?;
    let records = finished.records(access.encryption == Encryption::On);
    Link::new(stream, records).map_err(io)
}

fn accept(stream: TcpStream, access: &Access) -> Result<Link, String> {
    let io = |error: io::Error| said(&error);
    stream.set_nodelay(true).map_err(io)?;
    let mut timed = Timed::new(&stream, ACCEPT_LIMIT);
    let [ours, theirs] = preambles(&mut timed, access.cipher)?;
    let key = access.key.clone().unwrap_or_else(Key::loopback);
    let acceptor = handshake::accept(&key, access.cipher, &preamble::prologue(&theirs, &ours));
    let message = timed.read_message(MESSAGE_BYTES, MESSAGE_BYTES);
    let message = message.map_err(|broke: Broke| broke.said())?;
    let (answering, theirs) = acceptor.called(&message).map_err(|error| error.to_string())?;
    let answer = answering.answer(&access.hello()).map_err(|error| error.to_string());
    let (finished, message) = answer?;
    timed.write_message(&message).map_err(io)?;
    check_hello(&access.hello(), &theirs)?;
    let records = finished.records(access.encryption == Encryption::On);
    Link::new(stream, records).map_err(io)
}
