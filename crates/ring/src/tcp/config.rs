//! What a rank must know to find its neighbours.

use std::net::SocketAddr;
use std::time::Duration;

use arith::base::{Rank, WORLD_MAX};
use wire::control::Fields;
use wire::hello::Encryption;
use wire::preamble::Cipher;

use crate::address;
use crate::key::Key;
use crate::link::LinkError;

/// A rank's place, addresses and secret.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// This rank.
    pub rank: Rank,
    /// Ranks of the ring, 2..64; a ring of one needs no sockets ([`crate::memory`]).
    pub world: u32,
    /// Where the rank before connects to. Port 0 takes any; see [`super::Transport::addresses`].
    pub listen: Vec<SocketAddr>,
    /// Where the rank after listens, `host:port` or `[v6%zone]:port`, tried in turn.
    pub next: Vec<String>,
    /// The ring's secret; without one every address must be loopback.
    pub key: Option<Key>,
    /// The cipher of handshake and records.
    pub cipher: Cipher,
    /// Whether record bodies are enciphered.
    pub encryption: Encryption,
    /// What must be equal on all ranks.
    pub fingerprint: Fields,
    /// Deadlines.
    pub times: Times,
}

/// Deadlines and intervals of links. The defaults are the protocol's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// A beat goes out when nothing else has for so long.
    pub beat: Duration,
    /// No byte for so long ends the epoch.
    pub silent: Duration,
    /// A write without progress for so long ends the epoch.
    pub write: Duration,
    /// A frame waits at most so long for room in the queue.
    pub send: Duration,
    /// One attempt to connect.
    pub connect: Duration,
    /// Accepted connections: until message 1.
    pub first_message: Duration,
    /// The rest of a handshake, on either end.
    pub handshake: Duration,
}

impl Default for Times {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
            beat: s(2),
            silent: s(6),
            write: s(6),
            send: s(60),
            connect: s(2),
            first_message: s(1),
            handshake: s(5),
        }
    }
}

impl TcpConfig {
    /// Refuses what no ring can have.
    pub(super) fn check(&self) -> Result<(), LinkError> {
        let Self { rank, world, .. } = self;
        if !(2..=WORLD_MAX).contains(world) || rank.0 >= *world {
            let text =
                format!("rank {rank} of {world}: expected a rank below 2..{WORLD_MAX} ranks");
            return Err(LinkError::BadRing(text));
        }
        Ok(())
    }

    /// The key of handshakes.
    pub(super) fn link_key(&self) -> Key {
        self.key.clone().unwrap_or_else(Key::loopback)
    }

    /// Refuses an address that this configuration must not listen on.
    pub(super) fn check_listen(&self, address: SocketAddr) -> Result<(), LinkError> {
        if address.ip().to_canonical().is_unspecified() {
            return Err(LinkError::WildcardListen { address: address.to_string() });
        }
        self.check_loopback(address)
    }

    /// Without a key, refuses any address off this machine.
    pub(super) fn check_loopback(&self, address: SocketAddr) -> Result<(), LinkError> {
        address::check_key(self.key.as_ref(), address)
    }
}
