//! The hello that rides in handshake messages 1 and 2, and the refusal that may ride in 2.

use arith::base::{Epoch, Rank};

use crate::bytes::{Take, check_rank};
use crate::error::{Fault, WireError};
use crate::limit::REFUSAL_TEXT_BYTES_MAX;

/// Bytes of a hello without a refusal's texts: all of message 1's payload.
pub const HELLO_BYTES: usize = 56;
/// Most bytes of message 2's payload.
pub const ANSWER_BYTES_MAX: usize = HELLO_BYTES + 2 * REFUSAL_TEXT_BYTES_MAX;

/// Which end of the link speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Rank i, towards rank i+1.
    Connector = 1,
    /// Rank i+1.
    Acceptor = 2,
    /// Nobody's neighbour: measures the link, and goes.
    Measurer = 3,
}

/// What becomes of record bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Encryption {
    /// Enciphered and authenticated by Noise.
    #[default]
    On = 1,
    /// In clear, each followed by a MAC; for trusted cables.
    Off = 2,
}

impl Encryption {
    /// The name in configuration and errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// Who speaks, and what it believes the ring to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The speaker.
    pub rank: Rank,
    /// Ranks of the ring.
    pub world: u32,
    /// Which end.
    pub role: Role,
    /// The ring's life. `Epoch(0)` from an acceptor that will take the connector's.
    pub epoch: Epoch,
    /// SHA-256 over the canonical field list ([`crate::fingerprint`]).
    pub fingerprint: [u8; 32],
    /// What becomes of record bodies.
    pub encryption: Encryption,
}

/// Why an acceptor closes the link after message 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalCode {
    /// Another model, layout or setting; both ends then exchange their field lists.
    OtherFingerprint = 1,
    /// Another number of ranks.
    OtherWorld = 2,
    /// Not the rank before this one.
    NotNeighbour = 3,
    /// An old life of the ring.
    OtherEpoch = 4,
    /// One end encrypts, the other does not.
    OtherEncryption = 5,
}

/// A refusal with its particulars, as both ends report it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Which.
    pub code: RefusalCode,
    /// The acceptor's value, at most 64 bytes.
    pub expected: String,
    /// The connector's value, at most 64 bytes.
    pub found: String,
}

/// Message 2's payload: the acceptor's hello, and its refusal if it refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The acceptor.
    pub hello: Hello,
    /// `None` when the connector is welcome.
    pub refusal: Option<Refusal>,
}

impl Refusal {
    fn new(
        code: RefusalCode,
        expected: impl std::fmt::Display,
        found: impl std::fmt::Display,
    ) -> Self {
        Self { code, expected: expected.to_string(), found: found.to_string() }
    }

    /// The refusal as an error about the refused `rank`.
    pub fn error(&self, rank: Rank) -> WireError {
        let fault = |field| Fault::new(field, &self.expected, &self.found);
        match self.code {
            RefusalCode::OtherFingerprint => {
                WireError::OtherFingerprint(fault("hello.fingerprint"))
            }
            RefusalCode::OtherWorld => WireError::OtherWorld(fault("hello.world")),
            RefusalCode::NotNeighbour => WireError::NotNeighbour(fault("hello.rank")),
            RefusalCode::OtherEpoch => WireError::OtherEpoch(fault("hello.epoch")),
            RefusalCode::OtherEncryption => WireError::OtherEncryption(fault("hello.encryption")),
        }
        .at(rank)
    }
}

