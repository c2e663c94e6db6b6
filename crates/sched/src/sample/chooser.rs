//! One reply's draws: penalties, bias and grammar over the logits, then the keyed draw.

use std::collections::BTreeMap;
use std::sync::Arc;

use arith::candidates;
use arith::sample::{Penalties, shifted};

use super::mask::{Grammar, Mask, Verdict};
use super::{Sampling, argmax, deciding, draw, draw_among, logprobs, top_logprobs};

/// What a request asks of its draws beyond [`Sampling`]; the default asks for nothing.
#[derive(Clone, Debug)]
pub struct Guide {
    /// What a token's past does to it.
    pub penalties: Penalties,
    /// Added to the logits of single tokens, each within the vocabulary.
    pub bias: BTreeMap<u32, f64>,
    /// What the reply must follow.
    pub grammar: Option<Arc<dyn Grammar>>,
    /// Log probabilities with every token, and of how many of the best.
    pub logprobs: Option<u32>,
    /// The same of the prompt's tokens but the first, as [`crate::Event::PromptLogprobs`].
    pub prompt_logprobs: Option<u32>,
}

impl Default for Guide {
    fn default() -> Self {
        Self {
            penalties: Penalties::NONE,
            bias: BTreeMap::new(),
            grammar: None,
            logprobs: None,
            prompt_logprobs: None,
        }
    }
}

/// A token's log probability under the model alone, and those of the best tokens there.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// The token's own.
    pub own: f32,
    /// The best, best first: id and value.
    pub top: Vec<(u32, f32)>,
}

impl Logprobs {
    /// Of token `id` in a row, beside the `count` best.
    pub fn of(row: &[f32], id: u32, count: u32) -> Self {
        let top = match count {
            0 => Vec::new(),
            count => top_logprobs(row, count as usize),
        };
        let known = top.iter().find(|(best, _)| *best == id);
        let own = known.map_or_else(|| logprobs(row, &[id])[0], |(_, value)| *value);
        Self { own, top }
    }
}

/// What came of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Chosen {
    /// The next token.
    Token(u32, Option<Box<Logprobs>>),
    /// The grammar says that the reply is complete.
    Over,
    /// The grammar can't be followed.
    Failed(String),
}

/// A reply's draws so far.
#[derive(Debug)]
pub(crate) struct Chooser {
    sampling: Sampling,
    guide: Guide,
    /// How often the reply holds each token; 0 for one that only the prompt holds.
    past: BTreeMap<u32, u32>,
    mask: Option<Box<dyn Mask>>,
    /// The row as it is drawn from, where it differs from the model's.
    row: Vec<f32>,
}

impl Chooser {
    /// Before the first token after `prompt`.
    pub fn new(sampling: Sampling, guide: Guide, prompt: &[u32]) -> Self {
        let mut past = BTreeMap::new();
        if guide.penalties.repetition != Penalties::NONE.repetition {
            past.extend(prompt.iter().map(|&id| (id, 0)));
        }
        let mask = guide.grammar.as_ref().map(|grammar| grammar.start());
        Self { sampling, guide, past, mask, row: Vec::new() }
    }

    /// What is asked for.
    pub fn guide(&self) -> &Guide {
        &self.guide
    }

    /// Draws the token at `position` from the model's logits.
    pub fn draw(&mut self, logits: &[f32], position: u32) -> Chosen {
        let plain = self.guide.penalties == Penalties::NONE && self.guide.bias.is_empty();
        let id = if plain && self.mask.is_none() {
            draw(logits, &self.sampling, position)
        } else {
            self.row.clear();
            self.row.extend_from_slice(logits);
            self.shift();
            match self.mask.as_mut().map_or(Verdict::Cut, |mask| mask.cut(&mut self.row)) {
                Verdict::Over => return Chosen::Over,
                Verdict::Failed(reason) => return Chosen::Failed(reason),
                Verdict::Cut => {}
            }
            if self.row[argmax(&self.row) as usize] == f32::NEG_INFINITY {
                return Chosen::Failed("the grammar allows no token".into());
            }
            draw(&self.row, &self.sampling, position)
        };
        let count = self.guide.logprobs;
        Chosen::Token(id, count.map(|count| Box::new(Logprobs::of(logits, id, count))))
    }

    /// The same from the best candidates of a row, as many as decide.
    pub fn draw_among(&self, best: &[[f32; candidates::VALUES]], position: u32) -> Chosen {
        assert!(self.deciding() > 0, "a draw that needs the whole row");
        Chosen::Token(draw_among(best, &self.sampling, position), None)
    }

    /// How many of a row's best logits decide the next token; 0 where other logits are needed too.
    pub fn deciding(&self) -> u32 {
        let Guide { penalties, bias, grammar: _, logprobs, prompt_logprobs: _ } = &self.guide;
        let is_plain = *penalties == Penalties::NONE && bias.is_empty();
        match is_plain && self.mask.is_none() && logprobs.is_none() {
            true => deciding(&self.sampling),
            false => 0,
        }
    }

