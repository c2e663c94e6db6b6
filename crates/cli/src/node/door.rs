//! An agent's port: heads with the key are let in, strangers dropped.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use node::agent::Event;
use node::channel::Caller;
use node::membership::GONE_AFTER;
use node::{NodeError, agent, channel, message};
use ring::key::Key;
use store::Link;

use super::Happening;
use crate::depot::Depot;

/// Most connections in a handshake at once; one more ends the oldest.
const HALF_OPEN_MAX: usize = 16;
/// Most heads at once: the one that decides, and those that are told so.
const HEADS_MAX: usize = 8;
/// How long the door rests when the system refuses it a connection.
const REST: Duration = Duration::from_millis(50);

/// Accepts on a thread of its own, as long as the process lives.
///
/// # Errors
/// No thread.
pub fn open(
    listener: TcpListener,
    key: Option<Key>,
    happened: SyncSender<Happening>,
    depot: Arc<Depot>,
) -> Result<()> {
    let (half, heads) = (Mutex::default(), AtomicUsize::new(0));
    let door = Arc::new(Door { key, happened, depot, half, heads });
    let accept = move || {
        for number in 1.. {
            let entered = listener.accept().and_then(|(stream, from)| {
                door.enter(number, stream.try_clone()?);
                Ok((stream, from))
            });
            // Out of descriptors, or the peer left already: neither ends a door.
            let Ok((stream, from)) = entered else {
                std::thread::sleep(REST);
                continue;
            };
            let own = door.clone();
            let attend = move || own.attend(number, stream, from);
            if std::thread::Builder::new().name("baton-head".into()).spawn(attend).is_err() {
                door.leave(number);
            }
        }
    };
    std::thread::Builder::new().name("baton-door".into()).spawn(accept)?;
    Ok(())
}

/// Who has the key.
enum Proven {
    /// A head, and its first message.
    Head(Box<channel::Channel>, message::ToNode),
    /// A node that takes or gives layers.
    Taker(Link),
}

struct Door {
    key: Option<Key>,
    happened: SyncSender<Happening>,
    /// For other nodes, which take layers.
    depot: Arc<Depot>,
    /// Connections in a handshake, oldest first.
    half: Mutex<Vec<(agent::Channel, TcpStream)>>,
    heads: AtomicUsize,
}

impl Door {
    fn half(&self) -> MutexGuard<'_, Vec<(agent::Channel, TcpStream)>> {
        self.half.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, number: agent::Channel, stream: TcpStream) {
        let mut half = self.half();
        if half.len() >= HALF_OPEN_MAX {
            let (_, oldest) = half.remove(0);
            let _ = oldest.shutdown(Shutdown::Both);
        }
        half.push((number, stream));
    }

    fn leave(&self, number: agent::Channel) {
        self.half().retain(|(other, _)| *other != number);
    }

    fn attend(&self, number: agent::Channel, stream: TcpStream, from: SocketAddr) {
        let proven = self.prove(stream);
        self.leave(number);
        match proven {
            Ok(Proven::Taker(link)) => self.depot.welcome(link),
            Ok(Proven::Head(channel, first)) => {
                if self.heads.fetch_add(1, Ordering::AcqRel) < HEADS_MAX {
                    self.hear(number, *channel, first, from);
                } else {
                    tracing::warn!("{from}: dropped: {HEADS_MAX} heads are here already");
                }
                self.heads.fetch_sub(1, Ordering::AcqRel);
            }
            // Anybody can make these; only what may be a wrong key is worth a warning.
            Err(error @ NodeError::Session(_)) => tracing::warn!("refused {from}: {error}"),
            Err(error) => tracing::debug!("{from}: dropped: {error}"),
        }
    }

    /// The handshake, and a first message: a replayed handshake gets this far, and no record of it
    /// opens.
    fn prove(&self, stream: TcpStream) -> Result<Proven, NodeError> {
        let taker = self.depot.access().hello();
        match channel::answer(stream, self.key.as_ref(), &taker)? {
            Caller::Head(mut channel) => {
                let first = message::of_head(channel.receiver.next(channel::HANDSHAKE_TIMEOUT)?)?;
                Ok(Proven::Head(channel, first))
            }
            Caller::Other(stream, records) => {
                let broken = |error: std::io::Error| NodeError::Unreachable {
                    address: "a taker of layers".into(),
                    reason: error.to_string(),
                };
                Ok(Proven::Taker(Link::new(stream, *records).map_err(broken)?))
            }
        }
    }

    fn hear(
        &self,
        number: agent::Channel,
        mut channel: channel::Channel,
        first: message::ToNode,
        from: SocketAddr,
    ) {
        let tell = |event| self.happened.send(Happening::Event(event)).is_ok();
        let opened = Happening::Opened(number, channel.sender);
        let mut goes_on = self.happened.send(opened).is_ok() && tell(Event::Heard(number, first));
        while goes_on {
            goes_on = match channel.receiver.next(GONE_AFTER).and_then(message::of_head) {
                Ok(message) => tell(Event::Heard(number, message)),
                Err(error) => {
                    tracing::debug!("{from}: {error}");
                    tell(Event::Closed(number));
                    return;
                }
            };
        }
    }
}
