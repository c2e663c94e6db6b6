//! What a seed stands for: a ring, its times, its requests and what befalls it.

use std::ops::Range;
use std::time::Duration;

use arith::attention::KvDtype;
use arith::base::{Arith, Rank};
use arith::sample::Sampling;
use ring::boot::{BootTimes, ModelFacts, Terms};
use ring::step::Facts;
use sched::{Caching, Drafters, Request};
use stage::{FakeConfig, Shapes};
use wire::control::Describe;
use wire::describe::RowDtype;
use wire::layout::Layout;

use crate::rng::Rng;

/// Layers of the model.
pub const LAYERS: u32 = 4;
/// Its vocabulary.
pub const VOCAB: u32 = 24;

/// Nanoseconds of a microsecond, a millisecond and a second.
pub const US: u64 = 1_000;
/// A millisecond.
pub const MS: u64 = 1_000_000;
/// A second.
pub const S: u64 = 1_000_000_000;

/// The stage of a model of width 4.
pub fn model(range: Range<u32>, ends: bool) -> FakeConfig {
    FakeConfig { hidden: 4, vocab: VOCAB as usize, ..FakeConfig::small(range, ends) }
}

/// How much a run does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Size {
    /// A few requests and at most three faults.
    #[default]
    Short,
    /// Several times as many of both.
    Long,
    /// A hundred requests that share their beginnings, nothing that befalls the ring, and one rank
    /// short of memory for kept states and pages.
    Pressed,
}

/// Requests of [`Size::Pressed`].
pub const PRESSED: usize = 100;

/// What befalls a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The link to this rank breaks, and none can be made for so long. What was on its way is lost
    /// or, where the second time is not 0, comes so much later.
    Cut(usize, u64, u64),
    /// Nothing that is sent to this rank arrives any more, and nobody is told.
    HalfOpen(usize),
    /// The link to this rank carries nothing for so long, then everything.
    Stall(usize, u64),
    /// This rank dies and is back after so long.
    Kill(usize, u64),
    /// This rank's stage fails after so many rounds, which ends in a stop frame.
    Fails(usize, u32),
    /// This rank's device takes so many times as long, for so long.
    Slow(usize, u64, u64),
    /// This rank's next round takes so long.
    Hang(usize, u64),
}

/// What happens once so many events have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// A fault.
    Fault(Fault),
    /// The client of this request goes away.
    Cancel(usize),
    /// The server is asked to end.
    Drain,
}

/// A link's times, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Hop {
    /// Least time of a frame.
    pub delay: u64,
    /// Most time on top.
    pub jitter: u64,
    /// Of a byte.
    pub byte: u64,
}

/// A device's times, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Of a round.
    pub round: u64,
    /// Of a row.
    pub row: u64,
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Who holds what.
    pub layout: Layout,
    /// Each rank's shapes, with the pages of the tightest.
    pub shapes: Shapes,
    /// The rank that has no more pages; the others have many. `None`: all have as many.
    pub tight: Option<usize>,
    /// Rounds in flight.
    pub depth: u32,
    /// Most requests waiting.
    pub queue_max: u32,
    /// Who guesses tokens ahead.
    pub drafters: Drafters,
    /// What is kept of prompts for later ones.
    pub caching: Caching,
    /// Kept states that each rank has room for.
    pub keeps_max: Vec<usize>,
    /// How long requests wait for a ring that broke.
    pub patience: u64,
    /// Times of the link to each rank.
    pub hops: Vec<Hop>,
    /// Times of each rank's device.
    pub costs: Vec<Cost>,
    /// Requests, and how long after the one before each comes.
    pub requests: Vec<(u64, Request)>,
    /// In the order of their events.
    pub triggers: Vec<(u64, Trigger)>,
}

