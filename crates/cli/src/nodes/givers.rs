//! The doors at which nodes that lack the model take it from this machine.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use node::message::Units;
use ring::key::Key;
use store::{Access, Shelf};
use weights::{Stock, unit};

use crate::depot::{self, Depot};
use crate::model::Model;
use crate::source;

/// Gives a model to nodes.
#[derive(Clone)]
pub struct Givers(Arc<Mutex<Given>>);

struct Given {
    model: Arc<Model>,
    /// The model with its digests, once a node has asked.
    stock: Option<Arc<Stock>>,
    /// Where each node takes it.
    doors: HashMap<usize, SocketAddr>,
}

impl Givers {
    /// Of `model`, of which nothing is read before a node asks.
    pub fn new(model: Arc<Model>) -> Self {
        Self(Arc::new(Mutex::new(Given { model, stock: None, doors: HashMap::new() })))
    }

    /// Opens a door for `node` at `local`, this machine's address that it is reached from, for
    /// who has its key. The first time all of the model is read, unless its digests are kept.
    ///
    /// # Errors
    /// A model that can't be read, an address that can't be listened on.
    pub fn open(&self, node: usize, local: IpAddr, key: Option<Key>) -> Result<Units> {
        let mut given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let stock = match &given.stock {
            Some(stock) => stock.clone(),
            None => {
                let checkpoint = &given.model.checkpoint;
                tracing::info!("reading the digests of {}", given.model.name());
                Arc::new(Stock::of(checkpoint, source::cache_dir().ok().as_deref())?)
            }
        };
        given.stock = Some(stock.clone());
        let id = stock.catalog().id();
        let address = match given.doors.get(&node) {
            Some(address) => *address,
            None => {
                let address = door(stock, local, key)?;
                given.doors.insert(node, address);
                address
            }
        };
        let (catalog, sources) = (unit::name(&id), vec![address.to_string()]);
        Ok(Units { catalog, sources, instead: false })
    }
}

/// A door that stays.
fn door(stock: Arc<Stock>, local: IpAddr, key: Option<Key>) -> Result<SocketAddr> {
    let address = SocketAddr::new(local, 0);
    ring::address::check_key(key.as_ref(), address)?;
    let listener = TcpListener::bind(address);
    let listener = listener.with_context(|| format!("can't listen on {address}"))?;
    let address = listener.local_addr()?;
    let shelf = Shelf::of(None);
    shelf.add(stock);
    let depot = Arc::new(Depot::new(Access::of(key), shelf, None));
    let serve = move || depot::open(&listener, &depot);
    std::thread::Builder::new().name("baton-giver".into()).spawn(serve)?;
    Ok(address)
}
