//! A running reply, step by step. Dropping it frees the stream on every stage.

use ring::head::Reply;
use sched::{Event, Finish};
use tokio::sync::watch;

use super::{Work, closed};
use crate::{ApiError, Ending, Piece, Transcript};

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

pub(super) struct Source {
    reply: Reply,
    transcript: Transcript,
    closing: watch::Receiver<bool>,
    _work: Work,
}

impl Source {
    pub(super) fn new(reply: Reply, transcript: Transcript, work: Work) -> Self {
        Self { reply, transcript, closing: work.0.closing.subscribe(), _work: work }
    }

    /// The next step; none follows an end or a failure.
    pub(super) async fn step(&mut self) -> Step {
        loop {
            let event = tokio::select! {
                event = self.reply.next() => event,
                () = closed(&mut self.closing) => {
                    return Step::Failed(ApiError::Draining);
                }
            };
            return match event {
                Some(Event::Token { id, .. }) => match self.transcript.token(id) {
                    (piece, Some(ending)) => Step::End(piece, ending),
                    (piece, None) => Step::Piece(piece),
                },
                Some(Event::Done { finish: Finish::Cancelled, .. }) => {
                    Step::Failed(ApiError::Internal("the reply was cancelled".into()))
                }
                Some(Event::Done { finish, .. }) => {
                    let (piece, ending) = self.transcript.finish(finish);
                    Step::End(piece, ending)
                }
                Some(Event::Failed(failure)) => Step::Failed(failure.into()),
                Some(_) => continue,
                None => Step::Failed(ApiError::RingFailed("rank 0 has stopped".into())),
            };
        }
    }
}
