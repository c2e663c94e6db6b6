//! Links that break.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arith::base::{Epoch, Rank};
use ring::link::{Inbound, LinkError, Neighbours};
use ring::session::handshake;
use ring::tcp::Transport;
use wire::frame::Kind;
use wire::hello::{Answer, Encryption, Hello, Role};
use wire::preamble::{self, Cipher};
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
        assert_eq!((error.code(), error.rank()), ("LinkClosed", Some(Rank(other))));
    }
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
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
    assert_eq!(error, LinkError::RingSilent { rank: Rank(0), silent_ms: 700 });
    assert_eq!(broken(&links[0]).rank(), Some(Rank(1)));
}

#[test]
fn a_flipped_bit_is_refused() {
    for encryption in [Encryption::On, Encryption::Off] {
        let (ring, proxy) = proxied(|c| c.encryption = encryption);
        let links = join_all(&ring, 1);
        proxy.state.flip.store(true, Ordering::SeqCst);
        let error = broken(&links[1]);
        assert_eq!((error.code(), error.rank()), ("BadRecord", Some(Rank(0))), "{error}");
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
    let by_hand = Duration::from_secs(60);
    let rank_0 = ring_of(2, |c| {
        c.times.write = Duration::from_millis(500);
        c.times.silent = by_hand;
    })
    .remove(0);
    // Both connections stay open and unread.
    let (links, _stream, _back) = join_by_hand(&rank_0);
    let refused = (1..100).find_map(|round| links.outbound.send(rows(round, 8 << 20)).err());
    assert_eq!(refused.unwrap().code(), "SendStalled");
    assert_eq!(broken(&links).code(), "SendStalled");
}

#[test]
fn the_rank_after_is_missed_at_once_though_the_rank_before_lives() {
    // No beat would find it out in time.
    let rank_0 = ring_of(2, |c| c.times.beat = LONG).remove(0);
    let (links, stream, _back) = join_by_hand(&rank_0);
    let start = Instant::now();
    drop(stream);
    assert_eq!(broken(&links).code(), "LinkClosed");
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[test]
fn bytes_against_the_ring_end_the_link() {
    let rank_0 = ring_of(2, |_| ()).remove(0);
    let (links, mut stream, _back) = join_by_hand(&rank_0);
    stream.write_all(b"x").unwrap();
    assert_eq!(broken(&links), LinkError::UnaskedBytes { rank: Rank(1) });
}

/// Rank 0's links to a rank 1 that shakes hands, sends one beat and then does nothing.
fn join_by_hand(rank_0: &Transport) -> (Neighbours, TcpStream, Peer) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rank_0.set_next(vec![listener.local_addr().unwrap().to_string()]);
    let address = rank_0.addresses()[0];
    std::thread::scope(|scope| {
        let hand = scope.spawn(|| {
            let (stream, peer) = accept_by_hand(&listener);
            let mut back = Peer::connect(address, &key(1), &hello(1, 2, peer.epoch.0)).unwrap();
            back.beat(1, peer.epoch.0);
            (stream, back)
        });
        let links = join(rank_0, Some(Epoch(6))).unwrap();
        let (stream, back) = hand.join().unwrap();
        (links, stream, back)
    })
}

fn accept_by_hand(listener: &TcpListener) -> (TcpStream, Hello) {
    let (mut stream, _) = listener.accept().unwrap();
    let ours = preamble::encode(Cipher::ChaChaPoly);
    stream.write_all(&ours).unwrap();
    let mut theirs = [0; 8];
    stream.read_exact(&mut theirs).unwrap();
    let prologue = preamble::prologue(&theirs, &ours);
    let acceptor = handshake::accept(&key(1), Cipher::ChaChaPoly, &prologue);
    let (answering, payload) = acceptor.called(&read_message(&mut stream).unwrap()).unwrap();
    let peer = Hello::decode(&payload).unwrap();
    let hello = Hello { rank: Rank(1), role: Role::Acceptor, epoch: Epoch(0), ..peer };
    let answer = Answer { hello, refusal: None }.encode().unwrap();
    let (_, message) = answering.answer(&answer).unwrap();
    stream.write_all(&(message.len() as u16).to_le_bytes()).unwrap();
    stream.write_all(&message).unwrap();
    (stream, peer)
}

#[test]
fn a_record_that_cuts_a_frame_wrongly_ends_the_link() {
    let ring = ring_of(2, |_| ());
    let links = join_all(&ring, 1);
    // The rank before, by hand, with a new epoch and then half a header in a record.
    let mut peer = Peer::connect(ring[1].addresses()[0], &key(1), &hello(0, 2, 2)).unwrap();
    peer.beat(0, 2);
    assert_eq!(broken(&links[1]).code(), "Replaced");
    let mut out = Vec::new();
    peer.sealer.seal(b"short", b"", &mut out);
    peer.stream.write_all(&out).unwrap();
    // Long before it would be silent.
    assert!(closes(&mut peer.stream, Duration::from_secs(3)));
}
