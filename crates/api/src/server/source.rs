//! Running replies, step by step. Dropping them frees their streams on every stage.

use std::task::{Context, Poll};
use std::time::Instant;

use ring::head::Reply;
use sched::sample::Logprobs;
use sched::{Event, Finish};
use tokio::sync::watch;

use super::{Work, closed};
use crate::{ApiError, Ending, Meter, Part, Piece, Run, Transcript};

/// What happened to a reply.
#[derive(Debug)]
pub(super) enum Step {
    /// A token came; its text may still be held back.
    Piece(Piece),
    /// The last text, and why it is the last.
    End(Piece, Ending),
    /// The reply can't be completed.
    Failed(ApiError),
}

/// A prompt that comes first in its reply.
#[derive(Clone, Debug)]
pub(super) struct Echo {
    pub text: String,
    pub ids: Vec<u32>,
    /// The reply itself is not wanted.
    pub alone: bool,
}

pub(super) struct Source {
    reply: Reply,
    transcript: Transcript,
    meter: Meter,
    /// The end of a reply that is over before the ring knows: its last event is still to come.
    cut: Option<(Piece, Ending)>,
    echo: Option<Echo>,
    /// Of the echoed prompt, from its second token on.
    logprobs: Vec<Logprobs>,
}

impl Source {
    pub fn new(reply: Reply, transcript: Transcript, meter: Meter, echo: Option<Echo>) -> Self {
        Self { reply, transcript, meter, cut: None, echo, logprobs: Vec::new() }
    }

    /// The next step; none follows an end or a failure.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        loop {
            let Poll::Ready(event) = self.reply.poll_next(cx) else {
                return Poll::Pending;
            };
            if self.cut.is_some() && matches!(event, Some(Event::Token { .. })) {
                continue; // drawn meanwhile
            }
            if let Some((piece, ending)) = self.cut.take() {
                let run = self.run(event.as_ref());
                return Poll::Ready(self.after_echo(Step::End(piece, Ending { run, ..ending })));
            }
            let step = match event {
                Some(Event::PromptLogprobs { logprobs, .. }) => {
                    self.logprobs.extend(logprobs);
                    continue;
                }
                Some(Event::Token { id, logprobs }) => {
                    self.meter.token(id);
                    match self.transcript.token(id, logprobs) {
                        (piece, Some(ending)) => {
                            self.reply.cancel();
                            self.cut = Some((piece, ending));
                            continue;
                        }
                        (piece, None) => Step::Piece(piece),
                    }
                }
                Some(Event::Done { finish: Finish::Cancelled, .. }) => {
                    Step::Failed(ApiError::Internal("the reply was cancelled".into()))
                }
                Some(Event::Done { finish, .. }) => {
                    let (piece, ending) = self.transcript.finish(finish);
                    Step::End(piece, Ending { run: self.run(event.as_ref()), ..ending })
                }
                Some(Event::Failed(failure)) => Step::Failed(failure.into()),
                Some(_) => continue,
                None => Step::Failed(ApiError::RingFailed("rank 0 has stopped".into())),
            };
            return Poll::Ready(self.after_echo(step));
        }
    }

    /// What the reply took, with the counts of its last event.
    fn run(&self, last: Option<&Event>) -> Run {
        match last {
            Some(&Event::Done { cached, drafted, accepted, .. }) => {
                Run { cached_tokens: cached, drafted, accepted, ..self.meter.run() }
            }
            _ => self.meter.run(),
        }
    }

    /// Puts the echo before the reply's first piece.
    fn after_echo(&mut self, step: Step) -> Step {
        let Some(Echo { text, ids, alone }) = self.echo.take() else {
            return step;
        };
        let (mut piece, mut ending) = match step {
            Step::Piece(piece) => (piece, None),
            Step::End(piece, ending) => (piece, Some(ending)),
            failed => return failed,
        };
        let logprobs = std::mem::take(&mut self.logprobs).into_iter();
        let mut whole = Piece { parts: vec![Part::Content(text)], ..Piece::default() };
        if logprobs.len() > 0 {
            let known = logprobs.map(|logprobs| Some(Box::new(logprobs)));
            whole.scored = ids.into_iter().zip(std::iter::once(None).chain(known)).collect();
        }
        if alone {
            piece = Piece::default();
            ending = Some(Ending {
                completion_tokens: 0,
                finish_reason: "length",
                reasoning_tokens: 0,
                by_string: false,
                run: Meter::new(Instant::now()).run(),
            });
        }
        whole.extend(piece);
        ending.map_or_else(|| Step::Piece(whole.clone()), |ending| Step::End(whole.clone(), ending))
    }
}

/// The replies to one request.
pub(super) struct Sources {
    /// By choice; none once it has ended.
    running: Vec<Option<Source>>,
    /// The choice that is asked first.
    turn: usize,
    closing: watch::Receiver<bool>,
    /// When each last spoke.
    spoke: Vec<Option<Instant>>,
    work: Work,
}

impl Sources {
    pub fn new(sources: Vec<Source>, mut work: Work) -> Self {
        let closing = work.shared.closing.subscribe();
        work.ended = sources.is_empty();
        let spoke = vec![None; sources.len()];
        let running = sources.into_iter().map(Some).collect();
        Self { running, turn: 0, closing, spoke, work }
    }

    /// The next step and whose it is; `None` after the last. A failure is the last.
    pub async fn step(&mut self) -> Option<(usize, Step)> {
        let limits = &self.work.shared.app.limits;
        let late = tokio::time::Instant::from_std(self.work.started) + limits.reply_timeout();
        let limit_ms = limits.reply_timeout_ms;
        let Self { running, turn, closing, .. } = self;
        if running.iter().all(Option::is_none) {
            return None;
        }
        let next = std::future::poll_fn(|cx| poll(running, turn, cx));
        let (choice, step) = tokio::select! {
            next = next => next,
            () = closed(closing) => (0, Step::Failed(ApiError::Draining)),
            () = tokio::time::sleep_until(late) => {
                (0, Step::Failed(ApiError::ReplyTimeout { limit_ms }))
            }
        };
        self.count(choice, &step);
        match step {
            Step::Piece(_) => {}
            Step::End(..) => self.running[choice] = None,
            Step::Failed(_) => self.running.clear(),
        }
        self.work.ended = self.running.iter().all(Option::is_none);
        Some((choice, step))
    }

    fn count(&mut self, choice: usize, step: &Step) {
        let Work { shared, owner, started, .. } = &self.work;
        match step {
            Step::Piece(_) => {
                let now = Instant::now();
                match self.spoke[choice].replace(now) {
                    None => shared.metrics.first(owner, now - *started),
                    Some(last) => shared.metrics.next(owner, now - last),
                }
            }
            Step::End(_, ending) => {
                let took = started.elapsed();
                shared.metrics.finished(owner, ending.finish_reason, took, &ending.run);
            }
            Step::Failed(_) => {}
        }
    }
}

/// Asks each reply in turn, beginning after the one that spoke last.
fn poll(
    running: &mut [Option<Source>],
    turn: &mut usize,
    cx: &mut Context<'_>,
) -> Poll<(usize, Step)> {
    let count = running.len();
    for n in 0..count {
        let choice = (*turn + n) % count;
        let Some(source) = &mut running[choice] else { continue };
        if let Poll::Ready(step) = source.poll(cx) {
            *turn = choice + 1;
            return Poll::Ready((choice, step));
        }
    }
    Poll::Pending
}