    /// Whether its grammar lets the reply ride in the next round.
    pub fn may_ride(&self) -> bool {
        self.mask.as_ref().is_none_or(|mask| mask.may_ride())
    }

    /// Takes the token that was drawn into the reply.
    pub fn push(&mut self, id: u32) {
        if self.guide.penalties != Penalties::NONE {
            *self.past.entry(id).or_default() += 1;
        }
        if let Some(mask) = &mut self.mask {
            mask.push(id);
        }
    }

    fn shift(&mut self) {
        let Guide { penalties, bias, .. } = &self.guide;
        for (&id, &count) in &self.past {
            let bias = bias.get(&id).copied().unwrap_or(0.0);
            if let Some(x) = self.row.get_mut(id as usize) {
                *x = shifted(*x, true, count, penalties, bias);
            }
        }
        for (&id, &bias) in bias.iter().filter(|(id, _)| !self.past.contains_key(id)) {
            if let Some(x) = self.row.get_mut(id as usize) {
                *x = shifted(*x, false, 0, penalties, bias);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREEDY: Sampling =
        Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 7 };

    fn chooser(guide: Guide, prompt: &[u32]) -> Chooser {
        Chooser::new(GREEDY, guide, prompt)
    }

    fn id(chosen: &Chosen) -> u32 {
        match chosen {
            Chosen::Token(id, _) => *id,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn frequency_counts_and_presence_does_not_and_the_prompt_is_neither() {
        let of = |frequency, presence| Guide {
            penalties: Penalties { frequency, presence, ..Penalties::NONE },
            ..Guide::default()
        };
        let logits = [3.0, 2.0, 0.0];
        let mut frequency = chooser(of(0.4, 0.0), &[0, 0, 0]);
        let mut presence = chooser(of(0.0, 0.4), &[0, 0, 0]);
        let run = |chooser: &mut Chooser| -> Vec<u32> {
            let one = |position| {
                let drawn = id(&chooser.draw(&logits, position));
                chooser.push(drawn);
                drawn
            };
            (0..5).map(one).collect()
        };
        assert_eq!(run(&mut frequency), [0, 0, 0, 1, 0]);
        assert_eq!(run(&mut presence), [0; 5]);
    }

    #[test]
    fn repetition_counts_the_prompt_and_turns_with_the_sign() {
        let penalties = Penalties { repetition: 2.0, ..Penalties::NONE };
        let guide = Guide { penalties, ..Guide::default() };
        assert_eq!(id(&chooser(guide.clone(), &[0]).draw(&[3.0, 2.0], 1)), 1);
        assert_eq!(id(&chooser(guide.clone(), &[0]).draw(&[-1.0, -1.5], 1)), 1);
        assert_eq!(id(&chooser(guide, &[1]).draw(&[3.0, 2.0], 1)), 0);
    }

    #[test]
    fn a_bias_moves_its_token_and_ids_past_the_vocabulary_move_nothing() {
        let bias = [(1, 5.0), (9, 100.0)].into();
        let guide = Guide { bias, logprobs: Some(2), ..Guide::default() };
        let chosen = chooser(guide, &[0]).draw(&[3.0, 2.0], 1);
        let Chosen::Token(1, Some(logprobs)) = chosen else { panic!("{chosen:?}") };
        // Of the model, not of the shifted row.
        assert_eq!(logprobs.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(logprobs.own, arith::sample::logprob(&[3.0, 2.0], 1));
    }

    /// Allows one id, twice.
    #[derive(Debug)]
    struct Only(u32, u32);

    impl Grammar for Only {
        fn start(&self) -> Box<dyn Mask> {
            Box::new(Only(self.0, self.1))
        }
    }

    impl Mask for Only {
        fn cut(&mut self, logits: &mut [f32]) -> Verdict {
            if self.1 == 0 {
                return Verdict::Over;
            }
            for (id, x) in (0..).zip(logits) {
                *x = if id == self.0 { *x } else { f32::NEG_INFINITY };
            }
            Verdict::Cut
        }
        fn push(&mut self, _: u32) {
            self.1 -= 1;
        }
    }

    #[test]
    fn a_grammar_cuts_greedy_and_sampled_draws_and_ends_the_reply() {
        for temperature in [0.0, 1.5] {
            let sampling = Sampling { temperature, ..GREEDY };
            let guide = Guide { grammar: Some(Arc::new(Only(2, 2))), ..Guide::default() };
            let mut chooser = Chooser::new(sampling, guide, &[0]);
            for position in 1..3 {
                assert_eq!(id(&chooser.draw(&[9.0, 5.0, -3.0], position)), 2);
                chooser.push(2);
            }
            assert_eq!(chooser.draw(&[9.0, 5.0, -3.0], 3), Chosen::Over);
        }
        let guide = Guide { grammar: Some(Arc::new(Only(7, 1))), ..Guide::default() };
        assert!(matches!(chooser(guide, &[0]).draw(&[1.0, 2.0], 1), Chosen::Failed(_)));
    }
}
