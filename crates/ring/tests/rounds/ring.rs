//! A ring of fake stages in one process.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arith::attention::KvDtype;
use arith::base::{Arith, Epoch, Rank, Round, StreamId};
use arith::sample::Sampling;
use baton_ring::boot::BootTimes;
use baton_ring::canary::Canary;
use baton_ring::follow::Follower;
use baton_ring::head::{self, Driver, Handle, RingState};
use baton_ring::join::Join;
use baton_ring::lead::{Leader, ModelFacts};
use baton_ring::link::{LinkError, Neighbours};
use baton_ring::memory;
use sched::{Caching, Drafters, Event, Failure, Request};
use stage::{
    Chain, Engine, Fake, FakeConfig, Fault, Input, Offer, Over, Pick, SlotState, StageError,
};
use wire::control::{Describe, Shapes};
use wire::describe::RowDtype;
use wire::layout::Layout;
use wire::plan::{Entry, Op, Plan};

use crate::listener::Listener;

pub const LAYERS: u32 = 8;

pub fn shapes(chunk_rows_max: u32) -> Shapes {
    Shapes { chunk_rows_max, round_rows_max: 64, streams_max: 4, context_max: 512, pages: 40 }
}

pub fn describe(rank: u32, layout: &Layout, chunk: u32) -> Describe {
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
pub struct Seat(pub mpsc::Receiver<Neighbours>);

impl Join for Seat {
    fn join(&mut self, _: Option<Epoch>) -> Result<Neighbours, LinkError> {
        self.0.recv().map_err(|_| LinkError::Closed)
    }
}

/// How a test ring differs from a sound one.
#[derive(Clone, Default)]
pub struct Twist {
    pub fault: Option<(u32, Fault)>,
    /// What the last rank says it holds.
    pub claims: Option<std::ops::Range<u32>>,
    pub canary: Option<[u8; 32]>,
    pub depth: Option<u32>,
    pub drafters: Drafters,
    pub patience: Duration,
    /// A rank whose rounds take time.
    pub slow: Option<Slow>,
    /// Ranks whose devices have berths and see those of others.
    pub berths: Vec<u32>,
    /// Rounds, counted over all epochs, at which the last rank fails.
    pub breaks: Vec<u64>,
}

/// A rank and what it takes for a round.
#[derive(Clone, Copy)]
pub struct Slow {
    pub rank: u32,
    pub round: Duration,
}

/// The lines of rank 0 that warn, each with the state that a handle saw as it came.
pub type Told = Arc<Mutex<Vec<(String, RingState)>>>;

/// A rank's table after its last round.
pub type Table = Arc<Mutex<Option<Vec<SlotState>>>>;

/// What a rank did to a stream in a round.
#[derive(Clone, Debug)]
pub struct Row {
    pub id: StreamId,
    pub op: Op,
    pub rows: u32,
    /// It was told before that the rows need no computing.
    pub skipped: bool,
}

/// A round of a rank.
#[derive(Clone, Debug)]
pub struct Step {
    pub began: Instant,
    pub rows: Vec<Row>,
    /// The table after it.
    pub table: String,
    /// Where its rows went.
    pub berth: Option<u32>,
}

/// All rounds of a rank.
pub type History = Arc<Mutex<Vec<Step>>>;

/// A fake stage that takes its time, fails where it is told to and shows its table.
struct Staged {
    fake: Fake,
    takes: Option<Duration>,
    breaks: Vec<u64>,
    rounds: u64,
    table: Table,
    skipped: Vec<StreamId>,
    history: History,
    /// Whether the epoch is over, before it is prepared.
    over: Option<Over>,
}

impl Staged {
    /// What the plan asks for, before it is done.
    fn rows(&mut self, plan: &Plan) -> Vec<Row> {
        let row = |entry: &Entry| Row {
            id: entry.id,
            op: entry.op,
            rows: entry.rows,
            skipped: self.skipped.contains(&entry.id),
        };
        let rows: Vec<Row> = plan.entries.iter().map(row).collect();
        let ends = |id: &StreamId| {
            rows.iter().any(|row| row.id == *id && matches!(row.op, Op::Close | Op::Cancel))
        };
        self.skipped.retain(|id| !ends(id));
        rows
    }
}

impl Engine for Staged {
    fn hidden(&self) -> usize {
        self.fake.hidden()
    }
    fn vocab(&self) -> usize {
        self.fake.vocab()
    }
    fn heed(&mut self, over: Over) {
        self.over = Some(over);
    }
    fn prepare(&mut self, shapes: &Shapes) -> Result<(), StageError> {
        // Before, its device may wait for a neighbour's.
        assert!(self.over.take().is_some(), "nothing says whether this epoch is over");
        self.fake.prepare(shapes)
    }
    fn berths(&mut self, count: u32) -> Result<Option<Offer>, String> {
        self.fake.berths(count)
    }
    fn reach(&mut self, offer: &Offer) -> Result<String, String> {
        self.fake.reach(offer)
    }
    fn step(&mut self, _: &Plan, _: Input<'_>, _: &mut Vec<f32>) -> Result<(), StageError> {
        unreachable!("a ring numbers its rounds")
    }
    fn step_on(
        &mut self,
        round: Round,
        plan: &Plan,
        input: Input<'_>,
        out: &mut Vec<f32>,
    ) -> Result<Option<u32>, StageError> {
        self.rounds += 1;
        let (began, rows) = (Instant::now(), self.rows(plan));
        if self.breaks.contains(&self.rounds) {
            return Err(StageError::EmptyShape { what: "luck" });
        }
        self.takes.into_iter().for_each(std::thread::sleep);
        let berth = self.fake.step_on(round, plan, input, out)?;
        *self.table.lock().unwrap() = Some(self.fake.table());
        let table = format!("{:?}", self.fake.table());
        self.history.lock().unwrap().push(Step { began, rows, table, berth });
        Ok(berth)
    }
    fn logits(&mut self, rows: &[f32], out: &mut Vec<f32>) -> Result<(), StageError> {
        self.fake.logits(rows, out)
    }
    fn drafts(&self) -> bool {
        self.fake.drafts()
    }
    fn draft(
        &mut self,
        chains: &[Chain<'_>],
        rows: &[f32],
        pick: Pick<'_>,
    ) -> Result<Vec<Vec<u32>>, StageError> {
        self.fake.draft(chains, rows, pick)
    }
    fn skip(&mut self, id: StreamId) {
        self.skipped.push(id);
        self.fake.skip(id);
    }
    fn reset(&mut self) {
        self.fake.reset();
    }
    fn held(&self) -> &[bool] {
        self.fake.held()
    }
    fn table(&self) -> Vec<SlotState> {
        self.fake.table()
    }
}

pub struct Ring {
    pub handle: Handle,
    pub threads: Vec<JoinHandle<()>>,
    pub stops: Vec<Arc<std::sync::atomic::AtomicBool>>,
    tables: Vec<Table>,
    histories: Vec<History>,
    /// Tokens drafted and accepted.
    counts: Mutex<(u32, u32)>,
    /// What rank 0 gave back when it left.
    left: Arc<Mutex<Option<Driver>>>,
    /// What it warned of.
    pub told: Told,
}

impl Ring {
    pub fn start(text: &str, chunk: u32, twist: &Twist) -> Self {
        Self::start_on(text, chunk, twist, head::pair())
    }

    /// With what a ring before it left.
    pub fn start_on(
        text: &str,
        chunk: u32,
        twist: &Twist,
        (handle, driver): (Handle, Driver),
    ) -> Self {
        let layout = Layout::parse(text).unwrap();
        let world = layout.world();
        let (mut seats, mut threads, mut stops) = (Vec::new(), Vec::new(), Vec::new());
        let tables: Vec<Table> = (0..world).map(|_| Table::default()).collect();
        let histories: Vec<History> = (0..world).map(|_| History::default()).collect();
        let staged = |rank: u32| {
            let fake = Fake::new(FakeConfig::small(layout.range(Rank(rank)), rank == 0));
            let fake = match twist.fault {
                Some((at, fault)) if at == rank => fake.with_fault(fault),
                _ => fake,
            };
            let fake = if twist.berths.contains(&rank) { fake.with_berths() } else { fake };
            let slow = twist.slow.filter(|slow| slow.rank == rank);
            let breaks = if rank + 1 == world { twist.breaks.clone() } else { Vec::new() };
            let table = tables[rank as usize].clone();
            let (takes, history) = (slow.map(|slow| slow.round), histories[rank as usize].clone());
            let (rounds, skipped, over) = (0, Vec::new(), None);
            Staged { fake, takes, breaks, rounds, table, skipped, history, over }
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
            let mut engine = staged(rank);
            threads.push(std::thread::spawn(move || follower.run(&mut engine)));
        }
        let leader = Leader {
            describe: describe(0, &layout, chunk),
            model: ModelFacts { layers: LAYERS, layer_digests: Vec::new(), ends: None },
            layout: layout.clone(),
            shapes: shapes(chunk),
            depth: twist.depth.unwrap_or(1),
            mixed: false,
            times: BootTimes { describe: Duration::from_secs(2), ready: Duration::from_secs(2) },
            queue_max: 8,
            caching: Caching::OFF,
            drafters: twist.drafters,
            patience: twist.patience,
            canary: Canary { prompt: vec![1, 2], expected: twist.canary, kept_at: None },
            join: Seats(seats),
            driver,
        };
        let mut engine = staged(0);
        let left: Arc<Mutex<Option<Driver>>> = Arc::default();
        let leaves = left.clone();
        let told = Told::default();
        let (sees, lines) = (handle.clone(), told.clone());
        let listener = Listener(move |line| lines.lock().unwrap().push((line, sees.state())));
        threads.push(std::thread::spawn(move || {
            tracing::subscriber::with_default(listener, || {
                *leaves.lock().unwrap() = leader.run(&mut engine);
            });
        }));
        Self { handle, threads, stops, tables, histories, counts: Mutex::default(), left, told }
    }

    /// Has rank 0 leave, and ends the other ranks; what the next ring starts on.
    pub fn leave(self) -> (Handle, Driver) {
        self.handle.leave();
        self.stops.iter().for_each(|stop| stop.store(true, Ordering::Release));
        for thread in self.threads {
            thread.join().unwrap();
        }
        let driver = self.left.lock().unwrap().take().unwrap();
        driver.left();
        (self.handle, driver)
    }

    pub fn drafts(&self) -> (u32, u32) {
        *self.counts.lock().unwrap()
    }

    pub fn tables(&self) -> Vec<Table> {
        self.tables.clone()
    }

    /// Each rank's rounds so far.
    pub fn histories(&self) -> Vec<History> {
        self.histories.clone()
    }

    /// Waits until the state is as `want` likes it.
    pub fn wait(&self, want: impl Fn(&RingState) -> bool) -> RingState {
        for _ in 0..2000 {
            let state = self.handle.state();
            if want(&state) {
                return state;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("still {:?}", self.handle.state());
    }

    pub fn ready(text: &str, chunk: u32, twist: &Twist) -> Self {
        let ring = Self::start(text, chunk, twist);
        ring.wait(|state| *state == RingState::Ready);
        ring
    }

    pub fn ask(&self, requests: Vec<Request>) -> Vec<Result<Ended, Failure>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut running = Vec::new();
            for request in requests {
                running.push(self.handle.submit(request).await.unwrap());
            }
            let mut outcomes = Vec::new();
            for mut reply in running {
                outcomes.push(counted(&mut reply, &self.counts).await);
            }
            outcomes
        })
    }

    pub fn stop(self) {
        self.handle.drain();
        self.stops.iter().for_each(|stop| stop.store(true, Ordering::Release));
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

/// A reply's tokens, and the hash of its logits.
pub type Ended = (Vec<u32>, [u8; 32]);

pub async fn end_of(reply: &mut head::Reply) -> Result<Ended, Failure> {
    counted(reply, &Mutex::default()).await
}

async fn counted(reply: &mut head::Reply, counts: &Mutex<(u32, u32)>) -> Result<Ended, Failure> {
    let mut tokens = Vec::new();
    while let Some(event) = reply.next().await {
        match event {
            Event::Token { id, .. } => tokens.push(id),
            Event::Done { logits_sha256, drafted, accepted, .. } => {
                let mut counts = counts.lock().unwrap();
                *counts = (counts.0 + drafted, counts.1 + accepted);
                return Ok((tokens, logits_sha256.unwrap()));
            }
            Event::Failed(failure) => return Err(failure),
            other => panic!("{other:?}"),
        }
    }
    panic!("no last event")
}

pub fn request(length: u32, seed: u64, temperature: f64) -> Request {
    Request {
        prompt: (0..length).map(|i| (i * 13 + seed as u32) % 64).collect(),
        max_tokens: 12,
        sampling: Sampling { temperature, top_k: 20, top_p: 0.95, min_p: 0.0, seed },
        hash_logits: true,
        ..Request::default()
    }
}

pub fn requests() -> Vec<Request> {
    vec![request(150, 1, 0.0), request(3, 2, 1.0), request(64, 3, 0.7), request(1, 4, 0.0)]
}

pub fn outcome(text: &str, chunk: u32, twist: &Twist) -> Vec<Ended> {
    let ring = Ring::ready(text, chunk, twist);
    let outcomes = ring.ask(requests()).into_iter().map(Result::unwrap).collect();
    ring.stop();
    outcomes
}
