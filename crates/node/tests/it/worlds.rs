//! Whatever happens to a head and its nodes, from seeds, and what each thing alone comes to.

use node::Ballot;
use node::agent;
use node::head;
use node::membership::State;
use node::message::Coming;
use proptest::prelude::*;

use crate::world::{Fault, REPLAN_WAIT, STEP, World};

fn faults() -> impl Strategy<Value = Vec<(u32, Fault)>> {
    let fault = prop_oneof![
        3 => (0..3usize, 1..600u32).prop_map(|(at, back)| Fault::Kill(at, back)),
        2 => (0..3usize).prop_map(Fault::Cut),
        2 => (0..3usize, 1..300u32).prop_map(|(at, steps)| Fault::Slow(at, steps)),
        2 => (0..3usize).prop_map(Fault::Crash),
        1 => (0..400u32).prop_map(Fault::Take),
        1 => Just(Fault::Replan),
        1 => any::<bool>().prop_map(Fault::Busy),
    ];
    prop::collection::vec((1..300u32, fault), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..<_>::default() })]

    #[test]
    fn whatever_happens_the_newest_head_ends_up_with_all_nodes(faults in faults()) {
        let mut world = World::new(3);
        world.run(15);
        for (steps, fault) in faults {
            (0..steps).for_each(|_| world.step());
            world.fault(fault);
        }
        world.settles()?;
    }
}

#[test]
fn a_head_whose_node_an_older_one_took_claims_it_again() {
    let mut world = World::new(3);
    world.run(15);
    let faults = [
        (1, Fault::Kill(1, 522)),
        (1, Fault::Take(0)),
        (251, Fault::Replan),
        (165, Fault::Kill(0, 1)),
        (6, Fault::Take(46)),
    ];
    for (steps, fault) in faults {
        (0..steps).for_each(|_| world.step());
        world.fault(fault);
    }
    world.settles().unwrap();
}

#[test]
fn a_dead_node_is_replaced_after_the_wait_and_taken_back_when_idle() {
    let mut world = World::new(3);
    world.run(15);
    assert_eq!(world.bosses[0].moves.len(), 1);
    world.fault(Fault::Busy(true));
    let died = world.now;
    world.fault(Fault::Kill(1, 400));
    while world.bosses[0].moves.len() < 2 {
        assert!(world.now - died < REPLAN_WAIT * 4);
        world.step();
    }
    let waited = world.now - died;
    assert!(waited >= REPLAN_WAIT && waited <= REPLAN_WAIT + STEP * 4, "{waited:?}");
    assert_eq!(world.bosses[0].moves[1].line, "[0, 2]");
    // It is back after 20 s, and nothing changes while requests run.
    world.run(60);
    assert_eq!(world.bosses[0].moves.len(), 2);
    assert_eq!(world.bosses[0].head.usable(), [0, 1, 2]);
    world.fault(Fault::Busy(false));
    world.run(7);
    assert_eq!(world.bosses[0].moves.len(), 3);
    assert_eq!(world.bosses[0].moves[2].line, "[0, 1, 2]");
    // Asked for, a plan is made at once, and stays if it is the same.
    world.fault(Fault::Busy(true));
    world.fault(Fault::Replan);
    world.run(7);
    assert_eq!(world.bosses[0].moves.len(), 3);
}

#[test]
fn a_node_back_within_the_wait_gets_its_rank_again_and_no_plan_is_made() {
    let mut world = World::new(3);
    world.run(15);
    world.fault(Fault::Kill(1, 60));
    world.run(30);
    assert_eq!(world.bosses[0].moves.len(), 1);
    assert_eq!(world.nodes[1].starts, 2);
    assert_eq!(world.bosses[0].head.members()[1].returns, 1);
    assert!(world.nodes[1].process.is_some());
}

#[test]
fn a_slow_node_becomes_suspect_and_keeps_its_rank() {
    let mut world = World::new(3);
    world.run(15);
    world.fault(Fault::Slow(1, 80));
    world.run(4);
    assert_eq!(world.bosses[0].head.members()[1].state, State::Suspect);
    world.run(20);
    assert_eq!(world.bosses[0].head.members()[1].state, State::Up);
    assert_eq!((world.bosses[0].moves.len(), world.nodes[1].starts), (1, 1));
}

#[test]
fn a_rank_that_ends_again_and_again_leaves_its_node_out() {
    let mut world = World::new(3);
    world.run(15);
    for _ in 0..200 {
        world.step();
        world.fault(Fault::Crash(2));
    }
    let lines: Vec<&str> = world.bosses[0].moves.iter().map(|plan| &*plan.line).collect();
    assert_eq!(lines, ["[0, 1, 2]", "[0, 1]"]);
    assert!(world.nodes[2].starts <= 5, "{}", world.nodes[2].starts);
}

