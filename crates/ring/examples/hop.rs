//! What one hop costs: a frame of one decoded row goes to the neighbour and back.
//!
//! `cargo run --release -p baton-ring --example hop [payload bytes] [round trips]` prints, for each
//! mode of the link and for a bare socket between two threads, half a round trip: median and p99.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use arith::base::{Epoch, Rank, Round};
use baton_ring::key::Key;
use baton_ring::link::{Inbound, Neighbours};
use baton_ring::tcp::{TcpConfig, Times, Transport};
use wire::control::Fields;
use wire::frame::Frame;
use wire::hello::Encryption;
use wire::preamble::Cipher;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const DEADLINE: Duration = Duration::from_secs(10);

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse::<usize>());
    let bytes = arguments.next().transpose()?.unwrap_or(2304);
    let trips = arguments.next().transpose()?.unwrap_or(5000).max(1);
    println!("{bytes} payload bytes, {trips} round trips");
    report("bare socket", bare(bytes, trips)?);
    for cipher in [Cipher::ChaChaPoly, Cipher::AesGcm] {
        report(cipher.name(), linked(cipher, Encryption::On, bytes, trips)?);
    }
    report("encryption off", linked(Cipher::ChaChaPoly, Encryption::Off, bytes, trips)?);
    Ok(())
}

fn report(name: &str, mut hops: Vec<Duration>) {
    hops.sort();
    let at = |share: f64| hops[((hops.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    println!("{name:<16} p50 {:8.1} us   p99 {:8.1} us", at(0.5), at(0.99));
}

/// Two threads and a blocking socket: what the system itself costs.
fn bare(bytes: usize, trips: usize) -> Outcome<Vec<Duration>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut here = TcpStream::connect(listener.local_addr()?)?;
    let (mut there, _) = listener.accept()?;
    here.set_nodelay(true)?;
    there.set_nodelay(true)?;
    let mut buffer = vec![1; bytes];
    let mut hops = Vec::with_capacity(trips);
    std::thread::scope(|scope| -> Outcome<()> {
        let echo = scope.spawn(move || -> std::io::Result<()> {
            let mut buffer = vec![0; bytes];
            for _ in 0..trips {
                there.read_exact(&mut buffer)?;
                there.write_all(&buffer)?;
            }
            Ok(())
        });
        for _ in 0..trips {
            let start = Instant::now();
            here.write_all(&buffer)?;
            here.read_exact(&mut buffer)?;
            hops.push(start.elapsed() / 2);
        }
        echo.join().map_err(|_| "the echo died")??;
        Ok(())
    })?;
    Ok(hops)
}

/// A ring of two ranks.
fn linked(
    cipher: Cipher,
    encryption: Encryption,
    bytes: usize,
    trips: usize,
) -> Outcome<Vec<Duration>> {
    let start = |rank| -> Outcome<Transport> {
        Ok(Transport::start(TcpConfig {
            rank: Rank(rank),
            world: 2,
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            next: Vec::new(),
            key: Some(Key::from_bytes(&[7; 32])?),
            cipher,
            encryption,
            fingerprint: Fields::new(),
            times: Times::default(),
        })?)
    };
    let (first, second) = (start(0)?, start(1)?);
    first.set_next(vec![second.addresses()[0].to_string()]);
    second.set_next(vec![first.addresses()[0].to_string()]);
    let mut hops = Vec::with_capacity(trips);
    std::thread::scope(|scope| -> Outcome<()> {
        let echo = scope.spawn(|| -> Outcome<()> {
            let links = second.join(None, DEADLINE)?;
            links.set_rows_bytes_max(bytes);
            // Rows may come only now.
            links.outbound.send(Frame::control(b"ready".to_vec()))?;
            for _ in 0..trips {
                links.outbound.send(receive(&links)?)?;
            }
            // The last frame is out once the other end has closed.
            while receive(&links).is_ok() {}
            Ok(())
        });
        let links = first.join(Some(Epoch(1)), DEADLINE)?;
        links.set_rows_bytes_max(bytes);
        receive(&links)?;
        let mut frame = Frame::rows(Round(1), 1, vec![1.0; bytes.div_ceil(4)]);
        for _ in 0..trips {
            let start = Instant::now();
            links.outbound.send(frame)?;
            frame = receive(&links)?;
            hops.push(start.elapsed() / 2);
        }
        links.outbound.close();
        echo.join().map_err(|_| "the echo died")?
    })?;
    Ok(hops)
}

fn receive(links: &Neighbours) -> Outcome<Frame> {
    match links.inbound.recv()? {
        Inbound::Frame(frame) => Ok(frame),
        other => Err(format!("expected a frame, found {other:?}").into()),
    }
}