impl Setting {
    /// Of a seed.
    pub fn draw(rng: &mut Rng, size: Size) -> Self {
        if size == Size::Pressed {
            return pressed(rng);
        }
        let world = rng.count(1, 4);
        let layout = Layout::even(LAYERS, world).expect("a layer a rank");
        let is_tight = rng.chance(10);
        let context_max = if is_tight { 200 } else { rng.pick(&[30, 70, 150]) };
        let shapes = Shapes {
            chunk_rows_max: rng.pick(&[1, 5, 16, 64]),
            round_rows_max: rng.count(2, 40),
            streams_max: rng.count(if is_tight { 2 } else { 1 }, 4),
            context_max,
            pages: rng.count(context_max.div_ceil(64), if is_tight { 5 } else { 6 }),
        };
        let many = if size == Size::Long { 6 } else { 1 };
        let gap = rng.ratio(US, 500 * MS);
        let mut requests: Vec<(u64, Request)> = Vec::new();
        for _ in 0..rng.within(1, 12) * many {
            let mut request = request(rng, context_max);
            if is_tight {
                request.max_tokens = rng.count(40, 140);
            }
            if rng.chance(50) && !requests.is_empty() {
                let other = rng.below(requests.len() as u64) as usize;
                share(rng, &mut requests[other].1, &mut request);
            }
            requests.push((rng.below(gap), request));
        }
        // Whatever it costs: windows of trees too.
        let reach = shapes.pages.is_multiple_of(2).then_some(3);
        let mut setting = Self {
            layout,
            shapes,
            tight: None,
            depth: rng.count(1, 4),
            queue_max: rng.pick(&[0, 2, 16]),
            drafters: Drafters { copy: rng.chance(50), mtp: rng.chance(50), reach },
            caching: caching(rng),
            keeps_max: (0..world).map(|_| rng.pick(&[usize::MAX, usize::MAX, 2, 0])).collect(),
            patience: rng.pick(&[0, 3 * S, 30 * S, 300 * S]),
            hops: (0..world).map(|_| hop(rng)).collect(),
            costs: (0..world).map(|_| cost(rng)).collect(),
            requests,
            triggers: Vec::new(),
        };
        setting.befall(rng, many);
        setting
    }

    fn befall(&mut self, rng: &mut Rng, many: u64) {
        let events = 2_500 * many * self.hops.len() as u64;
        if rng.chance(70) {
            for _ in 0..rng.within(1, 3) * many {
                let fault = Trigger::Fault(fault(rng, self.hops.len()));
                self.triggers.push((rng.below(events), fault));
            }
        }
        for at in 0..self.requests.len() {
            if rng.chance(30) {
                self.triggers.push((rng.below(events), Trigger::Cancel(at)));
            }
        }
        if rng.chance(10) {
            self.triggers.push((rng.below(events), Trigger::Drain));
        }
        self.triggers.sort_by_key(|(at, _)| *at);
    }

    /// Ranks.
    pub fn world(&self) -> usize {
        self.hops.len()
    }

    /// What a rank says of itself.
    pub fn describe(&self, rank: usize) -> Describe {
        let is_roomy = self.tight.is_some_and(|tight| tight != rank);
        let pages = self.shapes.pages + if is_roomy { ROOMY } else { 0 };
        let rank = Rank(rank as u32);
        let range = self.layout.range(rank);
        Describe {
            rank,
            world: self.layout.world(),
            engine: "sim".into(),
            backend: "fake".into(),
            arith: Arith::One.number(),
            device: "fake".into(),
            layers: vec![[0; 32]; range.len()],
            range,
            hidden: 4,
            planes: 1,
            row_dtype: RowDtype::F32,
            kv: KvDtype::F16,
            shapes: Shapes { pages, ..self.shapes },
            states: self.shapes.streams_max,
            taps: Vec::new(),
            drafter_width: 0,
            ends: None,
            layer_us: None,
        }
    }

    /// Deadlines of a boot.
    pub fn times(&self) -> BootTimes {
        BootTimes { describe: Duration::from_secs(30), ready: Duration::from_secs(60) }
    }

    /// What rank 0 starts from.
    pub fn facts(&self) -> Facts {
        Facts {
            own: self.describe(0),
            terms: Terms {
                layout: self.layout.clone(),
                model: ModelFacts { layers: LAYERS, layer_digests: Vec::new(), ends: None },
                shapes: self.shapes,
                depth: self.depth,
                mixed: false,
            },
            times: self.times(),
            queue_max: self.queue_max,
            caching: self.caching,
            drafters: self.drafters,
            waits: self.patience > 0,
            hidden: 4,
            vocab: VOCAB as usize,
            chunk_cost_rows: 0,
            canary: vec![1, 2],
            known: None,
        }
    }
}

/// Pages that ranks with room have beside those of the tight one.
const ROOMY: u32 = 40;

