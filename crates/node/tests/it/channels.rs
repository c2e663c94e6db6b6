//! Sessions over real sockets.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use node::channel::{self, Caller, HANDSHAKE_TIMEOUT};
use node::message::{self, ToHead, ToNode};
use ring::key::Key;

/// The hello of another protocol at the same port.
const OTHER: &channel::Hello = b"baton other 1\0\0\0";
const SOON: Duration = Duration::from_secs(2);

fn key(byte: u8) -> Key {
    Key::from_bytes(&[byte; 32]).unwrap()
}

/// An agent that answers one head with a beat for each of its messages.
fn agent(own: Option<Key>) -> (String, thread::JoinHandle<Result<u32, String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let run = move || {
        let (stream, _) = listener.accept().unwrap();
        let answered = channel::answer(stream, own.as_ref(), OTHER);
        let mut channel = match answered.map_err(|error| error.to_string())? {
            Caller::Head(channel) => channel,
            Caller::Other(..) => return Err("another".into()),
        };
        let mut heard = 0;
        while let Ok(bytes) = channel.receiver.next(SOON) {
            message::of_head(bytes).map_err(|error| error.to_string())?;
            heard += 1;
            channel.sender.send(&ToHead::Beat(None)).map_err(|error| error.to_string())?;
        }
        Ok(heard)
    };
    (address, thread::spawn(run))
}

#[test]
fn both_ends_speak_and_hear_the_end() {
    let (address, agent) = agent(Some(key(1)));
    let mut channel = channel::dial(&address, Some(&key(1))).unwrap();
    for _ in 0..3 {
        channel.sender.send(&ToNode::Beat).unwrap();
        let said = message::of_agent(channel.receiver.next(SOON).unwrap()).unwrap();
        assert_eq!(said, ToHead::Beat(None));
    }
    channel.sender.close();
    assert_eq!(agent.join().unwrap(), Ok(3));
    let error = channel.receiver.next(SOON).unwrap_err().to_string();
    assert!(error.contains("it closed the channel"), "{error}");
}

#[test]
fn another_key_or_none_is_refused_at_both_ends() {
    for theirs in [Some(key(2)), None] {
        let (address, agent) = agent(Some(key(1)));
        let error = channel::dial(&address, theirs.as_ref()).err().unwrap().to_string();
        assert!(error.contains("BadSecret"), "{error}");
        assert!(agent.join().unwrap().unwrap_err().contains("BadSecret"));
    }
    let error = channel::dial("10.0.0.1:7500", None).err().unwrap().to_string();
    assert!(error.contains("KeylessAddress"), "{error}");
}

#[test]
fn a_stranger_who_says_nothing_or_nonsense_is_dropped_in_time() {
    let (address, agent) = agent(Some(key(1)));
    let mut stranger = TcpStream::connect(&address).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(agent.join().unwrap().unwrap_err().contains("BadMagic"));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    let started = Instant::now();
    assert!(channel::answer(stream, Some(&key(1)), OTHER).is_err());
    assert!(started.elapsed() < HANDSHAKE_TIMEOUT + SOON);
    drop(silent);
}

#[test]
fn a_message_of_a_ring_or_of_any_other_length_costs_nothing() {
    let (address, agent) = agent(Some(key(1)));
    let mut stranger = TcpStream::connect(&address).unwrap();
    let mut theirs = [0; 8];
    stranger.read_exact(&mut theirs).unwrap();
    stranger.write_all(&theirs).unwrap();
    stranger.write_all(&u16::MAX.to_le_bytes()).unwrap();
    let error = agent.join().unwrap().unwrap_err();
    assert!(error.contains("65535 bytes, expected 64..=64"), "{error}");
}
