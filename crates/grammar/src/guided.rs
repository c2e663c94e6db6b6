//! One reply's way through a grammar.

use std::fmt;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;
use sched::sample::{Grammar, Mask, Verdict};

use crate::worker::Workers;

/// A grammar before its first token.
pub(crate) struct Compiled {
    matcher: Mutex<Matcher>,
    workers: Arc<Workers>,
    ends: Vec<u32>,
}

impl Compiled {
    pub fn new(matcher: Mutex<Matcher>, workers: Arc<Workers>, ends: Vec<u32>) -> Self {
        Self { matcher, workers, ends }
    }
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiled").finish_non_exhaustive()
    }
}

impl Grammar for Compiled {
    fn start(&self) -> Box<dyn Mask> {
        let matcher = self.matcher.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        let mut guided =
            Guided { workers: self.workers.clone(), ends: self.ends.clone(), state: State::Lost };
        guided.send(Box::new(matcher), None);
        Box::new(guided)
    }
}

/// What the next token may be.
enum Next {
    Allowed(SimpleVob),
    Over,
    Failed(String),
}

enum State {
    Here(Box<Matcher>, Next),
    Away(Receiver<(Box<Matcher>, Next)>),
    Lost,
}

struct Guided {
    workers: Arc<Workers>,
    ends: Vec<u32>,
    state: State,
}

impl fmt::Debug for Guided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guided").finish_non_exhaustive()
    }
}

impl Guided {
    /// Has the mask after `token` computed.
    fn send(&mut self, mut matcher: Box<Matcher>, token: Option<u32>) {
        let work = move || {
            let next = step(&mut matcher, token);
            (matcher, next)
        };
        self.state = State::Away(self.workers.run(work));
    }

    /// Waits for what was sent; it has had a round's time, and has limits of its own.
    fn take(&mut self) -> Option<(Box<Matcher>, Next)> {
        match std::mem::replace(&mut self.state, State::Lost) {
            State::Here(matcher, next) => Some((matcher, next)),
            State::Away(result) => result.recv().ok(),
            State::Lost => None,
        }
    }
}

fn step(matcher: &mut Matcher, token: Option<u32>) -> Next {
    if let Some(token) = token
        && let Err(e) = matcher.consume_token(token)
    {
        return Next::Failed(e.to_string());
    }
    if let Some(reason) = matcher.get_error() {
        return Next::Failed(reason);
    }
    if matcher.is_stopped() {
        return match matcher.stop_reason().is_ok() {
            true => Next::Over,
            false => Next::Failed(format!("{:?}", matcher.stop_reason())),
        };
    }
    match matcher.compute_mask() {
        Ok(mask) => Next::Allowed(mask),
        // What may follow can turn out to be nothing.
        Err(_) if matcher.is_stopped() && !matcher.is_error() => Next::Over,
        Err(e) => Next::Failed(e.to_string()),
    }
}

impl Mask for Guided {
    fn cut(&mut self, logits: &mut [f32]) -> Verdict {
        let Some((matcher, next)) = self.take() else {
            return Verdict::Failed("its state was lost".into());
        };
        let verdict = match &next {
            Next::Allowed(mask) => cut(logits, mask, &self.ends),
            Next::Over => Verdict::Over,
            Next::Failed(reason) => Verdict::Failed(reason.clone()),
        };
        self.state = State::Here(matcher, next);
        verdict
    }

    fn push(&mut self, id: u32) {
        if let Some((matcher, _)) = self.take() {
            self.send(matcher, Some(id));
        }
    }
}

/// Cuts what the mask does not allow; over where only an end is left.
fn cut(logits: &mut [f32], mask: &SimpleVob, ends: &[u32]) -> Verdict {
    for (word, logits) in mask.as_slice().iter().zip(logits.chunks_mut(32)) {
        if *word == u32::MAX {
            continue;
        }
        for (bit, x) in logits.iter_mut().enumerate() {
            if word >> bit & 1 == 0 {
                *x = f32::NEG_INFINITY;
            }
        }
    }
    let known = (mask.as_slice().len() * 32).min(logits.len());
    logits[known..].fill(f32::NEG_INFINITY);
    let end = |id: u32| ends.contains(&id);
    if mask.iter().all(|id| end(id) || id as usize >= logits.len()) {
        return if mask.iter().any(end) {
            Verdict::Over
        } else {
            Verdict::Failed("it allows no token".into())
        };
    }
    Verdict::Cut
}
