//! A reply as server-sent events.
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
use serde_json::Value;

use super::source::{Source, Step};
use crate::{Piece, Shape};

/// The response whose first step is known already.
pub(super) fn respond(shape: Shape, source: Source, first: Step) -> Response {
    let opening = shape.opening();
    let state = State { shape, source, opening, first: Some(first) };
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Body::new(Events::from(state))).into_response()
}

struct State {
    shape: Shape,
    source: Source,
    opening: Option<Value>,
    first: Option<Step>,
}

impl State {
    /// The next bytes, and what is left; nothing is after the end.
    async fn advance(mut self) -> (Bytes, Option<Self>) {
        let mut out = Vec::new();
        if let Some(opening) = self.opening.take() {
            push(&mut out, &opening);
        }
        loop {
            let step = match self.first.take() {
                Some(step) => step,
                None => self.source.step().await,
            };
            match step {
                Step::Piece(piece) => {
                    if !piece.text.is_empty() {
                        push(&mut out, &self.shape.piece(piece));
                    }
                    if !out.is_empty() {
                        return (out.into(), Some(self));
                    }
                }
                Step::End(mut piece, ending) => {
                    let mut ids = std::mem::take(&mut piece.ids);
                    if !piece.text.is_empty() {
                        let ids = std::mem::take(&mut ids);
                        push(&mut out, &self.shape.piece(Piece { ids, ..piece }));
                    }
                    for chunk in self.shape.closing(ids, ending) {
                        push(&mut out, &chunk);
                    }
                    out.extend_from_slice(b"data: [DONE]\n\n");
                    return (out.into(), None);
                }
                Step::Failed(error) => {
                    push(&mut out, &error.body());
                    return (out.into(), None);
                }
            }
        }
    }
}

fn push(out: &mut Vec<u8>, event: &Value) {
    out.extend_from_slice(format!("data: {event}\n\n").as_bytes());
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
