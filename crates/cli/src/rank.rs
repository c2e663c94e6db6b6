//! One rank of a ring over sockets: its transport, its group, and how a driver joins through them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use arith::base::{Epoch, Rank};
use ring::join::Join;
use ring::key::Key;
use ring::link::{LinkError, Neighbours};
use ring::tcp::{TcpConfig, Times, Transport};
use shard::{Group, GroupConfig, ShardError};
use stage::Member;
use wire::hello::Encryption;
use wire::layout::Layout;
use wire::preamble::Cipher;

use crate::args::ByHand;
use crate::model::Model;

/// How long rank 0 waits for its neighbours before it says so and tries again.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Where a rank, or a member of one, listens, whom it connects to, and the secret.
#[derive(Clone, Debug)]
pub struct Place {
    /// The rank.
    pub rank: Rank,
    /// Which member of its group, from 0, the leader; 0 where it has none.
    pub member: usize,
    /// Where the members of its group listen, by index; empty where it has none.
    pub group: Vec<String>,
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
    /// Rank 0's, and the leader's of its group, between what is started by hand.
    ///
    /// # Errors
    /// A key that can't be read.
    pub fn of_head(by_hand: &ByHand, encryption: Encryption) -> Result<Self> {
        Ok(Self {
            rank: Rank(0),
            member: 0,
            group: by_hand.group.clone(),
            listen: by_hand.listen.clone(),
            next: by_hand.next.iter().cloned().collect(),
            key: by_hand.key.as_deref().map(Key::load).transpose()?,
            encryption,
        })
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {}", self.rank)?;
        if self.member > 0 { write!(f, ", member {}", self.member) } else { Ok(()) }
    }
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

    /// Starts listening for the members of its group, where the layout gives it one.
    ///
    /// # Errors
    /// Addresses for a rank without a group, or none for one with a group; an address that can't be
    /// used; layers that this machine does not have.
    pub fn group(&self, model: &Model) -> Result<Option<Group>> {
        let (rank, layout) = (self.rank, &model.layout);
        let Some(of) = layout.group(rank) else {
            ensure!(
                self.group.is_empty() && self.member == 0,
                "--group, --member: rank {rank} of the layout {layout} is one machine"
            );
            return Ok(None);
        };
        let members = of.members;
        ensure!(
            self.group.len() == members as usize,
            "--group: rank {rank} of the layout {layout} has {members} members: expected their \
             addresses, the same on each, found {}",
            self.group.len()
        );
        Ok(Some(Group::start(self.group_config(model)?)?))
    }

    /// What a member of its group must know.
    ///
    /// # Errors
    /// Layers that this machine does not have.
    pub fn group_config(&self, model: &Model) -> Result<GroupConfig> {
        Ok(GroupConfig {
            member: Member { index: self.member, count: self.group.len() },
            addresses: self.group.clone(),
            key: self.key.clone(),
            cipher: Cipher::ChaChaPoly,
            encryption: self.encryption,
            fingerprint: model.group_fingerprint(self.rank)?,
            through: model.settings.through,
            times: shard::Times::default(),
        })
    }
}

/// What connects this process to others.
#[derive(Clone, Default)]
pub struct Ways {
    /// To the neighbours in the ring.
    pub transport: Option<Arc<Transport>>,
    /// To the other members of the group.
    pub group: Option<Group>,
}

impl Ways {
    /// Ends every link and every wait for one, now and later.
    pub fn shutdown(&self) {
        if let Some(transport) = &self.transport {
            transport.shutdown();
        }
        if let Some(group) = &self.group {
            group.shutdown();
        }
    }
}

/// Has the members of a group meet, before any of them loads: again and again until they do; false
/// where the group was shut down.
pub fn assemble(rank: Rank, group: &Group) -> bool {
    loop {
        match group.join() {
            Ok(()) => return true,
            Err(ShardError::Shutdown) => return false,
            Err(error) => tracing::warn!("rank {rank}: {error}"),
        }
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

/// The places of all ranks of a ring on this machine, by rank; then those of the other members of
/// its groups.
///
/// # Errors
/// As [`loopback_ports`].
pub fn local_places(layout: &Layout, key: &Key, encryption: Encryption) -> Result<Vec<Place>> {
    let world = layout.world();
    let grouped = (0..world).map(Rank).filter_map(|rank| layout.group(rank));
    let ports = loopback_ports(world + grouped.map(|group| group.members).sum::<u32>())?;
    let (ranks, mut others) = ports.split_at(world as usize);
    let (mut places, mut members) = (Vec::new(), Vec::new());
    for rank in 0..world {
        let count = layout.group(Rank(rank)).map_or(0, |group| group.members as usize);
        let (group, rest) = others.split_at(count);
        others = rest;
        let leader = Place {
            rank: Rank(rank),
            member: 0,
            group: group.iter().map(SocketAddr::to_string).collect(),
            listen: vec![ranks[rank as usize]],
            next: vec![ranks[((rank + 1) % world) as usize].to_string()],
            key: Some(key.clone()),
            encryption,
        };
        members.extend((1..count).map(|member| Place {
            member,
            listen: Vec::new(),
            next: Vec::new(),
            ..leader.clone()
        }));
        places.push(leader);
    }
    places.append(&mut members);
    Ok(places)
}
