//! Rings of transports in one process, a peer that speaks the protocol by hand, and a proxy that
//! can record, flip and cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arith::base::{Epoch, Rank, Round};
use ring::key::Key;
use ring::link::{Inbound, LinkError, Neighbours};
use ring::session::handshake;
use ring::session::record::Sealer;
use ring::tcp::{TcpConfig, Times, Transport};
use wire::beat::Beat;
use wire::control::Fields;
use wire::frame::{Frame, Kind, Writer};
use wire::hello::{Answer, Encryption, Hello, Role};
use wire::preamble::{self, Cipher};

/// Longer than anything here takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(20);

pub fn key(byte: u8) -> Key {
    Key::from_bytes(&[byte; 32]).unwrap()
}

pub fn fields(model: &str) -> Fields {
    let mut fields = Fields::new();
    fields.put("arith", 1).unwrap();
    fields.put("model", model).unwrap();
    fields
}

pub fn config(rank: u32, world: u32) -> TcpConfig {
    TcpConfig {
        rank: Rank(rank),
        world,
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        next: Vec::new(),
        key: Some(key(1)),
        cipher: Cipher::ChaChaPoly,
        encryption: Encryption::On,
        fingerprint: fields("tiny"),
        times: Times { beat: Duration::from_millis(100), ..Times::default() },
    }
}

/// Transports that know where the next one listens.
pub fn ring_of(world: u32, adapt: impl Fn(&mut TcpConfig)) -> Vec<Transport> {
    let start = |rank| {
        let mut config = config(rank, world);
        adapt(&mut config);
        Transport::start(config).unwrap()
    };
    let ring: Vec<_> = (0..world).map(start).collect();
    for (rank, transport) in ring.iter().enumerate() {
        let next = &ring[(rank + 1) % ring.len()];
        transport.set_next(vec![next.addresses()[0].to_string()]);
    }
    ring
}

pub fn join(transport: &Transport, epoch: Option<Epoch>) -> Result<Neighbours, LinkError> {
    transport.join(epoch, LONG)
}

/// Joins all ranks at once.
pub fn join_all(ring: &[Transport], epoch: u64) -> Vec<Neighbours> {
    std::thread::scope(|scope| {
        let join = |(rank, transport)| {
            let epoch = (rank == 0).then_some(Epoch(epoch));
            scope.spawn(move || join(transport, epoch).unwrap())
        };
        let waits: Vec<_> = ring.iter().enumerate().map(join).collect();
        waits.into_iter().map(|wait| wait.join().unwrap()).collect()
    })
}

pub fn control(text: &str) -> Frame {
    Frame::control(text.as_bytes().to_vec())
}

pub fn rows(round: u64, bytes: usize) -> Frame {
    assert!(bytes.is_multiple_of(4), "whole values");
    // Of each round others, so that nothing of an earlier one passes for them.
    let seed = (round as u32).wrapping_mul(0x85eb_ca6b);
    let value = |i: usize| f32::from_bits((i as u32).wrapping_mul(0x9e37_79b9) ^ seed);
    Frame::rows(Round(round), 1, (0..bytes / 4).map(value).collect())
}

pub fn next(links: &Neighbours) -> Inbound {
    links.inbound.recv_timeout(LONG).unwrap()
}

pub fn frame(links: &Neighbours) -> Frame {
    match next(links) {
        Inbound::Frame(frame) => frame,
        other => panic!("expected a frame, found {other:?}"),
    }
}

/// The error that ends the epoch; frames before it are passed over.
pub fn broken(links: &Neighbours) -> LinkError {
    loop {
        match next(links) {
            Inbound::Broken(error) => return error,
            Inbound::Frame(frame) if frame.kind == Kind::Stop => {}
            other => panic!("expected an end, found {other:?}"),
        }
    }
}

pub fn nothing(links: &Neighbours, during: Duration) {
    if let Ok(found) = links.inbound.recv_timeout(during) {
        panic!("expected nothing, found {found:?}");
    }
}

/// Sends one frame from every rank to the next.
pub fn all_hear(ring: &[Neighbours], text: &str) {
    for (rank, links) in ring.iter().enumerate() {
        links.outbound.send(control(&format!("{text} {rank}"))).unwrap();
    }
    for (rank, links) in ring.iter().enumerate() {
        let previous = (rank + ring.len() - 1) % ring.len();
        assert_eq!(frame(links), control(&format!("{text} {previous}")));
    }
}

pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "waited too long: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The other end of a link, by hand and blocking.
pub struct Peer {
    pub stream: TcpStream,
    pub answer: Answer,
    pub sealer: Sealer,
}

