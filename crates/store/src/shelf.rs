//! What a machine may give: the units of its store, and those of models that lie on its disk.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, RwLock};

use weights::{Catalog, Digest, Stock};

use crate::{Store, StoreError};

/// Most models beside the store.
pub const STOCKS_MAX: usize = 256;

/// Everything that can be given.
#[derive(Debug, Default)]
pub struct Shelf {
    store: Option<Arc<Store>>,
    stocks: RwLock<Vec<Arc<Stock>>>,
}

/// A unit that was found.
pub(crate) enum Found {
    /// In the store, which keeps it while it is open.
    Stored(File),
    /// In a model's files, by its number.
    Stocked(Arc<Stock>, usize),
}

impl Shelf {
    /// With what `store` holds.
    pub fn of(store: Option<Arc<Store>>) -> Self {
        Self { store, stocks: RwLock::default() }
    }

    /// Adds a model; of more than [`STOCKS_MAX`] the first one goes.
    pub fn add(&self, stock: Arc<Stock>) {
        let mut stocks = self.stocks.write().unwrap_or_else(|error| error.into_inner());
        if stocks.len() == STOCKS_MAX {
            stocks.remove(0);
        }
        stocks.push(stock);
    }

    fn stocks(&self) -> Vec<Arc<Stock>> {
        self.stocks.read().unwrap_or_else(|error| error.into_inner()).clone()
    }

    /// The catalog of a model that is known here.
    pub fn catalog(&self, id: &Digest) -> Option<Arc<Catalog>> {
        let stocked = self.stocks().into_iter().find(|stock| stock.catalog().id() == *id);
        let stocked = stocked.map(|stock| stock.catalog().clone());
        stocked.or_else(|| self.store.as_ref()?.catalog(id).map(Arc::new))
    }

    /// Whether the unit of that address can be given.
    pub fn has(&self, unit: &Digest) -> bool {
        self.store.as_ref().is_some_and(|store| store.has(unit)) || self.stocked(unit).is_some()
    }

    fn stocked(&self, unit: &Digest) -> Option<Found> {
        self.stocks().into_iter().find_map(|stock| {
            let at = stock.find(unit)?;
            stock.holds(at).then(|| Found::Stocked(stock.clone(), at))
        })
    }

    pub(crate) fn find(&self, unit: &Digest) -> Option<Found> {
        let stored = self.store.as_ref().and_then(|store| store.open_unit(unit));
        stored.map(Found::Stored).or_else(|| self.stocked(unit))
    }
}

impl Found {
    /// Fills `out` from byte `at`.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<(), StoreError> {
        match self {
            Self::Stored(file) => {
                let read = file.read_exact_at(out, at);
                read.map_err(StoreError::io("a unit of the store".as_ref()))
            }
            Self::Stocked(stock, unit) => Ok(stock.read(*unit, at, out)?),
        }
    }
}
