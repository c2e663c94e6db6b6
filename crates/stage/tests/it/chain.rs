//! Stages in a row, driven as rank 0 drives a ring of depth 1.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use crate::group::Together;
use arith::attention::KvDtype;
use arith::base::{Arith, Generation, Round, StreamId};
use arith::candidates::read;
use backend::Backend;
use backend::scalar::Scalar;
use baton_stage::{Engine, Fake, FakeConfig, Input, Shapes, Split, Stage, StageConfig, StageError};
use weights::{Checkpoint, synthetic};
use wire::plan::{Entry, Keep, KeepOp, Op, Plan, Want};

pub const SHAPES: Shapes = Shapes {
    chunk_rows_max: 600,
    round_rows_max: 700,
    streams_max: 4,
    context_max: 1024,
    pages: 24,
};

/// Of rounds that are more than a piece.
pub const LONG: Shapes = Shapes {
    chunk_rows_max: 2_200,
    round_rows_max: 2_300,
    context_max: 2_304,
    pages: 48,
    ..SHAPES
};

/// Berths of each stage that has some.
const BERTHS: u32 = 3;

/// Layers of every model here but the real one.
pub const LAYERS: u32 = 3;

/// A made checkpoint; its file is gone as soon as it is open.
pub fn made(write: impl FnOnce(&Path) -> Result<(), weights::WeightsError>) -> Checkpoint {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let name = format!("stage-{}-{number}.gguf", std::process::id());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    write(&path).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    checkpoint
}

/// A seeded llama.
pub fn checkpoint(spec: &synthetic::Llama) -> Checkpoint {
    made(|path| synthetic::llama(path, spec))
}

/// A seeded qwen3_5 of [`LAYERS`] layers: recurrent, attention, recurrent.
pub fn hybrid() -> &'static Checkpoint {
    static HYBRID: OnceLock<Checkpoint> = OnceLock::new();
    let spec = synthetic::Qwen35 { layers: LAYERS, interval: 2, ..synthetic::Qwen35::default() };
    HYBRID.get_or_init(|| made(|path| synthetic::qwen3_5(path, &spec)))
}

/// The model of most tests, of [`LAYERS`] layers.
pub fn tiny() -> &'static Checkpoint {
    static TINY: OnceLock<Checkpoint> = OnceLock::new();
    TINY.get_or_init(|| checkpoint(&synthetic::Llama::default()))
}

/// A range of [`tiny`]; rank 0 holds the ends.
pub fn config(range: Range<u32>) -> StageConfig {
    StageConfig { ends: range.start == 0, range, kv: KvDtype::F16, loop_mode: false }
}

pub fn stage<B: Backend>(backend: &Arc<B>, config: StageConfig) -> Stage<B> {
    Stage::open(backend.clone(), tiny(), config).unwrap()
}

pub fn fake(range: Range<u32>) -> Fake {
    let ends = range.start == 0;
    Fake::new(FakeConfig::small(range, ends))
}

/// The kinds of engine that keep the contract.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Fake,
    Scalar,
    /// The same, whose rows go on by berths.
    Berths,
    Cpu,
    /// [`hybrid`] on the CPU.
    Hybrid,
    /// The same, its layers shared by a group of three.
    Group,
}

pub const KINDS: [Kind; 6] =
    [Kind::Fake, Kind::Scalar, Kind::Berths, Kind::Cpu, Kind::Hybrid, Kind::Group];

/// One backend for all tests: its threads are few and shared.
pub fn cpu() -> &'static Arc<cpu::Cpu> {
    static CPU: OnceLock<Arc<cpu::Cpu>> = OnceLock::new();
    CPU.get_or_init(|| Arc::new(cpu::Cpu::new(2, cpu::Isa::Auto, Arith::One).unwrap()))
}

impl Kind {
    pub fn engine(self, range: Range<u32>) -> Box<dyn Engine> {
        match self {
            Self::Fake => Box::new(fake(range)),
            Self::Scalar => Box::new(stage(&Arc::new(Scalar::default()), config(range))),
            Self::Berths => {
                let mut stage = stage(&Arc::new(Scalar::default()), config(range));
                stage.moor();
                Box::new(stage)
            }
            Self::Cpu => Box::new(stage(cpu(), config(range))),
            Self::Hybrid => Box::new(Stage::open(cpu().clone(), hybrid(), config(range)).unwrap()),
            Self::Group => Box::new(Together::new(hybrid(), &config(range), Split::Shards, 3)),
        }
    }

