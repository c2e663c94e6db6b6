//! Those who knock at a rank's port and are no rank.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::process::s;

/// A stranger who has not spoken is dropped within 1 s; a busy machine may need more to do it.
const DROPPED: Duration = s(3);

/// What a stranger does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// A browser's request.
    Http,
    /// The first message of TLS.
    Tls,
    /// Noise, on several connections.
    Noise,
    /// Says nothing, two hundred times.
    Silent,
}

impl Stranger {
    /// Its connections, on which it has said all that it has to say.
    pub fn knock(self, at: SocketAddr) -> Vec<TcpStream> {
        let count = match self {
            Self::Http | Self::Tls => 1,
            Self::Noise => 20,
            Self::Silent => 200,
        };
        (0..count).map(|seed| self.one(at, seed)).collect()
    }

    fn one(self, at: SocketAddr, seed: u64) -> TcpStream {
        let mut stream = TcpStream::connect_timeout(&at, s(5)).unwrap();
        let words: Vec<u8> = match self {
            Self::Http => b"GET /v1/models HTTP/1.1\r\nHost: baton\r\nAccept: */*\r\n\r\n".into(),
            Self::Tls => client_hello(),
            Self::Noise => noise(seed),
            Self::Silent => Vec::new(),
        };
        // The rank may have closed already.
        let _ = stream.write_all(&words);
        stream
    }
}

/// All were closed by the rank, which said no more than its preamble; how long it took.
pub fn are_dropped(strangers: Vec<TcpStream>) -> Duration {
    let since = Instant::now();
    for mut stream in strangers {
        let left = DROPPED.saturating_sub(since.elapsed());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1)))).unwrap();
        let mut said = Vec::new();
        match stream.read_to_end(&mut said) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("a stranger is still there after {DROPPED:?}: {error}"),
        }
        assert!(said.len() <= 8, "a stranger was told {} bytes", said.len());
    }
    since.elapsed()
}

fn client_hello() -> Vec<u8> {
    // A handshake record of TLS 1.0 to 1.3: version, random, no session, one cipher.
    let mut hello = vec![3, 3];
    hello.extend([7; 32]);
    hello.extend([0, 0, 2, 0x13, 1, 1, 0]);
    let mut message = vec![1, 0, 0, hello.len() as u8];
    message.extend(hello);
    let mut record = vec![0x16, 3, 1, 0, message.len() as u8];
    record.extend(message);
    record
}

fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..64 << 10).map(|_| next()).collect()
}
