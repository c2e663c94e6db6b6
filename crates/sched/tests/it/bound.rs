//! A grammar cuts what was drafted.

use std::sync::Arc;

use arith::candidates::pack_rows;
use sched::sample::{Grammar, Guide, Mask, Verdict};
use sched::{
    Drafter, Drafting, Drafts, Event, Limits, Opening, Outlook, Proposal, RequestId, Scheduler,
};

use crate::chosen::request;

/// The token that the model always likes best, and the one that the grammar wants in the end.
const LIKED: u32 = 1;
const WANTED: u32 = 3;
const VOCAB: usize = 4;

/// Allows a reply five times [`LIKED`], then [`WANTED`], then nothing.
#[derive(Clone, Debug, Default)]
struct FiveTimes(u32);

impl Grammar for FiveTimes {
    fn start(&self) -> Box<dyn Mask> {
        Box::new(Self::default())
    }
}

impl Mask for FiveTimes {
    fn cut(&mut self, logits: &mut [f32]) -> Verdict {
        let allowed = match self.0 {
            0..5 => LIKED,
            5 => WANTED,
            _ => return Verdict::Over,
        };
        for (id, logit) in logits.iter_mut().enumerate() {
            if id != allowed as usize {
                *logit = f32::NEG_INFINITY;
            }
        }
        Verdict::Cut
    }

    fn push(&mut self, _: u32) {
        self.0 += 1;
    }
}

/// Guesses three times [`LIKED`], whatever the grammar.
#[derive(Debug)]
struct Blind;

impl Drafter for Blind {
    fn propose(&mut self, outlook: &Outlook<'_>) -> Proposal {
        Proposal::Drafts(Drafts::chain(vec![LIKED; outlook.most.min(3) as usize]))
    }

    fn hear(&mut self, _: u32, _: u32) {}
}

impl Drafting for Blind {
    fn open(&self, _: &Opening<'_>) -> Vec<Box<dyn Drafter>> {
        vec![Box::new(Self)]
    }
}

/// The tokens of a bound reply, its rounds, and how many drafts it had and kept.
fn reply(drafts: bool) -> (Vec<u32>, u64, (u32, u32)) {
    let mut sched = Scheduler::new(Limits {
        streams_max: 1,
        queue_max: 1,
        chunk_rows_max: 8,
        round_rows_max: 16,
        context_max: 200,
        pages: 16,
        depth: 1,
    });
    if drafts {
        sched.set_drafting(Box::new(Blind));
    }
    let mut asked = request(0, 3, 50);
    asked.guide = Guide { grammar: Some(Arc::new(FiveTimes::default())), ..Guide::default() };
    sched.submit(RequestId(1), asked).unwrap();
    let (mut tokens, mut rounds, mut counts) = (Vec::new(), 0, None);
    while let Some(round) = sched.next_round() {
        rounds += 1;
        let heads: u32 = round.wanted.iter().map(|wanted| wanted.heads).sum();
        let logits = [0.0, 2.0, 1.0, 0.0].repeat(heads as usize);
        for (_, event) in sched.complete(round.number, &pack_rows(&logits, &round.best()), VOCAB) {
            match event {
                Event::Token { id, .. } => tokens.push(id),
                Event::Done { drafted, accepted, .. } => counts = Some((drafted, accepted)),
                other => panic!("{other:?}"),
            }
        }
    }
    (tokens, rounds, counts.unwrap())
}

#[test]
fn drafts_go_as_far_as_the_grammar_lets_them_and_move_no_token() {
    let (plain, rounds, none) = reply(false);
    assert_eq!((&plain[..], none), (&[1, 1, 1, 1, 1, 3][..], (0, 0)));
    let (drafted, fewer, (guessed, kept)) = reply(true);
    assert_eq!(drafted, plain);
    assert!(fewer < rounds, "{fewer} of {rounds} rounds");
    // The first window's three are right, and the fifth is drawn behind them. The next window's
    // are what the model likes, and cut.
    assert!(kept == 3 && guessed >= 6, "{kept} of {guessed}");
}
