//! A fault proxy: stands before a rank's port and delays, throttles, stalls, cuts, resets,
//! half-closes or flips what goes through, as the test says while it runs. Keeps all bytes.

use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

/// Most bytes read at once.
const PIECE_BYTES: usize = 16 << 10;
/// Most bytes of a way that are kept.
const TAPE_BYTES_MAX: usize = 256 << 20;
/// Pieces on the way; more make the reader wait, as a socket's buffer does.
const PIECES_MAX: usize = 256;
/// Shortest sleep of a throttled way.
const GRAIN: Duration = Duration::from_millis(2);
/// How long a closed connection's rest is read away, so that its end stays a FIN.
const LINGER: Duration = Duration::from_secs(1);

/// A direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the end that connected.
    Onward,
    /// To it.
    Back,
}

/// What befalls the bytes of one way, of every connection.
#[derive(Clone, Debug, Default)]
pub struct Weather {
    /// Every byte arrives so much later.
    pub delay: Duration,
    /// Most bytes a second.
    pub bytes_per_s: Option<u64>,
    /// Nothing moves; connections stay.
    pub stalled: bool,
    /// Nothing past so many bytes of a connection moves.
    pub bytes_max: Option<u64>,
    /// The byte at this offset of a connection arrives with one bit flipped.
    pub flip: Option<u64>,
}

/// What a new connection meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// The rank behind.
    Open,
    /// Somebody who accepts and stays silent.
    Silent,
}

/// What befalls the connections there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Fin,
    Reset,
    Half(Way),
}

