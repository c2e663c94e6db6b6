//! What the leader does, every member does.

use arith::base::{Generation, StreamId};
use shard::{Group, GroupConfig, Leader, Through};
use stage::{Chain, Engine, Fake, Input};
use wire::plan::{Entry, Keep, KeepOp, Op, Plan, Want};

use crate::double::{Away, Double, SHAPES, addresses, config, fake, whole};

/// `rows` rows of a stream, after `generation` changes of it.
pub fn window(id: u32, op: Op, first: u32, rows: u32, accepted: u32, generation: u32) -> Entry {
    Entry {
        id: StreamId(id),
        op,
        want: if rows > 0 { Want::Last } else { Want::None },
        first,
        rows,
        accepted,
        resume: 0,
        generation: Generation(generation),
        parents: None,
        tokens: None,
    }
}

pub fn plan(entries: Vec<Entry>) -> Plan {
    Plan { entries, ..Plan::default() }
}

/// A prompt of four streams, windows with rollbacks, a cancel, a draft: the same calls for a whole
/// stage and for a group; all that comes out.
fn life(engine: &mut dyn Engine) -> Vec<Vec<f32>> {
    let mut outs = Vec::new();
    let step = |engine: &mut dyn Engine, plan: &Plan, outs: &mut Vec<Vec<f32>>| {
        let tokens: Vec<u32> = (0..plan.rows() as u32).map(|row| row * 7 % 64).collect();
        let (mut rows, mut logits) = (Vec::new(), Vec::new());
        engine.step(plan, Input::Tokens(&tokens), &mut rows).unwrap();
        let last = rows[rows.len().saturating_sub(8)..].to_vec();
        engine.logits(&last, &mut logits).unwrap();
        outs.extend([rows, logits]);
    };
    step(
        engine,
        &plan((1..=4).map(|id| window(id, Op::Open, 0, 9 + id, 0, 0)).collect()),
        &mut outs,
    );
    let settled = |id: u32, rows| window(id, Op::Continue, 9 + id, rows, 9 + id, 1);
    step(engine, &plan((1..=4).map(|id| settled(id, 5)).collect()), &mut outs);
    engine.skip(StreamId(4));
    let partly = |id: u32, stay: u32| window(id, Op::Continue, 9 + id + stay, 2, stay, 2);
    step(engine, &plan(vec![partly(1, 1), partly(2, 3), partly(3, 5), partly(4, 2)]), &mut outs);
    let rows: Vec<f32> = (0..16).map(|i| i as f32).collect();
    let chains = [
        Chain { id: StreamId(1), first: 11, rows: 0..1, accepted: 1, tokens: &[3], length: 3 },
        Chain { id: StreamId(2), first: 14, rows: 1..2, accepted: 1, tokens: &[4], length: 2 },
    ];
    let drawn = engine
        .draft(&chains, &rows, &mut |at, position, logits| {
            (logits.iter().map(|&x| x as u32).sum::<u32>() + position + at as u32) % 64
        })
        .unwrap();
    outs.extend(drawn.iter().map(|ids| ids.iter().map(|&id| id as f32).collect()));
    step(engine, &plan(vec![window(4, Op::Cancel, 0, 0, 0, 3)]), &mut outs);
    outs
}

#[test]
fn a_group_of_any_size_does_what_one_stage_does() {
    let mut alone = fake();
    alone.prepare(&SHAPES).unwrap();
    let expected = life(&mut alone);
    for count in [2, 3, 8] {
        let (mut leader, group, _away) = whole(count);
        assert_eq!(life(&mut leader), expected, "{count} members");
        let traffic = group.traffic();
        assert!(traffic.exchanges > 8 && traffic.exchanges == traffic.in_memory, "{traffic:?}");
        leader.compare_tables().unwrap();
        leader.reset();
        leader.compare_tables().unwrap();
        assert!(leader.table().is_empty());
    }
}

#[test]
fn rows_of_a_boundary_reach_every_member_bit_for_bit() {
    let (mut leader, _group, _away) = whole(3);
    let rows: Vec<f32> = (0..8 * 9).map(|i| i as f32).collect();
    let round = plan(vec![window(1, Op::Open, 0, 9, 0, 0)]);
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    leader.step(&round, Input::Rows(&rows), &mut found).unwrap();
    let mut alone = fake();
    alone.prepare(&SHAPES).unwrap();
    alone.step(&round, Input::Rows(&rows), &mut expected).unwrap();
    assert_eq!(found, expected);
}

