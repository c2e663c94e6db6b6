//! One function of a recurrent family, whatever the layout, the chunk, the company, the threads,
//! the instruction set, the rollbacks and the keeps.

use std::sync::{Arc, OnceLock};

use arith::base::Arith;
use arith::sample::mix;
use backend::scalar::Scalar;
use baton_stage::{Engine, Shapes, Stage};
use cpu::{Cpu, Isa};
use weights::{Checkpoint, synthetic};
use wire::plan::Op;

use crate::chain::{Chain, Kind, LAYERS, SHAPES, config, hybrid, made, same, say, tokens};

/// Layers of [`deep`]: every fourth is one of attention.
const DEPTH: u32 = 8;

fn deep() -> &'static Checkpoint {
    static DEEP: OnceLock<Checkpoint> = OnceLock::new();
    let spec = synthetic::Qwen35 { layers: DEPTH, ..synthetic::Qwen35::default() };
    DEEP.get_or_init(|| made(|path| synthetic::qwen3_5(path, &spec)))
}

/// One way to run a text.
#[derive(Clone, Debug)]
struct Way {
    world: usize,
    chunk: usize,
    threads: usize,
    isa: Isa,
    /// Other streams in every round: none or three.
    company: usize,
}

/// Each pair of values of two columns together, or nearly.
const WAYS: [Way; 9] = [
    Way { world: 1, chunk: 513, threads: 1, isa: Isa::Auto, company: 0 },
    Way { world: 2, chunk: 64, threads: 2, isa: Isa::Auto, company: 3 },
    Way { world: 3, chunk: 7, threads: 4, isa: Isa::Auto, company: 0 },
    Way { world: 4, chunk: 1, threads: 1, isa: Isa::Auto, company: 0 },
    Way { world: 4, chunk: 513, threads: 4, isa: Isa::Auto, company: 3 },
    Way { world: 3, chunk: 64, threads: 1, isa: Isa::Scalar, company: 0 },
    Way { world: 2, chunk: 7, threads: 2, isa: Isa::Scalar, company: 3 },
    Way { world: 1, chunk: 1, threads: 4, isa: Isa::Scalar, company: 0 },
    Way { world: 1, chunk: 7, threads: 4, isa: Isa::Auto, company: 3 },
];

impl Way {
    /// A chain over [`deep`] with cuts that a seed draws.
    fn chain(&self, seed: u64) -> Chain {
        let mut cuts: Vec<u32> = (1..DEPTH).collect();
        cuts.sort_by_key(|cut| mix(seed ^ u64::from(*cut) << 32));
        cuts.truncate(self.world - 1);
        cuts.sort_unstable();
        println!("{self:?}, cuts {cuts:?}");
        let cpu = Arc::new(Cpu::new(self.threads, self.isa, Arith::One).unwrap());
        chain(&cpu, &cuts)
    }

    /// The rows of the text at stream 2; the company's streams are 1, 3 and 4.
    fn rows(&self, text: &[u32], seed: u64) -> Vec<f32> {
        let (mut chain, mut rows, mut last) = (self.chain(seed), Vec::new(), 0);
        let (width, beside) = (chain.hidden(), tokens(41, 4));
        for (index, chunk) in text.chunks(self.chunk).enumerate() {
            let before = u32::from(index > 0) * 4;
            let others = [1, 3, 4].map(|id| say(id, before, &beside));
            let mut says = vec![say(2, last, chunk)];
            says.extend(others.into_iter().take(self.company));
            says.sort_by_key(|say| say.id);
            let all = chain.round(&says).unwrap();
            let from = if self.company > 0 { beside.len() * width } else { 0 };
            rows.extend_from_slice(&all[from..from + chunk.len() * width]);
            last = chunk.len() as u32;
        }
        rows
    }
}

fn chain<B: backend::Backend>(backend: &Arc<B>, cuts: &[u32]) -> Chain {
    let ends: Vec<u32> = [0].iter().chain(cuts).chain(&[DEPTH]).copied().collect();
    let stage = |pair: &[u32]| -> Box<dyn Engine> {
        Box::new(Stage::open(backend.clone(), deep(), config(pair[0]..pair[1])).unwrap())
    };
    Chain::new(ends.windows(2).map(stage).collect())
}

/// The reference's rows, in one stage and chunks of 64.
fn reference(text: &[u32]) -> Vec<f32> {
    chain(&Arc::new(Scalar::default()), &[]).feed(1, text, 64)
}

#[test]
fn every_way_to_run_a_text_gives_the_reference_bytes() {
    let text = tokens(42, 150);
    let expected = reference(&text);
    for (seed, way) in (7..).zip(WAYS) {
        same(&way.rows(&text, seed), &expected, &format!("{way:?}, seed {seed}"));
    }
}

#[test]
fn a_chunk_of_513_in_two_pieces_equals_chunks_of_64() {
    let text = tokens(43, 530);
    let rows = |way: usize| WAYS[way].rows(&text, 3);
    same(&rows(4), &rows(1), "513 rows at once");
}

