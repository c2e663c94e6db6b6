//! Whole rings in one process: fake stages, real boot, real rounds.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use arith::attention::KvDtype;
use arith::base::{Arith, Epoch, Generation, Rank, Round, StreamId};
use arith::sample::Sampling;
use baton_ring::boot::{self, BootTimes, Terms};
use baton_ring::canary::Canary;
use baton_ring::follow::Follower;
use baton_ring::head::{self, Handle, RingState};
use baton_ring::hop::{self, Hop};
use baton_ring::inbox::{self, Wake};
use baton_ring::join::Join;
use baton_ring::lead::{Leader, ModelFacts};
use baton_ring::link::{LinkError, Neighbours};
use baton_ring::memory;
use sched::{Event, Failure, Request};
use stage::{Engine, Fake, FakeConfig, Fault, Input};
use wire::control::{Describe, Shapes};
use wire::describe::RowDtype;
use wire::frame::Kind;
use wire::layout::Layout;
use wire::plan::{Entry, Keep, KeepOp, Mode, Op, Plan, Want};
use wire::ring_check::Expected;

const LAYERS: u32 = 8;

fn shapes(chunk_rows_max: u32) -> Shapes {
    Shapes { chunk_rows_max, round_rows_max: 64, streams_max: 4, context_max: 512, pages: 40 }
}

fn describe(rank: u32, layout: &Layout, chunk: u32) -> Describe {
    let range = layout.range(Rank(rank));
    Describe {
        rank: Rank(rank),
        world: layout.world(),
        engine: "test".into(),
        backend: "fake".into(),
        arith: Arith::One.number(),
        device: "fake".into(),
        layers: vec![[0; 32]; range.len()],
        range,
        hidden: 8,
        planes: 1,
        row_dtype: RowDtype::F32,
        kv: KvDtype::F16,
        shapes: shapes(chunk),
        states: 4,
        taps: Vec::new(),
        drafter_width: 0,
        ends: None,
        layer_us: None,
    }
}

/// Rank 0 makes a memory ring an epoch and hands the seats out.
struct Seats(Vec<mpsc::Sender<Neighbours>>);

impl Join for Seats {
    fn join(&mut self, epoch: Option<Epoch>) -> Result<Neighbours, LinkError> {
        let world = self.0.len() as u32 + 1;
        let mut seats = memory::ring(world, epoch.unwrap()).into_iter();
        let own = seats.next().unwrap();
        for (to, seat) in self.0.iter().zip(seats) {
            to.send(seat).map_err(|_| LinkError::Closed)?;
        }
        Ok(own)
    }
}

/// A follower waits for its seat.
struct Seat(mpsc::Receiver<Neighbours>);

impl Join for Seat {
    fn join(&mut self, _: Option<Epoch>) -> Result<Neighbours, LinkError> {
        self.0.recv().map_err(|_| LinkError::Closed)
    }
}

/// How a test ring differs from a sound one.
#[derive(Clone, Default)]
struct Twist {
    fault: Option<(u32, Fault)>,
    /// What the last rank says it holds.
    claims: Option<std::ops::Range<u32>>,
    canary: Option<[u8; 32]>,
    depth: Option<u32>,
    patience: Duration,
}

struct Ring {
    handle: Handle,
    threads: Vec<JoinHandle<()>>,
    stops: Vec<Arc<std::sync::atomic::AtomicBool>>,
}

