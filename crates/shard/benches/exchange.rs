//! How long an exchange takes: two to eight members on threads of this machine, each giving so much
//! to all others. `cargo bench -p baton-shard`, on a quiet machine.
//!
//! Links are real: sockets on loopback, sealed records. The slow ones go through a relay that sends
//! each byte on when a wire of that rate and delay would have; a line without either says what the
//! relay itself costs.
#![allow(clippy::unwrap_used, reason = "a bench")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use ring::key::Key;
use shard::{Group, GroupConfig, Through, Times};
use stage::{Exchange, Member};
use wire::control::Fields;
use wire::hello::Encryption;
use wire::preamble::Cipher;

extern crate baton_shard as shard;

/// What lies between two members.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    encryption: Encryption,
    /// Bits a second and one-way delay; none for a straight way.
    wire: Option<(Option<u64>, Duration)>,
    /// Whether values go through memory beside the links.
    in_memory: bool,
}

/// Values of a row of 5,120, and of a piece of 512 such rows shared by two.
const ROW: usize = 5_120;
const ROWS: usize = 512 * 5_120 / 2;

fn main() {
    let us = Duration::from_micros;
    let straight = |name, encryption, in_memory| Way { name, encryption, wire: None, in_memory };
    let wire = |name, rate, delay| Way {
        wire: Some((rate, delay)),
        ..straight(name, Encryption::On, false)
    };
    let ways = [
        straight("memory of processes", Encryption::On, true),
        straight("sealed", Encryption::On, false),
        straight("in clear, with MACs", Encryption::Off, false),
        wire("sealed, relay alone", None, us(0)),
        wire("sealed, 10 Gbit/s, 50 us", Some(10_000_000_000), us(50)),
        wire("sealed, 1 Gbit/s, 100 us", Some(1_000_000_000), us(100)),
    ];
    println!("{:28} {:>7} {:>12} {:>10} {:>10}", "way", "members", "each gives", "median", "90 %");
    for count in [2, 4] {
        memory(count, ROW);
    }
    for way in ways {
        let counts: &[usize] = if way.wire.is_none() { &[2, 4, 8] } else { &[2] };
        for &count in counts {
            sockets(way, count, ROW, 400);
        }
        sockets(way, 2, ROWS, 12);
    }
}

fn memory(count: usize, values: usize) {
    let members = stage::exchange::local(count);
    let members = members.into_iter().map(|member| Box::new(member) as Box<dyn Exchange>);
    report("memory of threads", values, &measure(members.collect(), values, 400));
}

fn sockets(way: Way, count: usize, values: usize, runs: usize) {
    let held: Vec<_> = (0..count).map(|_| listener()).collect();
    let addresses: Vec<String> = held.iter().map(|l| l.local_addr().unwrap().to_string()).collect();
    drop(held);
    let mut reached = addresses.clone();
    if let Some((rate, delay)) = way.wire {
        reached[0] = relay(addresses[0].clone(), rate, delay).to_string();
    }
    let start = |index: usize| {
        let addresses = if index == 0 { &addresses } else { &reached };
        Group::start(GroupConfig {
            member: Member { index, count },
            addresses: addresses.clone(),
            key: Some(Key::from_bytes(&[1; 32]).unwrap()),
            cipher: Cipher::ChaChaPoly,
            encryption: way.encryption,
            fingerprint: Fields::new(),
            through: Through::Auto,
            times: Times::default(),
        })
        .unwrap()
    };
    let groups: Vec<Group> = (0..count).map(start).collect();
    let joins: Vec<_> =
        groups.iter().cloned().map(|group| thread::spawn(move || group.join())).collect();
    joins.into_iter().for_each(|join| join.join().unwrap().unwrap());
    if way.in_memory {
        shard::share_memory(&groups).unwrap();
    }
    let seats = groups.iter().map(|group| Box::new(group.seat()) as Box<dyn Exchange>);
    report(way.name, values, &measure(seats.collect(), values, runs));
    groups.iter().for_each(Group::shutdown);
}

/// Times of member 0's exchanges, ascending, and the members.
fn measure(members: Vec<Box<dyn Exchange>>, values: usize, runs: usize) -> (usize, Vec<Duration>) {
    let count = members.len();
    let each = move |mut member: Box<dyn Exchange>| {
        move || {
            let (own, sizes, mut all) = (vec![1.0; values], vec![values; count], Vec::new());
            let mut times: Vec<Duration> = (0..runs + runs / 4)
                .map(|_| {
                    let start = Instant::now();
                    member.gather(&own, &sizes, &mut all).unwrap();
                    start.elapsed()
                })
                .skip(runs / 4)
                .collect();
            times.sort();
            times
        }
    };
    let threads: Vec<_> = members.into_iter().map(|member| thread::spawn(each(member))).collect();
    let mut times = threads.into_iter().map(|thread| thread.join().unwrap());
    let first = times.next().unwrap();
    times.for_each(drop);
    (count, first)
}

fn report(way: &str, values: usize, (count, times): &(usize, Vec<Duration>)) {
    let kib = values as f64 * 4.0 / 1024.0;
    let at = |share: f64| times[(times.len() as f64 * share) as usize].as_secs_f64() * 1e6;
    println!("{way:28} {count:7} {kib:8.0} KiB {:7.0} us {:7.0} us", at(0.5), at(0.9));
}

fn listener() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

/// A wire before `to`, as long as this process runs.
fn relay(to: String, rate: Option<u64>, delay: Duration) -> SocketAddr {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let onward = TcpStream::connect(&to).unwrap();
            for (from, to) in [(&stream, &onward), (&onward, &stream)] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                to.set_nodelay(true).unwrap();
                let (pieces, due) = sync_channel(1024);
                thread::spawn(move || {
                    let (mut from, mut free) = (from, Instant::now());
                    let mut bytes = vec![0; 16 << 10];
                    while let Ok(count @ 1..) = from.read(&mut bytes) {
                        let took = rate.map_or(0.0, |rate| count as f64 * 8.0 / rate as f64);
                        free = free.max(Instant::now()) + Duration::from_secs_f64(took);
                        if pieces.send((free + delay, bytes[..count].to_vec())).is_err() {
                            return;
                        }
                    }
                });
                thread::spawn(move || deliver(&due, to));
            }
        }
    });
    address
}

fn deliver(due: &Receiver<(Instant, Vec<u8>)>, mut to: TcpStream) {
    for (at, bytes) in due {
        thread::sleep(at.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            return;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}
