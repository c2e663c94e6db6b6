//! `--nodes auto`: asks on the link who has an agent. Whoever proves the key is a node.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use node::channel::{self, HANDSHAKE_TIMEOUT};
use node::file::Listed;
use node::mdns::{self, GROUP, PACKET_BYTES_MAX, PORT, Suggestion};
use node::message::{self, ToHead, ToNode};
use ring::key::Key;
use socket2::{Domain, Protocol, Socket, Type};

use crate::model::ENGINE;

/// How long answers to a question are waited for.
const LISTEN: Duration = Duration::from_millis(1_000);
/// Most suggestions that one question brings.
const SUGGESTIONS_MAX: usize = 64;
/// Most addresses of another key that are remembered: anybody may suggest some.
const STRANGERS_MAX: usize = 1_024;

/// `auto` or `auto=ADDR`, as `--nodes` takes it: nothing of a file.
///
/// # Errors
/// Something else behind `auto=` than an IPv4 address.
pub fn parse(path: &Path) -> Result<Option<Ipv4Addr>> {
    match path.to_str().map(|text| (text, text.strip_prefix("auto="))) {
        Some(("auto", _)) => Ok(Some(Ipv4Addr::UNSPECIFIED)),
        Some((_, Some(address))) => {
            let address = address.parse().ok();
            let expected = "--nodes auto=ADDR: expected this machine's IPv4 address on the link";
            Ok(Some(address.context(expected)?))
        }
        _ => Ok(None),
    }
}

/// Who answers on a link.
pub struct Link {
    /// This machine's address on it; unspecified for the system's choice.
    via: Ipv4Addr,
    key: Option<Key>,
    /// Who was found; all of them have the key.
    known: HashSet<SocketAddr>,
    /// Who has another one.
    strangers: HashSet<SocketAddr>,
}

impl Link {
    /// Nothing is asked yet.
    pub fn new(via: Ipv4Addr, key: Option<Key>) -> Self {
        Self { via, key, known: HashSet::new(), strangers: HashSet::new() }
    }

    /// Asks, and gives the nodes that were not there before. One without the key is named once.
    ///
    /// # Errors
    /// A link that takes no question.
    pub fn look(&mut self) -> io::Result<Vec<Listed>> {
        let mut found = Vec::new();
        for Suggestion { name, address } in self.ask()? {
            if self.known.contains(&address) || self.strangers.contains(&address) {
                continue;
            }
            match proves(&address.to_string(), self.key.as_ref()) {
                Ok(()) => {
                    self.known.insert(address);
                    found.push(listed(name, address));
                }
                Err(error) => {
                    // A wrong key stays one; whoever was only busy is asked again.
                    if matches!(error, node::NodeError::Session(_)) {
                        self.shun(address);
                        tracing::warn!("{name} at {address} is no node of this key: {error}");
                    }
                }
            }
        }
        Ok(found)
    }

    /// Asks it no more, until there are too many of its kind to remember.
    fn shun(&mut self, address: SocketAddr) {
        if self.strangers.len() == STRANGERS_MAX {
            self.strangers.clear();
        }
        self.strangers.insert(address);
    }

    fn ask(&self) -> io::Result<Vec<Suggestion>> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.bind(&SocketAddr::from((self.via, 0)).into())?;
        if !self.via.is_unspecified() {
            socket.set_multicast_if_v4(&self.via)?;
        }
        let socket = UdpSocket::from(socket);
        socket.send_to(&mdns::question(), (GROUP, PORT))?;
        let until = Instant::now() + LISTEN;
        let (mut found, mut packet) = (Vec::<Suggestion>::new(), [0; PACKET_BYTES_MAX]);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || found.len() >= SUGGESTIONS_MAX {
                break;
            }
            socket.set_read_timeout(Some(left))?;
            match socket.recv_from(&mut packet) {
                Ok((bytes, _)) => {
                    for one in mdns::suggestions(&packet[..bytes]) {
                        if found.len() < SUGGESTIONS_MAX && !found.contains(&one) {
                            found.push(one);
                        }
                    }
                }
                Err(error) if is_silence(&error) => break,
                Err(error) => return Err(error),
            }
        }
        found.sort_by(|a, b| (&a.name, a.address).cmp(&(&b.name, b.address)));
        Ok(found)
    }
}

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// An agent's answer to a hello proves that it has the key.
fn proves(address: &str, key: Option<&Key>) -> Result<(), node::NodeError> {
    let mut channel = channel::dial(address, key)?;
    channel.sender.send(&ToNode::Hello { engine: ENGINE.into() })?;
    let said = message::of_agent(channel.receiver.next(HANDSHAKE_TIMEOUT)?);
    channel.sender.close();
    match said? {
        ToHead::Welcome { .. } => Ok(()),
        other => Err(node::NodeError::BadMessage(format!("expected a welcome, found {other:?}"))),
    }
}

/// A node of that name without what parts names in lists.
fn listed(name: String, address: SocketAddr) -> Listed {
    let name: String = name.chars().filter(|c| !":,=".contains(*c)).collect();
    let name = if name.is_empty() { address.ip().to_string() } else { name };
    let address = address.to_string();
    Listed { name, address, key: None, device: None, threads: None, memory_limit: None }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn strangers_are_remembered_up_to_a_limit() {
        let mut link = Link::new(Ipv4Addr::LOCALHOST, None);
        for port in 0..=STRANGERS_MAX as u16 {
            link.shun(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
            assert!(link.strangers.len() <= STRANGERS_MAX);
        }
        assert_eq!(link.strangers.len(), 1, "the last one");
    }

    #[test]
    fn auto_is_no_file() {
        let parsed = |text: &str| parse(Path::new(text));
        assert_eq!(parsed("auto").unwrap(), Some(Ipv4Addr::UNSPECIFIED));
        assert_eq!(parsed("auto=10.0.0.1").unwrap(), Some(Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(parsed("automatic.toml").unwrap(), None);
        assert!(parsed("auto=eth0").unwrap_err().to_string().contains("IPv4 address"));
        assert_eq!(listed("a:b".into(), "10.0.0.3:1".parse().unwrap()).name, "ab");
        assert_eq!(listed("=".into(), "10.0.0.3:1".parse().unwrap()).name, "10.0.0.3");
    }
}