impl Ring {
    fn start(text: &str, chunk: u32, twist: &Twist) -> Self {
        let layout = Layout::parse(text).unwrap();
        let world = layout.world();
        let (handle, driver) = head::pair();
        let (mut seats, mut threads, mut stops) = (Vec::new(), Vec::new(), Vec::new());
        let fake = |rank: u32| {
            let fake = Fake::new(FakeConfig::small(layout.range(Rank(rank)), rank == 0));
            match twist.fault {
                Some((at, fault)) if at == rank => fake.with_fault(fault),
                _ => fake,
            }
        };
        for rank in 1..world {
            let (seat, hears) = mpsc::channel();
            seats.push(seat);
            let mut own = describe(rank, &layout, chunk);
            if let (Some(claims), true) = (&twist.claims, rank + 1 == world) {
                own.layers = vec![[0; 32]; claims.len()];
                own.range = claims.clone();
            }
            let stop: Arc<std::sync::atomic::AtomicBool> = Arc::default();
            stops.push(stop.clone());
            let times = BootTimes::default();
            let follower = Follower { describe: own, world, times, join: Seat(hears), stop };
            let mut engine = fake(rank);
            threads.push(std::thread::spawn(move || follower.run(&mut engine)));
        }
        let leader = Leader {
            describe: describe(0, &layout, chunk),
            model: ModelFacts { layers: LAYERS, layer_digests: Vec::new(), ends: None },
            layout: layout.clone(),
            shapes: shapes(chunk),
            depth: twist.depth.unwrap_or(1),
            times: BootTimes { describe: Duration::from_secs(2), ready: Duration::from_secs(2) },
            queue_max: 8,
            patience: twist.patience,
            canary: Canary { prompt: vec![1, 2], expected: twist.canary, kept_at: None },
            join: Seats(seats),
            driver,
        };
        let mut engine = fake(0);
        threads.push(std::thread::spawn(move || leader.run(&mut engine)));
        Self { handle, threads, stops }
    }

