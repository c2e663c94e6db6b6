//! What a head and an agent say to each other: JSON, one message a record.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use zeroize::{Zeroize, Zeroizing};

use crate::NodeError;

/// Most arguments of a rank.
pub const ARGUMENTS_MAX: usize = 64;
/// Most bytes of an argument, a name or a reason.
pub const TEXT_BYTES_MAX: usize = 4_096;
/// Most addresses that units come from.
pub const SOURCES_MAX: usize = 8;
/// Most addresses of a node's rank.
pub const ADDRESSES_MAX: usize = 8;

/// Whose claim on an agent counts: the higher one. `epoch` grows with each head that takes over,
/// `head` is drawn at random when a head starts, so no two are equal.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Ballot {
    /// How many heads there have been, as far as this one has heard.
    pub epoch: u64,
    /// The head.
    pub head: u64,
}

impl fmt::Display for Ballot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {} of head {:08x}", self.epoch, self.head >> 32)
    }
}

/// A secret as text; shown to nobody, wiped when dropped.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Secret {
    /// Of bytes.
    pub fn new(bytes: &[u8]) -> Self {
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let digit = |digit| char::from_digit(u32::from(digit), 16).unwrap_or('0');
        Self(digits.map(digit).collect())
    }

    /// Its bytes again; `None` of a text that is none.
    pub fn bytes(&self) -> Option<Zeroizing<Vec<u8>>> {
        let digits: Option<Vec<u32>> = self.0.chars().map(|c| c.to_digit(16)).collect();
        let pairs = Zeroizing::new(digits.filter(|digits| digits.len() % 2 == 0)?);
        let byte = |pair: &[u32]| (pair[0] << 4 | pair[1]) as u8;
        Some(Zeroizing::new(pairs.chunks(2).map(byte).collect()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A model, as a node looks for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// What the head was asked to serve: a name or a path.
    pub model: String,
    /// The file's own name, for a node that has it elsewhere.
    pub file: String,
    /// Digest of its shapes and formats under the settings; layers are compared when the ring
    /// boots.
    pub digest: String,
    /// The settings, as arguments.
    pub arguments: Vec<String>,
    /// Where a node that has no such file takes it from; none as long as it is not known to lack
    /// it.
    pub units: Option<Units>,
}

/// A model's units, and who has some.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Units {
    /// The catalog's address, in hexadecimal.
    pub catalog: String,
    /// Machines that give, `HOST:PORT`; what they lack is taken from others.
    pub sources: Vec<String>,
    /// Whether the node's own file, should it have one, holds other values.
    pub instead: bool,
}

/// Bytes of layers that a node takes before its rank starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coming {
    /// That came.
    pub moved: u64,
    /// That were not there.
    pub missing: u64,
}

/// A rank that a node is to run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Which of the head's plans it is of; each has a higher number.
    pub plan: u64,
    /// The rank.
    pub rank: u32,
    /// Who holds what.
    pub layout: String,
    /// The rank's layers, half-open.
    pub layers: (u32, u32),
    /// Its model.
    pub wanted: Wanted,
    /// What a stage takes beside the model and where it listens.
    pub arguments: Vec<String>,
    /// The ring's secret: of this plan alone.
    pub secret: Secret,
}

/// What opens a port for those who measure the way to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Door {
    /// The secret that they prove.
    pub secret: Secret,
    /// Whether records are enciphered, as the ring's are.
    pub encrypts: bool,
}

/// A way that a node is to measure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// The node there.
    pub node: String,
    /// Where its rank listens, `HOST:PORT` each.
    pub addresses: Vec<String>,
    /// What opens its port.
    pub door: Door,
    /// Though there is a measurement that is kept.
    pub again: bool,
}

/// What a head says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToNode {
    /// First: who asks. The answer is [`ToHead::Welcome`].
    Hello {
        /// Its version.
        engine: String,
    },
    /// From now on this head decides.
    Claim(Ballot),
    /// Still there.
    Beat,
    /// Measure yourself on this model.
    Measure {
        /// The model.
        wanted: Wanted,
        /// Though there is a measurement that is kept.
        again: bool,
    },
    /// Let others take this model's units from you.
    Give(Wanted),
    /// Answer those who measure the way to your rank's port, until a rank takes it. The answer is
    /// [`ToHead::Answers`].
    Answer(Door),
    /// Measure the way to another node. The answer is [`ToHead::Reached`].
    Reach(Box<Reach>),
    /// Run this rank, and no other.
    Run(Box<Launch>),
    /// Run none.
    Rest,
}

