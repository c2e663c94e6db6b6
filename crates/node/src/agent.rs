//! An agent without I/O: whose claim counts, which rank is to run, and when it is started again.

use std::time::Duration;

use serde_json::Value;

use crate::Now;
use crate::membership::BEAT;
use crate::message::{
    Ballot, Coming, Door, Facts, Launch, RankNews, RankState, Reach, ToHead, ToNode, Wanted,
};

/// First pause before a rank that ended is started again; doubles up to the longest.
pub const RESTART_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause before a rank that ended is started again.
pub const RESTART_PAUSE_MAX: Duration = Duration::from_secs(5);
/// A rank that ran so long has recovered: its next restart waits the shortest pause again.
pub const RECOVERED: Duration = Duration::from_secs(30);
/// A rank whose head is gone for so long ends.
pub const ORPHAN_AFTER: Duration = Duration::from_secs(60);
/// The rank's port is open for those who measure the way to it for so long at most.
pub const DOOR_OPEN: Duration = Duration::from_secs(60);

/// A channel to a head, by number; none is used twice.
pub type Channel = u64;

/// What happens to an agent.
#[derive(Clone, Debug)]
pub enum Event {
    /// A head said something.
    Heard(Channel, ToNode),
    /// A channel ended.
    Closed(Channel),
    /// The rank's process ended, or could not be started.
    Ended(String),
    /// A measurement is done.
    Measured(Result<Value, String>),
    /// Nothing could be measured: there is no such model here, and nobody said where to take it.
    Lacks(String),
    /// What an [`Action::Answer`] gave.
    Answers(Result<(), String>),
    /// What an [`Action::Reach`] to that node gave, or why nothing came through.
    Reached(String, Result<Value, String>),
    /// What the rank waits for before it starts; `None` once it has all.
    Coming(Option<Coming>),
    /// Time goes on.
    Tick,
    /// The agent itself is to end.
    Stop,
}

/// What an agent does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Says something to a head.
    Say(Channel, ToHead),
    /// Ends a channel.
    Close(Channel),
    /// Starts the rank's process; [`Event::Ended`] comes once for it.
    Start(Box<Launch>),
    /// Ends the process, by force where it takes too long.
    End,
    /// Measures; [`Event::Measured`] comes once for it.
    Measure {
        /// The model.
        wanted: Wanted,
        /// Though there is a measurement that is kept.
        again: bool,
    },
    /// Lets others take a model's units.
    Give(Wanted),
    /// Opens the rank's port for those who measure the way to it; [`Event::Answers`] is the
    /// answer.
    Answer(Door),
    /// Closes it.
    Shut,
    /// Measures the way to another node; [`Event::Reached`] comes once for it.
    Reach(Box<Reach>),
    /// A line for the log.
    Note(String),
    /// Nothing runs any more.
    Stopped,
}

/// The process.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Process {
    None,
    Running { since: Now },
    Ending,
    Pausing { until: Now },
}

/// The core of an agent.
#[derive(Debug)]
pub struct Agent {
    incarnation: u64,
    facts: Facts,
    ballot: Ballot,
    /// The head's channel, while there is one.
    head: Option<Channel>,
    /// Since when there is none.
    alone: Now,
    wanted: Option<Box<Launch>>,
    /// What the process was started for.
    running: Option<Box<Launch>>,
    process: Process,
    pause: Duration,
    ends: u32,
    why: String,
    coming: Option<Coming>,
    measuring: bool,
    /// A door that is to be opened once no rank has the port.
    door: Option<Door>,
    /// Since when one is open.
    opened: Option<Now>,
    /// Whether a way is being measured, and the one after it.
    reaching: bool,
    reach: Option<Box<Reach>>,
    told: Now,
    stops: bool,
}

impl Agent {
    /// Before any head. `incarnation` is drawn at random, never 0.
    pub fn new(incarnation: u64, facts: Facts, now: Now) -> Self {
        Self {
            incarnation: incarnation.max(1),
            facts,
            ballot: Ballot::default(),
            head: None,
            alone: now,
            wanted: None,
            running: None,
            process: Process::None,
            pause: RESTART_PAUSE,
            ends: 0,
            why: String::new(),
            coming: None,
            measuring: false,
            door: None,
            opened: None,
            reaching: false,
            reach: None,
            told: now,
            stops: false,
        }
    }

