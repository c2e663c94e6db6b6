//! One request: body, prompt, submission, reply.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::body::Body as _;
use ring::head::{Reply, RingState};
use text::Text;

use super::guard::Owner;
use super::source::{Echo, Source, Sources, Step};
use super::{Shared, events, since_epoch};
use crate::responses::Session;
use crate::{
    ApiError, Asked, Dialect, Ending, Endpoint, Limits, Manner, Meter, Piece, Place, Prompt, Shape,
    Transcript, messages, responses,
};

/// How often a request that waits for its verdict looks whether the ring still stands.
const STATE_POLL: Duration = Duration::from_millis(100);

/// Answers a request. Headers go out only when the first token is known, so that whatever fails
/// before it has a status of its own.
pub(super) async fn answer(
    shared: Arc<Shared>,
    endpoint: Endpoint,
    owner: &Owner,
    body: Body,
) -> Result<Response, ApiError> {
    let since = Instant::now();
    let body = read_body(body, &shared.app.limits).await?;
    let work = shared.begin(&owner.0)?;
    let name = owner.0.clone();
    let prepared = prepare(&shared, body.len(), move |shared| {
        let (asked, session) = read(shared, endpoint, &name, &body)?;
        Prepared::new(shared, asked, session)
    });
    let Prepared { asked, session, request, manner, echo } = prepared.await?;
    let prompt_tokens = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
    shared.metrics.prompt(&owner.0, prompt_tokens);
    let (mut sources, mut id) = (Vec::new(), None);
    for choice in 0..asked.options.draws.n {
        let mut request = request.clone();
        request.sampling.seed = request.sampling.seed.wrapping_add(u64::from(choice));
        let reply = submit(&shared, endpoint, request).await?;
        id.get_or_insert(reply.id().0);
        let stop = asked.options.stop.clone();
        let transcript = Transcript::new(&shared.app.text, stop, manner.clone());
        sources.push(Source::new(reply, transcript, Meter::new(since), echo.clone()));
    }
    let id = format!("{:x}{:06x}", shared.started_ns, id.unwrap_or_default());
    let (app, now) = (&shared.app, since_epoch().as_secs());
    let name = &app.model_name;
    let facts = app.handle.facts();
    let place = || Place { layout: facts.layout.clone(), arith: facts.arith(&app.arith) };
    let mut dialect: Box<dyn Dialect> = match (endpoint, session) {
        (Endpoint::Response, Some(session)) => {
            let (store, born) = (shared.responses.clone(), (id.as_str(), now));
            let writer = responses::Writer::new(&asked, session, store, born, name, prompt_tokens);
            Box::new(writer.at(place()))
        }
        (Endpoint::Message, _) => {
            Box::new(messages::Writer::new(&asked, &id, name, prompt_tokens).at(place()))
        }
        _ => Box::new(Shape::new(&asked, &app.text, &id, now, name, prompt_tokens).at(place())),
    };
    let mut sources = Sources::new(sources, work);
    let first = match sources.step().await {
        Some((_, Step::Failed(error))) => return Err(error),
        Some(first) => first,
        None => return Err(ApiError::Internal("no reply was asked for".into())),
    };
    if asked.options.stream {
        return Ok(events::respond(dialect, sources, first));
    }
    let choices = collect(sources, first, asked.options.draws.n as usize).await?;
    Ok(Json(dialect.whole(choices)).into_response())
}

/// A body in its endpoint's form, as a chat or completion.
pub(super) fn read(
    shared: &Shared,
    endpoint: Endpoint,
    owner: &str,
    body: &[u8],
) -> Result<(Asked, Option<Session>), ApiError> {
    let limits = &shared.app.limits;
    let body = crate::request::parse(body, limits)?;
    let (body, session) = match endpoint {
        Endpoint::Response => {
            let (body, session) = responses::read(&body, owner, &shared.responses)?;
            (body, Some(session))
        }
        Endpoint::Message => (messages::read(&body, limits, false)?, None),
        Endpoint::Chat | Endpoint::Completion => (body, None),
    };
    let mut asked = Asked::of(endpoint, &body, limits)?;
    if !matches!(endpoint, Endpoint::Chat | Endpoint::Completion) {
        asked.options.draws.n = 1;
    }
    Ok((asked, session))
}

