//! What a hop of a prompt's chunk takes from the ranks that compute.
//!
//! `cargo run --release -p baton-ring --example chunks [chunk ms] [chunks] [rows] [values a row]`
//! runs prompts through a ring of two over sealed TCP whose stages compute nothing: each sleeps for
//! a chunk's time, as a thread does whose device works; rank 0 copies its rows out, rank 1 copies
//! them in. It prints how long prompts took beside `chunks + 1` times a chunk's, and what is more
//! of it a chunk.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arith::attention::KvDtype;
use arith::base::{Arith, Epoch, Rank, StreamId};
use arith::sample::Sampling;
use baton_ring::boot::BootTimes;
use baton_ring::canary::Canary;
use baton_ring::follow::Follower;
use baton_ring::head::{self, Handle, RingState};
use baton_ring::join::Join;
use baton_ring::key::Key;
use baton_ring::lead::{Leader, ModelFacts};
use baton_ring::link::{LinkError, Neighbours};
use baton_ring::tcp::{TcpConfig, Times, Transport};
use sched::{Caching, Drafters, Event, Request};
use stage::{Engine, Input, SlotState, StageError};
use wire::control::{Describe, Fields, Shapes};
use wire::describe::RowDtype;
use wire::hello::Encryption;
use wire::layout::Layout;
use wire::plan::Plan;
use wire::preamble::Cipher;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const DEADLINE: Duration = Duration::from_secs(10);
const VOCAB: usize = 64;
const PROMPTS: usize = 3;

fn main() -> Outcome<()> {
    let arguments = std::env::args().skip(1).map(|a| a.parse::<u32>());
    let mut arguments = arguments.collect::<Result<Vec<_>, _>>()?.into_iter();
    let mut next = |otherwise| arguments.next().unwrap_or(otherwise).max(1);
    let (ms, chunks, rows, hidden) = (next(250), next(16), next(2048), next(5120));
    let chunk = Duration::from_millis(u64::from(ms));
    let ring = Ring { rows, hidden, chunk, context: chunks * rows + 8 };
    let transports = [ring.transport(0)?, ring.transport(1)?];
    for (rank, transport) in transports.iter().enumerate() {
        transport.set_next(vec![transports[1 - rank].addresses()[0].to_string()]);
    }
    let (handle, driver) = head::pair();
    let [first, second] = transports.map(Seat);
    let stop = Arc::new(AtomicBool::new(false));
    let follower = ring.follower(second, stop.clone());
    let follows = std::thread::spawn(move || follower.run(&mut Device::new(&ring, false)));
    let leader = ring.leader(first, driver)?;
    let leads = std::thread::spawn(move || leader.run(&mut Device::new(&ring, true)));
    while handle.state() != RingState::Ready {
        std::thread::sleep(Duration::from_millis(5));
    }
    let least = chunk * (chunks + 1);
    for _ in 0..PROMPTS {
        let took = prompt(&handle, chunks * rows)?;
        let more = took.saturating_sub(least) / chunks;
        println!("{took:?}, {least:?} at least, {more:?} more a chunk");
    }
    stop.store(true, Ordering::Release);
    handle.drain();
    leads.join().map_err(|_| "rank 0 died")?;
    drop(follows);
    Ok(())
}

/// Until the first token.
fn prompt(handle: &Handle, tokens: u32) -> Outcome<Duration> {
    let request = Request {
        prompt: (0..tokens).map(|i| i % VOCAB as u32).collect(),
        max_tokens: 1,
        sampling: Sampling { temperature: 0.0, top_k: 1, top_p: 1.0, min_p: 0.0, seed: 0 },
        ..Request::default()
    };
    let start = Instant::now();
    tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
        let mut reply = handle.submit(request).await.map_err(|refusal| refusal.to_string())?;
        while let Some(event) = reply.next().await {
            match event {
                Event::Done { .. } => break,
                Event::Failed(failure) => return Err(format!("{failure:?}").into()),
                _ => {}
            }
        }
        Ok(start.elapsed())
    })
}

#[derive(Clone, Copy)]
struct Ring {
    rows: u32,
    hidden: u32,
    chunk: Duration,
    context: u32,
}

