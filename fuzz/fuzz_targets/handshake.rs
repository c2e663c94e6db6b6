//! A link's session: what strangers send, what the other end says under the right key, and records
//! that were cut, swapped, repeated or changed on the way.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ring::key::Key;
use ring::session::SessionError;
use ring::session::handshake::{self, Finished};
use ring::session::record::{BODY_BYTES_MAX, first_record};
use wire::frame::Reader;
use wire::hello::{Answer, Hello};
use wire::preamble::{self, Cipher};

static KEY: LazyLock<Key> = LazyLock::new(|| Key::from_bytes(&[7; 32]).expect("a legal secret"));

/// An input's first byte: cipher, encryption, and what the rest is.
const AES: u8 = 1;
const CLEAR: u8 = 2;
const WHATS: u8 = 3;

fuzz_target!(init: baton_fuzz::plant(seeds()), |data: &[u8]| {
    let Some((choice, bytes)) = baton_fuzz::choice(data) else {
        return;
    };
    let cipher = if choice & AES != 0 { Cipher::AesGcm } else { Cipher::ChaChaPoly };
    let encrypt = choice & CLEAR == 0;
    match (choice >> 2) % WHATS {
        0 => stranger(cipher, encrypt, bytes),
        1 => speaks(cipher, bytes),
        _ => records(cipher, encrypt, bytes),
    }
});

fn seeds() -> Vec<Vec<u8>> {
    let hellos = baton_fuzz::wire(&["hello", "answer"]).into_iter();
    let mut seeds: Vec<Vec<u8>> =
        hellos.map(|(_, bytes)| [&[1 << 2], &bytes[..]].concat()).collect();
    for bits in 0..4 {
        for what in [0, 2] {
            seeds.push([&[bits | what << 2], &[0x5a; 200][..]].concat());
        }
        // Frames, then edits: none, a flip, a drop, a swap, a repeat, a cut.
        for edit in 0..6 {
            seeds.push([&[bits | 2 << 2, 9, edit, 0, 17][..], &[0x33; 64]].concat());
        }
    }
    seeds
}

fn prologue(cipher: Cipher) -> [u8; 16] {
    preamble::prologue(&preamble::encode(cipher), &preamble::encode(cipher))
}

/// Without the key nothing passes: no message 1, no message 2, no record.
fn stranger(cipher: Cipher, encrypt: bool, bytes: &[u8]) {
    if let Some(theirs) = bytes.first_chunk() {
        let _ = preamble::check(cipher, theirs);
    }
    let acceptor = handshake::accept(&KEY, cipher, &prologue(cipher));
    assert_eq!(acceptor.called(bytes).err(), Some(SessionError::BadSecret));
    let connector = handshake::connect(&KEY, cipher, &prologue(cipher));
    let (called, _) = connector.call(b"hello").expect("randomness");
    assert_eq!(called.answered(bytes).err(), Some(SessionError::BadAnswer));
    let (_, acceptor) = shake(cipher, b"hello", b"welcome");
    let (_, mut opener) = acceptor.records(encrypt);
    if let Some(record) = first_record(bytes) {
        assert!(opener.open(&mut record.to_vec()).is_err(), "a forged record");
    }
    assert!(opener.open(&mut bytes.to_vec()).is_err(), "a forged record");
}

/// With the key any payload arrives as it was, and is a hello or an answer, or is refused.
fn speaks(cipher: Cipher, bytes: &[u8]) {
    shake(cipher, bytes, bytes);
    let _ = Hello::decode(bytes);
    let _ = Answer::decode(bytes);
}

fn shake(cipher: Cipher, one: &[u8], two: &[u8]) -> (Finished, Finished) {
    let prologue = prologue(cipher);
    let (called, message) =
        handshake::connect(&KEY, cipher, &prologue).call(one).expect("randomness");
    let heard = handshake::accept(&KEY, cipher, &prologue).called(&message);
    let (answering, payload) = heard.expect("the same key");
    assert_eq!(payload, one);
    let (acceptor, message) = answering.answer(two).expect("randomness");
    let (connector, payload) = called.answered(&message).expect("the same key");
    assert_eq!(payload, two);
    (connector, acceptor)
}

/// Seals frames, changes the records in one way, and opens them until one is refused: everything
/// before the change opens as it was sealed, the change itself never does.
fn records(cipher: Cipher, encrypt: bool, bytes: &[u8]) {
    let [count, edit, at, by, payload @ ..] = bytes else {
        return;
    };
    let (connector, acceptor) = shake(cipher, b"hello", b"welcome");
    let ((mut sealer, _), (_, mut opener)) =
        (connector.records(encrypt), acceptor.records(encrypt));
    let (mut link, mut bodies) = (Vec::new(), Vec::new());
    for n in 0..=count % 8 {
        // Every fifth frame is longer than a record.
        let long = if n % 5 == 4 { BODY_BYTES_MAX } else { 0 };
        let payload = [payload, &vec![n; long]].concat();
        sealer.seal(&[n; 32], &payload, &mut link);
        let frame = [&[n; 32], &payload[..]].concat();
        bodies.extend(frame.chunks(BODY_BYTES_MAX).map(<[u8]>::to_vec));
    }
    let sent: Vec<Vec<u8>> = split(&link);
    assert_eq!(sent.len(), bodies.len());
    let arrived = edited(&sent, *edit, usize::from(*at), *by);
    let mut frames = Vec::new();
    let mut reader = Reader::new();
    for (number, record) in arrived.iter().enumerate() {
        let intact = sent.get(number) == Some(record);
        match opener.open(&mut record.to_vec()) {
            Ok(body) => {
                assert!(intact, "record {number} was changed and opens");
                assert_eq!(body, bodies[number]);
                let _ = reader.push(body, &mut frames);
            }
            Err(_) => {
                assert!(!intact, "record {number} is as it was sealed");
                return;
            }
        }
    }
}

fn split(mut link: &[u8]) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    while let Some(record) = first_record(link) {
        records.push(record.to_vec());
        link = &link[2 + record.len()..];
    }
    assert!(link.is_empty());
    records
}

/// The records with one change at a place: none, a flipped bit, one gone, two swapped, one twice,
/// one cut.
fn edited(sent: &[Vec<u8>], edit: u8, at: usize, by: u8) -> Vec<Vec<u8>> {
    let mut records = sent.to_vec();
    let at = at % records.len();
    match edit % 6 {
        0 => {}
        1 => {
            let byte = usize::from(by) * 257 % records[at].len();
            records[at][byte] ^= 1 << (by % 8);
        }
        2 => drop(records.remove(at)),
        3 => {
            let other = usize::from(by) % records.len();
            records.swap(at, other);
        }
        4 => records.insert(at, sent[at].clone()),
        _ => records[at].truncate(usize::from(by)),
    }
    records
}
