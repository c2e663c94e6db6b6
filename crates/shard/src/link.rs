//! The link to one other member in one epoch: a thread that receives, a thread that sends.
//!
//! The receiving thread reads records, opens them where they lie, and hands their buffers over
//! through a bounded queue, so that a piece is used before the next one is there. Values are given
//! by whoever has them, from where they lie into the record that is sealed and written. The sending
//! thread beats, and writes what others wait before.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arith::base::Rank;
use ring::session::record::{Opener, Sealer};
use stage::ExchangeError;
use wire::group::{Kind, PIECE_BYTES_MAX, PIECE_HEADER_BYTES, Piece, header};
use wire::rows;
use wire::stop::Stop;

use crate::epoch::Epoch;
use crate::records::{Records, Spares};

/// Most pieces of a peer that wait for this member; then its receiver stops reading.
pub(crate) const PIECES_MAX: usize = 64;
/// Most messages to a peer that wait for its sender: members meet in every exchange, so that none
/// is ahead by more.
const MESSAGES_MAX: usize = 64;
/// How long the rest of a link that has ended is read away, so that the other end hears why.
const LINGER: Duration = Duration::from_secs(1);

/// A piece of the peer's, in the buffer that its record was read into.
pub(crate) struct Came {
    pub(crate) kind: Kind,
    pub(crate) more: bool,
    pub(crate) number: u64,
    buffer: Vec<u8>,
    /// Where its bytes are.
    at: Range<usize>,
}

impl Came {
    pub(crate) fn payload(&self) -> &[u8] {
        &self.buffer[self.at.clone()]
    }

    pub(crate) fn piece(&self) -> Piece<'_> {
        let Self { kind, more, number, .. } = *self;
        Piece { kind, more, number, payload: self.payload() }
    }
}

