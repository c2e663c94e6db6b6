//! Whoever knocks without the secret.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use arith::base::Epoch;

use crate::support::*;

#[test]
fn strangers_are_dropped_in_time_and_disturb_nothing() {
    let ring = ring_of(2, |c| c.times.first_message = Duration::from_millis(400));
    let links = join_all(&ring, 1);
    let random: Vec<u8> =
        (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let preamble = wire::preamble::encode(wire::preamble::Cipher::ChaChaPoly);
    let huge = [&preamble[..], &[0xff, 0xff]].concat();
    let forged = [&preamble[..], &[104, 0], &[9; 104]].concat();
    let cases: [(&str, &[u8]); 8] = [
        ("http", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        ("tls", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03random"),
        ("ssh", b"SSH-2.0-OpenSSH_9.6\r\n"),
        ("random", &random),
        ("silence", b""),
        ("a preamble alone", &preamble),
        ("a huge message", &huge),
        ("a forged message", &forged),
    ];
    for address in [ring[0].addresses()[0], ring[1].addresses()[0]] {
        for (name, bytes) in cases {
            let mut stream = connect(address);
            // It may have closed before all is written.
            let _ = stream.write_all(bytes);
            assert!(closes(&mut stream, Duration::from_secs(3)), "{name} still open");
        }
    }
    all_hear(&links, "undisturbed");
}

#[test]
fn twenty_silent_connections_do_not_shut_the_neighbour_out() {
    // Only eviction can make room.
    let ring = ring_of(2, |c| {
        c.times.first_message = Duration::from_secs(120);
        c.times.handshake = Duration::from_secs(120);
    });
    let addresses = [ring[0].addresses()[0], ring[1].addresses()[0]];
    let mut silent: Vec<_> = (0..20).flat_map(|_| addresses.map(connect)).collect();
    let start = Instant::now();
    let links = join_all(&ring, 1);
    assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
    // The newest few are still there, the oldest are not.
    assert!(closes(&mut silent[0], LONG));
    assert!(!closes(&mut silent[39], Duration::from_millis(200)));
    all_hear(&links, "through the flood");
}

#[test]
fn messages_made_with_the_secret_do_not_hold_the_door_either() {
    let ring = ring_of(2, |c| c.times.handshake = Duration::from_secs(120));
    let address = ring[1].addresses()[0];
    let held: Vec<_> =
        (0..12).map(|n| Peer::connect(address, &key(1), &hello(0, 2, 50 + n)).unwrap()).collect();
    all_hear(&join_all(&ring, 1), "all the same");
    drop(held);
}

#[test]
fn a_replayed_handshake_replaces_nothing() {
    let (ring, proxy) = proxied(|_| ());
    let first = join_all(&ring, 1);
    let recorded = proxy.state.sent.lock().unwrap().clone();
    drop(first);
    let links = join_all(&ring, 2);
    let message = 8 + 2 + usize::from(u16::from_le_bytes([recorded[8], recorded[9]]));
    let mut replay = connect(ring[1].addresses()[0]);
    replay.write_all(&recorded[..8]).unwrap();
    replay.read_exact(&mut [0; 8]).unwrap();
    replay.write_all(&recorded[8..message]).unwrap();
    assert!(read_message(&mut replay).is_ok(), "a replay gets its message 2");
    all_hear(&links, "before its record");
    replay.write_all(&recorded[message..]).unwrap();
    assert!(closes(&mut replay, LONG));
    all_hear(&links, "after its record");
}

#[test]
fn only_a_valid_record_with_a_new_epoch_replaces_a_link() {
    let ring = ring_of(2, |_| ());
    let links = join_all(&ring, 1);
    let address = ring[1].addresses()[0];
    // Made with the secret, but no record follows.
    let silent = Peer::connect(address, &key(1), &hello(0, 2, 2)).unwrap();
    assert!(silent.answer.refusal.is_none());
    // The epoch that is there already.
    let mut same = Peer::connect(address, &key(1), &hello(0, 2, 1)).unwrap();
    same.beat(0, 1);
    assert!(closes(&mut same.stream, LONG));
    all_hear(&links, "not replaced");
    let mut new = Peer::connect(address, &key(1), &hello(0, 2, 3)).unwrap();
    new.beat(0, 3);
    let error = broken(&links[1]);
    let replaced = ring::link::LinkError::Replaced { rank: arith::base::Rank(0), epoch: Epoch(3) };
    assert_eq!(error, replaced);
}
