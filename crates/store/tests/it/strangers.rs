//! Who may not, and what may not come.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use baton_store::message::{CHUNK_BYTES, Kind, QUERY_UNITS_MAX};
use baton_store::{Access, Link, Progress, Shelf, push};
use wire::hello::Encryption;
use wire::preamble::Cipher;

use crate::machine::{Machine, Model, access};

#[test]
fn another_key_cipher_or_encryption_is_refused_by_name() {
    let model = Model::new();
    let machine = Machine::with(&model);
    let address = machine.address.to_string();
    let refused = |access: &Access| Link::connect(&address, access).err().unwrap().to_string();
    assert!(refused(&access(8)).contains("BadSecret"));
    assert!(refused(&Access::of(None)).contains("BadSecret"));
    let clear = Access { encryption: Encryption::Off, ..access(7) };
    assert!(refused(&clear).contains("OtherEncryption"));
    assert!(refused(&Access { cipher: Cipher::AesGcm, ..access(7) }).contains("OtherCipher"));
    let away = Link::connect("192.0.2.1:1", &Access::of(None)).err().unwrap().to_string();
    assert!(away.contains("192.0.2.1") && away.contains("key"), "{away}");
    assert!(Link::connect(&address, &access(7)).is_ok());
}

#[test]
fn a_stranger_is_let_go_and_others_are_served_meanwhile() {
    let model = Model::new();
    let machine = Machine::with(&model);
    let mut silent = TcpStream::connect(machine.address).unwrap();
    let mut loud = TcpStream::connect(machine.address).unwrap();
    loud.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut rest = Vec::new();
    let _ = loud.read_to_end(&mut rest);
    assert_eq!(rest.len(), 8, "a preamble, no more");
    let mut link = Link::connect(&machine.address.to_string(), &access(7)).unwrap();
    link.send(Kind::Query, &[0; 32]).unwrap();
    let mut payload = Vec::new();
    assert_eq!(link.receive(&mut payload).unwrap(), Kind::Holds);
    assert_eq!(payload, [0]);
    let started = Instant::now();
    let _ = silent.read_to_end(&mut rest);
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn as_much_as_a_message_may_have_is_taken_and_what_is_beyond_ends_the_link() {
    let model = Model::new();
    let machine = Machine::with(&model);
    let connect = || Link::connect(&machine.address.to_string(), &access(7)).unwrap();
    let mut payload = Vec::new();
    let mut link = connect();
    link.send(Kind::Query, &vec![0; 32 * QUERY_UNITS_MAX]).unwrap();
    assert_eq!(link.receive(&mut payload).unwrap(), Kind::Holds);
    assert_eq!(payload.len(), QUERY_UNITS_MAX);
    // A whole chunk, and one byte more than a chunk may have.
    let unit = model.catalog().units().last().unwrap();
    for (bytes, taken) in [(CHUNK_BYTES as u32, true), (CHUNK_BYTES as u32 + 1, false)] {
        let ask = baton_store::message::Ask { unit: unit.digest(), at: 0, bytes };
        link.send(Kind::Ask, &ask.encode()).unwrap();
        assert_eq!(link.receive(&mut payload).is_ok(), taken, "{bytes}");
    }
    // Past the unit's end, and of no unit: it lacks them.
    let mut link = connect();
    for (unit, at) in [(unit.digest(), unit.bytes()), ([9; 32], 0)] {
        let ask = baton_store::message::Ask { unit, at, bytes: 1 };
        link.send(Kind::Ask, &ask.encode()).unwrap();
        assert_eq!(link.receive(&mut payload).unwrap(), Kind::Lacks);
    }
    link.send(Kind::Holds, &[1]).unwrap();
    assert!(link.receive(&mut payload).is_err(), "no message of a taker");
}

#[test]
fn a_machine_that_takes_nothing_says_so_and_one_that_is_not_there_is_named() {
    let model = Model::new();
    let machine = Machine::with(&model);
    let (shelf, stop) = (Arc::new(Shelf::of(None)), AtomicBool::new(false));
    let offer = |address: String| {
        let what = (model.catalog().id(), 0..1, true);
        let to = (&[address][..], &access(7));
        push(&shelf, what, to, &Progress::default(), &stop).unwrap_err().to_string()
    };
    assert!(offer(machine.address.to_string()).contains("takes no models"));
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let said = offer(gone.to_string());
    assert!(said.contains(&gone.to_string()) && said.contains("refused"), "{said}");
}
