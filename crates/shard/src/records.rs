//! Records off a stream, each opened in the buffer that it was read into, which goes to whoever
//! uses it.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use ring::session::record::{LENGTH_BYTES, Opener, RECORD_BYTES_MAX};

/// A buffer's: one record. Behind a full one little of the next is read, which has to be moved.
const BUFFER_BYTES: usize = LENGTH_BYTES + RECORD_BYTES_MAX;
/// Most buffers that wait to be read into again.
const SPARES_MAX: usize = 16;

/// Buffers that were used.
#[derive(Default)]
pub(crate) struct Spares(Mutex<Vec<Vec<u8>>>);

impl Spares {
    /// Keeps a buffer, unless there are enough.
    pub(crate) fn put(&self, buffer: Vec<u8>) {
        let mut spares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spares.len() < SPARES_MAX {
            spares.push(buffer);
        }
    }

    fn take(&self) -> Vec<u8> {
        let spare = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| vec![0; BUFFER_BYTES])
    }
}

/// The receiving end of a stream.
pub(crate) struct Records<'a> {
    stream: &'a TcpStream,
    opener: Opener,
    spares: &'a Spares,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were read and not opened.
    unread: Range<usize>,
}

impl<'a> Records<'a> {
    pub(crate) fn new(stream: &'a TcpStream, opener: Opener, spares: &'a Spares) -> Self {
        let buffer = spares.take();
        Self { stream, opener, spares, buffer, unread: 0..0 }
    }

    /// Opens the next record; where its body is.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn next(&mut self) -> Result<Range<usize>, String> {
        loop {
            let need = match &self.buffer[self.unread.clone()] {
                [0, 0, ..] => return Err("a record of 0 bytes".into()),
                [low, high, ..] => LENGTH_BYTES + usize::from(u16::from_le_bytes([*low, *high])),
                _ => LENGTH_BYTES,
            };
            if need > LENGTH_BYTES && self.unread.len() >= need {
                let first = self.unread.start + LENGTH_BYTES;
                self.unread.start += need;
                let record = &mut self.buffer[first..self.unread.start];
                let body = self.opener.open(record).map_err(|error| error.to_string())?;
                return Ok(first..first + body.len());
            }
            self.fill()?;
        }
    }

    /// The bytes that the last record was opened to.
    pub(crate) fn body(&self, at: &Range<usize>) -> &[u8] {
        &self.buffer[at.clone()]
    }

    /// Gives the buffer with the last record away; what was read behind it goes into another.
    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        let mut next = self.spares.take();
        let count = self.unread.len();
        next[..count].copy_from_slice(&self.buffer[self.unread.clone()]);
        self.unread = 0..count;
        std::mem::replace(&mut self.buffer, next)
    }

    fn fill(&mut self) -> Result<(), String> {
        self.buffer.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        let read = loop {
            match self.stream.read(&mut self.buffer[self.unread.end..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        match read {
            Ok(0) => Err("LinkClosed: closed the link".into()),
            Ok(bytes) => {
                self.unread.end += bytes;
                Ok(())
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let timeout = self.stream.read_timeout().ok().flatten().unwrap_or_default();
                Err(format!("Silent: no byte for {} ms", timeout.as_millis()))
            }
            Err(error) => Err(format!("LinkClosed: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::io::Write;
    use std::net::{Ipv4Addr, TcpListener};

    use ring::key::Key;
    use ring::session::handshake;
    use ring::session::record::{BODY_BYTES_MAX, Sealer};
    use wire::preamble::Cipher;

    use super::*;

    fn session() -> (Sealer, Opener) {
        let key = Key::from_bytes(&[9; 32]).unwrap();
        let connector = handshake::connect(&key, Cipher::ChaChaPoly, &[1; 16]);
        let (called, message) = connector.call(b"").unwrap();
        let acceptor = handshake::accept(&key, Cipher::ChaChaPoly, &[1; 16]);
        let (acceptor, message) = acceptor.called(&message).unwrap().0.answer(b"").unwrap();
        let connector = called.answered(&message).unwrap().0;
        (connector.records(true).0, acceptor.records(true).1)
    }

    #[test]
    fn bodies_of_any_size_are_used_where_they_were_read() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let (mut sealer, opener) = session();
        let sizes = [1, 20_496, BODY_BYTES_MAX, BODY_BYTES_MAX, 3, 4, 5, 60_000, 2];
        let sent = sizes.repeat(20);
        let sizes = sent.clone();
        let writer = std::thread::spawn(move || {
            for (number, bytes) in sent.into_iter().enumerate() {
                let mut record = Vec::new();
                sealer.seal_in(&mut record, bytes, |body| body.fill(number as u8));
                out.write_all(&record).unwrap();
            }
        });
        let spares = Spares::default();
        let mut records = Records::new(&stream, opener, &spares);
        let mut places = std::collections::BTreeSet::new();
        for (number, bytes) in sizes.into_iter().enumerate() {
            let at = records.next().unwrap();
            let place = records.body(&at).as_ptr();
            let buffer = records.take_buffer();
            assert_eq!(buffer[at.clone()].as_ptr(), place, "no copy");
            assert!(buffer[at] == vec![number as u8; bytes], "record {number} of {bytes} bytes");
            places.insert(buffer.as_ptr());
            spares.put(buffer);
        }
        assert_eq!(places.len(), 2, "one buffer is used while another one is read into");
        writer.join().unwrap();
        assert_eq!(records.next().unwrap_err(), "LinkClosed: closed the link");
    }

    #[test]
    fn no_more_buffers_wait_than_there_may_be() {
        let spares = Spares::default();
        (0..2 * SPARES_MAX).for_each(|_| spares.put(vec![0; BUFFER_BYTES]));
        assert_eq!(spares.0.lock().unwrap().len(), SPARES_MAX);
    }
}