#[test]
fn a_head_that_was_cut_off_finds_another_in_its_place_and_ends() {
    let mut world = World::new(3);
    world.run(15);
    world.fault(Fault::Take(400));
    world.run(15);
    assert_eq!(world.bosses[1].moves.len(), 1, "the new one has its plan");
    assert_eq!(world.bosses[1].head.ballot(), Ballot { epoch: 101, head: 101 });
    assert!(world.bosses[0].ended.is_none(), "cut off, it does not know");
    world.run(20);
    let why = world.bosses[0].ended.clone().unwrap();
    assert!(why.contains("another head has taken over"), "{why}");
    assert_eq!(world.bosses[1].moves.len(), 1, "and it was not disturbed");
}

#[test]
fn a_node_that_lacks_the_model_is_told_where_to_take_it_and_the_others_give() {
    let mut world = World::new(3);
    world.run(15);
    let plan = world.bosses[0].head.plan().unwrap().clone();
    assert_eq!(plan.line, "[0, 1, 2]");
    let gives: Vec<u32> = world.nodes.iter().map(|node| node.gives).collect();
    assert_eq!(gives, [1, 0, 1]);
    // How far its layers are is told with its beats.
    world.agent(1, agent::Event::Coming(Some(Coming { moved: 1_500_000, missing: 6_000_000 })));
    world.run(2);
    assert_eq!(world.bosses[0].head.lines()[1].why, "took 1.5 of 6.0 MB");
    world.agent(1, agent::Event::Coming(None));
    world.run(2);
    assert_eq!(world.bosses[0].head.lines()[1].why, "");
}

#[test]
fn a_ring_that_is_not_as_planned_is_measured_again_once_it_is_idle_and_no_sooner() {
    let mut world = World::new(3);
    world.run(15);
    let measures = |world: &World| world.nodes.iter().map(|n| n.measures).collect::<Vec<_>>();
    world.nodes[1].speed = 0;
    world.run(60);
    assert_eq!(measures(&world), [0, 0, 0], "being idle alone measures nothing");
    world.fault(Fault::Busy(true));
    world.head(0, head::Event::Off);
    world.run(60);
    assert_eq!((measures(&world), world.bosses[0].moves.len()), (vec![0, 0, 0], 1));
    world.fault(Fault::Busy(false));
    world.run(4);
    assert_eq!(measures(&world), [0, 0, 0]);
    world.run(4);
    assert_eq!(measures(&world), [1, 1, 1]);
    // Then the ways between them.
    world.run(10);
    let lines: Vec<&str> = world.bosses[0].moves.iter().map(|plan| &*plan.line).collect();
    assert_eq!(lines, ["[0, 1, 2]", "[0, 2]"]);
    world.run(60);
    assert_eq!((measures(&world), world.bosses[0].moves.len()), (vec![1, 1, 1], 2));
}

#[test]
fn what_is_measured_while_requests_come_is_measured_once_more() {
    let mut world = World::new(3);
    world.run(15);
    world.nodes[1].speed = 0;
    // Its words come so late that requests are there before it has measured.
    world.head(0, head::Event::Off);
    let until = world.now + std::time::Duration::from_secs(60);
    while world.bosses[0].head.lines()[1].why != "measures itself" {
        assert!(world.now < until, "nothing is measured again");
        world.fault(Fault::Slow(1, 20));
        world.step();
    }
    world.fault(Fault::Busy(true));
    world.run(10);
    assert_eq!(world.bosses[0].moves.len(), 1);
    world.fault(Fault::Busy(false));
    world.run(20);
    assert_eq!((world.nodes[1].measures, world.bosses[0].moves.len()), (2, 2));
}

#[test]
fn a_node_with_other_values_takes_the_models_layers_and_is_left_out_where_that_does_not_help() {
    let mut world = World::new(3);
    world.run(20);
    let line = world.bosses[0].head.plan().unwrap().line.clone();
    world.head(0, head::Event::Other(1, "layer 3".into()));
    world.run(2);
    let plan = world.bosses[0].head.plan().unwrap().clone();
    assert_eq!((&plan.line, world.bosses[0].moves.len()), (&line, 2));
    let instead = |at: usize| {
        let units = world.bosses[0].head.wanted(at).units.as_ref();
        units.is_some_and(|units| units.instead)
    };
    assert_eq!([0, 1, 2].map(instead), [true, false, false]);
    assert_eq!(world.nodes[0].starts, 2);
    world.head(0, head::Event::Other(1, "layer 3".into()));
    world.run(2);
    assert_eq!(world.bosses[0].moves[2].line, "[1, 2]");
    world.run(200);
    assert_eq!(world.bosses[0].head.usable(), [0, 1, 2], "for a while");
    // Who is not in the plan is not meant.
    world.head(0, head::Event::Other(9, "layer 3".into()));
}