impl Hello {
    /// What is wrong with `peer`, the hello from the other end of a link whose this end is `self`.
    ///
    /// The epoch is compared only if this end has one: an acceptor that takes the connector's says
    /// `Epoch(0)`.
    pub fn refuse(&self, peer: &Hello) -> Option<Refusal> {
        let code =
            |code, expected: String, found: String| Some(Refusal::new(code, expected, found));
        if peer.world != self.world {
            let (ours, theirs) = (self.world.to_string(), peer.world.to_string());
            return code(RefusalCode::OtherWorld, ours, theirs);
        }
        let (neighbour, role) = match self.role {
            Role::Connector => ((self.rank.0 + 1) % self.world, Role::Acceptor),
            _ => ((self.rank.0 + self.world - 1) % self.world, Role::Connector),
        };
        if peer.rank.0 != neighbour || peer.role != role {
            let expected = format!("{role:?} {neighbour}");
            let found = format!("{:?} {}", peer.role, peer.rank);
            return code(RefusalCode::NotNeighbour, expected, found);
        }
        if peer.encryption != self.encryption {
            let (ours, theirs) = (self.encryption.name(), peer.encryption.name());
            return code(RefusalCode::OtherEncryption, ours.into(), theirs.into());
        }
        if peer.fingerprint != self.fingerprint {
            let (ours, theirs) = (hex(&self.fingerprint[..8]), hex(&peer.fingerprint[..8]));
            return code(RefusalCode::OtherFingerprint, ours, theirs);
        }
        if self.epoch != Epoch(0) && peer.epoch != self.epoch {
            let (ours, theirs) = (self.epoch.0, peer.epoch.0);
            return code(RefusalCode::OtherEpoch, format!("{ours:016x}"), format!("{theirs:016x}"));
        }
        None
    }

    /// As [`Hello::refuse`], where `self` accepts and both are members of one group: rank and world
    /// are the member's index and their number. A member connects to all below it. To member 0 it
    /// says `Epoch(0)` and takes that one's; `Epoch(0)` here is no epoch yet.
    pub fn refuse_member(&self, peer: &Hello) -> Option<Refusal> {
        let is_above = peer.role == Role::Connector && peer.rank > self.rank;
        if peer.world == self.world && !is_above {
            let expected = format!("Connector above {}", self.rank);
            let found = format!("{:?} {}", peer.role, peer.rank);
            return Some(Refusal::new(RefusalCode::NotNeighbour, expected, found));
        }
        let takes_ours = self.rank == Rank(0) && peer.epoch == Epoch(0);
        let is_of_epoch = self.epoch != Epoch(0) && (takes_ours || peer.epoch == self.epoch);
        // What is left to compare is as between neighbours.
        let rank = Rank((peer.rank.0 + 1) % self.world);
        let alike = Hello { rank, epoch: Epoch(0), ..*self }.refuse(peer);
        alike.or_else(|| {
            let [ours, theirs] = [self.epoch.0, peer.epoch.0].map(|epoch| format!("{epoch:016x}"));
            (!is_of_epoch).then(|| Refusal::new(RefusalCode::OtherEpoch, ours, theirs))
        })
    }

    /// As [`Hello::refuse`], where `peer` only measures: of what the ends believe, it must share
    /// what becomes of records.
    pub fn refuse_measurer(&self, peer: &Hello) -> Option<Refusal> {
        let (ours, theirs) = (self.encryption.name(), peer.encryption.name());
        (ours != theirs).then(|| Refusal::new(RefusalCode::OtherEncryption, ours, theirs))
    }

    /// Message 1's payload.
    ///
    /// # Errors
    /// `BadRank`.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        Answer { hello: *self, refusal: None }.encode()
    }

    /// Reads message 1's payload.
    ///
    /// # Errors
    /// `Truncated`, `Trailing`, `BadRank`, `BadValue` (also for a refusal).
    pub fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let answer = Answer::decode(payload)?;
        match answer.refusal {
            None => Ok(answer.hello),
            Some(refusal) => {
                let found = format!("{:?}", refusal.code);
                Err(WireError::BadValue(Fault::new("hello.refusal", "none", found)))
            }
        }
    }
}