pub fn hello(rank: u32, world: u32, epoch: u64) -> Hello {
    Hello {
        rank: Rank(rank),
        world,
        role: Role::Connector,
        epoch: Epoch(epoch),
        fingerprint: fields("tiny").digest(),
        encryption: Encryption::On,
    }
}

pub fn read_message(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut message = vec![0; usize::from(u16::from_le_bytes(length))];
    stream.read_exact(&mut message)?;
    Ok(message)
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

impl Peer {
    pub fn connect(address: SocketAddr, key: &Key, hello: &Hello) -> std::io::Result<Self> {
        let mut stream = connect(address);
        let cipher = Cipher::ChaChaPoly;
        let ours = preamble::encode(cipher);
        stream.write_all(&ours)?;
        let mut theirs = [0; preamble::PREAMBLE_BYTES];
        stream.read_exact(&mut theirs)?;
        let connector = handshake::connect(key, cipher, &preamble::prologue(&ours, &theirs));
        let (called, message) = connector.call(&hello.encode().unwrap()).unwrap();
        stream.write_all(&(message.len() as u16).to_le_bytes())?;
        stream.write_all(&message)?;
        let (finished, payload) = called.answered(&read_message(&mut stream)?).unwrap();
        let (sealer, _) = finished.records(hello.encryption == Encryption::On);
        Ok(Self { stream, answer: Answer::decode(&payload).unwrap(), sealer })
    }

    pub fn send(&mut self, frame: Frame) {
        let (mut out, mut writer) = (Vec::new(), Writer::new(frame).unwrap());
        while let Some(part) = writer.next_part() {
            self.sealer.seal(&part.header, part.payload, &mut out);
        }
        self.stream.write_all(&out).unwrap();
    }

    pub fn beat(&mut self, rank: u32, epoch: u64) {
        let beat = Beat { rank: Rank(rank), epoch: Epoch(epoch), round: Round(0), done: 0 };
        self.send(Frame::beat(&beat));
    }
}

/// Whether the other end closes within the time.
pub fn closes(stream: &mut TcpStream, within: Duration) -> bool {
    stream.set_read_timeout(Some(within)).unwrap();
    let mut buffer = [0; 256];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return false,
            Err(_) => return true,
        }
    }
}

/// Stands between a rank and the next.
pub struct Proxy {
    pub address: SocketAddr,
    pub state: Arc<ProxyState>,
}

#[derive(Default)]
pub struct ProxyState {
    /// The next chunk towards the acceptor gets a bit flipped.
    pub flip: AtomicBool,
    /// Bytes are swallowed, connections stay.
    pub mute: AtomicBool,
    /// What went towards the acceptor.
    pub sent: Mutex<Vec<u8>>,
    streams: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    pub fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(ProxyState::default());
        let shared = state.clone();
        std::thread::spawn(move || {
            for here in listener.incoming().flatten() {
                let Ok(there) = TcpStream::connect(target) else {
                    continue;
                };
                shared.attend(here, there);
            }
        });
        Self { address, state }
    }
}

impl ProxyState {
    fn attend(self: &Arc<Self>, here: TcpStream, there: TcpStream) {
        for stream in [&here, &there] {
            stream.set_nodelay(true).unwrap();
            self.streams.lock().unwrap().push(stream.try_clone().unwrap());
        }
        let ways =
            [(here.try_clone().unwrap(), there.try_clone().unwrap(), true), (there, here, false)];
        for (mut from, mut to, onward) in ways {
            let state = self.clone();
            std::thread::spawn(move || {
                let mut buffer = vec![0; 1 << 16];
                while let Ok(bytes @ 1..) = from.read(&mut buffer) {
                    if onward {
                        if state.mute.load(Ordering::SeqCst) {
                            continue;
                        }
                        if state.flip.swap(false, Ordering::SeqCst) {
                            buffer[bytes - 1] ^= 0x10;
                        }
                        state.sent.lock().unwrap().extend_from_slice(&buffer[..bytes]);
                    }
                    if to.write_all(&buffer[..bytes]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Write);
            });
        }
    }

    /// Closes every connection at once, as a dying process does.
    pub fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Two ranks with a proxy before rank 1.
pub fn proxied(adapt: impl Fn(&mut TcpConfig)) -> (Vec<Transport>, Proxy) {
    let ring = ring_of(2, adapt);
    let proxy = Proxy::to(ring[1].addresses()[0]);
    ring[0].set_next(vec![proxy.address.to_string()]);
    (ring, proxy)
}
