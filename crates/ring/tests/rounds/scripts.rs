//! Hand-made plans through the ring.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use arith::base::{Epoch, Generation, Rank, Round, StreamId};
use baton_ring::boot::{Boot, BootTimes, ModelFacts, Terms};
use baton_ring::follow::Follower;
use baton_ring::hop::{self, Hop};
use baton_ring::link::{Inbound, Neighbours};
use baton_ring::memory;
use baton_ring::step::{Action, Want as Wanted};
use stage::{Engine, Fake, FakeConfig, Fault, Input};
use wire::frame::{Frame, Kind};
use wire::layout::Layout;
use wire::plan::{Entry, Keep, KeepOp, Mode, Op, Plan, Want};
use wire::stop::Stop;

use crate::ring::{LAYERS, Seat, Twist, describe, shapes};

/// One hand-made plan after another through the ring; the rows that come back.
fn scripted(
    text: &str,
    twist: &Twist,
    plans: &[(Plan, Vec<u32>)],
) -> Result<Vec<Vec<f32>>, String> {
    let layout = Layout::parse(text).unwrap();
    let world = layout.world();
    let mut seats: Vec<Neighbours> = memory::ring(world, Epoch(5));
    let fake = |rank: u32| {
        let fake = Fake::new(FakeConfig::small(layout.range(Rank(rank)), rank == 0));
        match twist.fault {
            Some((at, fault)) if at == rank => fake.with_fault(fault),
            _ => fake,
        }
    };
    let mut threads = Vec::new();
    for rank in (1..world).rev() {
        let (seat, hears) = mpsc::channel();
        seat.send(seats.pop().unwrap()).unwrap();
        drop(seat);
        let stop: Arc<std::sync::atomic::AtomicBool> = Arc::default();
        let own = describe(rank, &layout, 60);
        let times = BootTimes::default();
        let follower =
            Follower { describe: own, world, times, join: Seat(hears), stop: stop.clone() };
        let mut engine = fake(rank);
        threads.push((stop, std::thread::spawn(move || follower.run(&mut engine))));
    }
    let links = seats.pop().unwrap();
    let mut engine = fake(0);
    let result = drive(&links, &layout, &mut engine, plans);
    threads.iter().for_each(|(stop, _)| stop.store(true, Ordering::Release));
    links.stop(Rank(0), "the script is over");
    drop(links);
    threads.into_iter().for_each(|(_, thread)| thread.join().unwrap());
    result
}

fn drive(
    links: &Neighbours,
    layout: &Layout,
    engine: &mut Fake,
    plans: &[(Plan, Vec<u32>)],
) -> Result<Vec<Vec<f32>>, String> {
    boot(links, layout, engine)?;
    links.set_rows_bytes_max(64 * 8 * 4);
    let (mut out, mut returned) = (Vec::new(), Vec::new());
    for (number, (plan, tokens)) in (1..).map(Round).zip(plans) {
        engine.step(plan, Input::Tokens(tokens), &mut out).map_err(|e| format!("rank 0: {e}"))?;
        let payload = plan.encode().map_err(|e| e.to_string())?;
        let back = Hop::of(0, layout.world());
        hop::send(&links.outbound, number, plan, payload, back, std::mem::take(&mut out), 8)
            .unwrap();
        let mut rows = Vec::new();
        for kind in [Kind::Plan, Kind::Rows] {
            if kind == Kind::Rows && plan.wanted().is_empty() {
                continue;
            }
            let frame = frame(links)?;
            assert_eq!(frame.kind, kind);
            rows = frame.values;
        }
        let wanted = plan.wanted().len();
        assert_eq!(rows.len(), wanted * 8);
        returned.push(rows);
    }
    Ok(returned)
}

/// Rank 0's boot.
fn boot(links: &Neighbours, layout: &Layout, engine: &mut Fake) -> Result<(), String> {
    let own = describe(0, layout, 60);
    let model = ModelFacts { layers: LAYERS, layer_digests: Vec::new(), ends: None };
    let terms = Terms { layout: layout.clone(), model, shapes: shapes(60), depth: 1, mixed: false };
    let (mut boot, mut actions) = Boot::new(own, Some(terms), BootTimes::default()).unwrap();
    while boot.agreed().is_none() {
        for action in actions.drain(..) {
            match action {
                Action::Send(frame) => links.outbound.send(frame).unwrap(),
                other => panic!("{other:?}"),
            }
        }
        if let Wanted::Prepare(agree) = boot.want(Duration::ZERO) {
            engine.prepare(&agree.shapes).map_err(|e| e.to_string())?;
            boot.prepared(None);
        } else {
            actions = boot.frame(frame(links)?).map_err(|e| e.to_string())?;
        }
    }
    Ok(())
}