impl Answer {
    /// Message 2's payload.
    ///
    /// # Errors
    /// `BadRank`, `TooLarge`.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        let hello = &self.hello;
        check_rank("hello.rank", hello.rank.0, hello.world)?;
        let (code, expected, found) = match &self.refusal {
            None => (0, "", ""),
            Some(r) => (r.code as u8, r.expected.as_str(), r.found.as_str()),
        };
        let mut out = Vec::with_capacity(HELLO_BYTES + expected.len() + found.len());
        out.extend(hello.rank.0.to_le_bytes());
        out.extend(hello.world.to_le_bytes());
        out.extend([hello.role as u8, hello.encryption as u8, code, 0]);
        out.extend(refusal_bytes("hello.expected", expected)?.to_le_bytes());
        out.extend(refusal_bytes("hello.found", found)?.to_le_bytes());
        out.extend(hello.epoch.0.to_le_bytes());
        out.extend(hello.fingerprint);
        out.extend(expected.as_bytes());
        out.extend(found.as_bytes());
        Ok(out)
    }

    /// Reads message 2's payload.
    ///
    /// # Errors
    /// `Truncated`, `Trailing`, `TooLarge`, `BadRank`, `BadValue`, `BadReserved`, `BadText`.
    pub fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let mut take = Take::new("hello", payload);
        let (rank, world) = (take.u32("rank")?, take.u32("world")?);
        check_rank("hello.rank", rank, world)?;
        let role = match take.u8("role")? {
            1 => Role::Connector,
            2 => Role::Acceptor,
            3 => Role::Measurer,
            other => return Err(WireError::BadValue(take.fault("role", "1..3", other))),
        };
        let encryption = match take.u8("encryption")? {
            1 => Encryption::On,
            2 => Encryption::Off,
            other => {
                return Err(WireError::BadValue(take.fault("encryption", "1 or 2", other)));
            }
        };
        let code = match take.u8("refusal")? {
            0 => None,
            1 => Some(RefusalCode::OtherFingerprint),
            2 => Some(RefusalCode::OtherWorld),
            3 => Some(RefusalCode::NotNeighbour),
            4 => Some(RefusalCode::OtherEpoch),
            5 => Some(RefusalCode::OtherEncryption),
            other => return Err(WireError::BadValue(take.fault("refusal", "0..5", other))),
        };
        take.zeros::<1>("reserved")?;
        let lengths = [take.u16("expected")?, take.u16("found")?];
        let max = if code.is_some() { REFUSAL_TEXT_BYTES_MAX } else { 0 };
        for length in lengths {
            take.at_most("text", max as u64, u64::from(length))?;
        }
        let epoch = Epoch(take.u64("epoch")?);
        let fingerprint = take.array("fingerprint")?;
        let mut texts = [""; 2];
        for (text, length) in texts.iter_mut().zip(lengths) {
            let bytes = take.bytes("text", usize::from(length))?;
            *text = take.utf8("text", bytes)?;
        }
        take.end()?;
        let refusal = code.map(|code| Refusal::new(code, texts[0], texts[1]));
        let hello = Hello { rank: Rank(rank), world, role, epoch, fingerprint, encryption };
        Ok(Self { hello, refusal })
    }
}