/// What the ring gets, and what its tokens are read with.
struct Prepared {
    asked: Asked,
    session: Option<Session>,
    request: sched::Request,
    manner: Manner,
    echo: Option<Echo>,
}

impl Prepared {
    fn new(shared: &Shared, mut asked: Asked, session: Option<Session>) -> Result<Self, ApiError> {
        let app = &shared.app;
        let context_max = app.handle.facts().context_max;
        let (tokens, manner) = asked.encode(&app.text, context_max)?;
        let echo = asked.options.draws.echo.then(|| Echo {
            text: said(&app.text, &tokens),
            ids: tokens.clone(),
            alone: asked.options.max_tokens == Some(0),
        });
        let mut request = asked.schedule(tokens, context_max, &app.text)?;
        request.guide.grammar = asked.grammar(&app.text, &manner, || shared.grammars())?;
        // From here on the tokens are all that is needed of it.
        asked.prompt = Prompt::Ids(Vec::new());
        Ok(Self { asked, session, request, manner, echo })
    }
}

/// The text of some tokens.
pub(super) fn said(text: &Text, ids: &[u32]) -> String {
    let mut detokenizer = text.detokenizer();
    let mut said: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
    said.push_str(&detokenizer.finish());
    said
}

/// The whole body, within its limits.
pub(super) async fn read_body(body: Body, limits: &Limits) -> Result<Vec<u8>, ApiError> {
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
pub(super) async fn prepare<T: Send + 'static>(
    shared: &Arc<Shared>,
    body_bytes: usize,
    work: impl FnOnce(&Shared) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let defect = |e: &dyn std::fmt::Display| ApiError::Internal(format!("tokenising failed: {e}"));
    if body_bytes <= shared.app.limits.inline_bytes_max {
        // A grammar may take long whatever its length: the other network thread goes on.
        return tokio::task::block_in_place(|| work(shared));
    }
    let permit = shared.tokenising.clone().acquire_owned().await;
    let permit = permit.map_err(|e| defect(&e))?;
    let shared = shared.clone();
    let task = tokio::task::spawn_blocking(move || {
        let prepared = work(&shared);
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
                return verdict.map_err(|refusal| match shared.app.handle.state() {
                    // It began to drain on the request's way to the ring.
                    RingState::Draining => ApiError::Draining,
                    _ => ApiError::refused(refusal, endpoint.prompt_param()),
                });
            }
            Err(_) => {
                if let Some(refusal) = shared.app.handle.refusal().and_then(ApiError::of_state) {
                    return Err(refusal);
                }
            }
        }
    }
}

async fn collect(
    mut sources: Sources,
    first: (usize, Step),
    count: usize,
) -> Result<Vec<(Piece, Ending)>, ApiError> {
    let mut wholes = vec![Piece::default(); count];
    let mut endings = vec![None; count];
    let mut next = Some(first);
    while let Some((choice, step)) = next {
        match step {
            Step::Piece(piece) => wholes[choice].extend(piece),
            Step::End(piece, ending) => {
                wholes[choice].extend(piece);
                endings[choice] = Some(ending);
            }
            Step::Failed(error) => return Err(error),
        }
        next = sources.step().await;
    }
    let ended = |(whole, ending): (Piece, Option<Ending>)| {
        let ending = ending.ok_or_else(|| ApiError::Internal("a reply has no end".into()))?;
        Ok((whole, ending))
    };
    wholes.into_iter().zip(endings).map(ended).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::App;

    #[test]
    fn no_more_long_prompts_than_may_be_are_tokenised_at_once() {
        let (handle, _driver) = ring::head::pair();
        let app = App::new(handle, Arc::new(Text::byte_level()), "m");
        let (most, long) = (app.limits.tokenising_max, app.limits.inline_bytes_max + 1);
        let shared = Arc::new(Shared::new(app));
        let counts = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
        let work = || {
            let (shared, counts) = (shared.clone(), counts.clone());
            async move {
                let slow = move |_: &Shared| {
                    let (now, seen) = &*counts;
                    seen.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(5));
                    now.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                };
                prepare(&shared, long, slow).await
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut all = tokio::task::JoinSet::new();
            for _ in 0..4 * most {
                all.spawn(work());
            }
            while let Some(done) = all.join_next().await {
                done.unwrap().unwrap();
            }
        });
        assert_eq!(counts.1.load(Ordering::SeqCst), most);
    }
}
