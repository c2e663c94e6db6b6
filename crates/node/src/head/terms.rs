//! What happens to a head, and what it does about it.

use serde::Serialize;
use serde_json::Value;

use super::links::End;
use crate::membership::State;
use crate::message::{Door, Launch, ToHead, ToNode, Units};

/// Who runs what; the head itself is rank 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Which one; later ones have higher numbers.
    pub number: u64,
    /// The other ranks, in order: node and launch.
    pub seats: Vec<(usize, Launch)>,
    /// For people: which node holds which layers.
    pub line: String,
    /// Its predicted time by what it is for; less is better.
    pub time_s: f64,
}

/// What happens to a head.
#[derive(Clone, Debug)]
pub enum Event {
    /// A channel to a node stands.
    Opened(usize),
    /// A node could not be reached, or its channel ended, and why.
    Broke(usize, String),
    /// A node said something.
    Heard(usize, ToHead),
    /// What an [`Action::Supply`] gave.
    Supplied(usize, Result<Units, String>),
    /// What an [`Action::Reach`] of this machine to a node gave, or why nothing came through.
    Reached(usize, Result<Value, String>),
    /// What an [`Action::MeasureAgain`] gave.
    MeasuredAgain,
    /// What is measured has been other than planned for long.
    Off,
    /// The ring refused what this rank's node holds: other values in the same shapes; which.
    Other(u32, String),
    /// What an [`Action::Plan`] gave: none where nothing fits, and why.
    Planned(Result<Plan, String>),
    /// Whether requests run or wait.
    Load {
        /// Some do.
        busy: bool,
    },
    /// A user asks for a new plan now.
    Replan,
    /// Time goes on.
    Tick,
    /// The server ends.
    Drain,
}

/// What a head does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Reach for a node.
    Dial(usize),
    /// End its channel.
    Close(usize),
    /// Say something to it.
    Say(usize, ToNode),
    /// Find out where a node that lacks the model takes it from; [`Event::Supplied`] is the answer.
    Supply(usize),
    /// Measure this machine again; [`Event::MeasuredAgain`] is the answer.
    MeasureAgain,
    /// Have the way from a machine to a node's rank be measured; the answer is [`Event::Reached`]
    /// of this one, and [`ToHead::Reached`] of a node that is sent a [`ToNode::Reach`].
    Reach {
        /// Who measures.
        from: End,
        /// The node there.
        to: usize,
        /// What opens its port.
        door: Door,
        /// Though there is a measurement that is kept.
        again: bool,
    },
    /// Make a plan of these nodes and the head; [`Event::Planned`] is the answer.
    Plan {
        /// Its number.
        number: u64,
        /// Who may hold layers.
        nodes: Vec<usize>,
    },
    /// Rank 0 goes over to this plan.
    Move(Box<Plan>),
    /// What the service waits for, where there is no plan.
    Waiting(String),
    /// A line for the log.
    Note(String),
    /// Another head has taken over: end.
    End(String),
}

/// A node as users see it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Whether it is there.
    pub state: State,
    /// Why it is not, or holds nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// Its rank, where it has one.
    pub rank: Option<u32>,
    /// How often its agent came back as another process.
    pub returns: u32,
}
