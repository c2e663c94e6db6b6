//! Which nodes are there: a table of beats, and when to reach for whom.
//!
//! A node is one line of the table however often its agent starts anew: an incarnation only says
//! that it is not the process that was there before.

use std::time::Duration;

use serde::Serialize;

use crate::Now;
use crate::message::{Facts, RankNews};

/// Each end says that it is there so often.
pub const BEAT: Duration = Duration::from_secs(1);
/// A node is suspect after so long without a word, or once its channel breaks.
pub const SUSPECT_AFTER: Duration = Duration::from_secs(3);
/// A node is gone after so long without a word.
pub const GONE_AFTER: Duration = Duration::from_secs(8);
/// First pause between two attempts to reach a node; doubles up to the longest.
pub const DIAL_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause between two attempts to reach a node.
pub const DIAL_PAUSE_MAX: Duration = Duration::from_secs(5);
/// A channel that stood so long makes the next pause the shortest again.
const STEADY: Duration = Duration::from_secs(10);

/// What is known of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Not heard of yet.
    Joining,
    /// Its beats come.
    Up,
    /// Its beats are late, or its channel broke.
    Suspect,
    /// Nothing for so long that it counts as not there.
    Gone,
}

/// A line of the table.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its name, unique.
    pub name: String,
    /// What is known.
    pub state: State,
    /// Since when.
    pub since: Now,
    /// Why, where it is not up.
    pub why: String,
    /// Which process of its agent.
    pub incarnation: u64,
    /// How often another process took that one's place.
    pub returns: u32,
    /// What it is; as of its last welcome.
    pub facts: Facts,
    /// What its rank does; as of its last beat.
    pub rank: Option<RankNews>,
    link: Link,
    heard: Now,
    pause: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Link {
    /// To be reached for at that time.
    Due(Now),
    /// Being reached for.
    Dialing,
    /// There, since.
    Open(Now),
}

/// What a look at the table gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Reach for this node.
    Dial(usize),
    /// Its channel is silent: close it.
    Close(usize),
    /// Its state is another now.
    Changed(usize),
}

/// The table.
#[derive(Clone, Debug)]
pub struct Membership(Vec<Member>);

impl Membership {
    /// Nodes of these names, none of which was heard of.
    pub fn new(names: impl IntoIterator<Item = String>, now: Now) -> Self {
        let mut table = Self(Vec::new());
        names.into_iter().for_each(|name| table.add(name, now));
        table
    }

    /// One more node, which was not heard of either.
    pub fn add(&mut self, name: String, now: Now) {
        // Not all at once.
        let due = now + Duration::from_millis(self.0.len() as u64 * 20);
        self.0.push(Member {
            name,
            state: State::Joining,
            since: now,
            why: "not reached yet".into(),
            incarnation: 0,
            returns: 0,
            facts: Facts::default(),
            rank: None,
            link: Link::Due(due),
            heard: now,
            pause: DIAL_PAUSE,
        });
    }

    /// All lines, in the order of their names at the start.
    pub fn members(&self) -> &[Member] {
        &self.0
    }

    /// Whether a channel to the node stands.
    pub fn is_open(&self, node: usize) -> bool {
        matches!(self.0[node].link, Link::Open(_))
    }

    /// Whether the node may be given work.
    pub fn is_up(&self, node: usize) -> bool {
        self.0[node].state == State::Up
    }

    /// A channel stands; the node is up once it has said who it is.
    pub fn opened(&mut self, node: usize, now: Now) {
        let member = &mut self.0[node];
        (member.link, member.heard) = (Link::Open(now), now);
    }

    /// An attempt failed, or a channel broke.
    pub fn broke(&mut self, node: usize, why: &str, now: Now) {
        let member = &mut self.0[node];
        if matches!(member.link, Link::Open(since) if now.saturating_sub(since) >= STEADY) {
            member.pause = DIAL_PAUSE;
        }
        // Nodes that broke together don't come back together.
        let spread = member.pause / 8 * (node as u32 % 8);
        member.link = Link::Due(now + member.pause + spread);
        member.pause = (member.pause * 2).min(DIAL_PAUSE_MAX);
        member.why = why.into();
        member.rank = None;
        if member.state == State::Up {
            member.becomes(State::Suspect, now);
        }
    }

    /// The node said who it is.
    pub fn welcomed(&mut self, node: usize, incarnation: u64, facts: Facts, now: Now) {
        let member = &mut self.0[node];
        if member.incarnation != 0 && member.incarnation != incarnation {
            member.returns += 1;
        }
        (member.incarnation, member.facts) = (incarnation, facts);
        self.heard(node, None, now);
    }