    /// Waits until the state is as `want` likes it.
    fn wait(&self, want: impl Fn(&RingState) -> bool) -> RingState {
        for _ in 0..2000 {
            let state = self.handle.state();
            if want(&state) {
                return state;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("still {:?}", self.handle.state());
    }

    fn ready(text: &str, chunk: u32, twist: &Twist) -> Self {
        let ring = Self::start(text, chunk, twist);
        ring.wait(|state| *state == RingState::Ready);
        ring
    }

    fn ask(&self, requests: Vec<Request>) -> Vec<Result<Ended, Failure>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut running = Vec::new();
            for request in requests {
                running.push(self.handle.submit(request).await.unwrap());
            }
            let mut outcomes = Vec::new();
            for mut reply in running {
                outcomes.push(end_of(&mut reply).await);
            }
            outcomes
        })
    }

    fn stop(self) {
        self.handle.drain();
        self.stops.iter().for_each(|stop| stop.store(true, Ordering::Release));
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

/// A reply's tokens, and the hash of its logits.
type Ended = (Vec<u32>, [u8; 32]);

async fn end_of(reply: &mut head::Reply) -> Result<Ended, Failure> {
    let mut tokens = Vec::new();
    while let Some(event) = reply.next().await {
        match event {
            Event::Token { id } => tokens.push(id),
            Event::Done { logits_sha256, .. } => return Ok((tokens, logits_sha256.unwrap())),
            Event::Failed(failure) => return Err(failure),
            other => panic!("{other:?}"),
        }
    }
    panic!("no last event")
}

fn request(length: u32, seed: u64, temperature: f64) -> Request {
    Request {
        prompt: (0..length).map(|i| (i * 13 + seed as u32) % 64).collect(),
        max_tokens: 12,
        stop_tokens: Vec::new(),
        sampling: Sampling { temperature, top_k: 20, top_p: 0.95, min_p: 0.0, seed },
        prompt_logits: false,
        hash_logits: true,
    }
}

fn requests() -> Vec<Request> {
    vec![request(150, 1, 0.0), request(3, 2, 1.0), request(64, 3, 0.7), request(1, 4, 0.0)]
}

fn outcome(text: &str, chunk: u32, twist: &Twist) -> Vec<Ended> {
    let ring = Ring::ready(text, chunk, twist);
    let outcomes = ring.ask(requests()).into_iter().map(Result::unwrap).collect();
    ring.stop();
    outcomes
}

#[test]
fn every_layout_chunk_and_depth_gives_one_ranks_bytes() {
    let sound = Twist::default();
    let alone = outcome("0:8", 60, &sound);
    for layout in ["0:8", "0:4,4:8", "0:1,1:8", "0:3,3:5,5:8", "0:1,1:2,2:3,3:4,4:8"] {
        for chunk in [1, 7, 60] {
            assert_eq!(outcome(layout, chunk, &sound), alone, "{layout}, chunk {chunk}");
        }
        for depth in [2, 3, 8] {
            let deep = Twist { depth: Some(depth), ..Twist::default() };
            assert_eq!(outcome(layout, 7, &deep), alone, "{layout}, depth {depth}");
        }
    }
}

#[test]
fn a_stage_that_leaves_a_layer_out_changes_the_bytes() {
    let alone = outcome("0:8", 60, &Twist::default());
    for rank in 0..3 {
        let layer = [1, 4, 7][rank as usize];
        let fault = Some((rank, Fault::SkipLayer(layer)));
        let faulty = outcome("0:3,3:5,5:8", 60, &Twist { fault, ..Twist::default() });
        assert_ne!(faulty, alone, "layer {layer} of rank {rank}");
    }
}

#[test]
fn a_stage_one_layer_short_is_refused_at_boot_by_name() {
    for (claims, name) in [(4..7, "LayoutGap"), (3..8, "LayoutOverlap"), (4..9, "LayoutOverrun")] {
        let twist = Twist { claims: Some(claims), ..Twist::default() };
        let ring = Ring::start("0:4,4:8", 60, &twist);
        let state = ring.wait(|state| matches!(state, RingState::Waiting(_))).to_string();
        assert!(state.contains(name) && state.contains("rank 1"), "{name}: {state}");
        ring.stop();
    }
}

#[test]
fn a_dropped_generation_ends_the_epoch_by_name() {
    let fault = Some((1, Fault::DropGeneration));
    let ring = Ring::start("0:4,4:8", 60, &Twist { fault, ..Twist::default() });
    // The canary is the first to meet it.
    let state = ring.wait(|state| matches!(state, RingState::Waiting(_))).to_string();
    assert!(state.contains("rank 1: OtherGeneration"), "{state}");
    ring.stop();
}

#[test]
fn a_canary_of_other_bytes_keeps_the_ring_unready() {
    let twist = Twist { canary: Some([7; 32]), ..Twist::default() };
    let ring = Ring::start("0:4,4:8", 60, &twist);
    let state = ring.wait(|state| matches!(state, RingState::Waiting(_))).to_string();
    assert!(state.contains("OtherCanary"), "{state}");
    ring.stop();
}

#[test]
fn a_reply_that_nobody_wants_any_more_leaves_room_for_the_next() {
    let ring = Ring::ready("0:3,3:8", 8, &Twist::default());
    let alone = ring.ask(vec![request(20, 5, 0.0)]);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for _ in 0..50 {
        runtime.block_on(async {
            let mut long = request(200, 9, 0.0);
            long.max_tokens = 200;
            let mut reply = ring.handle.submit(long).await.unwrap();
            let _ = reply.next().await;
        });
    }
    assert_eq!(ring.ask(vec![request(20, 5, 0.0)]), alone);
    ring.stop();
}

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
    let own = describe(0, layout, 60);
    let expected = Expected {
        layout,
        layers: LAYERS,
        engine: "test",
        arith: Arith::One.number(),
        mixed: false,
        hidden: 8,
        planes: 1,
        row_dtype: RowDtype::F32,
        kv: KvDtype::F16,
        context_min: 512,
        streams_min: 4,
        layer_digests: &[],
        ends: None,
    };
    let terms = Terms { expected, shapes: shapes(60), depth: 1, times: BootTimes::default() };
    boot::lead(links, &own, &terms, engine).map_err(|e| e.to_string())?;
    links.set_rows_bytes_max(64 * 8 * 4);
    let (mut out, mut returned) = (Vec::new(), Vec::new());
    for (number, (plan, tokens)) in (1..).map(Round).zip(plans) {
        engine.step(plan, Input::Tokens(tokens), &mut out).map_err(|e| format!("rank 0: {e}"))?;
        let payload = plan.encode().map_err(|e| e.to_string())?;
        let back = Hop::of(0, layout.world());
        hop::send(&links.outbound, number, plan, payload, back, &out, 8).unwrap();
        let mut rows = Vec::new();
        for kind in [Kind::Plan, Kind::Rows] {
            if kind == Kind::Rows && plan.wanted().is_empty() {
                continue;
            }
            let late = std::time::Instant::now() + Duration::from_secs(5);
            match inbox::wait(&links.inbound, Some(late)).map_err(|e| e.to_string())? {
                Wake::Frame(frame) => {
                    assert_eq!(frame.kind, kind);
                    rows = frame.payload;
                }
                other => panic!("{other:?}"),
            }
        }
        let wanted = plan.wanted().len();
        returned.push(wire::rows::decode(&rows, wanted, 8).unwrap_or_default());
    }
    Ok(returned)
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