    /// A chain with cuts at `cuts`.
    pub fn chain(self, cuts: &[u32]) -> Chain {
        let ends: Vec<u32> = [0].iter().chain(cuts).chain(&[LAYERS]).copied().collect();
        Chain::new(ends.windows(2).map(|pair| self.engine(pair[0]..pair[1])).collect())
    }
}

/// What one stream does in a round.
#[derive(Clone, Debug)]
pub struct Say<'a> {
    pub id: u32,
    /// Rows of the stream's last window that stay; ignored by its first.
    pub accepted: u32,
    pub tokens: &'a [u32],
}

pub fn say(id: u32, accepted: u32, tokens: &[u32]) -> Say<'_> {
    Say { id, accepted, tokens }
}

#[derive(Clone, Debug, Default)]
struct Book {
    first: u32,
    rows: u32,
    generation: u32,
    /// Of a tree.
    parents: Vec<u16>,
}

impl Book {
    /// Positions that stay.
    fn depth(&self, accepted: u32) -> u32 {
        let Some(row) = accepted.checked_sub(1).filter(|_| !self.parents.is_empty()) else {
            return accepted;
        };
        let above = |row: &u32| self.parents.get(*row as usize).map(|parent| u32::from(*parent));
        std::iter::successors(Some(row), above).take_while(|row| *row < self.rows).count() as u32
    }
}

pub struct Chain<E: ?Sized = dyn Engine> {
    pub stages: Vec<Box<E>>,
    pub cuts: Vec<u32>,
    /// Of the last round.
    number: Round,
    /// What each stage but the last sent on in the last round.
    pub boundaries: Vec<Vec<f32>>,
    books: BTreeMap<u32, Book>,
    /// Positions of the keeps.
    kept: BTreeMap<u64, u32>,
}

impl<E: Engine + ?Sized> Chain<E> {
    pub fn new(stages: Vec<Box<E>>) -> Self {
        Self::sized(stages, &SHAPES)
    }

    pub fn sized(mut stages: Vec<Box<E>>, shapes: &Shapes) -> Self {
        for stage in &mut stages {
            stage.prepare(shapes).unwrap();
        }
        for rank in 1..stages.len() {
            if let Some(offer) = stages[rank].berths(BERTHS).unwrap() {
                stages[rank - 1].reach(&offer).unwrap();
            }
        }
        let (books, kept) = (BTreeMap::new(), BTreeMap::new());
        let (cuts, boundaries) = (Vec::new(), Vec::new());
        Self { stages, cuts, number: Round(0), boundaries, books, kept }
    }