/// What reaches the member.
pub(crate) enum Item {
    /// A piece.
    Piece(Came),
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
    spares: Spares,
    /// Since which beat the peer says that it is at no exchange.
    rests: Mutex<Option<Instant>>,
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
    /// Those that wait to give.
    givers: usize,
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
            spares: Spares::default(),
            rests: Mutex::default(),
        }
    }

    fn rests(&self) -> MutexGuard<'_, Option<Instant>> {
        self.rests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the peer's beats have said that it is at no exchange; none where it is at one.
    pub(crate) fn rested(&self) -> Option<Duration> {
        self.rests().map(|since| since.elapsed())
    }

    fn hear_beat(&self, at: u64) {
        let mut rests = self.rests();
        match at {
            0 => drop(rests.get_or_insert_with(Instant::now)),
            _ => *rests = None,
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
        self.written(epoch, self.write(kind, number, payload))
    }

    /// Ends a turn of this side's at the stream.
    fn written(&self, epoch: &Epoch, written: std::io::Result<()>) -> Result<(), ExchangeError> {
        let mut queue = self.queue();
        queue.busy = false;
        let waits = !queue.messages.is_empty() || queue.over.is_some() || queue.givers > 0;
        drop(queue);
        if waits {
            self.changed.notify_all();
        }
        written.map_err(|error| epoch.fail(self.peer, took_none(&error)))
    }

    /// Gives values of an exchange, after what is being written: each goes from where it lies into
    /// its place in a record, is sealed there, and written. Blocks until the stream has all.
    ///
    /// # Errors
    /// Why the epoch is over.
    pub(crate) fn give(
        &self,
        epoch: &Epoch,
        number: u64,
        values: &[f32],
    ) -> Result<(), ExchangeError> {
        let mut queue = self.queue();
        queue.givers += 1;
        while (queue.busy || !queue.messages.is_empty()) && queue.over.is_none() {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.givers -= 1;
        if let Some(lost) = epoch.lost() {
            return Err(lost);
        }
        queue.busy = true;
        drop(queue);
        self.written(epoch, self.write_values(epoch, number, values))
    }

    fn write_values(&self, epoch: &Epoch, number: u64, values: &[f32]) -> std::io::Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let Writer { sealer, record } = &mut *writer;
        let mut rest = values;
        loop {
            let (piece, after) = rest.split_at(rest.len().min(PIECE_BYTES_MAX / 4));
            rest = after;
            let header = header(Kind::Part, !rest.is_empty(), number);
            sealer.seal_in(record, PIECE_HEADER_BYTES + 4 * piece.len(), |body| {
                let (head, values) = body.split_at_mut(PIECE_HEADER_BYTES);
                head.copy_from_slice(&header);
                rows::write(piece, values);
            });
            (&self.stream).write_all(record)?;
            // Nobody waits for the rest of it where the epoch is over.
            if rest.is_empty() || epoch.lost().is_some() {
                return Ok(());
            }
        }
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
                // A writer that leaves nothing to do wakes nobody, and beats must not end with it.
                let waited = self.changed.wait_timeout(queue, beat);
                queue = waited.unwrap_or_else(PoisonError::into_inner).0;
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
                    Message { kind: Kind::Beat, number: epoch.at(), payload: Arc::default() }
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
        let mut records = Records::new(&self.stream, opener, &self.spares);
        let (member, reason) = loop {
            let at = match records.next() {
                Ok(at) => at,
                Err(reason) => break (self.peer, reason),
            };
            let Piece { kind, more, number, payload } = match Piece::decode(records.body(&at)) {
                Ok(piece) => piece,
                Err(error) => break (self.peer, error.to_string()),
            };
            match kind {
                Kind::Beat => {
                    self.hear_beat(number);
                    continue;
                }
                Kind::Stop => match Stop::decode(payload) {
                    Ok(stop) => break (stop.origin.0 as usize, stop.reason),
                    Err(error) => break (self.peer, error.to_string()),
                },
                _ => {}
            }
            let at = at.end - payload.len()..at.end;
            let came = Came { kind, more, number, buffer: records.take_buffer(), at };
            if epoch.lost().is_some() || inbox.send(Item::Piece(came)).is_err() {
                break (self.peer, "the epoch is over".into());
            }
        };
        let _ = epoch.told(self.peer, member, reason);
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

    /// Has the buffer of a piece that was used be read into again.
    pub(crate) fn put_back(&self, came: Came) {
        self.spares.put(came.buffer);
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
        // What waits is nobody's any more, and this side's receiver may wait for room. Whoever has
        // the inbox makes some.
        if let Ok(inbox) = self.inbox.try_lock() {
            while inbox.try_recv().is_ok() {}
        }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::net::{Ipv4Addr, TcpListener};
    use std::time::Instant;

    use ring::key::Key;
    use stage::{Exchange, Member};
    use wire::control::Fields;
    use wire::hello::Encryption;
    use wire::preamble::Cipher;

    use crate::{Group, GroupConfig, Through, Times};

    fn two() -> [Group; 2] {
        let held = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let addresses = held.map(|held| held.local_addr().unwrap().to_string());
        let groups = [0, 1].map(|index| {
            Group::start(GroupConfig {
                member: Member { index, count: 2 },
                addresses: addresses.to_vec(),
                key: Some(Key::from_bytes(&[1; 32]).unwrap()),
                cipher: Cipher::ChaChaPoly,
                encryption: Encryption::On,
                fingerprint: Fields::new(),
                through: Through::Links,
                times: Times::default(),
            })
            .unwrap()
        });
        let joins = groups.clone().map(|group| std::thread::spawn(move || group.join()));
        joins.into_iter().for_each(|join| join.join().unwrap().unwrap());
        groups
    }

    #[test]
    fn a_link_with_more_on_its_way_than_anybody_takes_ends_on_both_sides() {
        let groups = two();
        let links = [(0, 1), (1, 0)].map(|(member, peer): (usize, usize)| {
            std::sync::Arc::downgrade(&groups[member].0.epoch().unwrap().link(peer).unwrap())
        });
        // More than an inbox and the sockets hold.
        let mut seat = groups[0].seat();
        let giving = std::thread::spawn(move || {
            let own = vec![1.0; 8 << 20];
            (seat.gather(&own, &[own.len(), 1], &mut Vec::new()), Instant::now())
        });
        std::thread::sleep(std::time::Duration::from_millis(200));
        let since = Instant::now();
        groups[1].shutdown();
        let (ended, at) = giving.join().unwrap();
        assert_eq!(ended.unwrap_err().to_string(), "member 1: shutting down");
        assert!(at.saturating_duration_since(since).as_millis() < 1_000);
        groups[0].shutdown();
        drop(groups);
        while links.iter().any(|link| link.upgrade().is_some()) {
            assert!(since.elapsed().as_secs() < 10, "a thread of a link goes on");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
