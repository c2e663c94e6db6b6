//! The units of models that a node has, takes and gives.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use node::message::{Coming, Units};
use ring::key::Key;
use store::{Access, Progress, Receiver, Shelf, Store};
use weights::{Catalog, Checkpoint, Stock, unit};

use crate::depot::Depot;
use crate::source;

const GIB: f64 = (1u64 << 30) as f64;

/// A node's store, and what lies on its disk beside it.
pub struct Supply {
    store: Arc<Store>,
    depot: Arc<Depot>,
}

impl Supply {
    /// With the store at `folder` of at most `gib` GiB.
    ///
    /// # Errors
    /// A folder that can't be used, or that another process has.
    pub fn open(folder: &Path, gib: f64, key: Option<Key>) -> Result<Self> {
        let store = Arc::new(Store::open(folder, (gib.max(0.0) * GIB) as u64)?);
        let shelf = Shelf::of(Some(store.clone()));
        let receiver = Receiver::new(store.clone());
        let depot = Arc::new(Depot::new(Access::of(key), shelf, Some(receiver)));
        Ok(Self { store, depot })
    }

    /// For the node's door.
    pub fn depot(&self) -> &Arc<Depot> {
        &self.depot
    }

    /// Lets others take the model at `path`, whose digests are read unless they are kept.
    ///
    /// # Errors
    /// A model that can't be read.
    pub fn give(&self, path: &Path) -> Result<()> {
        let checkpoint = Checkpoint::open(path)?;
        let stock = Arc::new(Stock::of(&checkpoint, source::cache_dir().ok().as_deref())?);
        if self.depot.shelf().catalog(&stock.catalog().id()).is_none() {
            self.depot.shelf().add(stock);
        }
        Ok(())
    }

    /// The path of a model of which only what it is is here: enough to measure with.
    ///
    /// # Errors
    /// No machine that gives it, no room.
    pub fn texts(&self, units: &Units) -> Result<PathBuf> {
        let (catalog, progress) = (self.catalog(units)?, Arc::default());
        let wanted = catalog.texts();
        self.fetch(units, &catalog, &wanted, (&progress, &AtomicBool::new(false)))
    }

    fn catalog(&self, units: &Units) -> Result<Arc<Catalog>> {
        let id = unit::parse_name(&units.catalog);
        let id = id.with_context(|| format!("{:?} is no catalog's address", units.catalog))?;
        let from = (&*units.sources, self.depot.access());
        Ok(Arc::new(store::catalog(&self.store, &id, from)?))
    }

    fn fetch(
        &self,
        units: &Units,
        catalog: &Arc<Catalog>,
        wanted: &[usize],
        (progress, stop): (&Arc<Progress>, &AtomicBool),
    ) -> Result<PathBuf> {
        let from = (&*units.sources, self.depot.access());
        let fetched = store::fetch(&self.store, catalog, wanted, from, progress, stop);
        fetched.map_err(|error| anyhow!("{error}"))?;
        Ok(self.store.view(catalog)?)
    }
}

/// Layers on their way.
pub struct Taking {
    progress: Arc<Progress>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<PathBuf>>>,
}

impl Taking {
    /// Takes what `supply` lacks of layers `range` from all that give them, for `who`.
    ///
    /// # Errors
    /// No thread.
    pub fn start(
        supply: Arc<Supply>,
        units: &Units,
        range: Range<u32>,
        who: String,
    ) -> Result<Self> {
        let (progress, stop) = (Arc::<Progress>::default(), Arc::<AtomicBool>::default());
        let (units, moves, ends) = (units.clone(), progress.clone(), stop.clone());
        let take = move || {
            let (started, layers) = (Instant::now(), format!("{}..{}", range.start, range.end));
            tracing::info!("{who}: takes what it lacks of layers {layers}");
            let catalog = supply.catalog(&units)?;
            let wanted = catalog.wanted(range, false)?;
            let path = supply.fetch(&units, &catalog, &wanted, (&moves, &ends))?;
            let (seen, seconds) = (moves.seen(), started.elapsed().as_secs_f64());
            tracing::info!(
                "{who}: layers {layers} are here: {} bytes, {} were missing, {} came in \
                 {seconds:.2} s",
                seen.all,
                seen.missing,
                seen.moved
            );
            Ok(path)
        };
        let thread = std::thread::Builder::new().name("baton-take".into()).spawn(take)?;
        Ok(Self { progress, stop, thread: Some(thread) })
    }

    /// How far it is.
    pub fn coming(&self) -> Coming {
        let seen = self.progress.seen();
        Coming { moved: seen.moved, missing: seen.missing }
    }

    /// Ends it; what came stays.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// The model's path once all is here, or why it is not; once.
    pub fn taken(&mut self) -> Option<Result<PathBuf>> {
        let thread = self.thread.take_if(|thread| thread.is_finished())?;
        let taken = thread.join().unwrap_or_else(|_| Err(anyhow!("it panicked, as said above")));
        match self.stop.load(Ordering::Relaxed) {
            true => Some(Err(anyhow!("stopped"))),
            false => Some(taken),
        }
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        self.stop();
    }
}
