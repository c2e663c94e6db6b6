//! A hop of a race: passes a connection on, as fast as the link that it stands for, and counts.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

/// Most bytes carried at once.
const PIECE_BYTES: usize = 16 << 10;
/// Sleeping for less than this costs more than the link does.
const GRAIN: Duration = Duration::from_micros(200);

/// A link before one address; it lives as long as this process.
#[derive(Debug)]
pub struct Hop {
    /// Where it listens.
    pub address: SocketAddr,
    carried: Arc<AtomicU64>,
}

impl Hop {
    /// A link to `to` of so many bytes a second each way.
    ///
    /// # Errors
    /// No free port.
    pub fn to(to: SocketAddr, bytes_per_s: Option<f64>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (address, carried) = (listener.local_addr()?, Arc::<AtomicU64>::default());
        let count = carried.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                // Whoever connects too early tries again.
                if let Ok(far) = TcpStream::connect(to) {
                    let _ = join(&near, &far, bytes_per_s, &count);
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
fn join(
    near: &TcpStream,
    far: &TcpStream,
    rate: Option<f64>,
    count: &Arc<AtomicU64>,
) -> Result<()> {
    for (from, to) in [(near, far), (far, near)] {
        from.set_nodelay(true)?;
        let (from, to, count) = (from.try_clone()?, to.try_clone()?, count.clone());
        std::thread::spawn(move || {
            let _ = carry(&from, &to, rate, &count);
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        });
    }
    Ok(())
}

fn carry(
    mut from: &TcpStream,
    mut to: &TcpStream,
    rate: Option<f64>,
    count: &AtomicU64,
) -> std::io::Result<()> {
    let mut buffer = vec![0; PIECE_BYTES];
    let mut free = Instant::now();
    loop {
        let bytes = from.read(&mut buffer)?;
        if bytes == 0 {
            return Ok(());
        }
        count.fetch_add(bytes as u64, Ordering::Relaxed);
        if let Some(rate) = rate {
            // The last byte is through once those before it and these have passed.
            free = free.max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / rate);
            let wait = free.saturating_duration_since(Instant::now());
            if wait > GRAIN {
                std::thread::sleep(wait);
            }
        }
        to.write_all(&buffer[..bytes])?;
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
        let hop = Hop::to(behind.local_addr().unwrap(), Some(2e6)).unwrap();
        let mut near = TcpStream::connect(hop.address).unwrap();
        let (mut far, _) = behind.accept().unwrap();
        let since = Instant::now();
        near.write_all(&vec![7; 200_000]).unwrap();
        let mut heard = vec![0; 200_000];
        far.read_exact(&mut heard).unwrap();
        assert!(since.elapsed() > Duration::from_millis(80), "{:?}", since.elapsed());
        assert!(heard.iter().all(|&byte| byte == 7));
        assert_eq!(hop.carried(), 200_000);
    }
}