fn refusal_bytes(field: &str, text: &str) -> Result<u16, WireError> {
    match u16::try_from(text.len()) {
        Ok(count) if text.len() <= REFUSAL_TEXT_BYTES_MAX => Ok(count),
        _ => {
            let expected = format!("at most {REFUSAL_TEXT_BYTES_MAX} bytes");
            Err(WireError::TooLarge(Fault::new(field, expected, text.len())))
        }
    }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn hello(rank: u32, role: Role) -> Hello {
        Hello {
            rank: Rank(rank),
            world: 3,
            role,
            epoch: Epoch(5),
            fingerprint: [7; 32],
            encryption: Encryption::On,
        }
    }

    /// The error, after the refusal has travelled: the acceptor logs what the connector reads.
    fn refused(own: Hello, peer: Hello) -> String {
        let answer = Answer { hello: own, refusal: own.refuse(&peer) };
        let heard = Answer::decode(&answer.encode().unwrap()).unwrap();
        assert_eq!(heard, answer);
        heard.refusal.unwrap().error(peer.rank).to_string()
    }

    #[test]
    fn neighbours_welcome_each_other_all_round_the_ring() {
        for rank in 0..3 {
            let connector = hello(rank, Role::Connector);
            let acceptor = hello((rank + 1) % 3, Role::Acceptor);
            assert_eq!(acceptor.refuse(&connector), None);
            assert_eq!(connector.refuse(&acceptor), None);
        }
    }

    #[test]
    fn a_refusal_names_the_field_and_both_values() {
        let own = hello(2, Role::Acceptor);
        let peer = hello(1, Role::Connector);
        let world = "OtherWorld: rank 1: hello.world: expected 3, found 4";
        assert_eq!(refused(own, Hello { world: 4, ..peer }), world);
        let rank = "NotNeighbour: rank 0: hello.rank: expected Connector 1, found Connector 0";
        assert_eq!(refused(own, Hello { rank: Rank(0), ..peer }), rank);
        let role = "NotNeighbour: rank 1: hello.rank: expected Connector 1, found Acceptor 1";
        assert_eq!(refused(own, Hello { role: Role::Acceptor, ..peer }), role);
        let clear = "OtherEncryption: rank 1: hello.encryption: expected on, found off";
        assert_eq!(refused(own, Hello { encryption: Encryption::Off, ..peer }), clear);
        let other = refused(own, Hello { fingerprint: [8; 32], ..peer });
        assert!(other.starts_with("OtherFingerprint: rank 1: hello.fingerprint: expected 0707"));
        let epoch = refused(own, Hello { epoch: Epoch(4), ..peer });
        assert!(epoch.starts_with("OtherEpoch: rank 1: hello.epoch: expected 0000000000000005"));
    }

    #[test]
    fn a_member_lets_those_above_it_in_and_no_others() {
        let refused = |own: Hello, peer: Hello| own.refuse_member(&peer).map(|r| r.code);
        let other = |code: RefusalCode| Some(code);
        for (own, peer) in [(0, 1), (0, 2), (1, 2)] {
            let (own, peer) = (hello(own, Role::Acceptor), hello(peer, Role::Connector));
            assert_eq!(refused(own, peer), None);
            let clear = Hello { encryption: Encryption::Off, ..peer };
            assert_eq!(refused(own, clear), other(RefusalCode::OtherEncryption));
            let model = Hello { fingerprint: [8; 32], ..peer };
            assert_eq!(refused(own, model), other(RefusalCode::OtherFingerprint));
            let old = Hello { epoch: Epoch(4), ..peer };
            assert_eq!(refused(own, old), other(RefusalCode::OtherEpoch));
            let idle = Hello { epoch: Epoch(0), ..own };
            assert_eq!(refused(idle, peer), other(RefusalCode::OtherEpoch));
            assert_eq!(refused(own, Hello { world: 4, ..peer }), other(RefusalCode::OtherWorld));
        }
        let second = hello(1, Role::Acceptor);
        let asks = Hello { epoch: Epoch(0), ..hello(2, Role::Connector) };
        assert_eq!(refused(hello(0, Role::Acceptor), asks), None);
        assert_eq!(refused(second, asks), other(RefusalCode::OtherEpoch));
        for (rank, role) in [(0, Role::Connector), (1, Role::Connector), (2, Role::Acceptor)] {
            assert_eq!(refused(second, hello(rank, role)), other(RefusalCode::NotNeighbour));
        }
    }

    #[test]
    fn an_acceptor_without_an_epoch_takes_any() {
        let own = Hello { epoch: Epoch(0), ..hello(2, Role::Acceptor) };
        assert_eq!(own.refuse(&hello(1, Role::Connector)), None);
    }
}
