//! `baton store`: takes in what is pushed, and gives it on.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use store::{Access, Link, Receiver, Shelf, Store, StoreError};
use weights::{Catalog, Checkpoint, Stock, catalog, unit};

use crate::args::{StoreCommand, StoreServe};
use crate::push::access;
use crate::source;

/// Most connections at once; one more is closed.
const CONNECTIONS_MAX: usize = 64;
/// How long a listener rests when the system refuses it a connection.
const REST: Duration = Duration::from_millis(50);

/// Runs the command.
///
/// # Errors
/// A folder, key or address that can't be used.
pub fn run(command: &StoreCommand) -> Result<()> {
    match command {
        StoreCommand::Serve(args) => serve(args),
        StoreCommand::List { folder } => list(&folder_of(folder.as_ref())?),
    }
}

fn folder_of(folder: Option<&PathBuf>) -> Result<PathBuf> {
    match folder {
        Some(folder) => Ok(folder.clone()),
        None => Ok(source::cache_dir()?.join("store")),
    }
}

/// What is given and taken at a door.
pub struct Depot {
    access: Access,
    shelf: Shelf,
    /// None where nothing is taken.
    receiver: Option<Receiver>,
    connections: AtomicUsize,
}

impl Depot {
    /// Gives from `shelf`, and takes where there is a `receiver`.
    pub fn new(access: Access, shelf: Shelf, receiver: Option<Receiver>) -> Self {
        Self { access, shelf, receiver, connections: AtomicUsize::new(0) }
    }

    /// What is given.
    pub fn shelf(&self) -> &Shelf {
        &self.shelf
    }

    /// How links are made.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Serves a link whose handshake another door has done, unless too many are open.
    pub fn welcome(&self, link: Link) {
        let from = link.peer().to_owned();
        if self.enters(&from) {
            self.said(&from, store::attend_link(link, &self.shelf, self.receiver.as_ref()));
            self.leaves();
        }
    }

    fn enters(&self, from: &str) -> bool {
        let has_room = self.connections.fetch_add(1, Ordering::Relaxed) < CONNECTIONS_MAX;
        if !has_room {
            self.leaves();
            tracing::warn!("{from}: closed: {CONNECTIONS_MAX} connections are open");
        }
        has_room
    }

    fn leaves(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    fn attend(&self, stream: TcpStream, from: SocketAddr) {
        let Self { access, shelf, receiver, .. } = self;
        let attended = store::attend(stream, from, access, shelf, receiver.as_ref());
        self.said(&from.to_string(), attended);
        self.leaves();
    }

    fn said(&self, from: &str, attended: Result<Option<PathBuf>, Arc<StoreError>>) {
        match attended {
            Ok(Some(path)) => tracing::info!("{from}: has given all of {}", path.display()),
            Ok(None) => {}
            // Who pulls leaves without a word.
            Err(error) if self.receiver.is_none() => tracing::debug!("{from}: {error}"),
            Err(error) => tracing::info!("{from}: {error}"),
        }
    }
}

fn serve(args: &StoreServe) -> Result<()> {
    let access = access(args.key.as_deref(), args.encryption.into())?;
    let bytes_max = (args.store_gib.max(0.0) * f64::from(1 << 30)) as u64;
    let store = Arc::new(Store::open(&folder_of(args.folder.as_ref())?, bytes_max)?);
    let shelf = Shelf::of(Some(store.clone()));
    for model in &args.give {
        let checkpoint = Checkpoint::open(&source::resolve(model)?)?;
        shelf.add(Arc::new(Stock::of(&checkpoint, source::cache_dir().ok().as_deref())?));
    }
    let depot = Depot::new(access, shelf, Some(Receiver::new(store.clone())));
    let mut doors = Vec::new();
    for &address in &args.listen {
        ring::address::check_key(depot.access.key.as_ref(), address)?;
        let door =
            TcpListener::bind(address).with_context(|| format!("can't listen on {address}"))?;
        tracing::info!("{} takes models on {}", store.root().display(), door.local_addr()?);
        doors.push(door);
    }
    let depot = Arc::new(depot);
    std::thread::scope(|scope| {
        doors.iter().for_each(|door| {
            scope.spawn(|| open(door, &depot));
        });
    });
    Ok(())
}

/// Takes connections in for ever.
pub fn open(door: &TcpListener, depot: &Arc<Depot>) {
    loop {
        // Out of descriptors, or the other end left already: neither ends a listener.
        let Ok((stream, from)) = door.accept() else {
            std::thread::sleep(REST);
            continue;
        };
        if !depot.enters(&from.to_string()) {
            continue;
        }
        let at = depot.clone();
        let attend = move || at.attend(stream, from);
        if std::thread::Builder::new().name("baton-store".into()).spawn(attend).is_err() {
            depot.leaves();
        }
    }
}

/// Prints a line a model: address, name, layers and bytes that are here.
fn list(root: &Path) -> Result<()> {
    let models = root.join(unit::MODELS);
    let folders = std::fs::read_dir(&models).with_context(|| models.display().to_string())?;
    let mut lines = Vec::new();
    for entry in folders.flatten() {
        let text = std::fs::read(entry.path().join(catalog::FILE)).unwrap_or_default();
        // A folder without a catalog is one that is being made.
        let Ok(catalog) = Catalog::parse(&text) else { continue };
        lines.push(line(root, &entry.path(), &catalog));
    }
    lines.sort();
    lines.iter().for_each(|line| println!("{line}"));
    Ok(())
}

fn line(root: &Path, folder: &Path, catalog: &Catalog) -> String {
    let units = root.join(unit::UNITS);
    let is_here = |unit: &&catalog::Unit| unit::path(&units, &unit.digest()).exists();
    let here: Vec<_> = catalog.units().iter().filter(is_here).collect();
    let bytes: u64 = here.iter().map(|unit| unit.bytes()).sum();
    let layer = |layer: u32| here.iter().any(|unit| unit.part == catalog::Part::Layer(layer));
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for at in (0..catalog.layers()).filter(|&at| layer(at)) {
        match ranges.last_mut().filter(|(_, end)| *end == at) {
            Some((_, end)) => *end = at + 1,
            None => ranges.push((at, at + 1)),
        }
    }
    let ranges: Vec<String> = ranges.iter().map(|(a, b)| format!("{a}:{b}")).collect();
    let path = catalog.opened().map_or_else(|| folder.to_path_buf(), |name| folder.join(name));
    let (name, layers) = (catalog.model(), ranges.join(","));
    format!("{name}: layers {layers} of {}, {bytes} bytes: {}", catalog.layers(), path.display())
}