/// The next frame; a stop's reason as the error.
fn frame(links: &Neighbours) -> Result<Frame, String> {
    match links.inbound.recv_timeout(Duration::from_secs(5)) {
        Ok(Inbound::Frame(frame)) if frame.kind == Kind::Stop => {
            Err(Stop::decode(&frame.payload).unwrap().reason)
        }
        Ok(Inbound::Frame(frame)) => Ok(frame),
        other => panic!("{other:?}"),
    }
}

fn entry(id: u32, op: Op, first: u32, rows: u32, accepted: u32, generation: u32) -> Entry {
    Entry {
        id: StreamId(id),
        op,
        want: if rows > 0 { Want::All } else { Want::None },
        first,
        rows,
        accepted,
        resume: 0,
        generation: Generation(generation),
        parents: None,
        tokens: None,
    }
}

/// A prompt, a second stream beside windows of five rows of which none, some and all stay, a round
/// without streams that keeps one, a close, a stream that goes on from the keep.
fn script() -> Vec<(Plan, Vec<u32>)> {
    let rounds = vec![
        vec![entry(0, Op::Open, 0, 30, 0, 0)],
        vec![entry(0, Op::Continue, 30, 30, 30, 1), entry(1, Op::Open, 0, 10, 0, 0)],
        vec![entry(0, Op::Continue, 60, 5, 30, 2), entry(1, Op::Continue, 10, 5, 10, 1)],
        vec![entry(0, Op::Continue, 60, 5, 0, 3), entry(1, Op::Continue, 12, 5, 2, 2)],
        vec![],
        vec![entry(0, Op::Continue, 65, 5, 5, 4), entry(1, Op::Continue, 13, 1, 1, 3)],
        vec![entry(0, Op::Continue, 68, 1, 3, 5), entry(1, Op::Close, 14, 0, 1, 4)],
        vec![Entry { resume: 60, ..entry(2, Op::Resume, 60, 5, 0, 0) }],
    ];
    let keep = |op, stream| Keep { key: 7, stream: StreamId(stream), position: 60, op, held: true };
    let keeps = [(4, keep(KeepOp::Save, 0)), (7, keep(KeepOp::Restore, 2))];
    let mut random = 1u32;
    rounds
        .into_iter()
        .enumerate()
        .map(|(round, entries)| {
            let keeps = keeps.iter().filter(|(at, _)| *at == round).map(|(_, keep)| *keep);
            let keeps = keeps.collect();
            let plan = Plan { mode: Mode::Window, entries, cuts: Vec::new(), keeps };
            let tokens = (0..plan.rows()).map(|_| {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (random >> 20) % 64
            });
            (plan.clone(), tokens.collect())
        })
        .collect()
}

#[test]
fn windows_that_roll_back_give_one_ranks_rows_on_every_ring() {
    let alone = scripted("0:8", &Twist::default(), &script()).unwrap();
    assert!(alone.iter().any(|rows| rows.len() == 10 * 8));
    for layout in ["0:4,4:8", "0:1,1:7,7:8", "0:2,2:4,4:6,6:8"] {
        assert_eq!(scripted(layout, &Twist::default(), &script()).unwrap(), alone, "{layout}");
    }
}

#[test]
fn a_rollback_of_the_position_without_the_state_changes_the_rows() {
    let alone = scripted("0:8", &Twist::default(), &script()).unwrap();
    for rank in 0..2 {
        let fault = Some((rank, Fault::PositionOnly));
        let faulty = scripted("0:4,4:8", &Twist { fault, ..Twist::default() }, &script()).unwrap();
        assert_ne!(faulty, alone, "rank {rank}");
    }
}

#[test]
fn a_dropped_rollback_is_another_position_by_name() {
    let fault = Some((1, Fault::DropRollback));
    let twist = Twist { fault, ..Twist::default() };
    let error = scripted("0:4,4:8", &twist, &script()).unwrap_err();
    assert!(error.contains("rank 1: OtherPosition"), "{error}");
}

#[test]
fn a_round_that_forgets_its_predecessors_settle_is_another_generation_by_name() {
    let mut plans = script();
    // The window of round 3 is settled by round 4; without it round 5 builds on what is not there.
    plans[3].0.entries.remove(1);
    let rows = plans[3].0.rows();
    plans[3].1.truncate(rows);
    let error = scripted("0:4,4:8", &Twist::default(), &plans).unwrap_err();
    assert!(error.contains("OtherGeneration"), "{error}");
}
