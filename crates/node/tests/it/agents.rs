//! An agent's life, on a made-up clock.

use std::time::Duration;

use node::agent::{Action, Agent, Event, ORPHAN_AFTER};
use node::message::{Facts, Launch, RankState, ToHead, ToNode};
use node::{Ballot, Now};

fn ms(ms: u64) -> Now {
    Duration::from_millis(ms)
}

fn launch(plan: u64) -> ToNode {
    ToNode::Run(Box::new(Launch { plan, rank: 1, ..Launch::default() }))
}

fn ballot(epoch: u64, head: u64) -> Ballot {
    Ballot { epoch, head }
}

/// What it starts and ends, in order.
fn work(actions: &[Action]) -> Vec<String> {
    let work = |action: &Action| match action {
        Action::Start(launch) => Some(format!("start {}", launch.plan)),
        Action::End => Some("end".into()),
        Action::Close(channel) => Some(format!("close {channel}")),
        Action::Stopped => Some("stopped".into()),
        _ => None,
    };
    actions.iter().filter_map(work).collect()
}

fn claimed(epoch: u64, head: u64) -> Agent {
    let mut agent = Agent::new(9, Facts::default(), ms(0));
    let claim = ToNode::Claim(ballot(epoch, head));
    let said = agent.step(ms(0), Event::Heard(1, claim));
    assert!(said.contains(&Action::Say(1, ToHead::Claimed(ballot(epoch, head)))), "{said:?}");
    agent
}

#[test]
fn a_newer_plan_ends_the_rank_before_and_starts_its_own() {
    let mut agent = claimed(1, 5);
    assert_eq!(work(&agent.step(ms(10), Event::Heard(1, launch(1)))), ["start 1"]);
    assert!(work(&agent.step(ms(20), Event::Heard(1, launch(1)))).is_empty(), "said twice");
    assert_eq!(work(&agent.step(ms(30), Event::Heard(1, launch(3)))), ["end"]);
    assert!(work(&agent.step(ms(35), Event::Heard(1, launch(2)))).is_empty(), "an older plan");
    assert_eq!(work(&agent.step(ms(40), Event::Ended("killed".into()))), ["start 3"]);
    assert_eq!(work(&agent.step(ms(50), Event::Heard(1, ToNode::Rest))), ["end"]);
    assert!(work(&agent.step(ms(60), Event::Ended("done".into()))).is_empty());
}

#[test]
fn a_rank_that_ends_is_started_again_with_growing_pauses_and_counted() {
    let mut agent = claimed(1, 5);
    agent.step(ms(0), Event::Heard(1, launch(1)));
    let (mut starts, mut now) = (Vec::new(), 0);
    let mut ends = 0;
    while now < 60_000 {
        let actions = agent.step(ms(now), Event::Tick);
        let beat = actions.iter().find_map(|action| match action {
            Action::Say(1, ToHead::Beat(Some(news))) => Some(news.clone()),
            _ => None,
        });
        if let Some(news) = beat {
            ends = news.ends;
            assert!(matches!(news.state, RankState::Pausing | RankState::Running));
        }
        starts.extend(work(&actions).iter().map(|_| now));
        if starts.last() == Some(&now) || now == 0 {
            agent.step(ms(now), Event::Ended("exit status: 1".into()));
        }
        now += 50;
    }
    assert_eq!(starts[..5], [200, 600, 1_400, 3_000, 6_200]);
    assert!(starts.len() <= 17, "a storm of {} starts", starts.len());
    assert_eq!(ends as usize, starts.len() + 1);
}

#[test]
fn an_older_head_is_refused_and_a_newer_one_takes_over() {
    let mut agent = claimed(4, 5);
    agent.step(ms(0), Event::Heard(1, launch(7)));
    // An old one, on another channel.
    let said = agent.step(ms(10), Event::Heard(2, ToNode::Claim(ballot(3, 6))));
    assert!(said.contains(&Action::Say(2, ToHead::Superseded(ballot(4, 5)))), "{said:?}");
    assert_eq!(work(&said), ["close 2"]);
    // One that has not claimed decides nothing.
    for order in [launch(8), ToNode::Rest] {
        assert_eq!(work(&agent.step(ms(20), Event::Heard(3, order))), ["close 3"]);
    }
    // A newer one: the rank of the head before it ends, and that head hears why.
    let said = agent.step(ms(30), Event::Heard(4, ToNode::Claim(ballot(5, 6))));
    assert!(said.contains(&Action::Say(1, ToHead::Superseded(ballot(5, 6)))), "{said:?}");
    assert_eq!(work(&said), ["close 1", "end"]);
    agent.step(ms(31), Event::Closed(1));
    // Its plans count from one again.
    assert!(work(&agent.step(ms(40), Event::Heard(4, launch(1)))).is_empty());
    assert_eq!(work(&agent.step(ms(50), Event::Ended("killed".into()))), ["start 1"]);
}

#[test]
fn a_head_that_comes_back_in_time_finds_its_rank_and_one_that_does_not_loses_it() {
    let mut agent = claimed(1, 5);
    agent.step(ms(0), Event::Heard(1, launch(1)));
    agent.step(ms(1_000), Event::Closed(1));
    assert!(work(&agent.step(ms(30_000), Event::Tick)).is_empty());
    let again = agent.step(ms(30_001), Event::Heard(2, ToNode::Claim(ballot(1, 5))));
    assert!(work(&again).is_empty(), "{again:?}");
    agent.step(ms(30_002), Event::Heard(2, launch(1)));
    agent.step(ms(40_000), Event::Closed(2));
    assert!(work(&agent.step(ms(40_000) + ORPHAN_AFTER - ms(1), Event::Tick)).is_empty());
    assert_eq!(work(&agent.step(ms(40_000) + ORPHAN_AFTER, Event::Tick)), ["end"]);
}

#[test]
fn it_ends_once_its_rank_has() {
    let mut agent = claimed(1, 5);
    agent.step(ms(0), Event::Heard(1, launch(1)));
    assert_eq!(work(&agent.step(ms(1), Event::Stop)), ["end"]);
    assert_eq!(work(&agent.step(ms(2), Event::Ended("done".into()))), ["stopped"]);
    let mut idle = Agent::new(1, Facts::default(), ms(0));
    assert_eq!(work(&idle.step(ms(1), Event::Stop)), ["stopped"]);
}
