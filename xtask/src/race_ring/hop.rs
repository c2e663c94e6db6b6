//! A hop of a race: passes a connection on, as fast and as late as the link that it stands for,
//! and counts.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use anyhow::Result;

/// Most bytes carried at once.
const PIECE_BYTES: usize = 16 << 10;
/// Pieces under way on a link, at most: a gigabit and a millisecond fit.
const PIECES_MAX: usize = 64;
/// How exactly threads here wake, where the system lets them say so.
const SLACK_NS: &str = "1000";

/// What a link is like.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wire {
    /// Bytes a second each way; as fast as it goes where `None`.
    pub bytes_per_s: Option<f64>,
    /// How long a byte is under way.
    pub delay: Duration,
}

impl Wire {
    /// Of so many bytes a second, without delay.
    pub fn of_rate(bytes_per_s: f64) -> Self {
        Self { bytes_per_s: Some(bytes_per_s), delay: Duration::ZERO }
    }
}

/// A link before one address; it lives as long as this process.
#[derive(Debug)]
pub struct Hop {
    /// Where it listens.
    pub address: SocketAddr,
    carried: Arc<AtomicU64>,
}

impl Hop {
    /// A link to `to`.
    ///
    /// # Errors
    /// No free port.
    pub fn to(to: SocketAddr, wire: Wire) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (address, carried) = (listener.local_addr()?, Arc::<AtomicU64>::default());
        let count = carried.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                // Whoever connects too early tries again.
                if let Ok(far) = TcpStream::connect(to) {
                    let _ = join(&near, &far, wire, &count);
                }
            }
        });
        Ok(Self { address, carried })
    }

    /// Bytes so far, both ways.
    pub fn carried(&self) -> u64 {
        self.carried.load(Ordering::Relaxed)
    }
}

/// Carries both ways until either end closes.
fn join(near: &TcpStream, far: &TcpStream, wire: Wire, count: &Arc<AtomicU64>) -> Result<()> {
    for (from, to) in [(near, far), (far, near)] {
        from.set_nodelay(true)?;
        let (from, to, count) = (from.try_clone()?, to.try_clone()?, count.clone());
        let late = to.try_clone()?;
        let (pieces, due) = sync_channel(PIECES_MAX);
        std::thread::spawn(move || {
            let give = |at, bytes: &[u8]| match wire == Wire::default() {
                true => (&to).write_all(bytes).is_ok(),
                false => pieces.send((at, bytes.to_vec())).is_ok(),
            };
            let _ = carry(&from, wire, &count, give);
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        });
        std::thread::spawn(move || deliver(&due, &late));
    }
    Ok(())
}

/// Takes what comes, and gives it with the time at which it is through.
fn carry(
    mut from: &TcpStream,
    wire: Wire,
    count: &AtomicU64,
    give: impl Fn(Instant, &[u8]) -> bool,
) -> std::io::Result<()> {
    let mut buffer = vec![0; PIECE_BYTES];
    let mut free = Instant::now();
    loop {
        let bytes = from.read(&mut buffer)?;
        if bytes == 0 {
            return Ok(());
        }
        count.fetch_add(bytes as u64, Ordering::Relaxed);
        // The last byte is through once those before it and these have passed.
        let took = wire.bytes_per_s.map_or(0.0, |rate| bytes as f64 / rate);
        free = free.max(Instant::now()) + Duration::from_secs_f64(took);
        if !give(free + wire.delay, &buffer[..bytes]) {
            return Ok(());
        }
    }
}

/// Writes each piece once it is due.
fn deliver(due: &Receiver<(Instant, Vec<u8>)>, mut to: &TcpStream) {
    // Elsewhere links are some 50 us slower.
    let _ = std::fs::write("/proc/thread-self/timerslack_ns", SLACK_NS);
    for (at, bytes) in due {
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            return;
        }
    }
}

/// A free loopback address.
///
/// # Errors
/// None is free.
pub fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_hop_counts_and_is_as_slow_as_its_link() {
        let behind = TcpListener::bind("127.0.0.1:0").unwrap();
        let delay = Duration::from_millis(30);
        let wire = Wire { delay, ..Wire::of_rate(2e6) };
        let hop = Hop::to(behind.local_addr().unwrap(), wire).unwrap();
        let mut near = TcpStream::connect(hop.address).unwrap();
        let (mut far, _) = behind.accept().unwrap();
        let since = Instant::now();
        near.write_all(&vec![7; 200_000]).unwrap();
        let mut heard = vec![0; 200_000];
        far.read_exact(&mut heard).unwrap();
        assert!(since.elapsed() > Duration::from_millis(110), "{:?}", since.elapsed());
        assert!(heard.iter().all(|&byte| byte == 7));
        assert_eq!(hop.carried(), 200_000);
    }
}
