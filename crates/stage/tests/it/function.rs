//! One function of a recurrent family, whatever the layout, the chunk, the company, the threads, the
//! instruction set, the rollbacks and the keeps.

use std::sync::Arc;

use backend::scalar::Scalar;
use baton_stage::{Engine, Stage};
use cpu::{Cpu, Isa};
use wire::plan::Op;

use crate::chain::{Chain, LAYERS, config, hybrid, same, say, tokens};

/// One way to run a text.
#[derive(Clone, Debug)]
struct Way {
    cuts: &'static [u32],
    chunk: usize,
    threads: usize,
    isa: Isa,
    /// Other streams in every round.
    company: u32,
}

/// Together, each pair of values of two columns, or nearly; [`LAYERS`] layers have four layouts.
const WAYS: [Way; 9] = [
    Way { cuts: &[], chunk: 513, threads: 1, isa: Isa::Auto, company: 0 },
    Way { cuts: &[1], chunk: 64, threads: 2, isa: Isa::Auto, company: 3 },
    Way { cuts: &[2], chunk: 7, threads: 4, isa: Isa::Auto, company: 0 },
    Way { cuts: &[1, 2], chunk: 1, threads: 1, isa: Isa::Auto, company: 0 },
    Way { cuts: &[1, 2], chunk: 513, threads: 4, isa: Isa::Auto, company: 0 },
    Way { cuts: &[2], chunk: 64, threads: 1, isa: Isa::Scalar, company: 0 },
    Way { cuts: &[1], chunk: 7, threads: 2, isa: Isa::Scalar, company: 3 },
    Way { cuts: &[], chunk: 1, threads: 4, isa: Isa::Scalar, company: 0 },
    Way { cuts: &[], chunk: 7, threads: 4, isa: Isa::Auto, company: 3 },
];

impl Way {
    fn chain(&self) -> Chain {
        let cpu = Arc::new(Cpu::new(self.threads, self.isa).unwrap());
        chain(&cpu, self.cuts)
    }

    /// The rows of the text at stream 2; the company's streams are 1, 3 and 4.
    fn rows(&self, text: &[u32]) -> Vec<f32> {
        let (mut chain, mut rows, mut last) = (self.chain(), Vec::new(), 0);
        let (width, beside) = (chain.hidden(), tokens(41, 4));
        for (index, chunk) in text.chunks(self.chunk).enumerate() {
            let own = say(2, last, chunk);
            let before = u32::from(index > 0) * 4;
            let mut says = vec![own];
            says.extend(
                [1, 3, 4]
                    .map(|id| say(id, before, &beside))
                    .into_iter()
                    .take(self.company as usize),
            );
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
    let ends: Vec<u32> = [0].iter().chain(cuts).chain(&[LAYERS]).copied().collect();
    let stage = |pair: &[u32]| -> Box<dyn Engine> {
        Box::new(Stage::open(backend.clone(), hybrid(), config(pair[0]..pair[1])).unwrap())
    };
    Chain::new(ends.windows(2).map(stage).collect())
}

/// The reference's rows, in one stage and chunks of 64.
fn reference(text: &[u32]) -> Vec<f32> {
    chain(&Arc::new(Scalar::new()), &[]).feed(1, text, 64)
}

#[test]
fn every_way_to_run_a_text_gives_the_reference_bytes() {
    let text = tokens(42, 150);
    let expected = reference(&text);
    for way in WAYS {
        // Its company would outgrow the context.
        same(&way.rows(&text), &expected, &format!("{way:?}"));
    }
}

#[test]
fn a_chunk_of_513_in_two_pieces_equals_chunks_of_64() {
    let text = tokens(43, 530);
    let rows = |way: usize| WAYS[way].chain().feed(1, &text, WAYS[way].chunk);
    same(&rows(4), &rows(1), "513 rows at once");
}

#[test]
fn windows_of_five_rows_settle_to_any_count() {
    let text = tokens(44, 120);
    let expected = reference(&text);
    for (way, all) in [(1, &[0, 1, 2, 3, 4, 5][..]), (3, &[0, 5]), (6, &[3, 0, 0, 5, 1])] {
        let mut chain = WAYS[way].chain();
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
    let mut chain = WAYS[3].chain();
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
    let cpu = Arc::new(Cpu::new(1, Isa::Auto).unwrap());
    let mut stages = [0..1, 1..2, 2..3]
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
    let fresh = reference(&[&text[..], &text[..9]].concat());
    same(&rows, &fresh[70 * chain.hidden()..], "the one that had room");
    let table = chain.stages[0].table();
    assert!(chain.stages.iter().all(|stage| stage.table() == table));
}
