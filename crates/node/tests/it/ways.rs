//! Ways between machines: measured before a plan counts on them, once, side by side, and never
//! while requests run.

use node::head::{self, LINK_PAUSE, LINK_TIMEOUT, LINKS_WAIT, Link};

use crate::world::{Fault, World};

/// Each way that was measured, and how often two were at once.
fn measured(world: &World) -> (Vec<(Option<usize>, usize)>, usize) {
    let mut ways: Vec<_> = world.reached.iter().map(|(_, from, to)| (*from, *to)).collect();
    ways.sort_unstable();
    let beside = |pair: &&[(node::Now, Option<usize>, usize)]| {
        pair[1].0 - pair[0].0 < std::time::Duration::from_millis(400)
    };
    (ways, world.reached.windows(2).filter(beside).count())
}

/// All ways between the head and `count` nodes.
fn all(count: usize) -> Vec<(Option<usize>, usize)> {
    let froms = || std::iter::once(None).chain((0..count).map(Some));
    let pairs = froms().flat_map(|from| (0..count).map(move |to| (from, to)));
    pairs.filter(|(from, to)| *from != Some(*to)).collect()
}

#[test]
fn each_way_is_measured_once_before_the_first_plan_and_two_at_once_where_they_share_nobody() {
    let mut world = World::new(3);
    while world.bosses[0].moves.is_empty() {
        world.step();
        assert!(world.now.as_secs() < 15, "no plan");
    }
    let (ways, beside) = measured(&world);
    assert_eq!(ways, all(3));
    assert!(beside >= 3, "{beside}");
    for (at, (_, from, to)) in world.reached.iter().enumerate() {
        let shares = |other: &&(node::Now, Option<usize>, usize)| {
            let ends = [other.1, Some(other.2)];
            let apart = other.0.abs_diff(world.reached[at].0);
            apart < std::time::Duration::from_millis(400)
                && (ends.contains(from) || ends.contains(&Some(*to)))
        };
        let others = world.reached.iter().enumerate().filter(|(other, _)| *other != at);
        assert_eq!(others.map(|(_, way)| way).filter(shares).count(), 0, "{from:?} to {to}");
    }
    let head = &world.bosses[0].head;
    assert!(head.links().all(|(.., link)| matches!(link, Link::Measured(_))));
    world.run(300);
    assert_eq!(measured(&world).0, all(3), "and never again");
}

#[test]
fn a_node_that_joins_while_requests_run_is_measured_once_they_are_done() {
    let mut world = World::new(3);
    world.fault(Fault::Kill(2, 600));
    world.run(20);
    assert_eq!(world.bosses[0].moves.len(), 1);
    assert_eq!(measured(&world).0, all(2));
    world.fault(Fault::Busy(true));
    // Longer than a plan waits for ways that could be measured.
    world.run(LINKS_WAIT.as_secs() + 60);
    assert_eq!(world.bosses[0].head.usable(), [0, 1, 2]);
    assert_eq!(measured(&world).0, all(2), "requests run");
    world.fault(Fault::Busy(false));
    let until = world.now + LINK_PAUSE;
    while world.bosses[0].plans == 1 {
        world.step();
        assert!(world.now < until, "no plan");
    }
    assert_eq!(measured(&world).0, all(3));
    assert_eq!(world.bosses[0].moves.len(), 2);
    assert_eq!(world.bosses[0].moves[1].line, "[0, 1, 2]");
}

#[test]
fn what_is_measured_of_a_way_while_requests_come_is_measured_again() {
    let mut world = World::new(3);
    world.fault(Fault::Kill(2, 600));
    world.run(20);
    world.fault(Fault::Busy(true));
    world.run(40);
    world.fault(Fault::Busy(false));
    let before = world.reached.len();
    let until = world.now + LINK_PAUSE;
    while world.reached.len() == before {
        world.step();
        assert!(world.now < until, "nothing is measured");
    }
    let first = world.reached[before];
    world.fault(Fault::Busy(true));
    world.run(20);
    world.fault(Fault::Busy(false));
    world.run(20);
    let count = |way: &(node::Now, Option<usize>, usize)| (way.1, way.2) == (first.1, first.2);
    assert_eq!(world.reached.iter().filter(|way| count(way)).count(), 2);
    assert_eq!(world.bosses[0].moves.len(), 2);
}

#[test]
fn a_way_on_which_nothing_comes_through_is_known_and_tried_again() {
    let mut world = World::new(3);
    world.dead.push((Some(0), 1));
    world.run(20);
    assert_eq!(world.bosses[0].moves.len(), 1, "the plan does not wait for it");
    let link = world.bosses[0].head.link(Some(0), 1).clone();
    // Its rank's port is open, and yet nobody answers.
    assert_eq!(link, Link::Dead("no answer".into()));
    assert_eq!(world.bosses[0].plans, 1);
    world.dead.clear();
    world.run(LINK_PAUSE.as_secs() + 20);
    assert!(matches!(world.bosses[0].head.link(Some(0), 1), Link::Measured(_)));
    let (ways, _) = measured(&world);
    assert_eq!(ways.iter().filter(|way| **way == (Some(0), 1)).count(), 2, "tried again once");
    assert_eq!(world.bosses[0].plans, 2, "what is known now is planned with");
}

#[test]
fn a_way_of_which_nobody_tells_is_given_up_and_the_plan_made() {
    let mut world = World::new(3);
    world.lost.push((Some(1), 2));
    world.run(LINK_TIMEOUT.as_secs());
    assert!(world.bosses[0].moves.is_empty());
    world.run(15);
    assert_eq!(world.bosses[0].moves.len(), 1);
    let link = world.bosses[0].head.link(Some(1), 2);
    assert!(matches!(link, Link::Unmeasured(why) if why.contains("for 60 s")), "{link:?}");
}

#[test]
fn ways_of_a_ring_that_is_not_as_planned_are_measured_again_after_its_layers() {
    let mut world = World::new(3);
    world.run(20);
    world.head(0, head::Event::Off);
    world.run(20);
    let twice: Vec<_> = all(3).into_iter().flat_map(|way| [way, way]).collect();
    assert_eq!(measured(&world).0, twice);
    assert_eq!(world.bosses[0].moves.len(), 1, "nothing is another than before");
    // One that is slow now makes another plan, of the two that are left.
    world.head(0, head::Event::Off);
    world.nodes[1].speed = 0;
    world.run(20);
    let lines: Vec<&str> = world.bosses[0].moves.iter().map(|plan| &*plan.line).collect();
    assert_eq!(lines, ["[0, 1, 2]", "[0, 2]"]);
}