    /// The facts as of now, for the next head that asks.
    pub fn facts(&mut self) -> &mut Facts {
        &mut self.facts
    }

    /// What it does, in one line.
    pub fn status(&self) -> String {
        let head = match self.head {
            Some(_) => format!("head {:08x}", self.ballot.head >> 32),
            None => "no head".into(),
        };
        match (&self.running, self.process) {
            (Some(launch), Process::Running { .. }) if self.coming.is_some() => {
                format!("takes layers of rank {}, {head}", launch.rank)
            }
            (Some(launch), Process::Running { .. }) => {
                format!("rank {} of {}, {head}", launch.rank, launch.layout)
            }
            (_, Process::Pausing { .. }) => format!("its rank ended: {}, {head}", self.why),
            _ => format!("no rank, {head}"),
        }
    }

    /// What follows from an event.
    pub fn step(&mut self, now: Now, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Heard(channel, message) => self.heard(now, channel, message, &mut actions),
            Event::Closed(channel) => {
                if self.head == Some(channel) {
                    (self.head, self.alone) = (None, now);
                    actions.push(Action::Note("the head is gone; its rank waits for it".into()));
                }
            }
            Event::Ended(why) => self.ended(now, why),
            Event::Measured(result) => {
                self.measured(result.map_or_else(ToHead::Unfit, ToHead::Measured), &mut actions);
            }
            Event::Lacks(why) => self.measured(ToHead::Lacks(why), &mut actions),
            Event::Answers(opened) => self.say(ToHead::Answers(opened), &mut actions),
            Event::Reached(node, found) => {
                self.reaching = false;
                self.say(ToHead::Reached { node, found }, &mut actions);
            }
            Event::Coming(coming) => self.coming = coming,
            Event::Tick => {}
            Event::Stop => {
                self.stops = true;
                self.wanted = None;
            }
        }
        let orphan = self.head.is_none() && now.saturating_sub(self.alone) >= ORPHAN_AFTER;
        if orphan {
            self.ballot = Ballot::default();
            if self.wanted.take().is_some() {
                actions.push(Action::Note("no head for a minute: its rank ends".into()));
            }
        }
        self.settle(now, &mut actions);
        self.measures(now, &mut actions);
        if let Some(head) = self.head
            && now.saturating_sub(self.told) >= BEAT
        {
            self.told = now;
            actions.push(Action::Say(head, ToHead::Beat(self.news())));
        }
        actions
    }

    fn measured(&mut self, said: ToHead, actions: &mut Vec<Action>) {
        self.measuring = false;
        self.say(said, actions);
    }

    fn say(&self, said: ToHead, actions: &mut Vec<Action>) {
        actions.extend(self.head.map(|head| Action::Say(head, said)));
    }

    fn heard(&mut self, now: Now, from: Channel, message: ToNode, actions: &mut Vec<Action>) {
        match message {
            ToNode::Hello { .. } => {
                let (incarnation, facts) = (self.incarnation, self.facts.clone());
                let ballot = self.ballot;
                actions.push(Action::Say(from, ToHead::Welcome { incarnation, facts, ballot }));
            }
            ToNode::Claim(ballot) if ballot < self.ballot => {
                actions.push(Action::Say(from, ToHead::Superseded(self.ballot)));
                actions.push(Action::Close(from));
            }
            ToNode::Claim(ballot) => self.claimed(from, ballot, now, actions),
            // Only who has claimed decides.
            _ if self.head != Some(from) => {
                actions.push(Action::Say(from, ToHead::Superseded(self.ballot)));
                actions.push(Action::Close(from));
            }
            ToNode::Beat => {}
            ToNode::Measure { wanted, again } => {
                if !std::mem::replace(&mut self.measuring, true) {
                    actions.push(Action::Measure { wanted, again });
                }
            }
            ToNode::Give(wanted) => actions.push(Action::Give(wanted)),
            ToNode::Answer(door) => self.door = Some(door),
            ToNode::Reach(reach) => self.reach = Some(reach),
            ToNode::Run(launch) => {
                if self.wanted.as_ref().is_none_or(|wanted| wanted.plan < launch.plan) {
                    (self.pause, self.ends, self.why) = (RESTART_PAUSE, 0, String::new());
                    self.wanted = Some(launch);
                }
            }
            ToNode::Rest => self.wanted = None,
        }
    }

    fn claimed(&mut self, from: Channel, ballot: Ballot, now: Now, actions: &mut Vec<Action>) {
        if ballot.head != self.ballot.head {
            // What an older head had started is not this one's.
            (self.wanted, self.door, self.reach) = (None, None, None);
            actions.push(Action::Note(format!("claimed by {ballot}")));
        }
        if let Some(old) = self.head.replace(from).filter(|old| *old != from) {
            if ballot.head != self.ballot.head {
                actions.push(Action::Say(old, ToHead::Superseded(ballot)));
            }
            actions.push(Action::Close(old));
        }
        self.ballot = ballot;
        actions.push(Action::Say(from, ToHead::Claimed(ballot)));
        // The next beat at once.
        self.told = now.saturating_sub(BEAT);
    }

    fn ended(&mut self, now: Now, why: String) {
        self.coming = None;
        match self.process {
            Process::Ending => {
                self.process = Process::None;
                self.running = None;
            }
            Process::Running { since } => {
                if now.saturating_sub(since) >= RECOVERED {
                    (self.pause, self.ends) = (RESTART_PAUSE, 0);
                }
                self.ends += 1;
                self.why = why;
                self.process = Process::Pausing { until: now + self.pause };
                self.pause = (self.pause * 2).min(RESTART_PAUSE_MAX);
            }
            Process::None | Process::Pausing { .. } => {}
        }
    }

    /// Brings the process to what is wanted.
    fn settle(&mut self, now: Now, actions: &mut Vec<Action>) {
        let is_wanted = self.wanted.is_some() && self.wanted == self.running;
        match self.process {
            Process::Running { .. } if !is_wanted => {
                self.process = Process::Ending;
                actions.push(Action::End);
            }
            Process::Pausing { until } if is_wanted && now < until => {}
            Process::Pausing { .. } | Process::None => match &self.wanted {
                Some(wanted) => {
                    // It takes the port.
                    actions.extend(self.opened.take().map(|_| Action::Shut));
                    self.running = Some(wanted.clone());
                    self.process = Process::Running { since: now };
                    actions.push(Action::Start(wanted.clone()));
                }
                None => {
                    (self.process, self.running) = (Process::None, None);
                    if std::mem::take(&mut self.stops) {
                        actions.push(Action::Stopped);
                    }
                }
            },
            Process::Running { .. } | Process::Ending => {}
        }
    }

    /// Opens and closes the port for who measures, and measures ways one after another.
    fn measures(&mut self, now: Now, actions: &mut Vec<Action>) {
        if self.opened.is_some_and(|since| now.saturating_sub(since) >= DOOR_OPEN) {
            self.opened = None;
            actions.push(Action::Shut);
        }
        match self.process {
            Process::None => {
                if let Some(door) = self.door.take() {
                    self.opened = Some(now);
                    actions.push(Action::Answer(door));
                }
            }
            Process::Running { .. } | Process::Pausing { .. } => {
                if self.door.take().is_some() {
                    self.say(ToHead::Answers(Err("its rank has the port".into())), actions);
                }
            }
            Process::Ending => {}
        }
        if !self.reaching
            && let Some(reach) = self.reach.take()
        {
            self.reaching = true;
            actions.push(Action::Reach(reach));
        }
    }

    /// What its rank does.
    fn news(&self) -> Option<RankNews> {
        let launch = self.running.as_ref()?;
        let state = match self.process {
            Process::None => return None,
            Process::Running { .. } => RankState::Running,
            Process::Ending => RankState::Ending,
            Process::Pausing { .. } => RankState::Pausing,
        };
        let (plan, rank, ends) = (launch.plan, launch.rank, self.ends);
        Some(RankNews { plan, rank, state, ends, why: self.why.clone(), coming: self.coming })
    }
}
