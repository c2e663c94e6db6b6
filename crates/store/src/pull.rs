//! Units from machines that serve, by their addresses.

use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weights::{Catalog, Digest};

use crate::receive::ask_catalog;
use crate::store::locked;
use crate::{Access, Fetch, Fetched, Link, Progress, Store, StoreError};

/// Most addresses of a fetch or a push.
pub const ADDRESSES_MAX: usize = 64;
/// How often an address may fail in a row unless told otherwise.
pub const TRIES: u32 = 6;
/// The longest pause is this many times doubled.
const DOUBLED_MAX: u32 = 6;
/// The pause after a first failure; each later one is twice as long.
const PAUSE: Duration = Duration::from_millis(100);
/// How often those that wait look whether it is over.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// Fetches the units `wanted` of `catalog` into `store` from all of `sources` (host:port, also
/// several of one machine) at once. An address that fails is tried again, [`Access::tries`] times
/// in a row; those of machines that are gone cost nothing but that. `stop` ends it.
///
/// # Errors
/// As [`Fetch::join`], and more than [`ADDRESSES_MAX`] addresses.
pub fn fetch(
    store: &Arc<Store>,
    catalog: &Arc<Catalog>,
    wanted: &[usize],
    (sources, access): (&[String], &Access),
    progress: &Arc<Progress>,
    stop: &AtomicBool,
) -> Result<Fetched, Arc<StoreError>> {
    check_count(sources)?;
    let job = Fetch::new(store.clone(), catalog.clone(), wanted, progress.clone())?;
    let (sockets, fed) = (Sockets::default(), AtomicUsize::new(0));
    let one = |address: &str| {
        feed(&job, address, access, &sockets);
        fed.fetch_add(1, Ordering::Release);
    };
    let one = &one;
    std::thread::scope(|scope| {
        sources.iter().for_each(|address| {
            scope.spawn(move || one(address));
        });
        while !job.is_over() {
            if fed.load(Ordering::Acquire) == sources.len() {
                job.give_up();
            }
            if stop.load(Ordering::Relaxed) {
                job.stop();
            }
            std::thread::sleep(TICK);
        }
        sockets.close();
    });
    job.join()
}

/// The catalog of address `id`: the store's own, or that of the first of `sources` that knows it.
///
/// # Errors
/// [`StoreError::Unreached`] with what each of them said, and more than [`ADDRESSES_MAX`].
pub fn catalog(
    store: &Store,
    id: &Digest,
    (sources, access): (&[String], &Access),
) -> Result<Catalog, StoreError> {
    check_count(sources)?;
    if let Some(known) = store.catalog(id) {
        return Ok(known);
    }
    let mut reasons = Vec::new();
    for address in sources {
        match Link::connect(address, access).and_then(|mut link| ask_catalog(&mut link, id)) {
            Ok(catalog) => return Ok(catalog),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    Err(StoreError::Unreached { reasons: reasons.join("; ") })
}

pub(crate) fn check_count(addresses: &[String]) -> Result<(), StoreError> {
    let found = addresses.len();
    match found > ADDRESSES_MAX {
        true => Err(StoreError::Limit { what: "addresses", limit: ADDRESSES_MAX, found }),
        false => Ok(()),
    }
}

fn feed(job: &Fetch, address: &str, access: &Access, sockets: &Sockets) {
    let mut tries = 0;
    while !job.is_over() && tries < access.tries {
        let before = job.progress().seen().moved;
        let fed = Link::connect(address, access).and_then(|mut link| {
            sockets.add(&link);
            job.feed(&mut link)
        });
        if let Err(error) = fed {
            job.note(error.to_string());
        }
        // One that gave something starts anew.
        tries = if job.progress().seen().moved > before { 1 } else { tries + 1 };
        pause(tries, || job.is_over());
    }
}

/// Sleeps after failure number `tries`, unless it is over.
pub(crate) fn pause(tries: u32, is_over: impl Fn() -> bool) {
    let mut left = PAUSE * (1 << tries.min(DOUBLED_MAX));
    while !left.is_zero() && !is_over() {
        let step = left.min(TICK);
        std::thread::sleep(step);
        left -= step;
    }
}

/// Sockets of links that run elsewhere, to be closed when they are no longer needed.
#[derive(Default)]
pub(crate) struct Sockets {
    open: Mutex<(bool, Vec<TcpStream>)>,
}

impl Sockets {
    /// Adds a link's; after [`Sockets::close`] it is closed at once.
    pub fn add(&self, link: &Link) {
        if let Ok(socket) = link.socket() {
            let mut open = locked(&self.open);
            if open.0 {
                let _ = socket.shutdown(Shutdown::Both);
            }
            open.1.push(socket);
        }
    }

    /// Ends all of them.
    pub fn close(&self) {
        let mut open = locked(&self.open);
        open.0 = true;
        for socket in open.1.drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}
