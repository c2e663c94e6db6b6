//! Links that break.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arith::base::{Epoch, Rank};
use ring::link::{Inbound, LinkError};
use wire::frame::Kind;
use wire::hello::Encryption;
use wire::stop::Stop;

use crate::support::*;

#[test]
fn a_dead_neighbour_is_known_within_a_second_on_both_sides() {
    let (ring, proxy) = proxied(|_| ());
    let links = join_all(&ring, 1);
    let start = Instant::now();
    proxy.state.cut();
    for (links, other) in links.iter().zip([1, 0]) {
        let error = broken(links);
        assert_eq!(
            (error.code(), error.rank()),
            ("LinkClosed", Some(Rank(other)))
        );
    }
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn every_rank_learns_which_rank_died() {
    let mut ring = ring_of(4, |_| ());
    let mut links = join_all(&ring, 1);
    drop((ring.remove(2), links.remove(2)));
    for (links, rank) in links.iter().zip([0, 1, 3]) {
        let mut reasons = Vec::new();
        loop {
            match next(links) {
                Inbound::Frame(f) if f.kind == Kind::Stop => {
                    reasons.push(Stop::decode(&f.payload).unwrap().reason);
                }
                Inbound::Broken(error) => break reasons.push(error.to_string()),
                other => panic!("{other:?}"),
            }
        }
        assert!(reasons[0].contains("rank 2"), "rank {rank}: {reasons:?}");
    }
}

#[test]
fn a_neighbour_that_sends_nothing_is_silent() {
    let (ring, proxy) = proxied(|c| c.times.silent = Duration::from_millis(700));
    let links = join_all(&ring, 1);
    proxy.state.mute.store(true, Ordering::SeqCst);
    let error = broken(&links[1]);
    assert_eq!(
        error,
        LinkError::RingSilent {
            rank: Rank(0),
            silent_ms: 700
        }
    );
    assert_eq!(broken(&links[0]).rank(), Some(Rank(1)));
}

#[test]
fn a_flipped_bit_is_refused() {
    for encryption in [Encryption::On, Encryption::Off] {
        let (ring, proxy) = proxied(|c| c.encryption = encryption);
        let links = join_all(&ring, 1);
        proxy.state.flip.store(true, Ordering::SeqCst);
        let error = broken(&links[1]);
        assert_eq!(
            (error.code(), error.rank()),
            ("BadRecord", Some(Rank(0))),
            "{error}"
        );
    }
}

#[test]
fn records_in_clear_are_readable_and_ciphertext_is_not() {
    for encryption in [Encryption::On, Encryption::Off] {
        let (ring, proxy) = proxied(|c| c.encryption = encryption);
        let links = join_all(&ring, 1);
        links[0].outbound.send(control("a telling text")).unwrap();
        frame(&links[1]);
        let sent = proxy.state.sent.lock().unwrap();
        let shown = sent.windows(14).any(|w| w == b"a telling text");
        assert_eq!(shown, encryption == Encryption::Off);
    }
}

#[test]
fn a_neighbour_that_takes_nothing_stalls_the_send() {
    let (ring, proxy) = proxied(|c| {
        c.times.write = Duration::from_millis(500);
        c.times.silent = Duration::from_secs(60);
    });
    // Past the sockets' buffers the proxy's own write is what blocks: its reader sees no more.
    let stuck = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    drop(proxy);
    let links = join_all_through_stuck(&ring, &stuck);
    let mut error = None;
    for round in 1..100 {
        if let Err(e) = links.outbound.send(rows(round, 8 << 20)) {
            error = Some(e);
            break;
        }
    }
    assert_eq!(error.unwrap().code(), "SendStalled");
    assert_eq!(broken(&links).code(), "SendStalled");
}

/// Rank 0's links when rank 1 handshakes and then reads no more.
fn join_all_through_stuck(
    ring: &[ring::tcp::Transport],
    stuck: &std::net::TcpListener,
) -> ring::link::Neighbours {
    ring[0].set_next(vec![stuck.local_addr().unwrap().to_string()]);
    let address = ring[0].addresses()[0];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (stream, peer) = accept_by_hand(stuck);
            // Rank 1's own link to rank 0, and its first beat.
            let mut back = Peer::connect(address, &key(1), &hello(1, 2, peer.epoch.0)).unwrap();
            back.beat(1, peer.epoch.0);
            // Both stay open, unread, until the process ends.
            std::mem::forget((stream, back));
        });
        join(&ring[0], Some(Epoch(6))).unwrap()
    })
}

fn accept_by_hand(listener: &std::net::TcpListener) -> (std::net::TcpStream, wire::hello::Hello) {
    use ring::session::handshake;
    use std::io::{Read, Write};
    use wire::hello::{Answer, Hello, Role};
    use wire::preamble::{self, Cipher};
    let (mut stream, _) = listener.accept().unwrap();
    let ours = preamble::encode(Cipher::ChaChaPoly);
    stream.write_all(&ours).unwrap();
    let mut theirs = [0; 8];
    stream.read_exact(&mut theirs).unwrap();
    let prologue = preamble::prologue(&theirs, &ours);
    let acceptor = handshake::accept(&key(1), Cipher::ChaChaPoly, &prologue);
    let (answering, payload) = acceptor
        .called(&read_message(&mut stream).unwrap())
        .unwrap();
    let peer = Hello::decode(&payload).unwrap();
    let hello = Hello {
        rank: Rank(1),
        role: Role::Acceptor,
        epoch: Epoch(0),
        ..peer
    };
    let answer = Answer {
        hello,
        refusal: None,
    }
    .encode()
    .unwrap();
    let (_, message) = answering.answer(&answer).unwrap();
    stream
        .write_all(&(message.len() as u16).to_le_bytes())
        .unwrap();
    stream.write_all(&message).unwrap();
    (stream, peer)
}

#[test]
fn bytes_against_the_ring_or_a_bad_cut_end_the_link() {
    let ring = ring_of(2, |_| ());
    let links = join_all(&ring, 1);
    // The rank before, by hand, with a new epoch and then half a header in a record.
    let mut peer = Peer::connect(ring[1].addresses()[0], &key(1), &hello(0, 2, 2)).unwrap();
    peer.beat(0, 2);
    assert_eq!(broken(&links[1]).code(), "Replaced");
    let mut out = Vec::new();
    peer.sealer.seal(b"short", b"", &mut out);
    std::io::Write::write_all(&mut peer.stream, &out).unwrap();
    assert!(closes(&mut peer.stream, LONG));
}