impl Ring {
    fn transport(&self, rank: u32) -> Outcome<Transport> {
        Ok(Transport::start(TcpConfig {
            rank: Rank(rank),
            world: 2,
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            next: Vec::new(),
            key: Some(Key::from_bytes(&[7; 32])?),
            cipher: Cipher::AesGcm,
            encryption: Encryption::On,
            fingerprint: Fields::new(),
            times: Times::default(),
        })?)
    }

    fn shapes(&self) -> Shapes {
        Shapes {
            chunk_rows_max: self.rows,
            round_rows_max: self.rows,
            streams_max: 1,
            context_max: self.context,
            pages: self.context.div_ceil(64) + 1,
        }
    }

    fn describe(&self, rank: u32) -> Describe {
        Describe {
            rank: Rank(rank),
            world: 2,
            engine: "chunks".into(),
            backend: "none".into(),
            arith: Arith::One.number(),
            device: "none".into(),
            layers: vec![[0; 32]],
            range: rank..rank + 1,
            hidden: self.hidden,
            planes: 1,
            row_dtype: RowDtype::F32,
            kv: KvDtype::F16,
            shapes: self.shapes(),
            states: 1,
            taps: Vec::new(),
            drafter_width: 0,
            ends: None,
            layer_us: None,
        }
    }

    fn follower(&self, join: Seat, stop: Arc<AtomicBool>) -> Follower<Seat> {
        let describe = self.describe(1);
        Follower { describe, world: 2, times: BootTimes::default(), join, stop }
    }

    fn leader(&self, join: Seat, driver: head::Driver) -> Outcome<Leader<Seat>> {
        Ok(Leader {
            describe: self.describe(0),
            model: ModelFacts { layers: 2, layer_digests: Vec::new(), ends: None },
            layout: Layout::parse("0:1,1:2")?,
            shapes: self.shapes(),
            depth: 4,
            mixed: false,
            times: BootTimes::default(),
            queue_max: 1,
            caching: Caching::OFF,
            drafters: Drafters::default(),
            patience: Duration::ZERO,
            canary: Canary { prompt: vec![1, 2], expected: None, kept_at: None },
            join,
            driver,
        })
    }
}

/// One rank's place.
struct Seat(Transport);

impl Join for Seat {
    fn join(&mut self, epoch: Option<Epoch>) -> Result<Neighbours, LinkError> {
        self.0.join(epoch, DEADLINE)
    }
}

/// Rows come to it and go from it by copies; whole chunks take their time.
struct Device {
    hidden: usize,
    rows: usize,
    chunk: Duration,
    ends: bool,
    memory: Vec<f32>,
}

impl Device {
    fn new(ring: &Ring, ends: bool) -> Self {
        let (hidden, rows) = (ring.hidden as usize, ring.rows as usize);
        Self { hidden, rows, chunk: ring.chunk, ends, memory: vec![0.5; rows * hidden] }
    }

    /// A quarter of a chunk's time whatever the rows, so that no prompt is cut finer.
    fn takes(&self, rows: usize) -> Duration {
        if rows == 0 {
            return Duration::ZERO;
        }
        self.chunk / 4 + self.chunk * 3 / 4 * rows as u32 / self.rows as u32
    }
}

impl Engine for Device {
    fn hidden(&self) -> usize {
        self.hidden
    }
    fn vocab(&self) -> usize {
        if self.ends { VOCAB } else { 0 }
    }
    fn prepare(&mut self, _: &Shapes) -> Result<(), StageError> {
        Ok(())
    }
    fn step(
        &mut self,
        plan: &Plan,
        input: Input<'_>,
        out: &mut Vec<f32>,
    ) -> Result<(), StageError> {
        let values = plan.rows() * self.hidden;
        if let Input::Rows(rows) = input {
            self.memory[..values].copy_from_slice(rows);
        }
        let until = Instant::now() + self.takes(plan.rows());
        out.clear();
        out.resize(values, 0.0);
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        if self.ends {
            out.copy_from_slice(&self.memory[..values]);
        }
        Ok(())
    }
    fn logits(&mut self, rows: &[f32], out: &mut Vec<f32>) -> Result<(), StageError> {
        out.clear();
        out.resize(rows.len() / self.hidden * VOCAB, 0.5);
        Ok(())
    }
    fn skip(&mut self, _: StreamId) {}
    fn reset(&mut self) {}
    fn table(&self) -> Vec<SlotState> {
        Vec::new()
    }
}
