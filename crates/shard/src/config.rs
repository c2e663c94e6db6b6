//! What a member must know to find the others.

use std::net::SocketAddr;
use std::time::Duration;

use ring::address;
use ring::key::Key;
use ring::link::LinkError;
use stage::Member;
use wire::control::Fields;
use wire::group::MEMBERS;
use wire::hello::Encryption;
use wire::preamble::Cipher;

use crate::ShardError;

/// A member's place, addresses and secret.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// Which member this is, of how many.
    pub member: Member,
    /// Where each member listens, by its index: `host:port` or `[v6%zone]:port`. A member connects
    /// to all before it and listens for all after it, so nobody needs the last one's.
    pub addresses: Vec<String>,
    /// The ring's secret; without one every address must be loopback.
    pub key: Option<Key>,
    /// The cipher of handshake and records.
    pub cipher: Cipher,
    /// Whether record bodies are enciphered.
    pub encryption: Encryption,
    /// What must be equal on all members.
    pub fingerprint: Fields,
    /// What its values go through; the leader's word counts, where the others can.
    pub through: Through,
    /// Deadlines.
    pub times: Times,
}

/// What the values of exchanges go through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Through {
    /// The memory of cards that see each other's, where all members have one; else memory between
    /// members of the leader's machine, links between others.
    #[default]
    Auto,
    /// The same, and a member that has no card says so.
    Cards,
    /// Links alone.
    Links,
    /// Memory alone: a member that does not reach it is refused.
    Memory,
    /// The vendor's library between cards, where all members have it; else memory and links.
    Nccl,
}

/// Deadlines and intervals of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// A beat goes out so often.
    pub beat: Duration,
    /// No byte for so long ends the epoch.
    pub silent: Duration,
    /// No value, report or write for so long, while beats go on, ends the epoch.
    pub stalled: Duration,
    /// One attempt to connect.
    pub connect: Duration,
    /// Accepted connections: until message 1.
    pub first_message: Duration,
    /// The rest of a handshake, on either end.
    pub handshake: Duration,
    /// The leader's wait for members that come back.
    pub join: Duration,
    /// A member's word that it is loaded, or prepared.
    pub ready: Duration,
}

impl Default for Times {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
            beat: s(1),
            silent: s(3),
            stalled: s(120),
            connect: s(2),
            first_message: s(1),
            handshake: s(5),
            join: s(20),
            ready: s(300),
        }
    }
}

impl GroupConfig {
    /// Refuses what no group can have.
    pub(crate) fn check(&self) -> Result<(), ShardError> {
        let Member { index, count } = self.member;
        let bad = |text: String| Err(ShardError::BadGroup(text));
        if !u32::try_from(count).is_ok_and(|count| MEMBERS.contains(&count)) || index >= count {
            let (least, most) = (MEMBERS.start(), MEMBERS.end());
            return bad(format!(
                "member {index} of {count}: expected a member below {least}..{most}"
            ));
        }
        if self.addresses.len() != count {
            let found = self.addresses.len();
            return bad(format!("expected {count} addresses, one a member, found {found}"));
        }
        Ok(())
    }

    /// Whether this member listens.
    pub(crate) fn listens(&self) -> bool {
        self.member.index + 1 < self.member.count
    }

    /// Where this member listens.
    pub(crate) fn own_address(&self) -> Result<SocketAddr, ShardError> {
        let address = &self.addresses[self.member.index];
        let bad = |reason: String| LinkError::Listen { address: address.clone(), reason };
        let own = address::resolve(address).map_err(|e| bad(e.to_string()))?.into_iter().next();
        let own = own.ok_or_else(|| bad("the name has no address".into()))?;
        if own.ip().to_canonical().is_unspecified() {
            return Err(LinkError::WildcardListen { address: own.to_string() }.into());
        }
        self.check_loopback(own)?;
        Ok(own)
    }

    /// Without a key, refuses any address off this machine.
    pub(crate) fn check_loopback(&self, address: SocketAddr) -> Result<(), ShardError> {
        Ok(address::check_key(self.key.as_ref(), address)?)
    }

    /// The key of handshakes.
    pub(crate) fn link_key(&self) -> Key {
        self.key.clone().unwrap_or_else(Key::loopback)
    }
}
