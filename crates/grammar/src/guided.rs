//! One reply's way through a grammar.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;
use sched::sample::{Grammar, Mask, Verdict};

use crate::worker::Workers;

/// Longest wait of a round for a mask before its reply has to wait for masks by itself.
const WAIT_MAX: Duration = Duration::from_millis(2);
/// Masks of a slow grammar that its reply then waits for, before rounds are tried with again.
const PATIENCE: u32 = 32;

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
        let (workers, ends) = (self.workers.clone(), self.ends.clone());
        let mut guided = Guided { workers, ends, state: State::Lost, patience: 0 };
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
    Away(Receiver<(Box<Matcher>, Next)>, Arc<Progress>),
    Lost,
}

/// How far a mask is that is away.
#[derive(Default)]
struct Progress {
    done: AtomicBool,
    /// Somebody is to be told once it is.
    awaited: AtomicBool,
}

struct Guided {
    workers: Arc<Workers>,
    ends: Vec<u32>,
    state: State,
    /// Masks that it waits for outside of rounds, since one was slow.
    patience: u32,
}

impl fmt::Debug for Guided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guided").finish_non_exhaustive()
    }
}

impl Guided {
    /// Has the mask after `token` computed.
    fn send(&mut self, mut matcher: Box<Matcher>, token: Option<u32>) {
        let progress = Arc::new(Progress::default());
        let (seen, workers) = (progress.clone(), Arc::downgrade(&self.workers));
        let work = move || {
            let next = step(&mut matcher, token);
            (matcher, next)
        };
        let told = move || {
            if let Some(workers) = workers.upgrade() {
                finish(&seen, &workers);
            }
        };
        self.state = State::Away(self.workers.run(work, told), progress);
    }

    /// Waits for what was sent; it has had a round's time, and has limits of its own.
    fn take(&mut self) -> Option<(Box<Matcher>, Next)> {
        match std::mem::replace(&mut self.state, State::Lost) {
            State::Here(matcher, next) => Some((matcher, next)),
            State::Away(result, _) => match result.try_recv() {
                Err(TryRecvError::Empty) => {
                    let since = Instant::now();
                    let result = result.recv().ok();
                    let waited = since.elapsed();
                    self.workers.waited(waited);
                    if waited > WAIT_MAX && self.workers.can_wake() {
                        self.patience = PATIENCE;
                    }
                    result
                }
                result => result.ok(),
            },
            State::Lost => None,
        }
    }
}

/// A mask can be had; whoever waits for it is told.
fn finish(progress: &Progress, workers: &Workers) {
    progress.done.store(true, Ordering::SeqCst);
    if progress.awaited.load(Ordering::SeqCst) {
        workers.ready();
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
            Next::Allowed(mask) => {
                let since = Instant::now();
                let verdict = cut(logits, mask, &self.ends);
                self.workers.cut(since.elapsed());
                verdict
            }
            Next::Over => Verdict::Over,
            Next::Failed(reason) => Verdict::Failed(reason.clone()),
        };
        self.state = State::Here(matcher, next);
        verdict
    }

    fn push(&mut self, id: u32) {
        self.patience = self.patience.saturating_sub(1);
        if let Some((matcher, _)) = self.take() {
            self.send(matcher, Some(id));
        }
    }

    fn may_ride(&self) -> bool {
        let State::Away(_, progress) = &self.state else { return true };
        if self.patience == 0 || progress.done.load(Ordering::SeqCst) {
            return true;
        }
        // Whichever comes first, the end of the work or this, is seen by the other.
        progress.awaited.store(true, Ordering::SeqCst);
        progress.done.load(Ordering::SeqCst)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::sync::mpsc::channel;

    use serde_json::json;
    use text::Text;

    use super::*;
    use crate::worker::Wake;
    use crate::{Body, Form, Grammars};

    /// A mask that is away until something is sent.
    fn held(
        workers: &Arc<Workers>,
        progress: &Arc<Progress>,
    ) -> (State, std::sync::mpsc::Sender<()>) {
        let (go, held) = channel::<()>();
        let (seen, told) = (progress.clone(), workers.clone());
        let body = Body::Json(json!({"type": "boolean"}));
        let grammars = Grammars::new(&Text::byte_level()).unwrap();
        let matcher = grammars.matcher(&Form { open: None, after: None, body }).unwrap();
        let work = move || {
            held.recv().unwrap();
            let mut matcher = Box::new(matcher);
            let next = step(&mut matcher, None);
            (matcher, next)
        };
        let result = workers.run(work, move || finish(&seen, &told));
        (State::Away(result, progress.clone()), go)
    }

    #[test]
    fn a_mask_that_made_a_round_wait_has_its_reply_wait_and_wakes_the_scheduler() {
        let workers = Arc::new(Workers::start().unwrap());
        let (woken, wakes) = channel();
        workers.wake_through(Wake(Arc::new(move || woken.send(()).unwrap())));
        let progress = Arc::new(Progress::default());
        let (state, go) = held(&workers, &progress);
        let mut guided = Guided { workers: workers.clone(), ends: vec![256], state, patience: 0 };
        assert!(guided.may_ride(), "nothing was slow so far");
        std::thread::spawn(move || {
            std::thread::sleep(WAIT_MAX * 20);
            go.send(()).unwrap();
        });
        assert_eq!(guided.cut(&mut [0.0; 257]), Verdict::Cut);
        assert!(workers.cost().waited > WAIT_MAX);
        assert_eq!(guided.patience, PATIENCE);

        let progress = Arc::new(Progress::default());
        let (state, go) = held(&workers, &progress);
        guided.state = state;
        assert!(!guided.may_ride(), "its mask is not ready");
        assert!(wakes.try_recv().is_err());
        go.send(()).unwrap();
        wakes.recv().unwrap();
        assert!(guided.may_ride());
        let waited = workers.cost().waited;
        assert_eq!(guided.cut(&mut [0.0; 257]), Verdict::Cut);
        assert_eq!(workers.cost().waited, waited, "no round waits for it");
    }
}
