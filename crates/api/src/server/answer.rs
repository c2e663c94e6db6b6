//! One request: body, prompt, submission, reply.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::body::Body as _;
use ring::head::Reply;

use super::source::{Source, Step};
use super::{Shared, events, since_epoch};
use crate::{ApiError, Asked, Ending, Endpoint, Limits, Piece, Prompt, Shape, Transcript};

/// How often a request that waits for its verdict looks whether the ring still stands.
const STATE_POLL: Duration = Duration::from_millis(100);

/// Answers a request. Headers go out only when the first token is known, so that whatever fails
/// before it has a status of its own.
pub(super) async fn answer(
    shared: Arc<Shared>,
    endpoint: Endpoint,
    body: Body,
) -> Result<Response, ApiError> {
    let body = read_body(body, &shared.app.limits).await?;
    let work = shared.begin()?;
    let (asked, request) = prepare(&shared, endpoint, body).await?;
    let prompt_tokens = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
    let reply = submit(&shared, endpoint, request).await?;

    let id = format!("{:x}{:06x}", shared.started_ns, reply.id().0);
    let model = &shared.app.model_name;
    let shape = Shape::new(&asked, &id, since_epoch().as_secs(), model, prompt_tokens);
    let transcript = Transcript::new(&shared.app.text, asked.options.stop);
    let mut source = Source::new(reply, transcript, work);
    let first = match source.step().await {
        Step::Failed(error) => return Err(error),
        first => first,
    };
    if asked.options.stream {
        return Ok(events::respond(shape, source, first));
    }
    let (piece, ending) = collect(source, first).await?;
    Ok(Json(shape.whole(piece, ending)).into_response())
}

/// The whole body, within its limits.
async fn read_body(body: Body, limits: &Limits) -> Result<Vec<u8>, ApiError> {
    let limit = limits.body_bytes_max;
    let too_large = ApiError::BodyTooLarge { limit };
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large);
    }
    let mut body = pin!(body);
    let whole = async {
        let mut bytes = Vec::new();
        while let Some(frame) = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            let frame = frame.map_err(|e| ApiError::BodyBroken(e.to_string()))?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if data.len() > limit - bytes.len() {
                return Err(too_large);
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes)
    };
    match tokio::time::timeout(limits.body_timeout(), whole).await {
        Ok(whole) => whole,
        Err(_) => Err(ApiError::BodyTimeout { limit_ms: limits.body_timeout_ms }),
    }
}

/// Body to scheduler's request; a long one off the network threads, a few at a time.
async fn prepare(
    shared: &Arc<Shared>,
    endpoint: Endpoint,
    body: Vec<u8>,
) -> Result<(Asked, sched::Request), ApiError> {
    let defect = |e: &dyn std::fmt::Display| ApiError::Internal(format!("tokenising failed: {e}"));
    let long = body.len() > shared.app.limits.inline_bytes_max;
    let prepare = {
        let shared = shared.clone();
        move || {
            let app = &shared.app;
            let mut asked = Asked::read(endpoint, &body, &app.limits)?;
            let context_max = app.handle.facts().context_max;
            let tokens = asked.encode(&app.text, context_max)?;
            let request = asked.schedule(tokens, context_max, &app.text)?;
            // From here on the tokens are all that is needed of it.
            asked.prompt = Prompt::Ids(Vec::new());
            Ok((asked, request))
        }
    };
    if !long {
        return prepare();
    }
    let permit = shared.tokenising.clone().acquire_owned().await;
    let permit = permit.map_err(|e| defect(&e))?;
    let task = tokio::task::spawn_blocking(move || {
        let prepared = prepare();
        drop(permit);
        prepared
    });
    task.await.map_err(|e| defect(&e))?
}

/// Submits; gives up, and cancels, when the ring breaks before the verdict.
async fn submit(
    shared: &Shared,
    endpoint: Endpoint,
    request: sched::Request,
) -> Result<Reply, ApiError> {
    let mut verdict = pin!(shared.app.handle.submit(request));
    loop {
        match tokio::time::timeout(STATE_POLL, verdict.as_mut()).await {
            Ok(verdict) => {
                return verdict.map_err(|r| ApiError::refused(r, endpoint.prompt_param()));
            }
            Err(_) => {
                if let Some(refusal) = shared.app.handle.refusal().and_then(ApiError::of_state) {
                    return Err(refusal);
                }
            }
        }
    }
}

async fn collect(mut source: Source, first: Step) -> Result<(Piece, Ending), ApiError> {
    let mut whole = Piece::default();
    let mut step = first;
    loop {
        let (piece, ending) = match step {
            Step::Piece(piece) => (piece, None),
            Step::End(piece, ending) => (piece, Some(ending)),
            Step::Failed(error) => return Err(error),
        };
        whole.text.push_str(&piece.text);
        whole.ids.extend(piece.ids);
        match ending {
            Some(ending) => return Ok((whole, ending)),
            None => step = source.step().await,
        }
    }
}
