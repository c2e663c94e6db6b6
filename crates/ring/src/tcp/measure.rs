//! What a link can carry, measured over a rank's own port: as a measurer, which is nobody's
//! neighbour, and at the door that answers it. Every count and the whole time are bounded at both
//! ends, and a door measures with one at a time.

use std::net::SocketAddr;
use std::time::Duration;

use arith::base::{Epoch, Rank};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use wire::hello::{ANSWER_BYTES_MAX, Answer, Encryption, HELLO_BYTES, Hello, Role};
use wire::limit::{MEASURE_BYTES_MAX, MEASURES_MAX};
use wire::measure::Measure;
use wire::preamble::{self, Cipher};
use wire::{Fault, WireError};

use super::Times;
use super::wire_io::{Broke, read_message, read_record, write_message};
use crate::address;
use crate::key::Key;
use crate::link::LinkError;
use crate::session::SessionError;
use crate::session::handshake::{self, MESSAGE_OVERHEAD_BYTES};
use crate::session::record::{BODY_BYTES_MAX, Opener, Sealer};

/// How long a measurement may take, at either end.
pub const MEASURE_TIME: Duration = Duration::from_secs(20);
/// Round trips, the median of which counts.
const ECHOES: u64 = 31;
/// Bytes of the first attempt at a rate; the next has four times as many.
const BYTES_MIN: u64 = 64 << 10;
/// A rate counts once its bytes took so long.
const LONG_ENOUGH: Duration = Duration::from_millis(100);

/// A link, as one end saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// There and back, of a message of a few bytes.
    pub round_trip: Duration,
    /// Bytes a second from here.
    pub there_per_s: f64,
    /// Bytes a second to here.
    pub back_per_s: f64,
}

/// Measures the way to whoever listens at `address` with the same key, for at most
/// [`MEASURE_TIME`]. A ring that serves there goes on beside it, slower for that time.
///
/// # Errors
/// `KeylessAddress`; `Unmeasured` where nobody answers, has another key or is too slow for the
/// smallest attempt.
pub fn measure(
    address: &str,
    key: Option<&Key>,
    cipher: Cipher,
    encryption: Encryption,
) -> Result<Measured, LinkError> {
    let failed = |reason: String| LinkError::Unmeasured { address: address.to_owned(), reason };
    let sockets = address::resolve(address).map_err(|e| failed(e.to_string()))?;
    let socket: SocketAddr =
        *sockets.first().ok_or_else(|| failed("the name has no address".into()))?;
    address::check_key(key, socket)?;
    let key = key.cloned().unwrap_or_else(Key::loopback);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| failed(e.to_string()))?;
    let measured = runtime.block_on(async {
        let connect = timeout(Times::default().connect, TcpStream::connect(socket)).await;
        let stream = connect.map_err(|_| late())??;
        let shaken = timeout(Times::default().handshake, call(stream, &key, cipher, encryption));
        let link = shaken.await.map_err(|_| late())??;
        timeout(MEASURE_TIME, link.all()).await.map_err(|_| late())?
    });
    measured.map_err(|broke| {
        failed(match broke {
            Broke::Io(error) => error.to_string(),
            Broke::Session(error) => error.to_string(),
        })
    })
}

fn late() -> Broke {
    Broke::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer in time"))
}

/// The measurer's handshake.
async fn call(
    mut stream: TcpStream,
    key: &Key,
    cipher: Cipher,
    encryption: Encryption,
) -> Result<Link, Broke> {
    stream.set_nodelay(true)?;
    let ours = preamble::encode(cipher);
    stream.write_all(&ours).await?;
    let mut theirs = [0; preamble::PREAMBLE_BYTES];
    stream.read_exact(&mut theirs).await?;
    preamble::check(cipher, &theirs)?;
    let hello = Hello {
        rank: Rank(0),
        world: 1,
        role: Role::Measurer,
        epoch: Epoch(0),
        fingerprint: [0; 32],
        encryption,
    };
    let connector = handshake::connect(key, cipher, &preamble::prologue(&ours, &theirs));
    let (called, message) = connector.call(&hello.encode()?)?;
    write_message(&mut stream, &message).await?;
    let (min, max) =
        (HELLO_BYTES + MESSAGE_OVERHEAD_BYTES, ANSWER_BYTES_MAX + MESSAGE_OVERHEAD_BYTES);
    let message = read_message(&mut stream, min, max).await.map_err(|broke| match broke {
        Broke::Io(_) => SessionError::Unanswered.into(),
        other => other,
    })?;
    let (finished, payload) = called.answered(&message)?;
    let answer = Answer::decode(&payload)?;
    if let Some(refusal) = answer.refusal {
        return Err(refusal.error(Rank(0)).into());
    }
    let (sealer, opener) = finished.records(encryption == Encryption::On);
    Ok(Link { stream, sealer, opener, out: Vec::new() })
}