/// What a node is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// What it calls itself.
    pub name: String,
    /// Its version.
    pub engine: String,
    /// Operating system and processor.
    pub system: String,
    /// Cores.
    pub cores: u32,
    /// Memory in all.
    pub memory_bytes: u64,
    /// Memory that is free now.
    pub free_bytes: u64,
    /// Room for weights on its disk.
    pub disk_bytes: u64,
    /// What it computes on.
    pub device: String,
    /// Where its rank will listen: a port of the address that the head reaches it at.
    pub stage_port: u16,
    /// Other addresses that its rank will listen at, `HOST:PORT`.
    pub addresses: Vec<String>,
}

/// What a node's rank does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankState {
    /// Its process runs.
    #[default]
    Running,
    /// Its process ended and waits to be started again.
    Pausing,
    /// What ran before is being ended.
    Ending,
}

/// A node's rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankNews {
    /// Of which plan.
    pub plan: u64,
    /// The rank.
    pub rank: u32,
    /// What it does.
    pub state: RankState,
    /// How often its process ended by itself in this plan.
    pub ends: u32,
    /// How the last one ended, or why none starts.
    pub why: String,
    /// What has to come before it starts, while it comes.
    pub coming: Option<Coming>,
}

/// What an agent says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToHead {
    /// The answer to a hello.
    Welcome {
        /// Drawn at random when the agent started.
        incarnation: u64,
        /// What the node is.
        facts: Facts,
        /// The highest claim so far.
        ballot: Ballot,
    },
    /// The claim counts.
    Claimed(Ballot),
    /// A higher one was heard; the channel ends.
    Superseded(Ballot),
    /// Still there, with its rank.
    Beat(Option<RankNews>),
    /// What was measured; what it means is the planner's to know.
    Measured(Value),
    /// The node can't: no such device, a measurement that failed.
    Unfit(String),
    /// The node has no such model, and could take it from others.
    Lacks(String),
    /// Its port is open for who measures, or why it can't be.
    Answers(Result<(), String>),
    /// What was measured of the way to a node, or why nothing came through.
    Reached {
        /// The node there.
        node: String,
        /// What it means is the planner's to know.
        found: Result<Value, String>,
    },
}

/// A message's bytes.
///
/// # Errors
/// `MessageTooLong`.
pub fn encode<T: Serialize>(message: &T, max: usize) -> Result<Vec<u8>, NodeError> {
    let bytes =
        serde_json::to_vec(message).map_err(|error| NodeError::BadMessage(error.to_string()))?;
    match bytes.len() <= max {
        true => Ok(bytes),
        false => Err(NodeError::MessageTooLong { bytes: bytes.len(), max }),
    }
}

/// The message of a head.
///
/// # Errors
/// `BadMessage`.
pub fn of_head(bytes: &[u8]) -> Result<ToNode, NodeError> {
    let message: ToNode = decode(bytes)?;
    match &message {
        ToNode::Run(launch) => {
            check_texts("arguments", &launch.arguments, ARGUMENTS_MAX)?;
            check_wanted(&launch.wanted)?;
        }
        ToNode::Measure { wanted, .. } | ToNode::Give(wanted) => check_wanted(wanted)?,
        ToNode::Reach(reach) => check_texts("addresses", &reach.addresses, ADDRESSES_MAX)?,
        _ => {}
    }
    Ok(message)
}