#[test]
fn windows_of_five_rows_settle_to_any_count() {
    let text = tokens(44, 120);
    let expected = reference(&text);
    for (way, all) in [(1, &[0, 1, 2, 3, 4, 5][..]), (3, &[0, 5]), (6, &[3, 0, 0, 5, 1])] {
        let mut chain = WAYS[way].chain(way as u64);
        let width = chain.hidden();
        let mut rows = chain.feed(1, &text[..60], 30);
        let (mut kept, mut last) = (60, 30);
        for &accepted in all.iter().cycle() {
            let Some(right) = text.get(kept..kept + 5) else { break };
            // What is not accepted was drafted wrong; the second stream's windows go otherwise.
            let mut drafts = right.to_vec();
            drafts[accepted..].iter_mut().for_each(|token| *token = 63 - *token);
            let other = if rows.len() == 60 * width { 0 } else { 2 };
            let all = chain.round(&[say(1, last, &drafts), say(2, other, &drafts)]).unwrap();
            rows.extend_from_slice(&all[..accepted * width]);
            (kept, last) = (kept + accepted, accepted as u32);
        }
        same(&rows, &expected[..kept * width], &format!("{:?} keeping {all:?}", WAYS[way]));
    }
}

#[test]
fn a_text_resumed_at_every_mark_goes_on_as_it_was() {
    const MARKS: [usize; 9] = [1, 2, 3, 4, 31, 63, 64, 65, 128];
    let text = tokens(45, 140);
    let expected = reference(&text);
    let mut chain = WAYS[3].chain(5);
    let width = chain.hidden();
    let mut last = 0;
    for (from, to) in [0].iter().chain(&MARKS).zip(MARKS.iter().chain(&[140])) {
        let saves: Vec<_> = (*from > 0).then_some((*from as u64, 1)).into_iter().collect();
        chain.saving(&[say(1, last, &text[*from..*to])], &saves).unwrap();
        last = (to - from) as u32;
    }
    for (id, mark) in (2..).zip(MARKS) {
        let rows = chain.resume(id, mark as u64, &text[mark..]).unwrap();
        same(&rows, &expected[mark * width..], &format!("resumed at {mark}"));
        chain.close(id, Op::Close).unwrap();
        chain.drop_keep(mark as u64).unwrap();
    }
}

#[test]
fn a_state_that_has_no_room_is_not_held_and_its_pages_are() {
    let cpu = Arc::new(Cpu::new(1, Isa::Auto, Arith::One).unwrap());
    let mut stages = [0..1, 1..2, 2..LAYERS]
        .map(|range| Box::new(Stage::open(cpu.clone(), hybrid(), config(range)).unwrap()));
    // One state of layer 2: 4 heads of 16 x 24, and 3 rows of 160 channels.
    stages[2].set_keep_bytes_max(4 * (4 * 16 * 24 + 3 * 160));
    let mut chain = Chain::new(stages.into());
    let text = tokens(46, 70);
    chain.feed(1, &text, 70);
    chain.saving(&[say(1, 70, &[])], &[(1, 1), (2, 1)]).unwrap();
    let held: Vec<_> = chain.stages.iter().map(|stage| stage.held().to_vec()).collect();
    assert_eq!(held, [[true, true], [true, true], [true, false]]);
    chain.drop_keep(2).unwrap();
    chain.close(1, Op::Close).unwrap();
    let rows = chain.resume(2, 1, &text[..9]).unwrap();
    let whole = [&text[..], &text[..9]].concat();
    let fresh = Kind::Hybrid.chain(&[]).feed(1, &whole, 79);
    same(&rows, &fresh[70 * chain.hidden()..], "the one that had room");
    let table = chain.stages[0].table();
    assert!(chain.stages.iter().all(|stage| stage.table() == table));
}

#[test]
fn a_window_over_the_edge_of_a_piece_rolls_back_too() {
    let (long, text) = (tokens(47, 509), tokens(48, 30));
    let expected = Kind::Hybrid.chain(&[]).feed(2, &text, 30);
    for accepted in [2, 4] {
        let mut chain = Kind::Hybrid.chain(&[]);
        let mut drafts = text[10..15].to_vec();
        drafts[accepted..].iter_mut().for_each(|token| *token = 63 - *token);
        chain.round(&[say(2, 0, &text[..10])]).unwrap();
        // Three rows of the window end the first piece of 512.
        chain.round(&[say(1, 0, &long), say(2, 10, &drafts)]).unwrap();
        let rows = chain.round(&[say(2, accepted as u32, &text[10 + accepted..])]).unwrap();
        let from = (10 + accepted) * chain.hidden();
        same(&rows, &expected[from..], &format!("{accepted} accepted"));
    }
}

#[test]
fn more_rows_run_once_more_than_a_round_has() {
    let shapes = Shapes { round_rows_max: 8, ..SHAPES };
    let mut chain = Kind::Hybrid.chain(&[1]);
    chain.stages.iter_mut().for_each(|stage| stage.prepare(&shapes).unwrap());
    let texts = [1, 2, 3, 4].map(|id| tokens(50 + id, 12));
    for (id, text) in (1..).zip(&texts) {
        chain.round(&[say(id, 0, &text[..8])]).unwrap();
    }
    let says: Vec<_> = (1..).zip(&texts).map(|(id, text)| say(id, 5, &text[5..7])).collect();
    let rows = chain.round(&says).unwrap();
    for (at, text) in texts.iter().enumerate() {
        let (from, width) = (5 * chain.hidden(), 2 * chain.hidden());
        let expected = Kind::Hybrid.chain(&[]).feed(1, &text[..7], 7);
        same(&rows[at * width..(at + 1) * width], &expected[from..], &format!("stream {at}"));
    }
}