/// Answers a measurer until it has gone, asked too often or taken too long.
///
/// # Errors
/// What the connection broke of; `TooLarge` and the others of [`Measure::decode`].
pub(super) async fn answer(stream: TcpStream, sealer: Sealer, opener: Opener) -> Result<(), Broke> {
    let link = Link { stream, sealer, opener, out: Vec::new() };
    timeout(MEASURE_TIME, link.answers()).await.map_err(|_| late())?
}

/// An end of a measured link.
struct Link {
    stream: TcpStream,
    sealer: Sealer,
    opener: Opener,
    out: Vec<u8>,
}

impl Link {
    async fn say(&mut self, message: Measure) -> Result<(), Broke> {
        self.out.clear();
        self.sealer.seal(&message.encode(), &[], &mut self.out);
        Ok(self.stream.write_all(&self.out).await?)
    }

    async fn hear(&mut self) -> Result<Measure, Broke> {
        let mut record = read_record(&mut self.stream).await?;
        Ok(Measure::decode(self.opener.open(&mut record)?)?)
    }

    async fn send(&mut self, bytes: u64) -> Result<(), Broke> {
        let body = vec![0; BODY_BYTES_MAX];
        let mut left = bytes as usize;
        while left > 0 {
            let piece = &body[..left.min(BODY_BYTES_MAX)];
            self.out.clear();
            self.sealer.seal(&[], piece, &mut self.out);
            self.stream.write_all(&self.out).await?;
            left -= piece.len();
        }
        Ok(())
    }

    async fn receive(&mut self, bytes: u64) -> Result<(), Broke> {
        let mut left = bytes;
        while left > 0 {
            let mut record = read_record(&mut self.stream).await?;
            let found = self.opener.open(&mut record)?.len() as u64;
            if found > left {
                let fault = Fault::new("measure.bytes", format!("{left} more"), found);
                return Err(WireError::TooLarge(fault).into());
            }
            left -= found;
        }
        Ok(())
    }

    /// The measurer's side: round trips, then the rate each way.
    async fn all(mut self) -> Result<Measured, Broke> {
        let mut trips = Vec::new();
        for number in 0..ECHOES {
            let since = Instant::now();
            self.say(Measure::Echo(number)).await?;
            self.expect(Measure::Echo(number)).await?;
            trips.push(since.elapsed());
        }
        trips.sort();
        let round_trip = trips[trips.len() / 2];
        let (mut bytes, mut took) = (BYTES_MIN, Duration::ZERO);
        let there_per_s = loop {
            self.say(Measure::Take(bytes)).await?;
            self.send(bytes).await?;
            match self.hear().await? {
                Measure::Took(us) => took = took.max(Duration::from_micros(us)),
                other => return Err(unasked(other)),
            }
            if took >= LONG_ENOUGH || bytes == MEASURE_BYTES_MAX {
                break rate(bytes, took);
            }
            (bytes, took) = ((4 * bytes).min(MEASURE_BYTES_MAX), Duration::ZERO);
        };
        let mut bytes = BYTES_MIN;
        let back_per_s = loop {
            let since = Instant::now();
            self.say(Measure::Give(bytes)).await?;
            self.receive(bytes).await?;
            let took = since.elapsed().saturating_sub(round_trip);
            if took >= LONG_ENOUGH || bytes == MEASURE_BYTES_MAX {
                break rate(bytes, took);
            }
            bytes = (4 * bytes).min(MEASURE_BYTES_MAX);
        };
        Ok(Measured { round_trip, there_per_s, back_per_s })
    }

    async fn expect(&mut self, message: Measure) -> Result<(), Broke> {
        match self.hear().await? {
            heard if heard == message => Ok(()),
            other => Err(unasked(other)),
        }
    }

    /// The door's side.
    async fn answers(mut self) -> Result<(), Broke> {
        for _ in 0..MEASURES_MAX {
            let message = match self.hear().await {
                Ok(message) => message,
                // It has what it wanted.
                Err(Broke::Io(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                    return Ok(());
                }
                Err(broke) => return Err(broke),
            };
            let since = Instant::now();
            match message {
                Measure::Echo(_) => self.say(message).await?,
                Measure::Take(bytes) => {
                    self.receive(bytes).await?;
                    self.say(Measure::Took(since.elapsed().as_micros() as u64)).await?;
                }
                Measure::Give(bytes) => self.send(bytes).await?,
                Measure::Took(_) => return Err(unasked(message)),
            }
        }
        let fault = Fault::new("measure", format!("at most {MEASURES_MAX} messages"), "another");
        Err(WireError::TooLarge(fault).into())
    }
}

fn rate(bytes: u64, took: Duration) -> f64 {
    bytes as f64 / took.as_secs_f64().max(1e-6)
}

fn unasked(message: Measure) -> Broke {
    let fault = Fault::new("measure.kind", "the answer to what was asked", format!("{message:?}"));
    WireError::OutOfTurn(fault).into()
}
