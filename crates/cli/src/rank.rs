//! One rank of a ring over sockets: its transport and how a driver joins through it.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use arith::base::{Epoch, Rank};
use ring::join::Join;
use ring::key::Key;
use ring::link::{LinkError, Neighbours};
use ring::tcp::{TcpConfig, Times, Transport};
use wire::hello::Encryption;
use wire::preamble::Cipher;

use crate::model::Model;

/// How long rank 0 waits for its neighbours before it says so and tries again.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Where a rank listens, whom it connects to, and the secret.
#[derive(Clone, Debug)]
pub struct Place {
    /// The rank.
    pub rank: Rank,
    /// Where the rank before connects to.
    pub listen: Vec<SocketAddr>,
    /// Where the rank after listens.
    pub next: Vec<String>,
    /// The ring's secret.
    pub key: Option<Key>,
    /// Whether the links are enciphered.
    pub encryption: Encryption,
}

impl Place {
    /// What a transport must know.
    ///
    /// # Errors
    /// A fingerprint beyond its limits.
    pub fn config(&self, model: &Model) -> Result<TcpConfig> {
        Ok(TcpConfig {
            rank: self.rank,
            world: model.layout.world(),
            listen: self.listen.clone(),
            next: self.next.clone(),
            key: self.key.clone(),
            cipher: Cipher::ChaChaPoly,
            encryption: self.encryption,
            fingerprint: model.fingerprint()?,
            times: Times::default(),
        })
    }

    /// Starts listening.
    ///
    /// # Errors
    /// An address that can't be used, by name.
    pub fn transport(&self, model: &Model) -> Result<Arc<Transport>> {
        Ok(Arc::new(Transport::start(self.config(model)?)?))
    }
}

/// Joins through a transport that others may shut down.
pub struct Joined(pub Arc<Transport>);

impl Join for Joined {
    fn join(&mut self, epoch: Option<Epoch>) -> Result<Neighbours, LinkError> {
        self.0.join(epoch, JOIN_TIMEOUT)
    }
}

/// Free loopback ports for the ranks of a ring on this machine. Another process may take one
/// before its rank does; the rank then says so.
///
/// # Errors
/// The system has no free port.
pub fn loopback_ports(count: u32) -> Result<Vec<SocketAddr>> {
    let held: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .collect::<Result<_, _>>()
        .context("no free loopback port")?;
    held.iter().map(|l| Ok(l.local_addr()?)).collect()
}

/// The places of all ranks of a ring on this machine.
///
/// # Errors
/// As [`loopback_ports`].
pub fn local_places(world: u32, key: &Key, encryption: Encryption) -> Result<Vec<Place>> {
    let ports = loopback_ports(world)?;
    let place = |rank: u32| Place {
        rank: Rank(rank),
        listen: vec![ports[rank as usize]],
        next: vec![ports[((rank + 1) % world) as usize].to_string()],
        key: Some(key.clone()),
        encryption,
    };
    Ok((0..world).map(place).collect())
}
