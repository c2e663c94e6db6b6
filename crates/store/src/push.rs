//! Gives a machine the units that it lacks.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use weights::Digest;

use crate::message::{Kind, Offer};
use crate::pull::{Sockets, TICK, check_count, pause};
use crate::serve::{self, Ended};
use crate::store::locked;
use crate::{Access, Link, Progress, Shelf, StoreError};

/// What a push came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// The model's path over there.
    pub path: String,
}

/// Offers layers `range` of the model `id`, and the ends where `ends`, to the machine at
/// `addresses`, all of which are its own and carry at once, and gives what it takes from `shelf`.
/// Returns when the machine has all of it. An address that fails is tried again.
///
/// # Errors
/// [`StoreError::Refused`] with what went wrong there, [`StoreError::Unreached`] where no address
/// got through, [`StoreError::Stopped`].
pub fn push(
    shelf: &Shelf,
    (id, range, ends): (Digest, Range<u32>, bool),
    (addresses, access): (&[String], &Access),
    progress: &Progress,
    stop: &AtomicBool,
) -> Result<Pushed, Arc<StoreError>> {
    check_count(addresses)?;
    let offer = Offer { id, layers: (range.start, range.end), ends };
    let pushing = Pushing { shelf, offer, access, progress, ended: Mutex::default() };
    let (sockets, left) = (Sockets::default(), AtomicUsize::new(addresses.len()));
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for address in addresses {
            let (pushing, sockets, left, failed) = (&pushing, &sockets, &left, &failed);
            scope.spawn(move || {
                if let Err(error) = pushing.through(address, sockets) {
                    locked(failed).push(error.to_string());
                }
                left.fetch_sub(1, Ordering::Release);
            });
        }
        while !pushing.is_over() && left.load(Ordering::Acquire) > 0 {
            if stop.load(Ordering::Relaxed) {
                pushing.end(Err(StoreError::Stopped));
            }
            std::thread::sleep(TICK);
        }
        sockets.close();
    });
    let ended = pushing.ended.into_inner().unwrap_or_else(|error| error.into_inner());
    ended.unwrap_or_else(|| {
        let reasons = locked(&failed).join("; ");
        Err(Arc::new(StoreError::Unreached { reasons }))
    })
}

struct Pushing<'a> {
    shelf: &'a Shelf,
    offer: Offer,
    access: &'a Access,
    progress: &'a Progress,
    ended: Mutex<Option<Result<Pushed, Arc<StoreError>>>>,
}

impl Pushing<'_> {
    fn is_over(&self) -> bool {
        locked(&self.ended).is_some()
    }

    fn end(&self, how: Result<Pushed, StoreError>) {
        locked(&self.ended).get_or_insert(how.map_err(Arc::new));
    }

    /// Gives through one address until it is over; the last error where it never got through.
    fn through(&self, address: &str, sockets: &Sockets) -> Result<(), StoreError> {
        let mut tries = 0;
        loop {
            let before = self.progress.seen().moved;
            let error = match self.once(address, sockets) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            tries = if self.progress.seen().moved > before { 1 } else { tries + 1 };
            if self.is_over() || tries >= self.access.tries {
                return Err(error);
            }
            tracing::debug!("{error}: again");
            pause(tries, || self.is_over());
        }
    }

    fn once(&self, address: &str, sockets: &Sockets) -> Result<(), StoreError> {
        let mut link = Link::connect(address, self.access)?;
        sockets.add(&link);
        link.send(Kind::Offer, &self.offer.encode())?;
        let mut payload = Vec::new();
        let kind = link.receive(&mut payload)?;
        match serve::give(&mut link, self.shelf, self.progress, (kind, payload))? {
            Ended::Well(path) => self.end(Ok(Pushed { path })),
            Ended::Badly(reason) => {
                let peer = link.peer().to_owned();
                self.end(Err(StoreError::Refused { peer, reason }));
            }
        }
        Ok(())
    }
}