    /// Any word of a node; a beat brings its rank's news.
    pub fn heard(&mut self, node: usize, beat: Option<Option<RankNews>>, now: Now) {
        let member = &mut self.0[node];
        member.heard = now;
        if let Some(rank) = beat {
            member.rank = rank;
        }
        if member.state != State::Up && member.incarnation != 0 {
            member.why.clear();
            member.becomes(State::Up, now);
        }
    }

    /// What time alone brings.
    pub fn look(&mut self, now: Now) -> Vec<Look> {
        let mut looks = Vec::new();
        for (at, member) in self.0.iter_mut().enumerate() {
            let silent = now.saturating_sub(member.heard);
            let next = match member.state {
                State::Up if silent >= SUSPECT_AFTER => Some(State::Suspect),
                State::Suspect if silent >= GONE_AFTER => Some(State::Gone),
                _ => None,
            };
            if let Some(next) = next {
                if member.why.is_empty() {
                    member.why = format!("no word for {} s", silent.as_secs());
                }
                member.becomes(next, now);
                looks.push(Look::Changed(at));
            }
            match member.link {
                Link::Due(due) if due <= now => {
                    member.link = Link::Dialing;
                    looks.push(Look::Dial(at));
                }
                Link::Open(_) if silent >= GONE_AFTER => looks.push(Look::Close(at)),
                _ => {}
            }
        }
        looks
    }
}

impl Member {
    fn becomes(&mut self, state: State, now: Now) {
        (self.state, self.since) = (state, now);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn ms(ms: u64) -> Now {
        Duration::from_millis(ms)
    }

    fn two() -> Membership {
        Membership::new(["a".to_owned(), "b".to_owned()], ms(0))
    }

    #[test]
    fn a_node_that_comes_back_fifty_times_is_counted_once() {
        let mut table = two();
        for life in 1..=51u64 {
            let now = ms(life * 100_000);
            assert!(table.look(now).contains(&Look::Dial(0)), "life {life}");
            table.opened(0, now);
            table.welcomed(0, life, Facts::default(), now);
            assert_eq!(table.members().iter().filter(|m| m.state == State::Up).count(), 1);
            table.broke(0, "it closed the channel", now + ms(10_000));
            let looks = table.look(now + ms(20_000));
            assert!(looks.contains(&Look::Changed(0)), "{looks:?}");
            assert_eq!(table.members()[0].state, State::Gone);
            table.broke(0, "refused", now + ms(20_001));
        }
        assert_eq!(table.members().len(), 2);
        assert_eq!(table.members()[0].returns, 50);
    }

    #[test]
    fn beats_that_are_late_make_a_suspect_and_one_more_beat_clears_it() {
        let mut table = two();
        table.look(ms(0));
        table.opened(0, ms(0));
        table.welcomed(0, 7, Facts::default(), ms(0));
        table.look(ms(2_999));
        assert_eq!(table.members()[0].state, State::Up);
        table.look(ms(3_000));
        assert_eq!(table.members()[0].state, State::Suspect);
        assert_eq!(table.members()[0].why, "no word for 3 s");
        table.heard(0, Some(None), ms(4_000));
        assert_eq!((table.members()[0].state, table.members()[0].returns), (State::Up, 0));
        let looks = [table.look(ms(7_000)), table.look(ms(12_000))].concat();
        assert_eq!(table.members()[0].state, State::Gone);
        assert!(looks.contains(&Look::Close(0)), "{looks:?}");
    }

    #[test]
    fn a_node_that_refuses_is_reached_for_less_and_less_often() {
        let mut table = two();
        let (mut dials, mut now) = (Vec::new(), ms(0));
        while now < ms(600_000) {
            for look in table.look(now) {
                if let Look::Dial(node) = look {
                    dials.push((node, now));
                    table.broke(node, "refused", now);
                }
            }
            now += ms(10);
        }
        let of = |node| dials.iter().filter(move |(at, _)| *at == node).count();
        assert!((100..=130).contains(&of(0)), "{}", of(0));
        assert!((90..=130).contains(&of(1)), "{}", of(1));
        // A channel that stood for a while starts over.
        table.look(now + ms(10_000));
        table.opened(0, now + ms(10_000));
        table.broke(0, "cut", now + ms(30_000));
        assert!(table.look(now + ms(30_250)).contains(&Look::Dial(0)));
    }
}