#[test]
fn a_state_is_held_where_every_member_holds_it() {
    let held = |keeps_max: usize| {
        let addresses = addresses(3);
        let start = |index: usize, fake: Fake| {
            Away::start(config(index, &addresses), |group| Double::new(fake, group.seat()))
        };
        let _away = [start(1, fake()), start(2, fake().with_keeps_max(keeps_max))];
        let group = Group::start(config(0, &addresses)).unwrap();
        let engine = Double::new(fake(), group.seat());
        let mut leader = Leader::new(group.clone(), Box::new(engine)).comparing();
        leader.prepare(&SHAPES).unwrap();
        let mut out = Vec::new();
        let open = plan(vec![window(1, Op::Open, 0, 2, 0, 0)]);
        leader.step(&open, Input::Tokens(&[1, 2]), &mut out).unwrap();
        assert!(leader.held().is_empty());
        let position = 2;
        let save = Keep { key: 5, stream: StreamId(1), position, op: KeepOp::Save, held: true };
        let settle = window(1, Op::Continue, 2, 1, 2, 1);
        let keeps = Plan { keeps: vec![save], ..plan(vec![settle]) };
        leader.step(&keeps, Input::Tokens(&[3]), &mut out).unwrap();
        leader.held().to_vec()
    };
    assert_eq!(held(9), [true]);
    assert_eq!(held(0), [false], "member 2 has no room");
}

#[test]
fn a_member_with_another_table_is_named() {
    let addresses = addresses(2);
    let _away = Away::start(config(1, &addresses), |group| {
        let faulty = fake().with_fault(stage::Fault::DropGeneration);
        Double::new(faulty, group.seat())
    });
    let group = Group::start(config(0, &addresses)).unwrap();
    let engine = Double::new(fake(), group.seat());
    let mut leader = Leader::new(group, Box::new(engine)).comparing();
    leader.prepare(&SHAPES).unwrap();
    let open = plan(vec![window(1, Op::Open, 0, 2, 0, 0)]);
    let error = leader.step(&open, Input::Tokens(&[1, 2]), &mut Vec::new()).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("ShardLost: member 1: OtherTable: expected"), "{text}");
}

#[test]
fn a_plan_that_every_member_refuses_leaves_a_group_that_comes_back() {
    let (mut leader, _group, _away) = whole(3);
    let bad = plan(vec![window(1, Op::Continue, 4, 1, 1, 3)]);
    let error = leader.step(&bad, Input::Tokens(&[1]), &mut Vec::new()).unwrap_err();
    // The leader's own word, or that of a member that refuses before all others are called.
    let text = error.to_string();
    let said = text.strip_prefix("ShardLost: member 1: ").unwrap_or(&text);
    assert!(said.starts_with("OtherStream: stream 1 is not open"), "{text}");
    leader.prepare(&SHAPES).unwrap();
    life(&mut leader);
}

#[test]
fn members_exchange_through_memory_where_all_are_told_so_and_only_there() {
    let outs: Vec<_> = [
        (Through::Auto, Through::Auto, true),
        (Through::Memory, Through::Auto, true),
        (Through::Links, Through::Auto, false),
        (Through::Auto, Through::Links, false),
    ]
    .into_iter()
    .map(|(first, second, in_memory)| {
        let addresses = addresses(2);
        let config = |index, through| GroupConfig { through, ..config(index, &addresses) };
        let _away = Away::start(config(1, second), |group| Double::new(fake(), group.seat()));
        let group = Group::start(config(0, first)).unwrap();
        let engine = Double::new(fake(), group.seat());
        let mut leader = Leader::new(group.clone(), Box::new(engine));
        leader.prepare(&SHAPES).unwrap();
        let outs = life(&mut leader);
        assert_eq!(group.traffic().in_memory > 0, in_memory, "{first:?}, {second:?}");
        group.shutdown();
        outs
    })
    .collect();
    assert!(outs.iter().all(|out| *out == outs[0]));
}

#[test]
fn a_member_that_must_meet_in_memory_and_can_not_is_named() {
    let addresses = addresses(2);
    let config = |index, through| GroupConfig { through, ..config(index, &addresses) };
    let _away = Away::start(config(1, Through::Links), |group| Double::new(fake(), group.seat()));
    let group = Group::start(config(0, Through::Memory)).unwrap();
    let engine = Double::new(fake(), group.seat());
    let mut leader = Leader::new(group.clone(), Box::new(engine));
    let error = leader.prepare(&SHAPES).unwrap_err().to_string();
    assert!(error.starts_with("ShardLost: member 1: NotShared: it does not reach"), "{error}");
    group.shutdown();
}
