//! A handshake's messages over a blocking socket, all of them before one deadline, however the
//! other end's bytes drip.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::session::SessionError;

/// A socket whose every read and write ends by a deadline. Its timeouts are whoever's that goes on.
#[derive(Debug)]
pub struct Timed<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl<'a> Timed<'a> {
    /// From now on for so long.
    pub fn new(stream: &'a TcpStream, limit: Duration) -> Self {
        Self { stream, until: Instant::now() + limit }
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(ErrorKind::TimedOut, "not within its time"));
        }
        Ok(left)
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// `TimedOut` or `WouldBlock` at the deadline, and the socket's.
    pub fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(Some(self.left()?))?;
            let count = self.stream.write(bytes)?;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Fills `bytes`.
    ///
    /// # Errors
    /// As [`Timed::write_all`]'s; `UnexpectedEof` where the other end closes before.
    pub fn read_exact(&mut self, mut bytes: &mut [u8]) -> io::Result<()> {
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
    ///
    /// # Errors
    /// As [`Timed::write_all`]'s.
    pub fn write_message(&mut self, message: &[u8]) -> io::Result<()> {
        let length = (message.len() as u16).to_le_bytes();
        self.write_all(&[&length, message].concat())
    }

    /// Reads a handshake message of `min..=max` bytes; nothing is allocated for any other.
    ///
    /// # Errors
    /// As [`Timed::read_exact`]'s; [`SessionError::BadMessage`].
    pub fn read_message<E>(&mut self, min: usize, max: usize) -> Result<Vec<u8>, E>
    where
        E: From<io::Error> + From<SessionError>,
    {
        let found = self.read_length()?;
        if !(min..=max).contains(&found) {
            return Err(SessionError::BadMessage { min, max, found }.into());
        }
        let mut message = vec![0; found];
        self.read_exact(&mut message)?;
        Ok(message)
    }

    /// Reads one record, without its length.
    ///
    /// # Errors
    /// As [`Timed::read_exact`]'s.
    pub fn read_record(&mut self) -> io::Result<Vec<u8>> {
        let mut record = vec![0; self.read_length()?];
        self.read_exact(&mut record)?;
        Ok(record)
    }

    fn read_length(&mut self) -> io::Result<usize> {
        let mut length = [0; 2];
        self.read_exact(&mut length)?;
        Ok(usize::from(u16::from_le_bytes(length)))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::tcp::wire_io::Broke;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let ours = TcpStream::connect(address).expect("a connection");
        (ours, listener.accept().expect("its other end").0)
    }

    #[test]
    fn bytes_that_drip_end_at_the_deadline() {
        let (ours, mut theirs) = pair();
        let dripping = std::thread::spawn(move || {
            for _ in 0..40 {
                std::thread::sleep(Duration::from_millis(25));
                if theirs.write_all(&[0]).is_err() {
                    return;
                }
            }
        });
        let since = Instant::now();
        let read = Timed::new(&ours, Duration::from_millis(200)).read_exact(&mut [0; 64]);
        let late = matches!(
            read.expect_err("too few").kind(),
            ErrorKind::TimedOut | ErrorKind::WouldBlock
        );
        assert!(late && since.elapsed() < Duration::from_millis(900), "{:?}", since.elapsed());
        drop(ours);
        dripping.join().expect("no panic");
    }

    #[test]
    fn a_message_of_a_size_that_none_has_is_refused_by_it() {
        let (ours, theirs) = pair();
        let limit = Duration::from_secs(5);
        Timed::new(&theirs, limit).write_message(&[7; 5]).expect("sent");
        Timed::new(&theirs, limit).write_message(&[7; 9]).expect("sent");
        let mut timed = Timed::new(&ours, limit);
        let message: Result<Vec<u8>, Broke> = timed.read_message(5, 8);
        assert_eq!(message.expect("a message"), [7; 5]);
        match timed.read_message(5, 8) {
            Err(Broke::Session(SessionError::BadMessage { min: 5, max: 8, found: 9 })) => {}
            Err(Broke::Io(error)) => panic!("{error}"),
            other => panic!("{other:?}"),
        }
    }
}