    /// Runs a round; the rows of the last stage, in the order of `says` (ascending ids).
    pub fn round(&mut self, says: &[Say<'_>]) -> Result<Vec<f32>, StageError> {
        self.saving(says, &[])
    }

    /// Runs a round that keeps streams, each `(key, id)` at its position before the round's rows.
    pub fn saving(
        &mut self,
        says: &[Say<'_>],
        saves: &[(u64, u32)],
    ) -> Result<Vec<f32>, StageError> {
        let entries = says.iter().map(|say| self.word(say)).collect();
        let tokens: Vec<u32> = says.iter().flat_map(|say| say.tokens).copied().collect();
        let keeps = saves.iter().map(|&(key, id)| {
            let position = self.books[&id].first;
            self.kept.insert(key, position);
            keep(key, KeepOp::Save, id, position)
        });
        let keeps = keeps.collect();
        self.step(entries, keeps, &tokens)
    }

    /// Runs a tree window of an open stream, `accepted` as in the plan.
    pub fn tree(
        &mut self,
        id: u32,
        accepted: u32,
        tokens: &[u32],
        parents: &[u16],
    ) -> Result<Vec<f32>, StageError> {
        let entry = self.word(&say(id, accepted, tokens));
        self.books.get_mut(&id).unwrap().parents = parents.to_vec();
        self.run(vec![Entry { parents: Some(parents.to_vec()), ..entry }], tokens)
    }

    /// Opens a stream at a keep.
    pub fn resume(&mut self, id: u32, key: u64, tokens: &[u32]) -> Result<Vec<f32>, StageError> {
        let (first, rows) = (self.kept[&key], tokens.len() as u32);
        self.books.insert(id, Book { first, rows, generation: 1, ..Book::default() });
        let entry = Entry { resume: first, ..entry(id, Op::Resume, first, rows, 0, 0) };
        self.step(vec![entry], vec![keep(key, KeepOp::Restore, id, first)], tokens)
    }

    pub fn drop_keep(&mut self, key: u64) -> Result<(), StageError> {
        self.kept.remove(&key);
        self.step(Vec::new(), vec![keep(key, KeepOp::Drop, 0, 0)], &[]).map(drop)
    }

    pub fn close(&mut self, id: u32, op: Op) -> Result<(), StageError> {
        let book = self.books.remove(&id).unwrap();
        self.run(vec![entry(id, op, 0, 0, 0, book.generation)], &[]).map(drop)
    }

    pub fn run(&mut self, entries: Vec<Entry>, tokens: &[u32]) -> Result<Vec<f32>, StageError> {
        self.step(entries, Vec::new(), tokens)
    }

    fn step(
        &mut self,
        entries: Vec<Entry>,
        keeps: Vec<Keep>,
        tokens: &[u32],
    ) -> Result<Vec<f32>, StageError> {
        let plan = Plan { entries, keeps, cuts: self.cuts.clone(), ..Plan::default() };
        // Rows may come to lie where others lay.
        let [mut rows, mut next] = [(); 2].map(|()| vec![f32::NAN; 9]);
        let mut berth = None;
        self.boundaries.clear();
        self.number = Round(self.number.0 + 1);
        for (rank, stage) in self.stages.iter_mut().enumerate() {
            let input = match berth {
                _ if rank == 0 => Input::Tokens(tokens),
                Some(berth) => Input::Berth(berth),
                None => Input::Rows(&rows),
            };
            berth = stage.step_on(self.number, &plan, input, &mut next)?;
            std::mem::swap(&mut rows, &mut next);
            self.boundaries.push(rows.clone());
        }
        self.boundaries.pop();
        Ok(rows)
    }

    fn word(&mut self, say: &Say<'_>) -> Entry {
        let rows = say.tokens.len() as u32;
        let Some(book) = self.books.get_mut(&say.id) else {
            let generation = u32::from(rows > 0);
            self.books.insert(say.id, Book { rows, generation, ..Book::default() });
            return entry(say.id, Op::Open, 0, rows, 0, 0);
        };
        let first = book.first + book.depth(say.accepted);
        let generation = book.generation;
        let changes = u32::from(rows > 0 || book.rows > 0);
        *book = Book { first, rows, generation: generation + changes, parents: Vec::new() };
        entry(say.id, Op::Continue, first, rows, say.accepted, generation)
    }

    /// The rows of one stream alone, fed in chunks of at most `chunk` tokens, all accepted.
    pub fn feed(&mut self, id: u32, tokens: &[u32], chunk: usize) -> Vec<f32> {
        let mut rows = Vec::new();
        let mut last = 0;
        for tokens in tokens.chunks(chunk) {
            rows.extend(self.round(&[say(id, last, tokens)]).unwrap());
            last = tokens.len() as u32;
        }
        rows
    }

    pub fn logits(&mut self, rows: &[f32]) -> Vec<f32> {
        let mut logits = Vec::new();
        self.stages[0].logits(rows, &mut logits).unwrap();
        logits
    }

    /// The `count` best candidates of each row, where no more of its logits are asked for.
    pub fn best(&mut self, rows: &[f32], count: u32) -> Vec<(u32, u32)> {
        let mut logits = Vec::new();
        let best = vec![count; rows.len() / self.hidden()];
        self.stages[0].best_logits(rows, &best, &mut logits).unwrap();
        read(&logits).iter().map(|[id, x]| (id.to_bits(), x.to_bits())).collect()
    }

    pub fn hidden(&self) -> usize {
        self.stages[0].hidden()
    }
}

fn keep(key: u64, op: KeepOp, id: u32, position: u32) -> Keep {
    Keep { key, stream: StreamId(id), position, op, held: true }
}

pub fn entry(id: u32, op: Op, first: u32, rows: u32, accepted: u32, generation: u32) -> Entry {
    Entry {
        id: StreamId(id),
        op,
        want: Want::Last,
        first,
        rows,
        accepted,
        resume: 0,
        generation: Generation(generation),
        parents: None,
        tokens: None,
    }
}

/// `count` tokens below 64, from a seed.
pub fn tokens(seed: u32, count: usize) -> Vec<u32> {
    let step = |x: &mut u32| {
        *x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Some(*x >> 26)
    };
    std::iter::repeat_n((), count).scan(seed, |x, ()| step(x)).collect()
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Compares by bits; a difference is told by its place, not by a dump.
#[track_caller]
pub fn same(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
    if let Some(at) = found.iter().zip(expected).position(differs) {
        panic!("{what}: value {at}: {} is not {}", found[at], expected[at]);
    }
}