/// A ring under pressure: [`Size::Pressed`].
fn pressed(rng: &mut Rng) -> Setting {
    let world = rng.count(2, 4);
    let shapes = Shapes {
        chunk_rows_max: rng.pick(&[16, 64]),
        round_rows_max: rng.count(20, 60),
        streams_max: rng.count(1, 4),
        context_max: 250,
        pages: rng.count(4, 9),
    };
    let tight = rng.below(world.into()) as usize;
    let mut keeps_max = vec![usize::MAX; world as usize];
    keeps_max[tight] = rng.count(0, 6) as usize;
    let beginnings: Vec<Vec<u32>> = (0..6)
        .map(|_| (0..rng.count(20, 140)).map(|_| rng.below(VOCAB.into()) as u32).collect())
        .collect();
    let mut requests = Vec::with_capacity(PRESSED);
    for _ in 0..PRESSED {
        let beginning = &beginnings[rng.below(6) as usize];
        let shared = rng.count(1, beginning.len() as u32);
        let end = (0..rng.count(1, 40)).map(|_| rng.below(3) as u32);
        let prompt = beginning[..shared as usize].iter().copied().chain(end).collect();
        let marks = vec![shared / 2, shared];
        let request = Request { prompt, marks, max_tokens: rng.count(1, 20), ..request(rng, 250) };
        requests.push((rng.below(50 * MS), request));
    }
    Setting {
        layout: Layout::even(LAYERS, world).expect("a layer a rank"),
        shapes,
        tight: Some(tight),
        depth: rng.count(1, 4),
        queue_max: PRESSED as u32,
        drafters: Drafters { copy: rng.chance(50), mtp: rng.chance(50), reach: Some(3) },
        caching: Caching { keeps_max: 16, prefix_min: 4, spacing: 8, grid: 32 },
        keeps_max,
        patience: 0,
        hops: (0..world).map(|_| hop(rng)).collect(),
        costs: (0..world).map(|_| cost(rng)).collect(),
        requests,
        triggers: Vec::new(),
    }
}

fn caching(rng: &mut Rng) -> Caching {
    if rng.chance(50) {
        return Caching::OFF;
    }
    Caching {
        keeps_max: rng.pick(&[1, 3, 16]),
        prefix_min: rng.count(1, 9),
        spacing: rng.count(1, 9),
        grid: rng.pick(&[4, 16, 64]),
    }
}

/// Has a prompt start as another does.
fn share(rng: &mut Rng, other: &mut Request, request: &mut Request) {
    let own = request.prompt.len();
    let most = other.prompt.len();
    let common = if rng.chance(50) { most } else { rng.below(most as u64 + 1) as usize }.min(own);
    request.prompt[..common].copy_from_slice(&other.prompt[..common]);
    let mark = common as u32;
    if common > 0 && !other.marks.contains(&mark) {
        other.marks.push(mark);
        other.marks.sort_unstable();
    }
    request.marks = (0..mark).filter(|_| rng.chance(10)).collect();
}

fn hop(rng: &mut Rng) -> Hop {
    let delay = rng.ratio(5 * US, 20 * MS);
    let jitter = if rng.chance(50) { 0 } else { rng.ratio(US, 10 * MS) };
    Hop { delay, jitter, byte: rng.ratio(1, 10 * US) }
}

fn cost(rng: &mut Rng) -> Cost {
    Cost { round: rng.ratio(20 * US, 5 * MS), row: rng.ratio(US, MS) }
}

fn fault(rng: &mut Rng, world: usize) -> Fault {
    let to = rng.below(world as u64) as usize;
    let other = rng.within(1, (world as u64 - 1).max(1)) as usize % world;
    match rng.below(if world == 1 { 3 } else { 9 }) {
        0 => Fault::Fails(to, rng.count(0, 30)),
        1 => Fault::Slow(to, rng.within(2, 50), rng.ratio(MS, S)),
        2 => Fault::Hang(to, rng.pick(&[S, 10 * S, 100 * S])),
        3 | 4 => {
            let late = rng.pick(&[0, 0, 110 * MS, 500 * MS]);
            Fault::Cut(to, rng.pick(&[0, 0, 100 * MS, 4 * S]), late)
        }
        5 => Fault::HalfOpen(to),
        6 => Fault::Stall(to, rng.ratio(MS, 4 * S)),
        _ => Fault::Kill(other, rng.pick(&[MS, 200 * MS, 5 * S, 40 * S])),
    }
}

/// A request of any shape; a few are to be refused.
pub fn request(rng: &mut Rng, context_max: u32) -> Request {
    let long = if rng.chance(25) { context_max + 2 } else { (context_max / 3).max(2) };
    let length = if rng.chance(2) { 0 } else { rng.ratio(1, long.into()).min(long.into()) };
    // Few tokens in many prompts: what repeats can be guessed, and shared.
    let kinds = rng.pick(&[2, 5, VOCAB.into()]);
    let mut prompt: Vec<u32> = (0..length).map(|_| rng.below(kinds) as u32).collect();
    if rng.chance(3)
        && let Some(last) = prompt.last_mut()
    {
        *last = VOCAB;
    }
    Request {
        prompt,
        max_tokens: rng.ratio(1, 100) as u32,
        stop_tokens: if rng.chance(20) { vec![3, 7] } else { Vec::new() },
        sampling: Sampling {
            temperature: rng.pick(&[0.0, 0.0, 0.7]),
            top_k: rng.pick(&[0, 8]),
            top_p: rng.pick(&[1.0, 0.8]),
            min_p: 0.0,
            seed: rng.below(1000),
        },
        prompt_logits: rng.chance(10),
        hash_logits: rng.chance(30),
        draft: rng.chance(70),
        ..Request::default()
    }
}
