//! Replies as server-sent events.
//!
//! The body is pulled: the connection asks for the next event only when it has room, so a slow
//! client holds back nothing but its own reply, and a dropped connection drops the reply.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;

use super::source::{Sources, Step};
use crate::{Dialect, Sse};

/// The response whose first step is known already.
pub(super) fn respond(
    mut dialect: Box<dyn Dialect>,
    sources: Sources,
    first: (usize, Step),
) -> Response {
    let opening = dialect.opening();
    let state = State { dialect, sources, opening, first: Some(first) };
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Body::new(Events::from(state))).into_response()
}

struct State {
    dialect: Box<dyn Dialect>,
    sources: Sources,
    opening: Vec<Sse>,
    first: Option<(usize, Step)>,
}

impl State {
    /// The next bytes, and what is left; nothing is after the end.
    async fn advance(mut self) -> (Bytes, Option<Self>) {
        let mut out = Vec::new();
        push(&mut out, std::mem::take(&mut self.opening));
        loop {
            let step = match self.first.take() {
                Some(step) => Some(step),
                None => self.sources.step().await,
            };
            let Some((choice, step)) = step else {
                push(&mut out, self.dialect.end());
                out.extend_from_slice(self.dialect.last().as_bytes());
                return (out.into(), None);
            };
            match step {
                Step::Piece(piece) => {
                    if !piece.parts.is_empty() {
                        push(&mut out, self.dialect.piece(choice, piece));
                    }
                    if !out.is_empty() {
                        return (out.into(), Some(self));
                    }
                }
                Step::End(piece, ending) => {
                    push(&mut out, self.dialect.closing(choice, piece, ending));
                }
                Step::Failed(error) => {
                    push(&mut out, self.dialect.failed(&error));
                    return (out.into(), None);
                }
            }
        }
    }
}

fn push(out: &mut Vec<u8>, events: Vec<Sse>) {
    for Sse { event, data } in events {
        if let Some(event) = event {
            out.extend_from_slice(format!("event: {event}\n").as_bytes());
        }
        out.extend_from_slice(format!("data: {data}\n\n").as_bytes());
    }
}

type Advance = Pin<Box<dyn Future<Output = (Bytes, Option<State>)> + Send>>;

/// The body: at most one step in flight.
struct Events {
    next: Option<Advance>,
}

impl From<State> for Events {
    fn from(state: State) -> Self {
        Self { next: Some(Box::pin(state.advance())) }
    }
}

impl hyper::body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(advance) = &mut self.next else {
            return Poll::Ready(None);
        };
        let (bytes, state) = ready!(advance.as_mut().poll(cx));
        self.next = state.map(|state| Box::pin(state.advance()) as Advance);
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }
}