/// A proxy before one address. Its connections end with it.
pub struct Proxy {
    /// Where it listens.
    pub address: SocketAddr,
    inner: Arc<Inner>,
    end: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Inner {
    to: SocketAddr,
    door: watch::Sender<Door>,
    fate: watch::Sender<Option<Fate>>,
    onward: Lane,
    back: Lane,
    open: AtomicUsize,
}

struct Lane {
    weather: watch::Sender<Weather>,
    /// Bytes of the newest connection.
    newest: AtomicU64,
    flipped: Mutex<Option<std::time::Instant>>,
    tape: Mutex<Vec<u8>>,
}

/// One end of a connection. The second handle is for what needs no runtime.
struct End {
    stream: TcpStream,
    handle: std::net::TcpStream,
}

impl Proxy {
    /// Listens on loopback, and passes on to `to`.
    pub fn to(to: SocketAddr) -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), to)
    }

    /// Listens at `address`, and passes on to `to`.
    pub fn at(address: SocketAddr, to: SocketAddr) -> Self {
        let listener = std::net::TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let inner = Arc::new(Inner {
            to,
            door: watch::Sender::new(Door::Open),
            fate: watch::Sender::new(None),
            onward: Lane::new(),
            back: Lane::new(),
            open: AtomicUsize::new(0),
        });
        let (end, ended) = tokio::sync::oneshot::channel();
        let shared = inner.clone();
        let thread = std::thread::spawn(move || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let runtime = builder.enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    _ = ended => {}
                    () = listen(TcpListener::from_std(listener).unwrap(), shared) => {}
                }
            });
        });
        Self { address, inner, end: Some(end), thread: Some(thread) }
    }

    /// Changes what befalls the bytes of a way.
    pub fn weather(&self, way: Way, change: impl FnOnce(&mut Weather)) {
        self.inner.lane(way).weather.send_modify(change);
    }

    /// As [`Proxy::weather`], of both ways.
    pub fn both(&self, change: impl Fn(&mut Weather)) {
        self.weather(Way::Onward, &change);
        self.weather(Way::Back, &change);
    }

    /// Nothing befalls bytes any more, and new connections get through.
    pub fn clear(&self) {
        self.both(|weather| *weather = Weather::default());
        self.door(Door::Open);
    }

    /// What new connections meet. Those that met silence end when the door changes.
    pub fn door(&self, door: Door) {
        self.inner.door.send_replace(door);
    }

    /// Ends all connections in good order.
    pub fn cut(&self) {
        self.inner.fate.send_replace(Some(Fate::Fin));
    }

    /// Resets all connections.
    pub fn reset(&self) {
        self.inner.fate.send_replace(Some(Fate::Reset));
    }

    /// Ends one way of all connections.
    pub fn half_close(&self, way: Way) {
        self.inner.fate.send_replace(Some(Fate::Half(way)));
    }

    /// Flips a bit of the next byte of a way that goes through, on connections there are.
    pub fn flip_next(&self, way: Way) {
        let lane = self.inner.lane(way);
        let at = lane.newest.load(Ordering::SeqCst);
        // Past a record's length, so that its body or its tag is hit.
        lane.flipped.lock().unwrap().take();
        lane.weather.send_modify(|weather| weather.flip = Some(at + 10));
    }

    /// When a bit was flipped last.
    pub fn flipped(&self, way: Way) -> Option<std::time::Instant> {
        *self.inner.lane(way).flipped.lock().unwrap()
    }

    /// The bytes that came in for a way.
    pub fn tape(&self, way: Way) -> Vec<u8> {
        self.inner.lane(way).tape.lock().unwrap().clone()
    }

    /// Keeps none of the bytes that came in so far.
    pub fn forget(&self) {
        for way in [Way::Onward, Way::Back] {
            self.inner.lane(way).tape.lock().unwrap().clear();
        }
    }

    /// Connections now.
    pub fn connections(&self) -> usize {
        self.inner.open.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Inner {
    fn lane(&self, way: Way) -> &Lane {
        match way {
            Way::Onward => &self.onward,
            Way::Back => &self.back,
        }
    }
}

impl Lane {
    fn new() -> Self {
        Self {
            weather: watch::Sender::new(Weather::default()),
            newest: AtomicU64::new(0),
            flipped: Mutex::default(),
            tape: Mutex::default(),
        }
    }

    fn keep(&self, piece: &[u8]) {
        let mut tape = self.tape.lock().unwrap();
        let room = TAPE_BYTES_MAX - tape.len();
        tape.extend_from_slice(&piece[..piece.len().min(room)]);
    }
}

impl End {
    fn new(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        let handle = stream.into_std()?;
        let stream = TcpStream::from_std(handle.try_clone()?)?;
        Ok(Self { stream, handle })
    }

    fn finish(&self) {
        let _ = self.handle.shutdown(Shutdown::Write);
    }

    async fn read(&self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            self.stream.readable().await?;
            match self.stream.try_read(buffer) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }

    async fn write(&self, mut piece: &[u8]) -> std::io::Result<()> {
        while !piece.is_empty() {
            self.stream.writable().await?;
            match self.stream.try_write(piece) {
                Ok(bytes) => piece = &piece[bytes..],
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn drain(&self) {
        let mut buffer = [0; 4096];
        while matches!(self.read(&mut buffer).await, Ok(1..)) {}
    }
}

async fn listen(listener: TcpListener, inner: Arc<Inner>) {
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(attend(stream, inner.clone()));
        }
    }
}

async fn attend(stream: TcpStream, inner: Arc<Inner>) {
    let (mut door, mut fate) = (inner.door.subscribe(), inner.fate.subscribe());
    let met = *door.borrow_and_update();
    match met {
        Door::Silent => {
            let _ = door.changed().await;
            return;
        }
        Door::Open => {}
    }
    let Ok(onward) = TcpStream::connect(inner.to).await else {
        return;
    };
    let (Ok(near), Ok(far)) = (End::new(stream), End::new(onward)) else {
        return;
    };
    inner.open.fetch_add(1, Ordering::SeqCst);
    carry(&near, &far, &inner, &mut fate).await;
    inner.open.fetch_sub(1, Ordering::SeqCst);
}

async fn carry(near: &End, far: &End, inner: &Inner, fate: &mut watch::Receiver<Option<Fate>>) {
    let ways =
        async { tokio::try_join!(pump(near, far, &inner.onward), pump(far, near, &inner.back)) };
    tokio::pin!(ways);
    loop {
        let befell = tokio::select! {
            ended = &mut ways => match ended {
                Ok(_) => return,
                // What one end did to the connection the other end sees as well.
                Err(_) => Some(Fate::Reset),
            },
            _ = fate.changed() => *fate.borrow_and_update(),
        };
        match befell {
            None => {}
            Some(Fate::Half(Way::Onward)) => far.finish(),
            Some(Fate::Half(Way::Back)) => near.finish(),
            Some(Fate::Reset) => {
                let _ = (near.stream.set_zero_linger(), far.stream.set_zero_linger());
                return;
            }
            Some(Fate::Fin) => {
                near.finish();
                far.finish();
                let rest = async { tokio::join!(near.drain(), far.drain()) };
                let _ = timeout(LINGER, rest).await;
                return;
            }
        }
    }
}

/// Carries one way until its end, which it passes on.
async fn pump(from: &End, to: &End, lane: &Lane) -> std::io::Result<()> {
    let (pieces, arriving) = mpsc::channel(PIECES_MAX);
    lane.newest.store(0, Ordering::SeqCst);
    tokio::try_join!(take(from, lane, pieces), give(to, lane, arriving))?;
    Ok(())
}

async fn take(
    from: &End,
    lane: &Lane,
    pieces: mpsc::Sender<(Instant, Vec<u8>)>,
) -> std::io::Result<()> {
    let mut weather = lane.weather.subscribe();
    let (mut at, mut buffer) = (0u64, vec![0; PIECE_BYTES]);
    loop {
        let moves = |w: &Weather| !w.stalled && w.bytes_max.is_none_or(|max| at < max);
        let now = weather.wait_for(moves).await.map(|w| w.clone());
        let Ok(now) = now else { return Ok(()) };
        let room = now.bytes_max.map_or(u64::MAX, |max| max - at);
        let room = buffer.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        let bytes = tokio::select! {
            bytes = from.read(&mut buffer[..room]) => bytes?,
            // What has changed may forbid to read.
            _ = weather.changed() => continue,
        };
        if bytes == 0 {
            return Ok(());
        }
        let piece = &mut buffer[..bytes];
        let flip = weather.borrow().flip.filter(|f| (at..at + bytes as u64).contains(f));
        if let Some(flip) = flip {
            piece[(flip - at) as usize] ^= 1;
            // Once: later connections pass the same offset.
            lane.weather.send_modify(|weather| weather.flip = None);
            *lane.flipped.lock().unwrap() = Some(std::time::Instant::now());
        }
        at += bytes as u64;
        lane.newest.store(at, Ordering::SeqCst);
        lane.keep(piece);
        let due = Instant::now() + now.delay;
        if pieces.send((due, piece.to_vec())).await.is_err() {
            return Ok(());
        }
    }
}

async fn give(
    to: &End,
    lane: &Lane,
    mut pieces: mpsc::Receiver<(Instant, Vec<u8>)>,
) -> std::io::Result<()> {
    let mut weather = lane.weather.subscribe();
    // When the link is free again.
    let mut free = Instant::now();
    while let Some((due, piece)) = pieces.recv().await {
        sleep_until(due).await;
        if weather.wait_for(|w| !w.stalled).await.is_err() {
            return Ok(());
        }
        to.write(&piece).await?;
        let rate = weather.borrow().bytes_per_s;
        if let Some(rate) = rate {
            let taken = Duration::from_secs_f64(piece.len() as f64 / rate as f64);
            free = free.max(Instant::now()) + taken;
            // The clock's grain is coarse: what is too short to sleep for is slept for later.
            if free > Instant::now() + GRAIN {
                sleep_until(free).await;
            }
        }
    }
    to.finish();
    Ok(())
}
