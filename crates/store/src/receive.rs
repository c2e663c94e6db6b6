//! Takes in whoever connects: those that ask are served, those that offer are taken from.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use weights::{Catalog, Digest};

use crate::message::{self, Kind, Offer};
use crate::store::locked;
use crate::{Access, Fetch, Link, Progress, Shelf, Store, StoreError, serve};

/// Most models that come at once.
pub const JOBS_MAX: usize = 16;

/// What is being taken in, so that all links of an offer feed one fetch.
pub struct Receiver {
    store: Arc<Store>,
    jobs: Mutex<HashMap<Offer, Arc<Fetch>>>,
}

/// Shakes hands with the connection `stream` from `from` and does what it wants until it leaves:
/// gives from `shelf`, or, where there is a `receiver`, takes what is offered. Then it gives the
/// path of the model that came, for [`weights::Checkpoint::open`].
///
/// # Errors
/// [`StoreError::Link`], [`StoreError::Message`], and those of [`Fetch::join`].
pub fn attend(
    stream: TcpStream,
    from: SocketAddr,
    access: &Access,
    shelf: &Shelf,
    receiver: Option<&Receiver>,
) -> Result<Option<PathBuf>, Arc<StoreError>> {
    attend_link(Link::accept(stream, from, access)?, shelf, receiver)
}

/// The same over a link whose handshake is done.
///
/// # Errors
/// As [`attend`]'s.
pub fn attend_link(
    mut link: Link,
    shelf: &Shelf,
    receiver: Option<&Receiver>,
) -> Result<Option<PathBuf>, Arc<StoreError>> {
    let mut payload = Vec::new();
    let kind = link.receive(&mut payload)?;
    if kind != Kind::Offer {
        serve::give(&mut link, shelf, &Progress::default(), (kind, payload))?;
        return Ok(None);
    }
    let offer = Offer::decode(&payload).ok_or_else(|| link.odd("offer", "an offer", "none"))?;
    let Some(receiver) = receiver else {
        link.send(Kind::Done, &message::encode_done(Err("this machine takes no models")))?;
        return Ok(None);
    };
    receiver.receive(&mut link, shelf, offer).map(Some)
}

impl Receiver {
    /// Into `store`.
    pub fn new(store: Arc<Store>) -> Self {
        Self { store, jobs: Mutex::default() }
    }

    /// Takes what `link` offers; returns when all of it is in the store, from this link and others.
    ///
    /// # Errors
    /// Those of [`Fetch::join`], which the other end is told; what broke the link.
    pub fn receive(
        &self,
        link: &mut Link,
        shelf: &Shelf,
        offer: Offer,
    ) -> Result<PathBuf, Arc<StoreError>> {
        let taken = self.take(link, shelf, offer);
        let went = match &taken {
            Ok(path) => Ok(path.to_string_lossy().into_owned()),
            Err(error) => Err(error.to_string()),
        };
        let went = went.as_ref().map(String::as_str).map_err(String::as_str);
        // Where the link broke there is nobody to tell.
        let _ = link.send(Kind::Done, &message::encode_done(went));
        taken
    }

    fn take(
        &self,
        link: &mut Link,
        shelf: &Shelf,
        offer: Offer,
    ) -> Result<PathBuf, Arc<StoreError>> {
        let job = self.job(link, shelf, offer)?;
        let (all, missing) = job.total();
        link.send(Kind::Total, &message::encode_total(all, missing))?;
        job.feed(link)?;
        let joined = job.join();
        locked(&self.jobs).retain(|_, job| !job.is_over());
        joined?;
        Ok(self.store.view(job.catalog())?)
    }

    /// The fetch of an offer: the one that runs, or a new one.
    fn job(&self, link: &mut Link, shelf: &Shelf, offer: Offer) -> Result<Arc<Fetch>, StoreError> {
        let catalog = match self.store.catalog(&offer.id).map(Arc::new) {
            Some(catalog) => catalog,
            None => match shelf.catalog(&offer.id) {
                Some(catalog) => catalog,
                None => Arc::new(ask_catalog(link, &offer.id)?),
            },
        };
        let mut jobs = locked(&self.jobs);
        jobs.retain(|_, job| !job.is_over());
        if let Some(job) = jobs.get(&offer) {
            return Ok(job.clone());
        }
        if jobs.len() == JOBS_MAX {
            let found = JOBS_MAX + 1;
            return Err(StoreError::Limit {
                what: "models that come at once",
                limit: JOBS_MAX,
                found,
            });
        }
        let wanted = catalog.wanted(offer.layers.0..offer.layers.1, offer.ends)?;
        let job = Fetch::new(self.store.clone(), catalog, &wanted, Arc::<Progress>::default())?;
        jobs.insert(offer, job.clone());
        Ok(job)
    }

    /// What is coming now: the model's name, and the counts.
    pub fn coming(&self) -> Vec<(String, Arc<Progress>)> {
        let jobs = locked(&self.jobs);
        let running = jobs.values().filter(|job| !job.is_over());
        running.map(|job| (job.catalog().model().to_owned(), job.progress().clone())).collect()
    }
}

/// The catalog of address `id`, of the other end.
pub(crate) fn ask_catalog(link: &mut Link, id: &Digest) -> Result<Catalog, StoreError> {
    let mut payload = Vec::new();
    link.send(Kind::AskCatalog, id)?;
    let kind = link.receive(&mut payload)?;
    if kind != Kind::Catalog {
        return Err(link.odd("message", "a catalog", format!("{kind:?}")));
    }
    let catalog = Catalog::parse(&payload)?;
    match catalog.id() == *id {
        true => Ok(catalog),
        false => Err(link.odd("catalog", "the one of that address", "another")),
    }
}
