//! The link to one other member in one epoch: a thread that receives, a thread that sends.
//!
//! The receiving thread opens records and hands pieces over through a bounded queue, so that a
//! piece is used before the next one is there. The sending thread beats, and writes what is long;
//! what fits one record is written by whoever sends it, when nothing waits before it.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arith::base::Rank;
use ring::session::record::{Opener, RECORD_BYTES_MAX, Sealer};
use stage::ExchangeError;
use wire::group::{Kind, PIECE_BYTES_MAX, Piece};
use wire::stop::Stop;

use crate::epoch::Epoch;

/// Most pieces of a peer that wait for this member; then its receiver stops reading.
pub(crate) const PIECES_MAX: usize = 64;
/// Most messages to a peer that wait for its sender: members meet in every exchange, so that none
/// is ahead by more.
const MESSAGES_MAX: usize = 64;
/// How long the rest of a link that has ended is read away, so that the other end hears why.
const LINGER: Duration = Duration::from_secs(1);

/// What reaches the member.
pub(crate) enum Item {
    /// A piece of the peer's.
    Piece { kind: Kind, more: bool, number: u64, payload: Vec<u8> },
    /// The epoch is over.
    Over,
}

/// One end of a link.
pub(crate) struct Link {
    pub(crate) peer: usize,
    stream: TcpStream,
    writer: Mutex<Writer>,
    queue: Mutex<Queue>,
    changed: Condvar,
    inbox: Mutex<Receiver<Item>>,
    wake: SyncSender<Item>,
}

struct Writer {
    sealer: Sealer,
    record: Vec<u8>,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Message>,
    /// Somebody writes.
    busy: bool,
    /// Nothing follows but this stop.
    over: Option<Option<Stop>>,
}

struct Message {
    kind: Kind,
    number: u64,
    payload: Arc<Vec<u8>>,
}

