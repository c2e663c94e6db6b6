//! Links that never come to be, and what both ends say.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use arith::base::{Epoch, Rank};
use ring::link::LinkError;
use ring::tcp::{TcpConfig, Transport};
use wire::hello::{Encryption, RefusalCode};
use wire::preamble::Cipher;

use crate::support::*;

/// What rank 0 hears when rank 1 is set up otherwise, and rank 1's log.
fn refused(adapt: impl Fn(&mut TcpConfig)) -> (LinkError, String) {
    log::capture();
    let ring = ring_of(2, |c| {
        if c.rank == Rank(1) {
            adapt(c);
        }
    });
    let error = join(&ring[0], Some(Epoch(1))).unwrap_err();
    let refused = format!("refused {}", "127.0.0.1");
    until("the acceptor's log", || log::find(&refused, error.code()).is_some());
    let line = log::find(&refused, error.code()).unwrap();
    (error, line)
}

#[test]
fn another_key_is_a_bad_secret_on_both_ends() {
    let start = Instant::now();
    let (error, line) = refused(|c| c.key = Some(key(2)));
    assert!(start.elapsed() < LONG / 2, "it must not take the deadline");
    assert_eq!((error.code(), error.rank()), ("BadSecret", Some(Rank(1))));
    assert!(error.to_string().contains("is the secret the same?"), "{error}");
    assert!(line.contains("rank 1") && line.contains("BadSecret"), "{line}");
}

#[test]
fn another_fingerprint_names_the_first_field_that_differs() {
    let (error, line) = refused(|c| c.fingerprint = fields("huge"));
    assert_eq!((error.code(), error.rank()), ("OtherFingerprint", Some(Rank(1))));
    assert!(error.to_string().contains("model: expected tiny, found huge"), "{error}");
    assert!(line.contains("model: expected huge, found tiny"), "{line}");
}

#[test]
fn other_worlds_encryptions_and_ciphers_are_refused_by_name() {
    type Adapt = fn(&mut TcpConfig);
    let cases: [(Adapt, &str); 3] = [
        (|c| c.world = 3, "OtherWorld"),
        (|c| c.encryption = Encryption::Off, "OtherEncryption"),
        (|c| c.cipher = Cipher::AesGcm, "OtherCipher"),
    ];
    for (adapt, code) in cases {
        let (error, _) = refused(adapt);
        assert_eq!((error.code(), error.rank()), (code, Some(Rank(1))));
    }
}

#[test]
fn a_rank_that_is_no_neighbour_is_refused() {
    let ring = ring_of(3, |_| ());
    ring[0].set_next(vec![ring[2].addresses()[0].to_string()]);
    let error = join(&ring[0], Some(Epoch(1))).unwrap_err();
    assert_eq!((error.code(), error.rank()), ("NotNeighbour", Some(Rank(1))));
}

#[test]
fn rank_0_refuses_an_old_epoch() {
    let ring = ring_of(2, |_| ());
    let links = join_all(&ring, 5);
    let peer = Peer::connect(ring[0].addresses()[0], &key(1), &hello(1, 2, 4)).unwrap();
    assert_eq!(peer.answer.refusal.unwrap().code, RefusalCode::OtherEpoch);
    all_hear(&links, "still here");
}

#[test]
fn rank_0_admits_nobody_before_its_first_epoch() {
    let ring = ring_of(2, |_| ());
    let peer = Peer::connect(ring[0].addresses()[0], &key(1), &hello(1, 2, 0)).unwrap();
    assert_eq!(peer.answer.refusal.unwrap().code, RefusalCode::OtherEpoch);
}

#[test]
fn a_deadline_names_the_rank_that_is_missing() {
    let ring = ring_of(2, |_| ());
    let short = Duration::from_millis(300);
    // Rank 1 is there, and its way to rank 0 leads nowhere.
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    ring[1].set_next(vec![nowhere.to_string()]);
    let error = ring[0].join(Some(Epoch(1)), short).unwrap_err();
    assert_eq!(error, LinkError::NoNeighbour { rank: Rank(1), waited_ms: 300 });
    // The same when rank 1 is not there at all.
    ring[0].set_next(vec![nowhere.to_string()]);
    let error = ring[0].join(Some(Epoch(2)), short).unwrap_err();
    assert_eq!((error.code(), error.rank()), ("Unreachable", Some(Rank(1))));
    assert!(error.to_string().contains(&nowhere.to_string()), "{error}");
}

#[test]
fn a_follower_gives_up_on_the_next_rank_but_not_on_rank_0() {
    let ring = ring_of(2, |_| ());
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    ring[1].set_next(vec![nowhere.to_string()]);
    let short = Duration::from_millis(300);
    std::thread::scope(|scope| {
        let wait = scope.spawn(|| ring[1].join(None, short));
        std::thread::sleep(3 * short);
        assert!(!wait.is_finished(), "rank 0 may come at any time");
        let lead = scope.spawn(|| join(&ring[0], Some(Epoch(1))));
        let error = wait.join().unwrap().unwrap_err();
        assert_eq!((error.code(), error.rank()), ("Unreachable", Some(Rank(0))));
        assert_eq!(lead.join().unwrap().unwrap_err().code(), "LinkClosed");
    });
}

#[test]
fn wildcards_and_keyless_networks_are_refused() {
    let start = |listen: &str, keyed: bool| {
        let mut config = config(0, 2);
        config.listen = vec![listen.parse::<SocketAddr>().unwrap()];
        if !keyed {
            config.key = None;
        }
        Transport::start(config).map(drop).map_err(|e| e.code())
    };
    for wildcard in ["0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0"] {
        assert_eq!(start(wildcard, true), Err("WildcardListen"), "{wildcard}");
    }
    assert_eq!(start("192.0.2.7:0", false), Err("KeylessAddress"));
    assert_eq!(start("192.0.2.7:0", true), Err("Listen"), "not an address of this machine");
    assert_eq!(start("127.0.0.1:0", false), Ok(()));
    let mut keyless = config(0, 2);
    keyless.key = None;
    keyless.next = vec!["192.0.2.7:1".into()];
    let transport = Transport::start(keyless).unwrap();
    let error = join(&transport, Some(Epoch(1))).unwrap_err();
    assert_eq!(error.code(), "KeylessAddress");
}

#[test]
fn a_world_or_epoch_that_no_ring_has_is_refused() {
    for (rank, world) in [(0, 1), (2, 2), (0, 65)] {
        let error = Transport::start(config(rank, world)).unwrap_err();
        assert_eq!(error.code(), "BadRing");
    }
    let transport = Transport::start(config(0, 2)).unwrap();
    for epoch in [None, Some(Epoch(0))] {
        assert_eq!(join(&transport, epoch).unwrap_err().code(), "BadRing");
    }
}

/// Warnings of all transports of this process.
mod log {
    use std::sync::{Mutex, Once};

    use crate::listener::Listener;

    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    static ONCE: Once = Once::new();

    pub fn capture() {
        let listener = Listener(|line| LINES.lock().unwrap().push(line));
        ONCE.call_once(|| tracing::subscriber::set_global_default(listener).unwrap());
    }

    pub fn find(first: &str, second: &str) -> Option<String> {
        let lines = LINES.lock().unwrap();
        lines.iter().find(|l| l.contains(first) && l.contains(second)).cloned()
    }
}
