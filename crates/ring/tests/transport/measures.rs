//! Links measured at a rank's own door, and what a measurer may not do there.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use arith::base::{Epoch, Rank, Round};
use ring::session::handshake;
use ring::session::record::{Opener, Sealer};
use ring::tcp::Transport;
use ring::tcp::measure::measure;
use wire::frame::Frame;
use wire::hello::{Encryption, Hello, Role};
use wire::limit::{MEASURE_BYTES_MAX, MEASURES_MAX};
use wire::measure::Measure;
use wire::preamble::{self, Cipher};

use crate::support::{LONG, config, connect, hello, join_all, key, read_message, ring_of};

/// A measurer by hand.
struct Hand {
    stream: TcpStream,
    sealer: Sealer,
    opener: Opener,
}

impl Hand {
    fn at(address: SocketAddr) -> Self {
        let mut stream = connect(address);
        let ours = preamble::encode(Cipher::ChaChaPoly);
        stream.write_all(&ours).unwrap();
        let mut theirs = [0; preamble::PREAMBLE_BYTES];
        stream.read_exact(&mut theirs).unwrap();
        let prologue = preamble::prologue(&ours, &theirs);
        let own = Hello { rank: Rank(0), role: Role::Measurer, epoch: Epoch(0), ..hello(0, 1, 0) };
        let connector = handshake::connect(&key(1), Cipher::ChaChaPoly, &prologue);
        let (called, message) = connector.call(&own.encode().unwrap()).unwrap();
        stream.write_all(&(message.len() as u16).to_le_bytes()).unwrap();
        stream.write_all(&message).unwrap();
        let answer = read_message(&mut stream).unwrap();
        let (finished, _) = called.answered(&answer).unwrap();
        let (sealer, opener) = finished.records(true);
        Self { stream, sealer, opener }
    }

    /// Writes a record; the door may have closed already.
    fn record(&mut self, body: &[u8]) {
        let mut out = Vec::new();
        self.sealer.seal(body, &[], &mut out);
        let _ = self.stream.write_all(&out);
    }

    fn say(&mut self, message: Measure) {
        self.record(&message.encode());
    }

    fn hear(&mut self) -> Option<Measure> {
        let mut record = read_message(&mut self.stream).ok()?;
        Some(Measure::decode(self.opener.open(&mut record).unwrap()).unwrap())
    }
}

#[test]
fn a_link_is_measured_at_the_door_of_a_ring_that_goes_on() {
    let ring = ring_of(2, |_| {});
    let links = join_all(&ring, 7);
    let address = ring[1].addresses()[0].to_string();
    let found = measure(&address, Some(&key(1)), Cipher::ChaChaPoly, Encryption::On).unwrap();
    assert!(found.round_trip < Duration::from_secs(1), "{found:?}");
    assert!(found.there_per_s > 1e6 && found.back_per_s > 1e6, "{found:?}");
    for (rank, link) in links.iter().enumerate() {
        assert_eq!(link.broken(), None, "rank {rank}");
        link.outbound.send(Frame::plan(Round(1), vec![1; 24])).unwrap();
    }
    for link in &links {
        assert!(link.inbound.recv_timeout(LONG).is_ok());
    }
}

#[test]
fn who_may_not_measure_is_told_why() {
    let door = Transport::start(config(0, 2)).unwrap();
    let address = door.addresses()[0].to_string();
    let refused = |key, cipher, encryption| {
        measure(&address, Some(&key), cipher, encryption).unwrap_err().to_string()
    };
    let (chacha, on) = (Cipher::ChaChaPoly, Encryption::On);
    for (error, name) in [
        (refused(key(9), chacha, on), "BadSecret"),
        (refused(key(1), Cipher::AesGcm, on), "OtherCipher"),
        (refused(key(1), chacha, Encryption::Off), "OtherEncryption"),
    ] {
        assert!(error.contains(name) && error.contains(&address), "{error}");
    }
    drop(door);
    let error = refused(key(1), chacha, on);
    assert!(error.starts_with("Unmeasured: ") && error.contains("baton probe"), "{error}");
    let off = measure("10.0.0.1:7400", None, chacha, on).unwrap_err();
    assert_eq!(off.code(), "KeylessAddress");
}

#[test]
fn a_measurer_that_wants_too_much_is_closed() {
    let door = Transport::start(config(0, 2)).unwrap();
    let address = door.addresses()[0];
    let mut good = Hand::at(address);
    for number in 0..u64::from(MEASURES_MAX) {
        good.say(Measure::Echo(number));
        assert_eq!(good.hear(), Some(Measure::Echo(number)));
    }
    good.say(Measure::Echo(0));
    assert_eq!(good.hear(), None, "one message more than a measurement has");

    let mut exact = Hand::at(address);
    exact.say(Measure::Take(100));
    exact.record(&[0; 100]);
    assert!(matches!(exact.hear(), Some(Measure::Took(_))));
    exact.say(Measure::Take(100));
    exact.record(&[0; 101]);
    assert_eq!(exact.hear(), None, "a byte more than was announced");

    for kind in [2, 3] {
        let mut huge = Measure::Take(MEASURE_BYTES_MAX).encode();
        huge[4] = kind;
        huge[8..16].copy_from_slice(&(MEASURE_BYTES_MAX + 1).to_le_bytes());
        let mut hand = Hand::at(address);
        hand.record(&huge);
        assert_eq!(hand.hear(), None, "kind {kind}");
    }
    let mut turned = Hand::at(address);
    turned.say(Measure::Took(1));
    assert_eq!(turned.hear(), None, "an answer to nothing");
}

#[test]
fn a_door_measures_with_one_at_a_time() {
    let door = Transport::start(config(0, 2)).unwrap();
    let address = door.addresses()[0];
    let mut first = Hand::at(address);
    first.say(Measure::Echo(1));
    assert_eq!(first.hear(), Some(Measure::Echo(1)));
    let mut second = Hand::at(address);
    second.say(Measure::Echo(2));
    second.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert_eq!(second.hear(), None, "it waits");
    drop(first);
    second.stream.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(second.hear(), Some(Measure::Echo(2)));
}