impl Link {
    pub(crate) fn new(
        peer: usize,
        stream: TcpStream,
        sealer: Sealer,
        (wake, inbox): (SyncSender<Item>, Receiver<Item>),
    ) -> Self {
        Self {
            peer,
            stream,
            writer: Mutex::new(Writer { sealer, record: Vec::new() }),
            queue: Mutex::default(),
            changed: Condvar::new(),
            inbox: Mutex::new(inbox),
            wake,
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message, now or, where it is long or others wait, by the sending thread.
    ///
    /// # Errors
    /// Why the epoch is over.
    pub(crate) fn send(
        &self,
        epoch: &Epoch,
        kind: Kind,
        number: u64,
        payload: &Arc<Vec<u8>>,
    ) -> Result<(), ExchangeError> {
        let mut queue = self.queue();
        while queue.messages.len() >= MESSAGES_MAX && queue.over.is_none() {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(lost) = epoch.lost() {
            return Err(lost);
        }
        let is_first = !queue.busy && queue.messages.is_empty();
        if !is_first || payload.len() > PIECE_BYTES_MAX {
            queue.messages.push_back(Message { kind, number, payload: payload.clone() });
            drop(queue);
            self.changed.notify_all();
            return Ok(());
        }
        queue.busy = true;
        drop(queue);
        let written = self.write(kind, number, payload);
        let mut queue = self.queue();
        queue.busy = false;
        let waits = !queue.messages.is_empty() || queue.over.is_some();
        drop(queue);
        if waits {
            self.changed.notify_all();
        }
        written.map_err(|error| epoch.fail(self.peer, took_none(&error)))
    }

    fn write(&self, kind: Kind, number: u64, payload: &[u8]) -> std::io::Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let Writer { sealer, record } = &mut *writer;
        for piece in Piece::cut(kind, number, payload) {
            record.clear();
            sealer.seal(&piece.header(), piece.payload, record);
            (&self.stream).write_all(record)?;
        }
        Ok(())
    }

    /// The sending thread: what waits, a beat when nothing does, a last stop.
    pub(crate) fn run_sender(&self, epoch: &Epoch, beat: Duration) {
        let mut queue = self.queue();
        loop {
            if queue.busy {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if let Some(stop) = queue.over.take() {
                queue.over = Some(None);
                drop(queue);
                // The link may be gone already; that says as much.
                let _ = stop.map(|stop| self.write(Kind::Stop, 0, &stop.encode()));
                let _ = self.stream.shutdown(Shutdown::Write);
                return;
            }
            let message = match queue.messages.pop_front() {
                Some(message) => message,
                None => {
                    let waited = self.changed.wait_timeout(queue, beat);
                    let (again, time) = waited.unwrap_or_else(PoisonError::into_inner);
                    queue = again;
                    if !time.timed_out() || queue.busy || !queue.messages.is_empty() {
                        continue;
                    }
                    Message { kind: Kind::Beat, number: 0, payload: Arc::default() }
                }
            };
            queue.busy = true;
            drop(queue);
            let written = self.write(message.kind, message.number, &message.payload);
            queue = self.queue();
            queue.busy = false;
            self.changed.notify_all();
            if let Err(error) = written
                && queue.over.is_none()
            {
                drop(queue);
                let _ = epoch.fail(self.peer, took_none(&error));
                queue = self.queue();
            }
        }
    }

    /// The receiving thread: until the link or the epoch ends.
    pub(crate) fn run_receiver(&self, epoch: &Epoch, opener: Opener, inbox: &SyncSender<Item>) {
        let mut records = Records { stream: &self.stream, opener, bytes: Vec::new(), at: 0 };
        let (member, reason) = loop {
            let body = match records.next() {
                Ok(body) => body,
                Err(reason) => break (self.peer, reason),
            };
            let piece = match Piece::decode(body) {
                Ok(piece) => piece,
                Err(error) => break (self.peer, error.to_string()),
            };
            let item = match piece.kind {
                Kind::Beat => continue,
                Kind::Stop => match Stop::decode(piece.payload) {
                    Ok(stop) => break (stop.origin.0 as usize, stop.reason),
                    Err(error) => break (self.peer, error.to_string()),
                },
                _ => Item::Piece {
                    kind: piece.kind,
                    more: piece.more,
                    number: piece.number,
                    payload: piece.payload.to_vec(),
                },
            };
            if epoch.lost().is_some() || inbox.send(item).is_err() {
                break (self.peer, "the epoch is over".into());
            }
        };
        let _ = epoch.fail(member, reason);
        let _ = self.stream.set_read_timeout(Some(LINGER));
        let mut rest = [0; 4096];
        while matches!((&self.stream).read(&mut rest), Ok(1..)) {}
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// The peer's next piece.
    ///
    /// # Errors
    /// Why the epoch is over; that nothing came for `wait`.
    pub(crate) fn next(
        &self,
        epoch: &Epoch,
        wait: Option<Duration>,
    ) -> Result<Item, ExchangeError> {
        if let Some(lost) = epoch.lost() {
            return Err(lost);
        }
        let inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let item = match wait {
            Some(wait) => inbox.recv_timeout(wait),
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match item {
            Ok(Item::Over) | Err(RecvTimeoutError::Disconnected) => {
                Err(epoch.fail(self.peer, "its link has ended".into()))
            }
            Ok(item) => Ok(item),
            Err(RecvTimeoutError::Timeout) => {
                let ms = wait.unwrap_or_default().as_millis();
                Err(epoch
                    .fail(self.peer, format!("Stalled: it beats, and said nothing for {ms} ms")))
            }
        }
    }

    /// Ends the link: whoever waits for it wakes, and the peer hears `stop`. `now` ends it without
    /// a word.
    pub(crate) fn end(&self, stop: Option<(usize, &str)>, now: bool) {
        let stop = stop.map(|(member, reason)| Stop {
            origin: Rank(u32::try_from(member).unwrap_or(u32::MAX)),
            reason: reason.into(),
        });
        self.queue().over.get_or_insert(stop);
        self.changed.notify_all();
        // A full inbox wakes its owner without this.
        let _ = self.wake.try_send(Item::Over);
        if now {
            let _ = self.stream.shutdown(Shutdown::Both);
        }
    }
}

fn took_none(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "Stalled: it took no byte in time".into(),
        _ => format!("LinkClosed: {error}"),
    }
}

/// Records off a stream.
struct Records<'a> {
    stream: &'a TcpStream,
    opener: Opener,
    bytes: Vec<u8>,
    /// Where the next record begins.
    at: usize,
}

impl Records<'_> {
    /// The next record's body, or why there is none.
    fn next(&mut self) -> Result<&[u8], String> {
        loop {
            let have = &self.bytes[self.at..];
            let need = match have {
                [low, high, ..] => 2 + usize::from(u16::from_le_bytes([*low, *high])),
                _ => 2,
            };
            if need > 2 && have.len() >= need {
                let first = self.at + 2;
                self.at += need;
                let record = &self.bytes[first..self.at];
                return self.opener.open(record).map_err(|error| error.to_string());
            }
            if need == 2 && have.len() >= 2 {
                return Err("a record of 0 bytes".into());
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> Result<(), String> {
        self.bytes.drain(..self.at);
        self.at = 0;
        let have = self.bytes.len();
        self.bytes.resize(have + RECORD_BYTES_MAX, 0);
        let read = loop {
            match self.stream.read(&mut self.bytes[have..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.bytes.truncate(have + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Err("LinkClosed: closed the link".into()),
            Ok(_) => Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let timeout = self.stream.read_timeout().ok().flatten().unwrap_or_default();
                Err(format!("Silent: no byte for {} ms", timeout.as_millis()))
            }
            Err(error) => Err(format!("LinkClosed: {error}")),
        }
    }
}
