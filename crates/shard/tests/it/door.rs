//! Who is let in.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use ring::key::Key;
use shard::{Group, GroupConfig};
use wire::hello::Encryption;

use crate::double::{addresses, config, fields};

/// The leader's word after `change` of member 1's configuration.
fn refused(change: impl FnOnce(&mut GroupConfig)) -> String {
    let addresses = addresses(2);
    let mut impatient = config(0, &addresses);
    impatient.times.join = Duration::from_millis(700);
    let leader = Group::start(impatient).unwrap();
    let mut other = config(1, &addresses);
    change(&mut other);
    let member = Group::start(other).unwrap();
    let joins = member.clone();
    let thread = thread::spawn(move || joins.join());
    let error = leader.join().unwrap_err().to_string();
    [&leader, &member].into_iter().for_each(Group::shutdown);
    assert!(thread.join().unwrap().is_err());
    error
}

#[test]
fn another_key_model_or_setting_is_refused_by_name() {
    let other = refused(|config| config.fingerprint = fields("b"));
    assert!(other.contains("OtherFingerprint: model: expected a, found b"), "{other}");
    let key = refused(|config| config.key = Some(Key::from_bytes(&[4; 32]).unwrap()));
    assert!(key.contains("BadSecret"), "{key}");
    let clear = refused(|config| config.encryption = Encryption::Off);
    assert!(clear.contains("OtherEncryption: hello.encryption: expected on, found off"), "{clear}");
    let count = refused(|config| {
        config.addresses.push(config.addresses[1].clone());
        config.member.count = 3;
        config.addresses[1] = "127.0.0.1:0".into();
    });
    assert!(count.contains("OtherWorld: hello.world: expected 2, found 3"), "{count}");
}

#[test]
fn an_address_for_everybody_or_without_a_key_is_refused() {
    let start = |address: &str, key: Option<Key>| {
        let mut config = config(0, &[address.to_owned(), "127.0.0.1:1".to_owned()]);
        config.key = key;
        Group::start(config).unwrap_err().to_string()
    };
    let key = || Some(Key::from_bytes(&[1; 32]).unwrap());
    assert!(start("0.0.0.0:7500", key()).starts_with("WildcardListen"));
    assert!(start("10.1.2.3:7500", None).starts_with("KeylessAddress"));
    assert!(start("nonsense", key()).starts_with("Listen: nonsense"));
}

#[test]
fn strangers_are_dropped_and_members_come_in_all_the_same() {
    let addresses = addresses(2);
    let leader = Group::start(config(0, &addresses)).unwrap();
    // One that speaks another language is dropped at once.
    let mut browser = TcpStream::connect(&addresses[0]).unwrap();
    browser.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    browser.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let _ = browser.read_to_end(&mut answer);
    assert!(answer.len() <= 8, "a preamble and no more");
    // More silent ones than there are places: each new one ends the oldest.
    let mut silent: Vec<TcpStream> =
        (0..17).map(|_| TcpStream::connect(&addresses[0]).unwrap()).collect();
    let member = Group::start(config(1, &addresses)).unwrap();
    let joins = member.clone();
    let thread = thread::spawn(move || joins.join());
    leader.join().unwrap();
    thread.join().unwrap().unwrap();
    let first = &mut silent[0];
    first.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut rest = Vec::new();
    let _ = first.read_to_end(&mut rest);
    assert!(rest.len() <= 8, "the oldest has been ended");
    [&leader, &member].into_iter().for_each(Group::shutdown);
}

#[test]
fn a_member_that_comes_back_waits_for_the_next_life_of_its_group() {
    let addresses = addresses(2);
    let leader = Group::start(config(0, &addresses)).unwrap();
    let joining = |member: &Group| {
        let member = member.clone();
        thread::spawn(move || member.join())
    };
    let member = Group::start(config(1, &addresses)).unwrap();
    let joins = joining(&member);
    leader.join().unwrap();
    joins.join().unwrap().unwrap();
    member.shutdown();
    drop(member);
    let until = Instant::now() + Duration::from_secs(5);
    while leader.lost().is_none() && Instant::now() < until {
        thread::sleep(Duration::from_millis(5));
    }
    assert!(leader.lost().is_some());
    // The one before it leaves its address a moment after it has gone.
    let mut tries = (0..500).map(|_| {
        thread::sleep(Duration::from_millis(2));
        Group::start(config(1, &addresses))
    });
    let again = tries.find_map(Result::ok).unwrap();
    let joins = joining(&again);
    thread::sleep(Duration::from_millis(300));
    assert!(!joins.is_finished(), "it was let into a life that is over");
    leader.join().unwrap();
    joins.join().unwrap().unwrap();
    [&leader, &again].into_iter().for_each(Group::shutdown);
}
