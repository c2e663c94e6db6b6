//! Machines of a test: a model's file, stores, and listeners that attend.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use arith::attention::Heads;
use arith::format::Format;
use baton_store::{Access, Fetched, Progress, Receiver, Shelf, Store, StoreError, attend, fetch};
use ring::key::Key;
use weights::synthetic::{self, Llama};
use weights::{Catalog, Checkpoint, Stock};

use crate::folder::Folder;

/// Layers of some 3 MiB, four chunks each, so that several are under way.
pub const SPEC: Llama = Llama {
    layers: 4,
    hidden: 256,
    intermediate: 768,
    vocab: 300,
    heads: Heads { query: 4, kv: 4, dim: 64 },
    eps: 1e-5,
    theta: 10_000.0,
    context_max: 64,
    tied: false,
    format: Format::F32,
    ends_format: Format::F32,
    q4_k_m: false,
    seed: 5,
};

/// Room for everything.
pub const ROOM: u64 = 1 << 30;

pub fn access(byte: u8) -> Access {
    Access { tries: 3, ..Access::of(Some(Key::from_bytes(&[byte; 32]).unwrap())) }
}

/// A model's file on a machine, and its units.
pub struct Model {
    _folder: Folder,
    pub path: PathBuf,
    pub stock: Arc<Stock>,
}

impl Model {
    pub fn new() -> Self {
        Self::of(SPEC.seed)
    }

    /// With values of another seed.
    pub fn of(seed: u64) -> Self {
        let folder = Folder::new();
        let path = folder.path().join("model.gguf");
        synthetic::llama(&path, &Llama { seed, ..SPEC }).unwrap();
        let stock = Arc::new(Stock::of(&Checkpoint::open(&path).unwrap(), None).unwrap());
        Self { _folder: folder, path, stock }
    }

    pub fn catalog(&self) -> &Arc<Catalog> {
        self.stock.catalog()
    }

    pub fn shelf(&self) -> Arc<Shelf> {
        let shelf = Shelf::of(None);
        shelf.add(self.stock.clone());
        Arc::new(shelf)
    }

    pub fn wanted(&self, range: Range<u32>) -> Vec<usize> {
        let ends = range.start == 0;
        self.catalog().wanted(range, ends).unwrap()
    }

    pub fn bytes(&self, range: Range<u32>) -> u64 {
        self.catalog().bytes_of(&self.wanted(range))
    }
}

/// Tensors of layers `range` at `path` have the bytes that they have in `model`.
#[track_caller]
pub fn same(model: &Model, path: &Path, range: Range<u32>) {
    let [ours, theirs] = [&*model.path, path].map(|path| Checkpoint::open(path).unwrap());
    let ends = range.start == 0;
    theirs.check_held(range.clone(), ends).unwrap();
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for tensor in ours.part(range, ends) {
        let [a, b] = [(&ours, &mut a), (&theirs, &mut b)]
            .map(|(checkpoint, buffer)| checkpoint.read(&tensor.name, buffer).unwrap().bytes);
        assert!(a == b, "{}", tensor.name);
    }
}

/// A store of a machine.
pub struct Kept {
    pub folder: Folder,
    pub store: Arc<Store>,
}

impl Kept {
    pub fn of(bytes_max: u64) -> Self {
        let folder = Folder::new();
        let store = Arc::new(Store::open(folder.path(), bytes_max).unwrap());
        Self { folder, store }
    }

    /// Fetches layers `range` of `model` from `sources`.
    pub fn fetch(
        &self,
        model: &Model,
        range: Range<u32>,
        sources: &[&Machine],
    ) -> Result<Fetched, Arc<StoreError>> {
        let sources: Vec<String> = sources.iter().map(|m| m.address.to_string()).collect();
        let (progress, stop) = (Arc::<Progress>::default(), AtomicBool::new(false));
        let from = (&sources[..], &access(7));
        fetch(&self.store, model.catalog(), &model.wanted(range), from, &progress, &stop)
    }
}

/// A listener that attends. It ends with this.
pub struct Machine {
    pub address: SocketAddr,
    over: Arc<AtomicBool>,
    door: Option<JoinHandle<()>>,
    /// How connections ended that ended badly.
    pub errors: Arc<Mutex<Vec<String>>>,
}

impl Machine {
    pub fn up(shelf: &Arc<Shelf>, receiver: Option<Arc<Receiver>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let over = Arc::<AtomicBool>::default();
        let errors = Arc::<Mutex<Vec<String>>>::default();
        let (ended, shelf, told) = (over.clone(), shelf.clone(), errors.clone());
        let door = std::thread::spawn(move || {
            while let Ok((stream, from)) = listener.accept() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let (shelf, receiver, told) = (shelf.clone(), receiver.clone(), told.clone());
                std::thread::spawn(move || {
                    let attended = attend(stream, from, &access(7), &shelf, receiver.as_deref());
                    if let Err(error) = attended {
                        told.lock().unwrap().push(error.to_string());
                    }
                });
            }
        });
        Self { address, over, door: Some(door), errors }
    }

    /// One that serves `model`.
    pub fn with(model: &Model) -> Self {
        Self::up(&model.shelf(), None)
    }

    /// The same machine behind a hop.
    pub fn behind(&self, hop: &Hop) -> Self {
        Self { address: hop.address, over: Arc::default(), door: None, errors: self.errors.clone() }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(door) = self.door.take() {
            self.over.store(true, Ordering::Relaxed);
            let _ = TcpStream::connect(self.address);
            let _ = door.join();
        }
    }
}

/// A hop that lets so many bytes of answers through, all connections together, then nothing.
pub struct Hop {
    pub address: SocketAddr,
    pub carried: Arc<AtomicU64>,
}

impl Hop {
    pub fn to(machine: &Machine, bytes_max: u64, pause_us: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (to, carried) = (machine.address, Arc::<AtomicU64>::default());
        let count = carried.clone();
        // It lives as long as the test's process.
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(to) else { continue };
                let (ask, answer) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                std::thread::spawn(move || carry(&ask, &far, &AtomicU64::new(0), u64::MAX, 0));
                let count = count.clone();
                std::thread::spawn(move || carry(&answer, &near, &count, bytes_max, pause_us));
            }
        });
        Self { address, carried }
    }
}

fn carry(mut from: &TcpStream, mut to: &TcpStream, count: &AtomicU64, most: u64, pause_us: u64) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        let before = count.fetch_add(bytes as u64, Ordering::Relaxed);
        if before + bytes as u64 > most {
            // Only this way ends: whoever lags still reads all that went before, and closes then.
            let _ = to.shutdown(Shutdown::Write);
            return;
        }
        if to.write_all(&buffer[..bytes]).is_err() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_micros(pause_us));
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
