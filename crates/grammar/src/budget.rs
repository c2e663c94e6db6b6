//! An end to reasoning: after so many tokens it is closed, by tokens that the model has no say in.

use std::sync::Arc;

use sched::sample::{Grammar, Mask, Verdict};

/// Lets a reply reason for some tokens, then writes `close`; around what else it must follow.
#[derive(Clone, Debug)]
pub struct Budget {
    /// Most tokens before the close.
    pub tokens_max: u32,
    /// Tokens that open it; none where the prompt has.
    pub open: Vec<u32>,
    /// Tokens that close the reasoning.
    pub close: Vec<u32>,
    /// The tail of those that says that it is closed, wherever it is said.
    pub mark: Vec<u32>,
    /// What the whole reply must follow.
    pub grammar: Option<Arc<dyn Grammar>>,
}

impl Grammar for Budget {
    fn start(&self) -> Box<dyn Mask> {
        Box::new(Reasoning {
            budget: self.clone(),
            inner: self.grammar.as_ref().map(|grammar| grammar.start()),
            said: Vec::new(),
            tokens: 0,
            forced: 0,
            open: true,
            opened: 0,
        })
    }
}

#[derive(Debug)]
struct Reasoning {
    budget: Budget,
    inner: Option<Box<dyn Mask>>,
    /// The last tokens, as many as the mark has.
    said: Vec<u32>,
    tokens: u32,
    /// Of the close, how many are written.
    forced: usize,
    open: bool,
    /// Of the opening, how many were said.
    opened: usize,
}

impl Mask for Reasoning {
    fn cut(&mut self, logits: &mut [f32]) -> Verdict {
        let opened = self.opened == self.budget.open.len();
        if self.open
            && opened
            && self.tokens >= self.budget.tokens_max
            && let Some(&only) = self.budget.close.get(self.forced)
        {
            for (id, x) in (0u32..).zip(logits) {
                *x = if id == only { 0.0 } else { f32::NEG_INFINITY };
            }
            return Verdict::Cut;
        }
        self.inner.as_mut().map_or(Verdict::Cut, |inner| inner.cut(logits))
    }

    fn may_ride(&self) -> bool {
        self.inner.as_ref().is_none_or(|inner| inner.may_ride())
    }

    fn push(&mut self, id: u32) {
        if let Some(inner) = &mut self.inner {
            inner.push(id);
        }
        if !self.open {
            return;
        }
        if let Some(&expected) = self.budget.open.get(self.opened) {
            self.opened += 1;
            self.open = id == expected;
            return;
        }
        if self.tokens >= self.budget.tokens_max {
            self.forced += 1;
            self.open = self.forced < self.budget.close.len();
            return;
        }
        self.tokens += 1;
        self.said.push(id);
        let mark = &self.budget.mark;
        if self.said.len() > mark.len() {
            self.said.remove(0);
        }
        self.open = self.said != *mark;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(tokens_max: u32, open: &[u32], says: &[u32]) -> Vec<u32> {
        let open = open.to_vec();
        let budget =
            Budget { tokens_max, open, close: vec![7, 8, 9], mark: vec![8], grammar: None };
        let mut mask = budget.start();
        let mut said = Vec::new();
        for &wish in says {
            let mut logits = [0.0; 10];
            logits[wish as usize] = 1.0;
            assert_eq!(mask.cut(&mut logits), Verdict::Cut);
            let id = sched::sample::argmax(&logits);
            mask.push(id);
            said.push(id);
        }
        said
    }

    #[test]
    fn reasoning_is_closed_after_its_budget_and_what_follows_is_free() {
        assert_eq!(run(2, &[], &[1; 7]), [1, 1, 7, 8, 9, 1, 1]);
        assert_eq!(run(0, &[], &[1; 4]), [7, 8, 9, 1]);
    }

    #[test]
    fn only_reasoning_that_was_opened_is_closed() {
        assert_eq!(run(1, &[5], &[5, 1, 1, 1, 1, 1]), [5, 1, 7, 8, 9, 1]);
        assert_eq!(run(1, &[5], &[1; 6]), [1; 6]);
    }

    #[test]
    fn reasoning_that_ends_by_itself_is_left_alone() {
        assert_eq!(run(4, &[], &[1, 8, 2, 2, 2, 2, 2]), [1, 8, 2, 2, 2, 2, 2]);
    }
}