/// The message of an agent.
///
/// # Errors
/// `BadMessage`.
pub fn of_agent(bytes: &[u8]) -> Result<ToHead, NodeError> {
    let message: ToHead = decode(bytes)?;
    if let ToHead::Welcome { facts, .. } = &message {
        check_texts("addresses", &facts.addresses, ADDRESSES_MAX)?;
    }
    Ok(message)
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, NodeError> {
    serde_json::from_slice(bytes).map_err(|error| NodeError::BadMessage(error.to_string()))
}

fn check_wanted(wanted: &Wanted) -> Result<(), NodeError> {
    check_texts("arguments", &wanted.arguments, ARGUMENTS_MAX)?;
    match &wanted.units {
        Some(units) => check_texts("sources", &units.sources, SOURCES_MAX),
        None => Ok(()),
    }
}

fn check_texts(what: &str, texts: &[String], max: usize) -> Result<(), NodeError> {
    let long = texts.iter().map(String::len).max().unwrap_or(0);
    if texts.len() > max || long > TEXT_BYTES_MAX {
        let found = format!(
            "{} {what}, the longest of {long} bytes: at most {max} of {TEXT_BYTES_MAX}",
            texts.len()
        );
        return Err(NodeError::BadMessage(found));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_secret_comes_back_and_is_shown_nowhere() {
        let secret = Secret::new(&[0, 171, 255]);
        assert_eq!(secret.bytes().unwrap()[..], [0, 171, 255]);
        let launch = Launch { secret, ..Launch::default() };
        assert!(format!("{launch:?}").contains("Secret(..)"));
        let bytes = encode(&ToNode::Run(Box::new(launch.clone())), 4_096).unwrap();
        assert_eq!(of_head(&bytes).unwrap(), ToNode::Run(Box::new(launch)));
        assert_eq!(Secret("0g".into()).bytes(), None);
        assert_eq!(Secret("abc".into()).bytes(), None);
    }

    #[test]
    fn as_much_as_the_limits_say_is_taken_and_one_more_is_refused() {
        let of = |count, bytes| {
            let arguments = vec!["x".repeat(bytes); count];
            let launch = Launch { arguments, ..Launch::default() };
            of_head(&encode(&ToNode::Run(Box::new(launch)), usize::MAX).unwrap())
        };
        assert!(of(ARGUMENTS_MAX, 1).is_ok() && of(1, TEXT_BYTES_MAX).is_ok());
        for (count, bytes) in [(ARGUMENTS_MAX + 1, 1), (1, TEXT_BYTES_MAX + 1)] {
            let error = of(count, bytes).unwrap_err().to_string();
            assert!(error.contains("at most 64 of 4096"), "{error}");
        }
        let of = |count| {
            let units = Units { sources: vec!["a:1".into(); count], ..Units::default() };
            let wanted = Wanted { units: Some(units), ..Wanted::default() };
            of_head(&encode(&ToNode::Give(wanted), usize::MAX).unwrap())
        };
        assert!(of(SOURCES_MAX).is_ok());
        let error = of(SOURCES_MAX + 1).unwrap_err().to_string();
        assert!(error.contains("9 sources"), "{error}");
        let reach = |count| {
            let reach = Reach { addresses: vec!["a:1".into(); count], ..Reach::default() };
            of_head(&encode(&ToNode::Reach(Box::new(reach)), usize::MAX).unwrap())
        };
        assert!(reach(ADDRESSES_MAX).is_ok() && reach(ADDRESSES_MAX + 1).is_err());
        let welcome = |count| {
            let facts = Facts { addresses: vec!["a:1".into(); count], ..Facts::default() };
            let welcome = ToHead::Welcome { incarnation: 1, facts, ballot: Ballot::default() };
            of_agent(&encode(&welcome, usize::MAX).unwrap())
        };
        assert!(welcome(ADDRESSES_MAX).is_ok() && welcome(ADDRESSES_MAX + 1).is_err());
        let beat = encode(&ToNode::Beat, 6).unwrap();
        assert_eq!(beat.len(), 6);
        assert!(matches!(
            encode(&ToNode::Beat, 5),
            Err(NodeError::MessageTooLong { bytes: 6, max: 5 })
        ));
        assert!(of_head(b"{\"rob\":1}").is_err() && of_agent(b"\xff").is_err());
    }

    #[test]
    fn the_newer_claim_is_the_higher() {
        let old = Ballot { epoch: 3, head: u64::MAX };
        assert!(Ballot { epoch: 4, head: 0 } > old && Ballot::default() < old);
    }
}
